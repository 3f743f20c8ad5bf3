"""Objects in messages: passed by reference inside a process, pickled where a connection encodes the message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sluiceway.serializers.program_classes import ProgramClasses

# Pickling is imported where it is needed: a job in one process never loads it.

__all__ = ["Cause", "Payload"]

T = TypeVar("T")


class Payload(Generic[T]):
    """Object in a message. The receiver opens it: nothing is unpickled when the message is decoded.

    Args:
        value: the object.
    """

    __slots__ = ("_data", "_value")

    def __init__(self, value: T) -> None:
        self._value = value
        self._data: bytes | None = None

    @classmethod
    def received(cls, data: bytes) -> Payload[Any]:
        """Return the payload with the bytes that :meth:`encoded` returned in another process."""
        made: Payload[Any] = cls.__new__(cls)
        made._data = data
        return made

    def encoded(self) -> bytes:
        """Return its bytes.

        Raises:
            SerializationError: the object cannot be pickled.
        """
        from sluiceway.runtime.messages.pickling import dump

        # What was received is passed on as it is, without being unpickled here.
        return dump(self._value) if self._data is None else self._data

    def open(self, handle: Callable[[int], object] | None = None, classes: ProgramClasses | None = None) -> T:
        """Return the object, unpickled if it comes from another process.

        Args:
            handle: from the number of a handle of the program that runs the job to what takes its place.
            classes: gets the classes of the program that come with it.
        """
        if self._data is None:
            return self._value
        from sluiceway.runtime.messages.pickling import load

        value: T = load(self._data, handle, classes)
        return value


class Cause:
    """Exception in a message.

    Args:
        error: the exception.
    """

    __slots__ = ("_data", "_error")

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._data: bytes | None = None

    @classmethod
    def received(cls, data: bytes) -> Cause:
        """Return the cause with the bytes that :meth:`encoded` returned in another process."""
        made = cls.__new__(cls)
        made._data = data
        return made

    def encoded(self) -> bytes:
        """Return its bytes, bounded in size."""
        from sluiceway.runtime.messages.pickling import dump_error

        return dump_error(self._error) if self._data is None else self._data

    def open(self) -> BaseException:
        """Return the exception; one of another process has the traceback there as its cause."""
        if self._data is None:
            return self._error
        from sluiceway.runtime.messages.pickling import load_error

        return load_error(self._data)
