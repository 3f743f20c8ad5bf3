"""Generated loop that adds records to slices.

It is one loop in several forms: keys come with the batch or are computed, slices are counted from the epoch or
from an offset, a function adds records or the inlined text of a built-in one does. Each test left out of the
loop made the step some percent faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import length_hint
from textwrap import indent
from typing import Literal

from sluiceway.operators.folds import Text, made_of

__all__ = ["slicing_loop"]

_HEAD = "def loop(self, values, stamps, keys, slices, place, key_of, first, add, missing=missing):\n"

# The entry is assigned also where it was changed in place: a backend outside memory sees only assignments.
_BODY = """\
{key}{slice}try:
    held = entries.get(key, missing)
except TypeError:
    stable_hash(key)  # says which key is unhashable
    raise
if held is missing:
    if type(key) not in stable:
        stable_hash(key)
    entries[key] = {first}
else:
{next}    entries[key] = held
"""

# By number, because Python compares numbers of the size of timestamps slowly. Nothing is called inside "except":
# that would show in a traceback.
_SLICE = {
    "any": """\
try:
    entries = slices[{number}]
except KeyError:
    entries = None
if entries is None:
    entries = place({number}, key, value, timestamp)
    if entries is None:
        continue
""",
    "two": "entries = older if timestamp < boundary else newer\n",
    "few": "entries = row[(timestamp - start) // {width}]\n",
    "one": "",
}

_AROUND = {
    "any": """\
    for {names} in {lists}:
{body}""",
    "two": """\
    older, newer, boundary = slices
    for {names} in {lists}:
{body}""",
    "few": """\
    start, row = slices
    for {names} in {lists}:
{body}""",
    # The timestamp is used only by the message of an error.
    "one": """\
    entries, = slices
    left = iter(values)
    try:
        for {names} in {lists}:
{body}    except Exception:
        timestamp = stamps[len(values) - length_hint(left) - 1]
        raise
""",
}


@cache
def slicing_loop(
    width: int,
    offset: int,
    *,
    with_keys: bool,
    text: Text,
    slices: Literal["any", "one", "two", "few"] = "any",
) -> Callable[..., None]:
    """Return the loop for slices of one width.

    Args:
        width: length of a slice, in ms.
        offset: start of slice 0, in ms.
        with_keys: whether batches bring their keys.
        text: source text of the fold.
        slices: in how many slices the records lie.

    Returns:
        ``loop(operator, values, stamps, keys, slices, place, key_of, first, add)``. ``slices`` are the open ones
        by number, each a mapping from key to accumulator; ``place(number, key, value, timestamp)`` is asked for
        another one, and returns None when it has seen to the record itself. For records in one slice it is that
        slice alone, in a list; for two it is the older, the newer, and the start of the newer; for a few it is
        the start of the first, and a list of them all. ``first`` and ``add`` are what the
        text calls so.
    """
    columns = {"value": "left"} if slices == "one" else {"value": "values", "timestamp": "stamps"}
    if with_keys:
        columns["key"] = "keys"
    lists = ", ".join(columns.values())
    number = f"(timestamp - {offset}) // {width}" if offset else f"timestamp // {width}"
    body = _BODY.format(
        key="" if with_keys else "key = key_of(value)\n",
        slice=_SLICE[slices].format(number=number, width=width),
        first=text.first,
        next=indent(text.next, "    "),
    )
    source = _HEAD + _AROUND[slices].format(
        names=", ".join(columns),
        lists=lists if len(columns) == 1 else f"zip({lists})",
        body=indent(body, " " * (12 if slices == "one" else 8)),
    )
    forms = [
        f"{offset} + n * {width} ms",
        *["keys"] * with_keys,
        text.first,
        text.next.strip().replace("\n", "; "),
        slices,
    ]
    filename = f"<sluiceway: slices, {', '.join(forms)}>"
    return made_of(filename, source, length_hint=length_hint)
