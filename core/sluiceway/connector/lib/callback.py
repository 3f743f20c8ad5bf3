"""Sink that calls a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, MutableMapping, MutableSequence, MutableSet, Sequence
from typing import Any, Final, TypeVar

from sluiceway.connector import DeliveryGuarantee, Sink, SinkWriter, WriterContext
from sluiceway.errors import ConfigurationError
from sluiceway.record_errors import record_loop

__all__ = ["CallbackSink", "fills_container"]

T = TypeVar("T")

_OF_PYTHON: Final = ("builtins", "collections", "array")


def fills_container(function: object) -> bool:
    """Return whether a function is a method of a list or another container of Python's, as ``seen.append``."""
    held = getattr(function, "__self__", None)
    container = isinstance(held, MutableSequence | MutableSet | MutableMapping)
    return container and type(held).__module__ in _OF_PYTHON


class CallbackSink(Sink[T]):
    """Sink that calls a function with each record, or with each batch of records.

    The function runs in the task's thread: one that blocks holds up everything else in its worker. What it
    raises fails the job as it is.

    Args:
        function: called as ``function(record)``; what it returns is ignored.
        batch: call ``function(records)`` instead, with a list that is the function's to keep; how many records
            come together depends on the load.

    Raises:
        ConfigurationError: ``function`` is not callable, or calling it would do nothing (async functions and
            generator functions).
    """

    def __init__(self, function: Callable[[Any], object], *, batch: bool = False) -> None:
        if not callable(function):
            raise ConfigurationError(f"CallbackSink needs a function of one argument, not {function!r:.60}")
        name = getattr(function, "__qualname__", type(function).__name__)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(f"CallbackSink cannot call {name}(), which is async: pass a plain function")
        if inspect.isgeneratorfunction(function):
            raise ConfigurationError(
                f"CallbackSink: calling {name}() would not run it, because it contains yield; to make "
                "records out of records, use flat_map"
            )
        self._function = function
        self._batch = batch

    @property
    def guarantee(self) -> DeliveryGuarantee:
        """At least once: after a restart it is called again for records since the last checkpoint."""
        return DeliveryGuarantee.AT_LEAST_ONCE

    @property
    def fills_container(self) -> bool:
        """True if the function is a method of a container, as ``seen.append``.

        In another process it would fill a copy that nobody sees.
        """
        return fills_container(self._function)

    def create_writer(self, context: WriterContext) -> SinkWriter[T]:
        """Make a writer that calls the function."""
        return _BatchWriter(self._function) if self._batch else _RecordWriter(self._function)


class _RecordWriter(SinkWriter[Any]):
    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function

    @record_loop
    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        function = self._function
        for value in values:
            function(value)


class _BatchWriter(SinkWriter[Any]):
    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        self._function(list(values))
