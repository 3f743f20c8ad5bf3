"""Contract of serializers, and the pickle serializer."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from sluiceway.errors import SerializationError
from sluiceway.serializers.program_classes import loads_with_classes
from sluiceway.types import type_name
from sluiceway.util.overriding import override

__all__ = ["PICKLE", "PickleSerializer", "Serializer"]


_NOT_FOUND: Final = ("attribute lookup", "import of module", "it's not found as", "it's not the same object as")


class Serializer(ABC):
    """Conversion of values of one type into bytes and back, with exactly the same types.

    Instances are stateless: they may be shared, and called from any thread.

    Attributes:
        name: name of the format in snapshots and plans; unique.
        version: version of the format; increased when the bytes for a value change.
    """

    name: str
    version: int = 1

    @abstractmethod
    def dumps(self, value: Any) -> bytes:
        """Return the bytes of ``value``. Raises SerializationError."""

    @abstractmethod
    def loads(self, data: bytes) -> Any:
        """Return the value that :meth:`dumps` was given. Raises SerializationError for anything else."""

    def dumps_all(self, values: Sequence[Any]) -> list[bytes]:
        """Return the bytes of each value; a format may be faster with many. Raises SerializationError."""
        return [self.dumps(value) for value in values]

    def for_type(self, type_hint: Any) -> Serializer | None:
        """Return a serializer of this format for a type, or None where it would not keep values exactly.

        Called on the object that was registered, for state and for records on their way between processes. The
        default accepts any type.
        """
        return self

    def reader_for(self, version: int) -> Serializer | None:
        """Return a reader of values that an older or newer ``version`` wrote, or None if there is none."""
        return self if version == self.version else None

    def __repr__(self) -> str:
        return f"<serializer {self.name} {self.version}>"


class PickleSerializer(Serializer):
    """Serializer of anything that pickle accepts. Never use it on bytes from a peer that is not authenticated."""

    name = "pickle"

    def dumps(self, value: Any) -> bytes:
        """Pickle ``value``, in a protocol that every supported Python reads."""
        try:
            return pickle.dumps(value, protocol=5)
        except Exception as error:
            if _is_about_a_class(_text(error)):
                by_value = _with_its_classes(value)
                if by_value is not None:
                    return by_value
            value, error = _culprit(value, error)
            kind = type_name(type(value))
            raise SerializationError(
                f"a value of type {kind} cannot be pickled: {_text(error)}. Keep plain data, or give the class "
                "__getstate__() and define it at the top of a module that can be imported"
            ) from error

    @override
    def loads(self, data: bytes) -> Any:
        try:
            return pickle.loads(data)
        except (ImportError, AttributeError) as error:
            return _loaded_with_classes(data, error)
        except Exception as error:
            raise SerializationError(f"{len(data)} bytes cannot be unpickled: {error!r}") from error


def _culprit(value: Any, error: Exception) -> tuple[Any, Exception]:
    """Return the first of several records that cannot be pickled, and the error; the value if it is no list."""
    if type(value) is list:
        for each in value:
            try:
                pickle.dumps(each, protocol=5)
            except Exception as its_own:
                return each, its_own
    return value, error


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # an error that a record's own code has raised may fail to describe itself
        return type_name(type(error))


def _is_about_a_class(reason: str) -> bool:
    """Return whether pickle failed at a class that cannot be imported."""
    if reason.startswith("Can't pickle ") and any(map(reason.__contains__, _NOT_FOUND)):
        return "<function " not in reason
    return reason.startswith(("Can't pickle local object", "Can't get local object")) and "<lambda>" not in reason


def _with_its_classes(value: Any) -> bytes | None:
    """Pickle a value with classes that cannot be imported, such as those of a script; or return None."""
    from sluiceway.serializers.byvalue import dumps_with_classes  # cloudpickle takes long to import

    try:
        return dumps_with_classes(value)
    except Exception:  # the error of plain pickle says it better
        return None


def _loaded_with_classes(data: bytes, error: Exception) -> Any:
    """Unpickle a value with classes of a program that was started in another way."""
    try:
        return loads_with_classes(data)
    except Exception:  # the error of plain pickle says it better
        script = any(name in str(error) for name in ("__main__", "__sluiceway__"))
        advice = ". A class of a script is not found here: define it in a module that can be imported"
        raise SerializationError(
            f"{len(data)} bytes cannot be unpickled: {error!r}{advice if script else ''}"
        ) from error


PICKLE: Final = PickleSerializer()
