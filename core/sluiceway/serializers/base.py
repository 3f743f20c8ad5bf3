"""What a serializer is, and the one that takes anything."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from sluiceway.errors import SerializationError
from sluiceway.types import type_name

__all__ = ["PICKLE", "PickleSerializer", "Serializer"]


class Serializer(ABC):
    """Turns values of one type into bytes and back, keeping their types exactly.

    Instances are stateless: they may be shared, and called from any thread.

    Attributes:
        name: what snapshots and plans call the format; unique.
        version: of the format; higher when the bytes for a value change.
    """

    name: str
    version: int = 1

    @abstractmethod
    def dumps(self, value: Any) -> bytes:
        """The bytes of ``value``. Raises SerializationError."""

    @abstractmethod
    def loads(self, data: bytes) -> Any:
        """The value that :meth:`dumps` was given. Raises SerializationError for anything else."""

    def dumps_all(self, values: Sequence[Any]) -> list[bytes]:
        """What :meth:`dumps` gives for each; a format may be quicker with many. Raises SerializationError."""
        return [self.dumps(value) for value in values]

    def for_type(self, type_hint: Any) -> Serializer | None:
        """A serializer of this format for values of a type, or None where it would not keep them exactly.

        Asked of the object that was registered, for state and for records on their way between processes. The
        default takes any type.
        """
        return self

    def reader_for(self, version: int) -> Serializer | None:
        """What reads values that an older or newer ``version`` wrote, or None where nothing can."""
        return self if version == self.version else None

    def __repr__(self) -> str:
        return f"<serializer {self.name} {self.version}>"


class PickleSerializer(Serializer):
    """Anything that pickle takes. Never to be fed bytes from a peer that has not proved who it is."""

    name = "pickle"

    def dumps(self, value: Any) -> bytes:
        """Pickle ``value``, in a protocol that every supported Python reads."""
        try:
            return pickle.dumps(value, protocol=5)
        except Exception as error:
            if _is_about_a_class(str(error)):
                by_value = _with_its_classes(value)
                if by_value is not None:
                    return by_value
            value, error = _culprit(value, error)
            kind = type_name(type(value))
            raise SerializationError(
                f"a value of type {kind} cannot be pickled: {error}. Keep plain data, or give the class "
                "__getstate__() and define it at the top of a module that can be imported"
            ) from error

    def loads(self, data: bytes) -> Any:
        """Unpickle."""
        try:
            return pickle.loads(data)
        except Exception as error:
            raise SerializationError(f"{len(data)} bytes cannot be unpickled: {error!r}") from error


def _culprit(value: Any, error: Exception) -> tuple[Any, Exception]:
    """The first of several records that cannot be pickled, and why; the value itself where it is not a list."""
    if type(value) is list:
        for each in value:
            try:
                pickle.dumps(each, protocol=5)
            except Exception as its_own:
                return each, its_own
    return value, error


def _is_about_a_class(reason: str) -> bool:
    """Whether pickle failed at a class that cannot be imported."""
    if reason.startswith("Can't pickle <class "):
        return True
    return reason.startswith(("Can't pickle local object", "Can't get local object")) and "<lambda>" not in reason


def _with_its_classes(value: Any) -> bytes | None:
    """Pickle together with classes that cannot be imported, as those of a script in another process; or None."""
    from sluiceway.serializers.byvalue import dumps_by_value

    try:
        return dumps_by_value(value)
    except Exception:  # the error of plain pickle says it better
        return None


PICKLE: Final = PickleSerializer()
