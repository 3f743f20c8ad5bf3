"""Function objects of steps that give a plain function the state of the key: ``map_with_state`` and its kin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, get_args, get_origin

from sluiceway.api.arguments import check_function
from sluiceway.errors import FunctionContractError
from sluiceway.functions import FilterFunction, FlatMapFunction, Function, MapFunction, RuntimeContext
from sluiceway.record_errors import shown
from sluiceway.state import ValueState, ValueStateDescriptor
from sluiceway.state.ttl import StateTtlConfig
from sluiceway.types import element_type, members, parameter_type, return_type, union_of

__all__ = [
    "FilterWithState",
    "FlatMapWithState",
    "MapWithState",
    "filter_with_state",
    "flat_map_with_state",
    "map_with_state",
]

T = TypeVar("T")
R = TypeVar("R")

STATE = "state"
"""Name of the state in checkpoints."""


class _WithState(Function):
    """Base of functions that store one value per key: None is no state.

    Args:
        fn: ``fn(record, state)``, which returns a pair of the result and the new state.
        descriptor: of the state.
        called: the method that users call, for messages.
    """

    def __init__(self, fn: Callable[[Any, Any], Any], descriptor: ValueStateDescriptor[Any], called: str) -> None:
        self._fn = fn
        self._descriptor = descriptor
        self._called = called

    def open(self, context: RuntimeContext) -> None:
        state: ValueState[Any] = context.get_state(self._descriptor)
        self._read, self._update, self._clear = state.value, state.update, state.clear

    def _call(self, value: Any) -> Any:
        returned = self._fn(value, self._read())
        if type(returned) is not tuple or len(returned) != 2:
            raise FunctionContractError(
                f"the function of {self._called}() must return a pair, its result and the new state of the key "
                f"(None: no state); for {shown(value, 100)} it returned {shown(returned, 100)} "
                f"({type(returned).__name__})"
            )
        result, new = returned
        if new is None:
            self._clear()
        else:
            self._update(new)
        return result


class MapWithState(_WithState, MapFunction[T, R], Generic[T, R]):
    """Function of ``map_with_state``, of records of type ``T`` and results of type ``R``."""

    map = _WithState._call  # no method that calls it: that would take a seventh more time


class FlatMapWithState(_WithState, FlatMapFunction[T, R], Generic[T, R]):
    """Function of ``flat_map_with_state``, of records of type ``T`` and results of type ``R``."""

    flat_map = _WithState._call


class FilterWithState(_WithState, FilterFunction[T], Generic[T]):
    """Function of ``filter_with_state``, of records of type ``T``."""

    filter = _WithState._call


def map_with_state(fn: Any, ttl: StateTtlConfig | None) -> MapWithState[Any, Any]:
    """Return the function object for a plain function; its types are those of the function's hints."""
    called = "map_with_state"
    check_function(called, fn, (), 2)
    made: MapWithState[Any, Any] = _typed(MapWithState, fn, _pair(fn)[0])(fn, _state_of(fn, ttl), called)
    return made


def flat_map_with_state(fn: Any, ttl: StateTtlConfig | None) -> FlatMapWithState[Any, Any]:
    """Return the function object for a plain function; its types are those of the function's hints."""
    called = "flat_map_with_state"
    check_function(called, fn, (), 2)
    result = element_type(_pair(fn)[0])
    made: FlatMapWithState[Any, Any] = _typed(FlatMapWithState, fn, result)(fn, _state_of(fn, ttl), called)
    return made


def filter_with_state(fn: Any, ttl: StateTtlConfig | None) -> FilterWithState[Any]:
    """Return the function object for a plain function; the type of its records is that of the function's hints."""
    called = "filter_with_state"
    check_function(called, fn, (), 2)
    kind: Any = FilterWithState
    made: FilterWithState[Any] = kind[parameter_type(fn, 0) or Any](fn, _state_of(fn, ttl), called)
    return made


def _typed(kind: Any, fn: Any, result: Any) -> Any:
    """Return the class with the types of record and result; Any where hints do not declare them."""
    return kind[parameter_type(fn, 0) or Any, result or Any]


def _state_of(fn: Any, ttl: StateTtlConfig | None) -> ValueStateDescriptor[Any]:
    hinted = parameter_type(fn, 1) or _pair(fn)[1]
    state = union_of(each for each in members(hinted) if each is not type(None))
    return ValueStateDescriptor(STATE, state, ttl=ttl)


def _pair(fn: Any) -> tuple[Any, Any]:
    """Return the types of the pair that a function returns; None where hints do not declare them."""
    returned = return_type(fn)
    parts = get_args(returned)
    return (
        (parts[0], parts[1])
        if get_origin(returned) is tuple and len(parts) == 2 and parts[1] is not ...
        else (None, None)
    )
