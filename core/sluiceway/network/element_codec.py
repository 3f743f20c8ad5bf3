"""Codec of elements: the bytes of a batch or a control element between processes.

A frame is a tag of one byte, then its body. Numbers are little-endian.

=====  ==========================================================================================
tag    body
=====  ==========================================================================================
1      batch: its values, in the edge's serializer
2      batch with timestamps: their number (4 bytes), 8 bytes for each, then the values
3..11  control elements: a msgpack array of their fields
12     batch of columns: an Arrow IPC stream of one record batch
13     the same with timestamps: their number (4 bytes), 8 bytes for each, then the stream
=====  ==========================================================================================
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Any, Final

import msgspec

from sluiceway.elements import (
    BarrierAnnouncement,
    Batch,
    CancelCheckpointMarker,
    CheckpointBarrier,
    Element,
    EndOfData,
    EndOfPartition,
    LatencyMarker,
    TerminationProbe,
    Watermark,
    WatermarkStatus,
)
from sluiceway.errors import CorruptStreamError, SerializationError
from sluiceway.serializers import Serializer
from sluiceway.serializers.edges import edge_serializer

__all__ = ["decode_element", "edge_serializer", "encode_batch", "encode_control", "is_batch"]

_BATCH: Final = 1
_STAMPED: Final = 2
_COLUMNS: Final = 12
_STAMPED_COLUMNS: Final = 13
_COUNT: Final = struct.Struct("<I")

_CONTROLS: Final[dict[int, tuple[type[Any], tuple[Any, ...]]]] = {
    3: (Watermark, (int,)),
    4: (WatermarkStatus, (bool,)),
    5: (LatencyMarker, (float, str, int)),
    6: (CheckpointBarrier, (int, int, str, bool, int)),
    7: (CancelCheckpointMarker, (int,)),
    8: (TerminationProbe, (str, int)),
    9: (EndOfData, ()),
    10: (EndOfPartition, ()),
    11: (BarrierAnnouncement, (int, int, int)),
}
_TAGS: Final = {cls: tag for tag, (cls, _) in _CONTROLS.items()}
_FIELDS: Final = {
    tag: msgspec.msgpack.Decoder(tuple[types] if types else tuple[()])  # type: ignore[valid-type]
    for tag, (_, types) in _CONTROLS.items()
}
_pack: Final = msgspec.msgpack.Encoder().encode


def encode_batch(batch: Batch[Any], serializer: Serializer) -> list[bytes | memoryview]:
    """Return the parts of a batch's frame, to be written one after the other. Raises SerializationError."""
    body: bytes | memoryview
    if (data := batch.columns) is not None:
        from sluiceway.columns.ipc import encode  # where columns are used, and pyarrow is installed

        plain, stamped, body = b"\x0c", b"\x0d", encode(data)
    else:
        plain, stamped, body = b"\x01", b"\x02", serializer.dumps(batch.values)
    if batch.timestamps is None:
        return [plain, body]
    stamps = array("q", batch.timestamps)
    if sys.byteorder != "little":
        stamps.byteswap()
    return [stamped + _COUNT.pack(len(stamps)), memoryview(stamps).cast("B"), body]


def encode_control(element: Element) -> bytes:
    """Return the frame of a control element."""
    tag = _TAGS[type(element)]
    # The order of the fields in the class is their order on the wire.
    fields = tuple(getattr(element, name) for name in element.__struct_fields__)  # type: ignore[union-attr]
    return bytes((tag,)) + _pack(fields)


def is_batch(frame: memoryview) -> bool:
    """Return whether a frame holds a batch."""
    return len(frame) > 0 and (frame[0] <= _STAMPED or frame[0] >= _COLUMNS)


def decode_element(frame: memoryview, serializer: Serializer, where: object) -> Element:
    """Decode the element of a frame.

    Args:
        frame: the whole frame. The element holds no reference to it.
        serializer: the edge's serializer.
        where: channel and sequence number, for messages.

    Raises:
        CorruptStreamError: it is not the frame of an element.
    """
    if not len(frame):
        raise CorruptStreamError(f"{where}: an empty frame")
    tag = frame[0]
    try:
        if tag == _BATCH:
            return Batch(_values(frame[1:], serializer))
        if tag == _STAMPED:
            return _stamped(frame[1:], serializer)
        if tag == _COLUMNS:
            return Batch.of_columns(_columns(frame[1:]))
        if tag == _STAMPED_COLUMNS:
            stamps, rest = _timestamps(frame[1:])
            return Batch.of_columns(_of_equal_length(_columns(rest), stamps), stamps)
        if tag in _CONTROLS:
            element: Element = _CONTROLS[tag][0](*_FIELDS[tag].decode(frame[1:]))
            return element
    except (SerializationError, msgspec.MsgspecError, struct.error, ValueError) as error:
        raise CorruptStreamError(
            f"{where}: a frame of {len(frame)} bytes with tag {tag} is broken: {error}"
        ) from error
    raise CorruptStreamError(f"{where}: a frame of {len(frame)} bytes has the unknown tag {tag}")


def _values(body: memoryview, serializer: Serializer) -> list[Any]:
    values = serializer.loads(body)  # type: ignore[arg-type]
    if type(values) is not list:
        raise ValueError(f"a batch is a list of values, not {type(values).__name__}")
    return values


def _columns(body: memoryview) -> Any:
    from sluiceway.columns.ipc import decode

    return decode(body)


def _stamped(rest: memoryview, serializer: Serializer) -> Batch[Any]:
    stamps, body = _timestamps(rest)
    return Batch(_of_equal_length(_values(body, serializer), stamps), stamps.tolist())


def _timestamps(rest: memoryview) -> tuple[array[int], memoryview]:
    (count,) = _COUNT.unpack_from(rest)
    until = _COUNT.size + 8 * count
    if len(rest) < until:
        raise ValueError(f"it should have {count} timestamps and is too short for them")
    stamps = array("q")
    stamps.frombytes(rest[_COUNT.size : until])
    if sys.byteorder != "little":
        stamps.byteswap()
    return stamps, rest[until:]


def _of_equal_length(values: Any, stamps: array[int]) -> Any:
    count = len(values) if type(values) is list else values.num_rows
    if count != len(stamps):
        raise ValueError(f"it has {len(stamps)} timestamps for {count} records")
    return values
