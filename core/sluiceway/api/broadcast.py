"""Broadcast state pattern: a stream reads state that every subtask fills from a broadcast stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from sluiceway.api.arguments import check_function, describe
from sluiceway.api.keyed import KeyedStream
from sluiceway.api.location import caller_location
from sluiceway.api.stream import DataStream
from sluiceway.api.unknown_names import answer
from sluiceway.errors import GraphError
from sluiceway.functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from sluiceway.state import MapStateDescriptor
from sluiceway.steps import BroadcastProcessStep

__all__ = ["BroadcastConnectedStream", "BroadcastStream"]

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
R = TypeVar("R")


class BroadcastStream(Generic[T]):
    """Broadcast stream with state descriptors; returned by :meth:`DataStream.broadcast`.

    Every record goes to every subtask of the step that it is connected with, which keeps what it needs of it in
    the states that the descriptors name: ``stream.connect(broadcast_stream).process(function)``.
    """

    def __init__(self, stream: DataStream[T], descriptors: tuple[MapStateDescriptor, ...]) -> None:
        self._stream = stream
        self._descriptors = check_descriptors(descriptors)

    def __repr__(self) -> str:
        names = ", ".join(repr(d.name) for d in self._descriptors)
        return f"<BroadcastStream of {self._stream!r} for {names}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in dir(DataStream) and not name.startswith("_"):
                raise AttributeError(
                    f"BroadcastStream has no {name}(): connect the other stream with it, as in "
                    "stream.connect(broadcast_stream).process(...); broadcast() without descriptors returns a "
                    "stream like any other"
                )
            answer(self, name)


class BroadcastConnectedStream(Generic[T1, T2]):
    """Stream connected with a broadcast stream; returned by :meth:`DataStream.connect`."""

    def __init__(self, stream: DataStream[T1], broadcast: BroadcastStream[T2]) -> None:
        self._stream = stream
        self._broadcast = broadcast

    def process(
        self,
        fn: BroadcastProcessFunction[T1, T2, R] | KeyedBroadcastProcessFunction[Any, T1, T2, R],
    ) -> DataStream[R]:
        """Emit any number of records, also to side outputs, for each record of either stream.

        Args:
            fn: a KeyedBroadcastProcessFunction if the stream is keyed, else a BroadcastProcessFunction.

        Raises:
            GraphError: the one was given where the other belongs.
        """
        kinds = (BroadcastProcessFunction, KeyedBroadcastProcessFunction)
        check_function("process", fn, kinds, 2, objects_only=True)
        key = self._stream._key if isinstance(self._stream, KeyedStream) else None
        if (key is None) is isinstance(fn, KeyedBroadcastProcessFunction):
            self._wrong_kind(fn)
        step = BroadcastProcessStep(fn, key, descriptors=self._broadcast._descriptors)
        return self._stream._then_with(self._broadcast._stream, step, "process")

    def _wrong_kind(self, fn: object) -> NoReturn:
        name = type(fn).__name__
        if isinstance(fn, KeyedBroadcastProcessFunction):
            raise GraphError(
                f"process() at {caller_location()}: {name} is a KeyedBroadcastProcessFunction, but the stream is "
                "not keyed: call key_by(...) before connect(), or make it a BroadcastProcessFunction"
            )
        raise GraphError(
            f"process() at {caller_location()}: {name} is a BroadcastProcessFunction, but the stream is keyed: "
            "make it a KeyedBroadcastProcessFunction, or leave out key_by()"
        )

    def __repr__(self) -> str:
        return f"<BroadcastConnectedStream of {self._stream!r} and {self._broadcast!r}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in dir(DataStream) and not name.startswith("_"):
                raise AttributeError(f"BroadcastConnectedStream has no {name}(): call process(...) first")
            answer(self, name)


def check_descriptors(descriptors: tuple[Any, ...]) -> tuple[MapStateDescriptor, ...]:
    """Return the descriptors if their names are unique and their types fit. Raises TypeError or GraphError."""
    seen: set[str] = set()
    for descriptor in descriptors:
        where = f"broadcast() at {caller_location()}"
        if not isinstance(descriptor, MapStateDescriptor):
            raise TypeError(f"{where} takes MapStateDescriptors, not {describe(descriptor)}")
        if descriptor.name in seen:
            raise GraphError(
                f"{where} was given two descriptors for state {descriptor.name!r}: give each its own name"
            )
        if descriptor.expires:
            raise GraphError(
                f"{where}: state {descriptor.name!r} has a time to live, which broadcast state cannot have, as "
                "every subtask's copy would come to an end at another moment: leave out ttl="
            )
        if descriptor.migrate is not None:
            raise GraphError(
                f"{where}: state {descriptor.name!r} has migrate=, which is of no use for broadcast state: it is "
                "saved without its types. Leave it out, and let the function that reads it take either form"
            )
        seen.add(descriptor.name)
    return descriptors
