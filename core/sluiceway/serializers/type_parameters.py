"""Pickling of type parameters and type aliases of programs that cannot be imported, as scripts and notebooks.

Annotations refer to them, and functions and classes to their annotations. pickle writes their names alone, and
cloudpickle writes nothing but a TypeVar by value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, ParamSpec, ParamSpecArgs, ParamSpecKwargs, TypeVarTuple

import cloudpickle

from sluiceway.types import is_alias, value_of_alias

__all__ = ["reduced_type_parameter"]

_SCRIPTS: Final = ("__main__", "__mp_main__")


def reduced_type_parameter(obj: Any) -> tuple[Any, ...] | None:
    """Return what makes an object anew, if it is a type parameter or a type alias of a program; else None."""
    kind = type(obj)
    if kind in (ParamSpecArgs, ParamSpecKwargs):
        return kind, (obj.__origin__,)
    if kind in (ParamSpec, TypeVarTuple):
        return None if _can_be_imported(obj) else (kind, (obj.__name__,))
    if not is_alias(obj) or _can_be_imported(obj):
        return None
    name, module, value = obj.__name__, str(obj.__module__), value_of_alias(obj)
    if obj.__type_params__ or kind.__module__ != "typing":
        return _generic_alias, (kind, name, module, value, obj.__type_params__)
    # Its value comes later, since it may refer to the alias.
    held: list[Any] = []
    return _alias, (name, module, held), (held, value), None, None, _hold


def _can_be_imported(obj: Any) -> bool:
    module = str(obj.__module__)
    packages = set(accumulate(module.split("."), "{}.{}".format))
    by_value = {*_SCRIPTS, *cloudpickle.list_registry_pickle_by_value()}
    return getattr(sys.modules.get(module), obj.__name__, None) is obj and packages.isdisjoint(by_value)


def _generic_alias(kind: Callable[..., Any], name: str, module: str, value: Any, parameters: Any) -> Any:
    # The module of an alias is that of the code that makes it.
    scope = {"__name__": module, "kind": kind, "name": name, "value": value, "parameters": parameters}
    return eval("kind(name, value, type_params=parameters)", scope)


def _alias(name: str, module: str, held: list[Any]) -> Any:
    scope = {"__name__": module, f"_{name}": held}
    exec(f"type {name} = _{name}[0]", scope)
    return scope[name]


def _hold(alias: Any, state: tuple[list[Any], Any]) -> None:
    held, value = state
    held.append(value)
