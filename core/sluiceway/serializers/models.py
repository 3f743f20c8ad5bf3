"""Pydantic models as msgpack: their fields by name, without running the models' validation."""

from __future__ import annotations

import sys
import typing
from typing import Any, Final

import msgspec

from sluiceway.types import unaliased

__all__ = ["has_models", "is_pydantic", "is_simple_model", "model_fields", "model_of"]

_SET: Final = "__pydantic_fields_set__"
_METHODS: Final = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "model_post_init", "__new__")


def is_pydantic(cls: Any) -> bool:
    """Return whether a class is a pydantic model. Does not import pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def is_simple_model(cls: Any) -> bool:
    """Return whether objects of a model have nothing but its fields."""
    from pydantic import BaseModel, RootModel

    return (
        not issubclass(cls, RootModel)
        and all(getattr(cls, name) is getattr(BaseModel, name) for name in _METHODS)
        and not cls.__private_attributes__
        and cls.model_config.get("extra") != "allow"
        and not cls.__pydantic_generic_metadata__["origin"]
    )


def has_models(hint: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Return whether values of a type may hold models."""
    if is_pydantic(hint):
        return True
    if "pydantic" not in sys.modules or hint in seen:
        return False
    if (plain := unaliased(hint)) is not hint:
        return has_models(plain, seen | {hint})
    parts = [part for part in typing.get_args(hint) if part is not Ellipsis and not isinstance(part, list)]
    if not parts and isinstance(hint, type) and getattr(hint, "__module__", "") != "builtins":
        try:
            parts = list(typing.get_type_hints(hint).values())
        except Exception:  # hints are the user's
            return False
    return any(has_models(part, seen | {hint}) for part in parts)


def model_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a model as written."""
    if not is_pydantic(type(value)):
        raise TypeError(f"{type(value).__name__} is no pydantic model")
    found = dict(vars(value))
    given = value.__pydantic_fields_set__
    if given != found.keys():
        found[_SET] = sorted(given)
    return found


def model_of(cls: Any, found: Any) -> Any:
    """Return a model of written fields; missing fields have their defaults."""
    if not is_pydantic(cls):
        raise TypeError(f"values of {cls} cannot be read")
    if not isinstance(found, dict):
        raise ValueError(f"{found!r:.80} is no {cls.__name__}")
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, field in cls.model_fields.items():
        if name in found:
            values[name] = msgspec.convert(found[name], hints[name], dec_hook=model_of)
        elif field.is_required():
            raise ValueError(f"{cls.__name__} lacks its field {name!r}")
        else:
            values[name] = field.get_default(call_default_factory=True)
    # Not by the constructor, which would run the validators again.
    made = cls.__new__(cls)
    made.__setstate__(
        {
            "__dict__": values,
            "__pydantic_extra__": None,
            _SET: set(found.get(_SET, [name for name in values if name in found])),
            "__pydantic_private__": None,
        }
    )
    return made
