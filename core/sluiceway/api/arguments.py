"""Checks of arguments of the API, made at the call so that the error names the user's line."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

from sluiceway.api.location import caller_location
from sluiceway.config.settings import duration_ms
from sluiceway.functions import (
    AggregateFunction,
    AllWindowFunction,
    AsyncFunction,
    BatchProcessFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatJoinFunction,
    FlatMapFunction,
    Function,
    FunctionObject,
    JoinFunction,
    KeyedBatchProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from sluiceway.util.name_hints import snake
from sluiceway.util.surrogates import encodable

__all__ = [
    "check_arity",
    "check_count",
    "check_function",
    "check_methods",
    "check_text",
    "describe",
    "is_field",
    "to_ms",
]

_KINDS: tuple[type, ...] = (
    ProcessWindowFunction,
    WindowFunction,
    ProcessAllWindowFunction,
    AllWindowFunction,
    JoinFunction,
    FlatJoinFunction,
    ProcessJoinFunction,
    CoGroupFunction,
    CoMapFunction,
    CoFlatMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    MapFunction,
    FlatMapFunction,
    FilterFunction,
    KeySelector,
    ReduceFunction,
    AggregateFunction,
    ProcessFunction,
    KeyedProcessFunction,
    BatchProcessFunction,
    KeyedBatchProcessFunction,
    AsyncFunction,
)

_BELONGS = {
    "KeyedProcessFunction": "key_by(...).process()",
    "KeyedBatchProcessFunction": "key_by(...).process()",
    "ProcessWindowFunction": "key_by(...).window(...).process()",
    "WindowFunction": "key_by(...).window(...).apply()",
    "ProcessAllWindowFunction": "window_all(...).process()",
    "AllWindowFunction": "window_all(...).apply()",
    "AsyncFunction": "async_map()",
    "CoMapFunction": "connect(other).map()",
    "CoFlatMapFunction": "connect(other).flat_map()",
    "CoProcessFunction": "connect(other).process()",
    "KeyedCoProcessFunction": "connect(other).process() of keyed streams",
    "BroadcastProcessFunction": "connect(other.broadcast(descriptor)).process()",
    "KeyedBroadcastProcessFunction": "key_by(key).connect(other.broadcast(descriptor)).process()",
}

_TRUE = "whose generators are true for every record; it takes a function that returns whether to keep a record"
_NO_GENERATORS = {
    "filter": _TRUE,
    "branch": _TRUE,
    "inspect": "whose code a call does not run; it takes a plain function",
}
"""Steps to which a generator function would do nothing, and why."""

_COLLECTORS = frozenset(
    {"out", "collector", "result_future", "resultFuture"}
)  # parameters of Flink's methods in Java


def describe(value: object) -> str:
    """Return a short representation of a value with its type, for messages."""
    text = repr(value)
    if len(text) > 60:
        text = text[:57] + "..."
    return f"{text} ({type(value).__name__})"


def _at(location: str) -> str:
    return f" at {location}" if location else ""


def check_function(
    step: str, fn: object, allowed: tuple[type, ...], arguments: int, *, objects_only: bool = False
) -> None:
    """Raise TypeError unless ``fn`` can be the function of a step.

    Args:
        step: the step's word, for the message.
        fn: what the user gave.
        allowed: the kinds of function object that the step takes.
        arguments: how many positional arguments a plain callable will be called with.
        objects_only: whether a plain callable will not do.
    """
    where = f"{step}(){_at(caller_location())}"
    if isinstance(fn, allowed):
        if isinstance(fn, KeySelector) and isinstance(fn, FunctionObject):
            raise TypeError(
                f"{where}: {type(fn).__name__} computes keys for all subtasks, on both sides of the exchange, so "
                "it is never opened and has no state: derive it from KeySelector alone"
            )
        check_methods(where, fn)
        return
    kinds = " or ".join(kind.__name__ for kind in allowed)
    named = " or ".join(f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}" for kind in allowed)
    wanted = named if objects_only else f"a callable or {named}" if named else "a callable"
    if isinstance(fn, type) and issubclass(fn, _KINDS):
        raise TypeError(f"{where} was given the class {fn.__name__}; give it an object: {fn.__name__}(...)")
    if isinstance(fn, _KINDS):
        kind = next(k.__name__ for k in _KINDS if isinstance(fn, k))
        hint = f", for {_BELONGS[kind]}" if kind in _BELONGS else ""
        raise TypeError(f"{where} takes {wanted}; {type(fn).__name__} is a {kind}{hint}")
    if objects_only or not callable(fn):
        raise TypeError(f"{where} takes {wanted}, not {describe(fn)}")
    if isinstance(fn, Function):
        fitting = (
            f": derive it from {kinds}" if kinds else ", which nobody would open here: give it a plain callable"
        )
        raise TypeError(f"{where} takes {wanted}; {type(fn).__name__} is a Function of no such kind{fitting}")
    called = type(fn).__call__  # of an object that is no function
    if any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in (fn, called)):
        raise TypeError(
            f"{where} was given the async function {_name(fn)}; it takes a plain function; "
            "what has to be awaited goes into async_map()"
        )
    if step in _NO_GENERATORS and any(map(inspect.isgeneratorfunction, (fn, called))):
        raise TypeError(f"{where} was given the generator function {_name(fn)}, {_NO_GENERATORS[step]}")
    check_arity(where, fn, arguments)


def _name(fn: object) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__name__)


def check_arity(where: str, fn: Any, arguments: int) -> None:
    """Raise TypeError unless ``fn`` can be called with this number of positional arguments."""
    try:
        signature = inspect.signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):  # many built-ins have no signature
        return
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        count = "1 argument" if arguments == 1 else f"{arguments} arguments"
        raise TypeError(
            f"{where} calls its function with {count}, but {_name(fn)}{signature} cannot be called so"
        ) from None


def check_methods(where: str, fn: object) -> None:
    """Raise TypeError if a function object has a method that cannot be called, or never will be, as it is written.

    Args:
        where: the step's word and the user's line, for the message.
        fn: an object of a class that derives from one or more kinds of function.
    """
    kind = type(fn)
    methods: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] == "sluiceway":
            for name, method in vars(base).items():
                if inspect.isfunction(method) and not name.startswith("_"):
                    methods.setdefault(name, method)
    for name, method in methods.items():
        if getattr(kind, name) is not method and callable(own := getattr(fn, name)):
            _check_method(where, f"{kind.__name__}.{name}", own, list(inspect.signature(method).parameters)[1:])
    for name in dir(kind):
        meant = snake(name)
        if meant != name and meant in methods and getattr(kind, meant) is methods[meant]:
            raise TypeError(f"{where}: {kind.__name__}.{name} is never called; the method is called {meant}")


def _check_method(where: str, called: str, method: Any, given: list[str]) -> None:
    try:
        # What calls with other arguments than the function that it wraps is called itself.
        signature = inspect.signature(method, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*given)
    except TypeError:
        hint = ""
        if any(name in _COLLECTORS for name in signature.parameters):
            hint = ". There is no collector: yield the results, or return a list of them"
        raise TypeError(
            f"{where} calls {called}({', '.join(given)}), but {called}{signature} cannot be called so{hint}"
        ) from None


def check_count(what: str, value: object, *, maximum: int | None = None) -> int:
    """Return ``value`` if it is an int from 1 to ``maximum``. Raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what}{_at(caller_location())} takes an int, not {describe(value)}")
    if value < 1 or (maximum is not None and value > maximum):
        bound = "at least 1" if maximum is None else f"from 1 to {maximum}"
        raise ValueError(f"{what}{_at(caller_location())} must be {bound}, not {value}")
    return value


