"""Batches of records of which no type need be declared: what is in them says how they are encoded best.

The first byte of an encoded batch says how it was:

====  =====================================================================================================
0x80  a pickle, as every pickle begins; the number of its protocol follows
0x02  columns: the length of the shape (4 bytes, little-endian), the pickled shape, and a pickle of what is left
0x03  each record by a registered serializer: the length of its name (1 byte), its name, its version (2 bytes,
      little-endian), and a msgpack array of bytes
====  =====================================================================================================
"""

from __future__ import annotations

import pickle
from typing import Any, Final

from sluiceway.errors import SerializationError
from sluiceway.serializers.base import PICKLE, Serializer
from sluiceway.serializers.columns import Knotted, Shape, classes_in, is_plain, rebuild, shrink
from sluiceway.util.overriding import override

__all__ = ["REGISTERED", "ContentSerializer"]

_PICKLED: Final = 0x80  # pickle's own first byte
_COLUMNS: Final = 0x02
REGISTERED: Final = 0x03

_WORTH_A_SHAPE: Final = 32  # records; to look for columns takes as long as fewer of them save
_WORTH_A_PICKLER: Final = 256  # likewise, to make a pickler of one's own
_BYTES_PER_RECORD: Final = 512
_MOST_SHAPES: Final = 64


class ContentSerializer(Serializer):
    """Serializer of lists of records of any types, for two ends of one program that are authenticated.

    - Plain records, which are scalars and tuples of them, are pickled without pickle's memo of objects: a quarter
      less work for both ends.
    - Records of a few classes (dataclasses, named tuples, msgspec structs, pydantic models, objects with the same
      attributes), dates, times, decimals, UUIDs, enums, numpy arrays and scalars, Arrow tables and batches, and
      tuples and lists of these, are split into columns.
    - Everything else is pickled. The encoding of a batch never changes its content.

    Records are values: an object that is in two places of a batch may be decoded as two equal ones.
    """

    name = "content"

    def __init__(self) -> None:
        self._shapes: dict[Shape, bytes] = {}
        self._known: dict[bytes, Shape] = {}

    def dumps(self, value: Any) -> bytes:
        """Encode a list of records."""
        if len(value) >= _WORTH_A_SHAPE or (len(value) and _is_large(value[0])):
            try:
                if is_plain(value[0]):
                    if len(value) < _WORTH_A_PICKLER:
                        return PICKLE.dumps(value)
                    # A sample is enough: a batch that is misjudged is still pickled exactly, only larger.
                    if is_plain(value[len(value) // 2]) and is_plain(value[-1]):
                        return _pickled(value, True)
                if (columns := self._in_columns(value)) is not None:
                    return columns
            except Exception:  # a knot, too large without a memo, odd classes: pickle has the last word
                pass
        return PICKLE.dumps(value)

    @override
    def loads(self, data: Any) -> Any:
        if not len(data):
            raise SerializationError("an empty body")
        if data[0] == _PICKLED:
            return PICKLE.loads(data)
        if data[0] == REGISTERED:
            name = bytes(data[2 : 2 + data[1]]).decode(errors="replace")
            version = int.from_bytes(data[2 + data[1] : 4 + data[1]], "little")
            raise SerializationError(
                f"the records were written by version {version} of the serializer {name!r}, which is not what this"
                " process has for them: have the same plugins, in the same versions, in every process"
            )
        if data[0] != _COLUMNS:
            raise SerializationError(f"the body begins with 0x{data[0]:02x}, an encoding that is not known here")
        view = memoryview(data)
        until = 5 + int.from_bytes(view[1:5], "little")
        shape = self._shape(bytes(view[5:until]))
        left = PICKLE.loads(view[until:])  # type: ignore[arg-type]
        try:
            return rebuild(shape, left)
        except Exception as error:
            raise SerializationError(f"{len(data)} bytes cannot be read as columns: {error!r}") from error

    def _in_columns(self, values: Any) -> bytes | None:
        shape, left, plain = shrink(values)
        if shape is None:
            return None
        head = self._shapes.get(shape)
        if head is None:
            head = PICKLE.dumps(shape)
            # Any number of shapes may come along: beyond the limit each is pickled again.
            if len(self._shapes) < _MOST_SHAPES:
                self._shapes[shape] = head
        body = _pickled(left, plain and len(values) >= _WORTH_A_PICKLER, len(values))
        if any(_names(cls, body) for cls in classes_in(shape)):
            raise Knotted  # what was left may lead back to the records
        return b"".join((bytes((_COLUMNS,)), len(head).to_bytes(4, "little"), head, body))

    def _shape(self, head: bytes) -> Shape:
        shape = self._known.get(head)
        if shape is None:
            shape = PICKLE.loads(head)
            if len(self._known) < _MOST_SHAPES:
                self._known[head] = shape
        return shape


def _names(cls: type, body: bytes) -> bool:
    """Return whether a pickle may hold an object of a class: pickle writes the name of its class before it."""
    for name in {cls.__name__, cls.__qualname__}:
        text = name.encode()
        # 0x8c is pickle's opcode for a text of up to 255 bytes.
        if (text if len(text) > 255 else b"\x8c" + bytes((len(text),)) + text) in body:
            return True
    return False


def _is_large(record: Any) -> bool:
    """Return whether one record is large enough to be analysed."""
    return type(record).__module__.partition(".")[0] == "pyarrow"


class _TooLargeError(Exception):
    pass


class _Limited:
    """File for a pickler, up to a limit of bytes."""

    def __init__(self, limit: int) -> None:
        self.parts: list[bytes] = []
        self._left = limit

    def write(self, part: Any) -> int:
        self._left -= len(part)
        if self._left < 0:
            raise _TooLargeError
        self.parts.append(part)
        return len(part)


def _pickled(value: Any, plainly: bool, records: int | None = None) -> bytes:
    """Pickle values, ``plainly`` without a memo if there are many records and that does not make it large.

    Without a memo, what many records share is written once for each: hence the limit. Types are left to
    pickle here, too: every record is kept exactly.
    """
    count = len(value) if records is None else records
    if plainly and count >= _WORTH_A_PICKLER:
        out = _Limited(_BYTES_PER_RECORD * count)
        pickler = pickle.Pickler(out, 5)
        pickler.fast = True
        try:
            pickler.dump(value)
            return out.parts[0] if len(out.parts) == 1 else b"".join(out.parts)
        except Exception:  # too large, an endless record, or what pickle refuses: as usual
            pass
    return PICKLE.dumps(value)
