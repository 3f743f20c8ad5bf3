"""Serializers of values of declared types, and of keys, as msgpack."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec

from sluiceway.errors import SerializationError
from sluiceway.serializers.base import PICKLE, Serializer
from sluiceway.serializers.exactness import Every, every_exact, is_plain_key
from sluiceway.serializers.models import has_models, model_fields, model_of
from sluiceway.types import type_name
from sluiceway.util.overriding import override

__all__ = ["KEY_SERIALIZER", "KeySerializer", "MsgspecSerializer"]

_PICKLED: Final = b"\xc1"  # the one byte that msgpack never begins with
_encode_msgpack = msgspec.msgpack.Encoder().encode


class MsgspecSerializer(Serializer):
    """Serializer of a declared type as msgpack: compact, fast, and readable without the job's code.

    A value that is not exactly of the declared type, or that msgpack cannot hold as it is (an integer of more
    than 64 bits, a datetime with a zone other than UTC, a number beyond the limits of its type, a struct that
    omits defaults), is pickled, behind a byte that says so: no value changes.

    Args:
        type_hint: the type of the values; by default the JSON-like ones: None, bool, int, float, str, bytes,
            and lists and dicts of these.

    Raises:
        TypeError: msgpack would not keep values of this type.
    """

    name = "msgspec"

    def __init__(self, type_hint: Any = Any) -> None:
        exact = every_exact(type_hint, models=True)
        if exact is None:
            raise TypeError(f"msgpack does not keep values of type {type_name(type_hint)} as they are")
        self._every_exact: Every = exact
        hook = self.hook_of(type_hint)
        self._in_one_go = hook is None
        self._encode = _encode_msgpack if hook is None else msgspec.msgpack.Encoder(enc_hook=model_fields).encode
        self._decode = msgspec.msgpack.Decoder(type_hint, dec_hook=hook).decode
        self._type_hint = type_hint

    @staticmethod
    def hook_of(type_hint: Any) -> Callable[[type, Any], Any] | None:
        """Return the constructor of values of a type that msgspec does not know, if needed."""
        return model_of if has_models(type_hint) else None

    @override
    def dumps(self, value: Any) -> bytes:
        try:
            if self._every_exact((value,)):
                return self._encode(value)
        # Integers of more than 64 bits, lone surrogates, cycles, and values that lack a field: these are pickled.
        except (OverflowError, UnicodeEncodeError, RecursionError, AttributeError, TypeError):
            pass
        return _PICKLED + PICKLE.dumps(value)

    @override
    def dumps_all(self, values: Sequence[Any]) -> list[bytes]:
        try:
            if self._every_exact(values):
                return list(map(self._encode, values))
        except (OverflowError, UnicodeEncodeError, RecursionError, AttributeError, TypeError):
            pass
        return [self.dumps(value) for value in values]

    def loads(self, data: bytes) -> Any:
        """Decode, checking against the declared type."""
        if data[:1] == _PICKLED:
            return PICKLE.loads(data[1:])
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
            wanted = type_name(self._type_hint)
            raise SerializationError(f"{len(data)} bytes cannot be read as {wanted}: {error}") from error

    def takes_all(self, values: Collection[Any]) -> bool:
        """Return whether all values are exactly of the declared type."""
        try:
            return self._every_exact(values)
        except (AttributeError, TypeError):
            return False

    def pack_all(self, values: Sequence[Any]) -> bytes | None:
        """Return a msgpack array of values, without a switch of threads; None: not possible for all."""
        if not self._in_one_go:
            return None
        try:
            # Encoded before the check, in one call, so that the caller can tell afterwards which values may have
            # been changed before.
            data = self._encode(values)
        except Exception:  # whatever :meth:`dumps` would pickle instead
            return None
        return data if self.takes_all(values) else None

    def loads_all(self, data: bytes) -> list[Any]:
        """Decode a msgpack array of plain values of the declared type."""
        try:
            found: list[Any] = msgspec.msgpack.decode(data, type=list[self._type_hint])  # type: ignore[name-defined]
            return found
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
            wanted = type_name(self._type_hint)
            raise SerializationError(f"{len(data)} bytes cannot be read as {wanted}, each: {error}") from error

    def for_type(self, type_hint: Any) -> Serializer | None:
        """Return a serializer for ``type_hint``, if its content is known and msgpack keeps it."""
        if type_hint is None or type_hint is Any or type_hint is object:
            return None
        try:
            return MsgspecSerializer(type_hint)
        except Exception:  # hints are the user's: whatever they do, there still is pickle
            return None


class KeySerializer(Serializer):
    """Serializer of keys and namespaces without a declared type: numbers, strings, bytes, None, tuples of these.

    Anything else is pickled, behind a byte that says so.
    """

    name = "key"

    @override
    def dumps(self, value: Any) -> bytes:
        try:
            if is_plain_key(value):
                return _encode_msgpack(value)
        except (OverflowError, UnicodeEncodeError, RecursionError):
            pass
        return _PICKLED + PICKLE.dumps(value)

    @override
    def loads(self, data: bytes) -> Any:
        if data[:1] == _PICKLED:
            return PICKLE.loads(data[1:])
        try:
            value = msgspec.msgpack.decode(data)
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
            raise SerializationError(f"{len(data)} bytes cannot be read as a key: {error}") from error
        return _as_tuples(value) if type(value) is list else value

    @staticmethod
    def is_pickled(data: bytes) -> bool:
        """Return whether an encoded key is pickled, so that its class is needed to decode it."""
        return data[:1] == _PICKLED


KEY_SERIALIZER: Final = KeySerializer()
"""Serializer of every backend for the keys and namespaces in snapshots."""


def _as_tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple([_as_tuples(part) if type(part) is list else part for part in value])