def check_text(what: str, value: object) -> str:
    """Return ``value`` if it is a str that is not blank and can be written. Raises TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{what}{_at(caller_location())} takes a str, not {describe(value)}")
    if not value.strip():
        raise ValueError(f"{what}{_at(caller_location())} must not be empty")
    if encodable(value) != value:
        raise ValueError(f"{what}{_at(caller_location())}: {value!r:.100} has characters that UTF-8 does not have")
    return value


def to_ms(what: str, value: object) -> int:
    """Convert a buffer timeout to ms: a timedelta, an int of ms or a text such as ``"100ms"``; -1: no limit.

    Raises TypeError or ValueError.
    """
    if value == -1 and type(value) is int:
        return -1
    if isinstance(value, bool) or not isinstance(value, int | str | timedelta):
        raise TypeError(
            f"{what}{_at(caller_location())} takes a timedelta or an int of milliseconds, not {describe(value)}"
        )
    try:
        return duration_ms(value)
    except ValueError as error:
        raise ValueError(f"{what}{_at(caller_location())}: {error}; -1 is for no limit") from None


def is_field(step: str, field: object) -> bool:
    """Return whether it is an index or a field name; False for a callable. Raises TypeError for anything else."""
    if isinstance(field, int | str) and not isinstance(field, bool):
        return True
    if not callable(field):
        raise TypeError(
            f"{step}() at {caller_location()} takes an index, the name of a key or attribute, or a callable, "
            f"not {describe(field)}"
        )
    check_function(step, field, (), 1)
    return False
