"""Choice of the serializer for the batches of an edge between processes, and its description in plans."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

import msgspec

from sluiceway.elements import Columns
from sluiceway.errors import SerializationError
from sluiceway.serializers.base import Serializer
from sluiceway.serializers.columns import BY_MSGPACK, SCALARS
from sluiceway.serializers.content import REGISTERED, ContentSerializer
from sluiceway.serializers.layouts import why_not
from sluiceway.serializers.registry import registered_serializer_for, registered_serializers
from sluiceway.types import is_known, members, type_name
from sluiceway.util.overriding import override

__all__ = ["EdgeFormat", "OnceSerializer", "edge_format", "edge_serializer"]

_PARTS: Final = msgspec.msgpack.Decoder(list[bytes])
_MIXED: Final = "content"
_IN_WORDS: Final = {
    "plain": "as plain values",
    "columns": "as columns",
    "pickle": "pickled",
    "content": "encoded by content",
    "arrow": "in Arrow's format",
}


class EdgeFormat(msgspec.Struct, frozen=True):
    """Encoding of the records of an edge, derived from their declared type.

    Attributes:
        name: name of the serializer.
        version: version of the serializer.
        encoding: ``plain``, ``columns`` or ``pickle`` for what the default one does with records of the
            declared type; ``content`` where no type is declared; ``registered`` for a plugin's serializer;
            ``arrow`` for rows in columns, which are written as they are.
        problem: reason why records of this type are pickled one by one, for a warning; None: they are not.
    """

    name: str
    version: int
    encoding: str
    problem: str | None = None

    def __str__(self) -> str:
        if self.encoding == "registered":
            return f"by serializer {self.name} {self.version}"
        return _IN_WORDS[self.encoding]


def edge_serializer(record_type: Any, formats: Iterable[Serializer] = ()) -> Serializer:
    """Return the serializer for lists of an edge's records.

    Args:
        record_type: declared type of the records; None where there is none.
        formats: formats registered where the job was made. They travel with the job, so that both ends of an edge
            use the same, whatever else is registered in their processes.
    """
    by_content = ContentSerializer()
    registered = _registered(record_type, formats)
    return by_content if registered is None else _EachSerializer(record_type, registered, by_content)


def edge_format(record_type: Any) -> EdgeFormat:
    """Return the encoding that :func:`edge_serializer` will use for a type, by the formats registered here."""
    if record_type is Columns:
        return EdgeFormat("arrow", 1, "arrow")
    registered = _registered(record_type, registered_serializers())
    if registered is not None:
        return EdgeFormat(registered.name, registered.version, "registered")
    try:
        encoding, problem = _expected(record_type)
    except Exception:  # hints are the user's
        encoding, problem = _MIXED, None
    return EdgeFormat(ContentSerializer.name, ContentSerializer.version, encoding, problem)


def _registered(record_type: Any, formats: Iterable[Serializer]) -> Serializer | None:
    return registered_serializer_for(record_type, formats) if is_known(record_type) else None


class OnceSerializer(Serializer):
    """Serializer that encodes a list of records once for several consumers.

    Args:
        inner: encodes the list.
    """

    def __init__(self, inner: Serializer) -> None:
        self.name = inner.name
        self.version = inner.version
        self._inner = inner
        self._value: Any = None
        self._encoded = b""

    def dumps(self, value: Any) -> bytes:
        """Encode, unless that very list was encoded just now."""
        # By identity: the list is kept, so that no other one can have its address.
        if value is not self._value:
            self._encoded = self._inner.dumps(value)
            self._value = value
        return self._encoded

    @override
    def loads(self, data: Any) -> Any:
        return self._inner.loads(data)

    def forget(self) -> None:
        """Release the encoded list: it was sent to all consumers."""
        self._value, self._encoded = None, b""


class _EachSerializer(Serializer):
    """Serializer of lists of records, each by a serializer that was registered for their type.

    Records of another class than the declared one, subclasses too, are not the registered serializer's: a batch
    with such a record is encoded by content.
    """

    def __init__(self, record_type: Any, each: Serializer, by_content: ContentSerializer) -> None:
        self.name = each.name
        self.version = each.version
        self._each = each
        self._types = {record_type} if isinstance(record_type, type) else None
        self._by_content = by_content
        name = each.name.encode()
        self._head = b"".join((bytes((REGISTERED, len(name))), name, each.version.to_bytes(2, "little")))

    def dumps(self, value: Any) -> bytes:
        if self._types is not None and not self._types.issuperset(map(type, value)):
            return self._by_content.dumps(value)
        return self._head + msgspec.msgpack.encode(self._each.dumps_all(value))

    def loads(self, data: Any) -> Any:
        if bytes(data[: len(self._head)]) != self._head:
            return self._by_content.loads(data)
        try:
            parts = _PARTS.decode(data[len(self._head) :])
        except msgspec.MsgspecError as error:
            raise SerializationError(
                f"{len(data)} bytes are no list of records of {self._each!r}: {error}"
            ) from error
        return list(map(self._each.loads, parts))


# ---- what plans say -----------------------------------------------------------------------------------------


def _expected(hint: Any) -> tuple[str, str | None]:
    """Return the encoding of records of a type, and the problem with it."""
    alternatives = members(hint)
    if not alternatives:
        return _MIXED, None
    if _is_plain(hint):
        return "plain", None
    if len(alternatives) > 1:
        each = [_expected(alternative) for alternative in alternatives]
        problem = next((problem for _, problem in each if problem), None)
        return ("columns" if any(encoding == "columns" for encoding, _ in each) else _MIXED), problem
    only = alternatives[0]
    origin, args = typing.get_origin(only) or only, typing.get_args(only)
    if origin is tuple or origin is list:
        if not args:
            return _MIXED, None
        inside = [_expected(arg) for arg in args if arg is not Ellipsis]
        problem = next((problem for _, problem in inside if problem), None)
        if len(args) == 2 and args[1] is Ellipsis:
            return "pickle", problem
        return ("columns" if any(encoding == "columns" for encoding, _ in inside) else "pickle"), problem
    return _expected_of_class(origin)


def _expected_of_class(cls: Any) -> tuple[str, str | None]:
    if not isinstance(cls, type) or inspect.isabstract(cls) or getattr(cls, "_is_protocol", False):
        return _MIXED, None
    if cls in BY_MSGPACK or cls.__module__.partition(".")[0] in ("numpy", "pyarrow"):
        return "columns", None
    if cls.__module__ in ("builtins", "collections", "collections.abc", "typing") or issubclass(cls, Enum):
        return "pickle", None
    why = why_not(cls)
    return ("columns", None) if why is None else ("pickle", f"{type_name(cls)} {why}")


def _is_plain(hint: Any) -> bool:
    if typing.get_origin(hint) is tuple:
        return all(_is_plain(arg) or arg is Ellipsis for arg in typing.get_args(hint))
    alternatives = members(hint)
    if len(alternatives) > 1:
        return all(map(_is_plain, alternatives))
    return hint in SCALARS or typing.get_origin(hint) is typing.Literal
