"""Frame headers: one byte for the kind, then the fields of that kind. Numbers are little-endian.

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
GONE     channel number: the consumer has closed the channel
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
"""Largest sequence number; the next one is 0."""

_MOST_GRANTS: Final = 4096
"""Grants in one frame at most, as the carrier limits the size of a header."""


def pack_open(number: int, channel: ChannelId, credit: int | None) -> bytes:
    """Return an OPEN frame; a ``credit`` of None means no limit."""
    name = msgspec.msgpack.encode((channel.edge, channel.producer, channel.consumer, channel.attempt))
    return _OPEN_HEAD.pack(OPEN, number, -1 if credit is None else credit) + name


def unpack_open(header: bytes) -> tuple[int, ChannelId, int | None]:
    """Return channel number, channel and credit of an OPEN frame; a credit of None means no limit.

    Raises:
        struct.error: the header is too short.
        msgspec.MsgspecError, TypeError, ValueError: the channel cannot be decoded.
    """
    _, number, credit = _OPEN_HEAD.unpack_from(header)
    edge, producer, consumer, attempt = msgspec.msgpack.decode(
        header[_OPEN_HEAD.size :], type=tuple[str, int, int, int]
    )
    return number, ChannelId(edge, producer, consumer, attempt), None if credit < 0 else credit


def pack_credit(grants: dict[int, int]) -> Iterator[bytes]:
    """Yield CREDIT frames for all grants: batches by channel number."""
    pairs = list(grants.items())
    for at in range(0, len(pairs), _MOST_GRANTS):
        some = pairs[at : at + _MOST_GRANTS]
        yield struct.pack(f"<B{2 * len(some)}I", CREDIT, *chain.from_iterable(some))


def unpack_credit(header: bytes) -> Iterable[tuple[int, int]]:
    """Return pairs of channel number and batches. Raises struct.error for a length that does not fit."""
    return _GRANT.iter_unpack(memoryview(header)[1:])
