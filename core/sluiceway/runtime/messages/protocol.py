"""Control protocol: the handshake of two peers, and the bytes of a message.

What is pickled (steps, splits, exceptions) travels as bytes in a field of its own, which decoding does not open.
:mod:`sluiceway.runtime.cluster.connection` decodes nothing but the handshake until the peer has proved that it
knows the cluster's secret.
"""

from __future__ import annotations

from typing import Any, Final, Union

import msgspec

from sluiceway.errors import SluicewayError
from sluiceway.runtime.messages import clients, keys, processes, tasks, workers
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.payload import Cause, Payload
from sluiceway.util.surrogates import encodable

__all__ = [
    "LARGE",
    "MESSAGES",
    "PROTOCOL_VERSION",
    "Hello",
    "LargeMessage",
    "MalformedMessageError",
    "Proof",
    "decode",
    "encode",
]

PROTOCOL_VERSION: Final = 4
"""Raised when a message changes its meaning. Peers of different versions part at once."""


class MalformedMessageError(SluicewayError):
    """Bytes that are no message of this protocol."""


class Hello(Message, frozen=True):
    """First of all, from both sides: who speaks, and what the other side has to sign."""

    role: str
    nonce: bytes
    version: int = PROTOCOL_VERSION


class Proof(Message, frozen=True):
    """Second, from both sides: the peer's nonce, signed with the cluster's secret."""

    signature: bytes


class LargeMessage(Message, frozen=True):
    """A message of the type ``kind``, of so many bytes, follows in frames that have nothing else in them."""

    kind: str
    size: int


def _own_messages(module: Any) -> list[type[Message]]:
    public = [getattr(module, name) for name in module.__all__]
    return [kind for kind in public if issubclass(kind, Message)]


MESSAGES: Final = [kind for module in (tasks, workers, clients, processes, keys) for kind in _own_messages(module)]
"""Types of the messages that may follow the handshake."""


LARGE: Final = frozenset(kind.__name__ for kind in MESSAGES if kind.large)
"""Names of those that may be longer than a frame."""


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, Payload | Cause):
        return value.encoded()
    raise TypeError(f"a message holds a {type(value).__name__}")


def _from_bytes(kind: Any, data: Any) -> Any:
    if not isinstance(data, bytes):
        raise TypeError(f"bytes expected, not {type(data).__name__}")
    return kind.received(data)


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_to_bytes)
_DECODER: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(
    Union[(Hello, Proof, LargeMessage, *MESSAGES)],
    dec_hook=_from_bytes,
)
_HANDSHAKE: Final = msgspec.msgpack.Decoder(Hello | Proof)


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises:
        SerializationError: an object in it cannot be pickled.
    """
    try:
        return _ENCODER.encode(message)
    except UnicodeEncodeError:
        # Texts for people, such as errors of functions. Values of the user are pickled.
        plain = msgspec.to_builtins(message, builtin_types=(bytes,), enc_hook=_to_bytes)
        return _ENCODER.encode(encodable(plain))


def decode(data: bytes | bytearray | memoryview, *, handshake: bool = False) -> Message:
    """Return the message.

    Args:
        data: its bytes.
        handshake: take the two messages of the handshake only, as long as the peer has proved nothing.

    Raises:
        MalformedMessageError: anything else, whatever the decoder raises: invalid UTF-8 and deep nesting are no
            errors of msgspec's own.
    """
    try:
        # Before the proof, nothing but the two messages of the handshake can be made of a stranger's bytes.
        message: Message = (_HANDSHAKE if handshake else _DECODER).decode(data)
    except Exception as error:
        raise MalformedMessageError(f"{type(error).__name__}: {error}") from error
    return message
