"""The loop that puts records into slices, generated for what is asked of it, so that nothing is paid for the rest.

It is one loop in several forms: keys come with the batch or are computed, slices are counted from the epoch or
from an offset, records are added to an accumulator or reduced. Measured, each question that is not asked for
every record makes the step some percent faster.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from sluiceway.faults import MISSING, record_loop
from sluiceway.keygroups import stable_hash

__all__ = ["slicing_loop"]

_LOOP = """\
def loop(self, values, stamps, keys, slices, place, key_of, first, add, missing=missing):
{before}
    for {names} in zip({lists}):
        {key}
{slice}
        try:
            held = entries.get(key, missing)
        except TypeError:
            stable_hash(key)  # says which key is unhashable
            raise
        if held is missing:
            if type(key) not in stable:
                stable_hash(key)
            entries[key] = {first}
        else:
            entries[key] = {next}
"""

# By number, because Python compares numbers of the size of timestamps slowly. Nothing is called inside "except":
# that would show in a traceback.
_ANY = """\
        try:
            entries = slices[{number}]
        except KeyError:
            entries = None
        if entries is None:
            entries = place({number}, key, value, timestamp)
            if entries is None:
                continue
"""

_BEFORE = {
    "any": "",
    "one": "    entries, = slices",
    "two": "    older, newer, boundary = slices",
}

_SLICE = {
    "any": _ANY,
    "one": "",
    "two": "        entries = older if timestamp < boundary else newer",
}


@cache
def slicing_loop(
    width: int, offset: int, *, with_keys: bool, aggregate: bool, slices: Literal["any", "one", "two"] = "any"
) -> Callable[..., None]:
    """The loop for slices of one width.

    Args:
        width: how long a slice is, in ms.
        offset: where slice 0 begins.
        with_keys: whether batches come with their keys.
        aggregate: whether records are added to accumulators, else reduced.
        slices: in how many slices the records lie.

    Returns:
        ``loop(operator, values, stamps, keys, slices, place, key_of, first, add)``. ``slices`` are the open ones
        by number, each a mapping from key to accumulator; ``place(number, key, value, timestamp)`` is asked for
        another one, and returns None when it has seen to the record itself. For records in one slice it is that
        slice alone, in a tuple; for two it is the older, the newer, and the start of the newer. ``first()`` makes
        an accumulator; ``add`` is ``add(value, accumulator)`` or ``reduce(reduced, value)``.
    """
    number = f"(timestamp - {offset}) // {width}" if offset else f"timestamp // {width}"
    text = _LOOP.format(
        before=_BEFORE[slices],
        slice=_SLICE[slices].format(number=number),
        names="value, timestamp, key" if with_keys else "value, timestamp",
        lists="values, stamps, keys" if with_keys else "values, stamps",
        key="" if with_keys else "key = key_of(value)",
        first="add(value, first())" if aggregate else "value",
        next="add(value, held)" if aggregate else "add(held, value)",
    )
    forms = [f"{offset} + n * {width} ms", *["keys"] * with_keys, *["aggregated"] * aggregate, slices]
    filename = f"<sluiceway: slices, {', '.join(forms)}>"
    # A debugger that steps into the loop is shown its text.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    stable = frozenset({str, int, bytes, bool, type(None)})  # such keys need no check of their hash
    scope: dict[str, Any] = {"missing": MISSING, "stable": stable, "stable_hash": stable_hash}
    exec(compile(text, filename, "exec"), scope)
    loop: Callable[..., None] = record_loop(scope["loop"])
    return loop
