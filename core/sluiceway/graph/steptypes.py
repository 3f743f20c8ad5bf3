"""What types go into a step and come out of it, as far as hints say."""

from __future__ import annotations

import typing
from typing import Any

from sluiceway.functions import Function, KeySelector
from sluiceway.steps import (
    FilterStep,
    FlatMapStep,
    IterationHeadStep,
    KeyedAggregateStep,
    KeyedProcessStep,
    KeyedReduceStep,
    ProcessStep,
    SinkStep,
    SourceStep,
    Step,
)
from sluiceway.types import element_type, is_known, members, parameter_type, return_type

__all__ = ["key_selector", "key_type", "output_type", "returned_type", "wanted_types"]


def _method(fn: object, name: str | None) -> str | None:
    """A function object is asked for its method, a plain callable for itself."""
    return name if isinstance(fn, Function | KeySelector) else None


def returned_type(step: Step) -> Any:
    """What the step's function returns according to its hints, or None."""
    name = "get_result" if isinstance(step, KeyedAggregateStep) else step.method
    fn = step.function
    return None if fn is None else return_type(fn, _method(fn, name))


def key_selector(step: Step) -> object | None:
    """The function that computes the key of a keyed step, or None."""
    found: object | None = getattr(step, "key", None)
    return found


def key_type(key: object) -> Any:
    """The type of key that a key selector returns, or None."""
    return return_type(key, _method(key, "get_key"))


def wanted_types(step: Step) -> list[Any]:
    """The types that a step's function or sink asks of its records; only known ones."""
    if isinstance(step, SinkStep):
        found = [step.sink.input_type]
    elif step.function is None:
        found = []
    else:
        fn, name = step.function, step.method
        found = [parameter_type(fn, 0, _method(fn, name))]
        if isinstance(step, KeyedReduceStep):
            found.append(parameter_type(fn, 1, _method(fn, name)))
    known = [t for t in found if is_known(t)]
    return [t for i, t in enumerate(known) if t not in known[:i]]


def output_type(step: Step, entering: Any) -> Any:
    """The type of a step's records, or None.

    Args:
        step: the step.
        entering: the type of the records that go in, or None.
    """
    if isinstance(step, SourceStep):
        return step.source.output_type
    if isinstance(step, IterationHeadStep):
        return entering
    if isinstance(step, FilterStep):
        return _after_filter(step, entering)
    returned = returned_type(step)
    if isinstance(step, FlatMapStep | ProcessStep | KeyedProcessStep):
        return element_type(returned)
    if isinstance(step, KeyedReduceStep):
        return returned if is_known(returned) else entering
    if isinstance(step, KeyedAggregateStep) and step.with_key:
        key = key_type(step.key)
        return tuple[key or Any, returned or Any]  # type: ignore[misc]
    return returned


def _after_filter(step: FilterStep, entering: Any) -> Any:
    """What passes a filter. It may be narrower than what went in: then it is not known."""
    guard = returned_type(step)
    if typing.get_origin(guard) is typing.TypeGuard:
        return typing.get_args(guard)[0]
    alternatives = members(entering)
    if len(alternatives) != 1:
        return None
    cls = typing.get_origin(entering) or entering
    # An isinstance() in the filter can pick out a subclass, where there is one.
    narrower = isinstance(cls, type) and cls.__module__ != "builtins" and bool(type.__subclasses__(cls))
    return None if narrower else entering
