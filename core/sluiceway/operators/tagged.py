"""Records for side outputs that a function yields as pairs of tag and record, as in Flink's Python API."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from sluiceway.functions import OutputTag
from sluiceway.operators.process_context import Results, Sides
from sluiceway.operators.results import is_one_record

__all__ = ["may_yield_tags", "splitting", "take_tagged"]


def may_yield_tags(*functions: object) -> bool:
    """Return whether any of the functions, or an object that it calls or holds, refers to an OutputTag.

    Only the results of such functions are searched for tags.
    """
    seen: set[int] = set()
    return any(_mentions(function, seen) for function in functions)


def _mentions(given: Any, seen: set[int]) -> bool:
    if isinstance(given, OutputTag) or given is OutputTag:
        return True
    if id(given) in seen:
        return False
    seen.add(id(given))
    if len(seen) > _MANY:
        return True
    if isinstance(given, MethodType):
        return _mentions(given.__func__, seen) or _mentions(given.__self__, seen)
    if isinstance(given, FunctionType):
        return any(_mentions(found, seen) for found in _of_function(given))
    # Python's own containers only: iterating over others may run user code.
    if type(given) is dict:
        return any(isinstance(held, OutputTag) for held in islice(chain(given, given.values()), _MANY))
    if type(given) in (list, tuple, set, frozenset):
        return any(isinstance(held, OutputTag) for held in islice(given, _MANY))
    kind = given if isinstance(given, type) else type(given)
    held: Iterable[Any] = () if given is kind else _attributes(given).values()
    bases = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in _NO_USERS]
    return any(_mentions(found, seen) for found in chain(held, *(vars(base).values() for base in bases)))


def _attributes(given: object) -> dict[str, Any]:
    try:
        found = object.__getattribute__(given, "__dict__")  # without running code of its class
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


_NO_USERS: Final = frozenset({*sys.stdlib_module_names, "sluiceway"})
"""Packages whose classes never refer to a user's tags, though their objects may."""

_MANY: Final = 5000
"""Largest number of objects to search before a tag is assumed."""


def _of_function(function: FunctionType) -> Iterator[Any]:
    """Return the objects that a function refers to: globals, module attributes, enclosing variables, defaults."""
    names = {*_names(function.__code__)}
    if "OutputTag" in names:
        yield OutputTag
    for name in names:
        found = function.__globals__.get(name)
        if isinstance(found, ModuleType):
            yield from (vars(found).get(attribute) for attribute in names)
        else:
            yield found
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            continue
    yield from function.__defaults__ or ()


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def take_tagged(results: Results, sides: Sides, *, stamped: bool) -> None:
    """Move pairs of tag and record from the results of a batch to its side outputs."""
    values, stamps = results.values, results.stamps
    if tuple not in set(map(type, values)):
        return
    # Inlined: a call for each record would double the time.
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
    """Return ``call`` with its pairs of tag and record sent to ``output``; for functions not called per record."""

    def split(*args: Any) -> Any:
        returned = call(*args)
        if returned is None or is_one_record(returned) or not isinstance(returned, Iterable):
            return returned
        results = []
        for value in returned:
            if _is_tagged(value):
                output(*value)
            else:
                results.append(value)
        return results

    return split


def _is_tagged(value: Any) -> bool:
    return type(value) is tuple and len(value) == 2 and isinstance(value[0], OutputTag)
