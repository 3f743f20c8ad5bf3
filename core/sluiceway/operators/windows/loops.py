"""The loop that puts records into slices, generated for what is asked of it, so that nothing is paid for the rest.

It is one loop in several forms: keys come with the batch or are computed, slices are counted from the epoch or
from an offset, records are added to an accumulator or reduced. Measured, each question that is not asked for
every record makes the step some percent faster.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import cache
from typing import Any

from sluiceway.faults import MISSING, record_loop
from sluiceway.keygroups import stable_hash

__all__ = ["slicing_loop"]

# A look-up by the slice's number costs less than to ask whether the timestamp is still in the last slice, because
# Python compares numbers of that size slowly. Nothing is called inside "except": it would show in a traceback.
_TEXT = """\
def loop(self, values, stamps, keys, slices, place, key_of, first, add, missing=missing):
    for {names} in zip({lists}):
        {key}
        try:
            entries = slices[{number}]
        except KeyError:
            entries = None
        if entries is None:
            entries = place({number}, key, value, timestamp)
            if entries is None:
                continue
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


@cache
def slicing_loop(width: int, offset: int, *, with_keys: bool, aggregate: bool) -> Callable[..., None]:
    """The loop for slices of one width.

    Args:
        width: how long a slice is, in ms.
        offset: where slice 0 begins.
        with_keys: whether batches come with their keys.
        aggregate: whether records are added to accumulators, else reduced.

    Returns:
        ``loop(operator, values, stamps, keys, slices, place, key_of, first, add)``. ``slices`` are the open ones
        by number, each a mapping from key to accumulator; ``place(number, key, value, timestamp)`` is asked for
        another one, and returns None when it has seen to the record itself. ``first()`` makes an accumulator,
        ``add`` is the aggregate's ``add(value, accumulator)`` or the reduction's ``reduce(reduced, value)``.
    """
    text = _TEXT.format(
        names="value, timestamp, key" if with_keys else "value, timestamp",
        lists="values, stamps, keys" if with_keys else "values, stamps",
        key="" if with_keys else "key = key_of(value)",
        number=f"(timestamp - {offset}) // {width}" if offset else f"timestamp // {width}",
        first="add(value, first())" if aggregate else "value",
        next="add(value, held)" if aggregate else "add(held, value)",
    )
    filename = f"<sluiceway: slices of {width} ms{', keys' * with_keys}{', aggregated' * aggregate}, {offset}>"
    # A debugger that steps into the loop is shown its text.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    stable = frozenset({str, int, bytes, bool, type(None)})  # such keys need no check of their hash
    scope: dict[str, Any] = {"missing": MISSING, "stable": stable, "stable_hash": stable_hash}
    exec(compile(text, filename, "exec"), scope)
    loop: Callable[..., None] = record_loop(scope["loop"])
    return loop
