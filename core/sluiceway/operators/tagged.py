"""Records for side outputs that a function yields as pairs of tag and record, as in Flink's Python API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import filterfalse
from typing import Any

from sluiceway.functions import OutputTag
from sluiceway.functions.base import output_tags_exist
from sluiceway.operators.process_context import Results, Sides
from sluiceway.operators.results import is_one_record

__all__ = ["splitting", "take_tagged"]


def take_tagged(results: Results, sides: Sides, *, stamped: bool) -> None:
    """Move pairs of tag and record from the results of a batch to its side outputs."""
    values, stamps = results.values, results.stamps
    if not output_tags_exist() or tuple not in set(map(type, values)):
        return
    # Most functions yield no tag where another one does: the kinds of first elements are found in half the time.
    firsts = {type(value[0]) for value in values if type(value) is tuple and value}
    if not any(issubclass(kind, OutputTag) for kind in firsts):
        return
    tagged = {
        index
        for index, value in enumerate(values)
        if type(value) is tuple and len(value) == 2 and isinstance(value[0], OutputTag)
    }
    if not tagged:
        return
    for index in sorted(tagged):
        tag, value = values[index]
        to = sides.setdefault(tag.name, ([], []))
        to[0].append(value)
        to[1].append(stamps[index] if stamped else None)
    results.values = [value for index, value in enumerate(values) if index not in tagged]
    results.stamps = [stamp for index, stamp in enumerate(stamps) if index not in tagged]


def splitting(call: Callable[..., Any], output: Callable[[OutputTag[Any], Any], None]) -> Callable[..., Any]:
    """Return ``call`` with its pairs of tag and record sent to ``output``; for functions not called per record.

    What it returns is to be read at once, while the function's key and window are the current ones.
    """

    def divert(value: Any) -> bool:
        if not _is_tagged(value):
            return False
        output(*value)
        return True

    def split(*args: Any) -> Any:
        returned = call(*args)
        if returned is None or is_one_record(returned) or not isinstance(returned, Iterable):
            return returned
        if type(returned) is list and not (output_tags_exist() and any(map(_is_tagged, returned))):
            return returned
        # One by one, never in a list: a generator may change a record after it has yielded it, and may make the
        # first tag of the program.
        return filterfalse(divert, returned)

    return split


def _is_tagged(value: Any) -> bool:
    return type(value) is tuple and len(value) == 2 and isinstance(value[0], OutputTag)
