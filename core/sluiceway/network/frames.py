"""What a frame's header holds, after one byte that says what it is. Numbers are little-endian.

=======  =================================================================================================
kind     fields
=======  =================================================================================================
OPEN     channel number, initial credit (-1: no limit), then edge, producer, consumer, attempt of the channel
DATA     channel number, sequence number, backlog, whether more pieces follow; the piece is the payload
SMALL    channel number, sequence number, backlog, then a batch
ELEMENT  channel number, sequence number, backlog, then a control element
URGENT   channel number, sequence number, backlog, then a control element that overtakes
CREDIT   channel number and batches, for any number of channels
WAITING  channel number, backlog
FAIL     channel number, then the pickled cause
GONE     channel number: the consumer is gone
=======  =================================================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import msgspec

from sluiceway.transport import ChannelId

__all__ = [
    "CREDIT",
    "DATA",
    "DATA_HEAD",
    "ELEMENT",
    "ELEMENT_HEAD",
    "FAIL",
    "GONE",
    "HEAD",
    "OPEN",
    "PAIR",
    "SEQUENCE",
    "SMALL",
    "URGENT",
    "WAITING",
    "pack_credit",
    "pack_open",
    "unpack_credit",
    "unpack_open",
]

OPEN: Final = 1
DATA: Final = 2
ELEMENT: Final = 3
CREDIT: Final = 4
WAITING: Final = 5
FAIL: Final = 6
GONE: Final = 7
SMALL: Final = 8
URGENT: Final = 9

HEAD: Final = struct.Struct("<BI")
PAIR: Final = struct.Struct("<BII")
DATA_HEAD: Final = struct.Struct("<BIIIB")
ELEMENT_HEAD: Final = struct.Struct("<BIII")
_OPEN_HEAD: Final = struct.Struct("<BIi")
_GRANT: Final = struct.Struct("<II")

SEQUENCE: Final = 0xFFFFFFFF
"""Sequence numbers start again after this one."""

_MOST_GRANTS: Final = 4096
"""In one frame, whose header has its limit."""


def pack_open(number: int, channel: ChannelId, credit: int | None) -> bytes:
    """An OPEN frame."""
    name = msgspec.msgpack.encode((channel.edge, channel.producer, channel.consumer, channel.attempt))
    return _OPEN_HEAD.pack(OPEN, number, -1 if credit is None else credit) + name


def unpack_open(header: bytes) -> tuple[int, ChannelId, int | None]:
    """Channel number, channel and credit. Raises struct.error, msgspec.MsgspecError, TypeError, ValueError."""
    _, number, credit = _OPEN_HEAD.unpack_from(header)
    edge, producer, consumer, attempt = msgspec.msgpack.decode(
        header[_OPEN_HEAD.size :], type=tuple[str, int, int, int]
    )
    return number, ChannelId(edge, producer, consumer, attempt), None if credit < 0 else credit


def pack_credit(grants: dict[int, int]) -> Iterator[bytes]:
    """CREDIT frames for all grants, by channel number."""
    pairs = list(grants.items())
    for at in range(0, len(pairs), _MOST_GRANTS):
        some = pairs[at : at + _MOST_GRANTS]
        yield struct.pack(f"<B{2 * len(some)}I", CREDIT, *chain.from_iterable(some))


def unpack_credit(header: bytes) -> Iterable[tuple[int, int]]:
    """Channel numbers and batches. Raises struct.error."""
    return _GRANT.iter_unpack(memoryview(header)[1:])
