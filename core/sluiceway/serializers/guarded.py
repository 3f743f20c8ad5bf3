"""Guard around serializers that a plugin or the program has registered: each of their mistakes has their name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

from sluiceway.errors import SerializationError
from sluiceway.serializers.base import PickleSerializer, Serializer
from sluiceway.serializers.msgpack import MsgspecSerializer
from sluiceway.types import conformity, is_known, type_name
from sluiceway.util.overriding import override

__all__ = ["GuardedSerializer", "ask", "check_registration"]

# A batch names its serializer with one byte for the length of the name and two for the version.
_LONGEST_NAME: Final = 255
_LARGEST_VERSION: Final = 65535

# A serializer that calls sys.exit() is as broken as one that raises.
_FAILURES: Final = (Exception, SystemExit)


def check_registration(serializer: Any) -> None:
    """Check an object that is to be registered.

    Raises:
        TypeError: it is no serializer, or its name or version has another type.
        ValueError: name or version cannot stand before a batch.
    """
    if not isinstance(serializer, Serializer):
        if isinstance(serializer, type):
            raise TypeError(f"the class {type_name(serializer)} is no serializer: give an instance of it")
        raise TypeError(
            f"an object of type {type_name(type(serializer))} is no serializer: inherit from "
            "sluiceway.serializers.Serializer"
        )
    kind = type_name(type(serializer))
    name, version = getattr(serializer, "name", None), getattr(serializer, "version", None)
    if not isinstance(name, str) or not isinstance(version, int):
        raise TypeError(
            f"the serializer {kind} has the name {name!r} and the version {version!r}: set `name` to a str and "
            "`version` to an int, by which batches and snapshots refer to it"
        )
    if not 0 < len(name.encode()) <= _LONGEST_NAME:
        raise ValueError(f"the name of the serializer {kind} is not of 1 to {_LONGEST_NAME} bytes: {name[:80]!r}")
    if not 0 <= version <= _LARGEST_VERSION:
        raise ValueError(f"version {version} of the serializer {name!r} is not in 0 to {_LARGEST_VERSION}")


def ask(known: Serializer, type_hint: Any) -> Serializer | None:
    """Return the guarded serializer that a registered format has for a type, or None.

    Raises:
        SerializationError: its ``for_type`` raised, or returned something else.
    """
    try:
        found: Any = known.for_type(type_hint)
    except _FAILURES as error:
        what = f"for_type({type_name(type_hint)}) of the serializer {known.name!r} has failed"
        raise SerializationError(f"{what}: {_say(error)}") from error
    if found is None:
        return None
    try:
        check_registration(found)
    except (TypeError, ValueError) as error:
        raise SerializationError(
            f"for_type({type_name(type_hint)}) of the serializer {known.name!r} has to return a serializer or "
            f"None: {error}"
        ) from error
    # Evolution of schemas goes by the exact classes of the built-in ones.
    if type(found) in (MsgspecSerializer, PickleSerializer):
        return found  # type: ignore[no-any-return]
    return GuardedSerializer(found, type_hint)


class GuardedSerializer(Serializer):
    """Serializer whose every failure is a SerializationError that names it.

    It refuses bytes that are none, before they are in a snapshot or sent, and values of another type than the
    declared one: only steps whose records come from another process, or after a restore, would see such a value.

    Args:
        inner: the user's serializer.
        type_hint: the type for which it was chosen.
    """

    def __init__(self, inner: Serializer, type_hint: Any) -> None:
        self.name = inner.name
        self.version = inner.version
        self._inner = inner
        self._hint = type_hint
        self._conforms = conformity(type_hint, parts=False) if is_known(type_hint) else None

    def dumps(self, value: Any) -> bytes:
        """Return the bytes of ``value``. Raises SerializationError, and nothing else."""
        try:
            data = self._inner.dumps(value)
        except SerializationError:
            raise
        except _FAILURES as error:
            self._cannot_write(value, error)
        return data if type(data) is bytes else self._bytes(data, value)

    @override
    def dumps_all(self, values: Sequence[Any]) -> list[bytes]:
        try:
            written = self._inner.dumps_all(values)
        except SerializationError:
            raise
        except _FAILURES:
            return list(map(self.dumps, values))  # which finds the value, if one of them is at fault
        if not isinstance(written, (list, tuple)) or len(written) != len(values):
            raise SerializationError(
                f"dumps_all() of the serializer {self.name!r} has to return a list of bytes, one for each of "
                f"{len(values)} values, and returned a {type_name(type(written))}"
                + (f" of {len(written)}" if isinstance(written, (list, tuple)) else "")
            )
        return [d if type(d) is bytes else self._bytes(d, v) for d, v in zip(written, values, strict=True)]

    @override
    def loads(self, data: Any) -> Any:
        try:
            value = self._inner.loads(data)
        except SerializationError:
            raise
        except _FAILURES as error:
            raise SerializationError(
                f"the serializer {self.name!r} cannot read {len(data)} bytes: {_say(error)}"
            ) from error
        if self._conforms is not None and not self._conforms(value):
            raise SerializationError(
                f"the serializer {self.name!r} for {type_name(self._hint)} has read a value of type "
                f"{type_name(type(value))}: its loads() has to return what dumps() was given"
            )
        return value

    @override
    def reader_for(self, version: int) -> Serializer | None:
        try:
            reader: Any = self._inner.reader_for(version)
        except _FAILURES as error:
            raise SerializationError(
                f"reader_for({version}) of the serializer {self.name!r} has failed: {_say(error)}"
            ) from error
        if reader is None:
            return None
        if not isinstance(reader, Serializer):
            raise SerializationError(
                f"reader_for({version}) of the serializer {self.name!r} has to return a serializer or None, not "
                f"{type_name(type(reader))}"
            )
        return self if reader is self._inner else GuardedSerializer(reader, self._hint)

    def _bytes(self, data: Any, value: Any) -> bytes:
        if isinstance(data, (bytes, bytearray, memoryview)):
            return bytes(data)
        raise SerializationError(
            f"dumps() of the serializer {self.name!r} has to return bytes, not {type_name(type(data))}, for a "
            f"value of type {type_name(type(value))}"
        )

    def _cannot_write(self, value: Any, error: BaseException) -> NoReturn:
        raise SerializationError(
            f"the serializer {self.name!r} cannot write a value of type {type_name(type(value))}: {_say(error)}"
        ) from error


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
