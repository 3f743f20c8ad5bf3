"""Registry of serializers by type and name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sluiceway.errors import choose
from sluiceway.serializers.base import PICKLE, Serializer
from sluiceway.serializers.guarded import ask, check_registration
from sluiceway.serializers.msgpack import MsgspecSerializer

__all__ = [
    "register_serializer",
    "registered_serializer_for",
    "registered_serializers",
    "serializer_by_name",
    "serializer_for",
]

_BUILTIN: Final[dict[str, Serializer]] = {"msgspec": MsgspecSerializer(), "pickle": PICKLE}
_FORMATS: Final[dict[str, Serializer]] = {}  # asked in this order; msgspec and pickle come after all of them


def register_serializer(serializer: Serializer) -> None:
    """Register a format that is asked before the built-in ones. Call it before a job is made.

    For the records of edges it travels with the job; for state it has to be registered in every process.

    Raises:
        TypeError: it is no serializer, or its name or version has another type.
        ValueError: another format has that name, or its name or version cannot stand before a batch.
    """
    check_registration(serializer)
    known, new = type(_known_formats().get(serializer.name, serializer)), type(serializer)
    # A cell of a notebook that is run again defines its class again.
    if (known.__module__, known.__qualname__) != (new.__module__, new.__qualname__):
        raise ValueError(f"there is another serializer {serializer.name!r} already: {known.__qualname__}")
    if serializer.name not in _BUILTIN:
        _FORMATS[serializer.name] = serializer


def serializer_for(type_hint: Any) -> Serializer:
    """Return the serializer for values of a declared type; None, Any and object are pickled.

    Raises:
        SerializationError: a registered format has failed on the type.
    """
    registered = registered_serializer_for(type_hint, registered_serializers())
    if registered is not None:
        return registered
    for known in _BUILTIN.values():
        if (serializer := known.for_type(type_hint)) is not None:
            return serializer
    raise AssertionError("pickle takes everything")


def registered_serializers() -> tuple[Serializer, ...]:
    """Return what plugins and the program have registered, in the order in which they are asked."""
    return tuple(_FORMATS.values())


def registered_serializer_for(type_hint: Any, formats: Iterable[Serializer]) -> Serializer | None:
    """Return the serializer that one of some registered formats has for a type, or None.

    Raises:
        SerializationError: one of them has failed on the type.
    """
    for known in formats:
        if (serializer := ask(known, type_hint)) is not None:
            return serializer
    return None


def serializer_by_name(name: str) -> Serializer:
    """Return the registered format; ``for_type`` makes a serializer of it. Raises UnknownNameError."""
    known = _known_formats()
    if name not in known:
        raise choose("serializer", name, known)
    return known[name]


def _known_formats() -> dict[str, Serializer]:
    return {**_FORMATS, **_BUILTIN}
