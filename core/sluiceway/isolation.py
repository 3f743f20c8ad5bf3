"""Isolation of records: an emitted record is the value at the moment it was emitted.

A step owns the records that it receives. So a value that leaves a user's function must not be reachable by
anything that may still change it: the function's state, its attributes, another record, another consumer. Where
that can be so, the record is copied. Most records need no copy, and the functions here find that out as cheaply
as they can:

- by *type*: numbers, texts, and tuples and frozen objects of them cannot be changed;
- by *reference count*: an object that nothing but its caller refers to, down to its leaves, belongs to the caller.
  What is in a weak collection, such as a WeakValueDictionary, can still be found there, and is copied.

Reference counts are exact in CPython with its global interpreter lock alone. Elsewhere every record that can be
changed is copied.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from gc import get_referents
from itertools import chain
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints
from weakref import getweakrefcount, getweakrefs

from sluiceway.elements import Columns
from sluiceway.errors import FunctionContractError
from sluiceway.types import unaliased

__all__ = [
    "ATOMS",
    "all_unchangeable",
    "classes_in",
    "copied",
    "extend_isolated",
    "holders_in",
    "is_data",
    "isolated",
    "isolated_all",
    "isolated_list",
    "look_unchangeable",
    "separated",
    "share_changeable",
    "unchangeable",
    "unchangeable_type",
]

ATOMS: Final = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        Decimal,
        Fraction,
        date,
        datetime,
        time,
        timedelta,
        timezone,
        range,
        type(Ellipsis),
        type,
        FunctionType,
        BuiltinFunctionType,
        CodeType,
        ModuleType,
    }
)
"""Types whose objects cannot be changed, whatever they hold."""

_PAIR: Final = 2
_LOOKED_AT: Final = 100
_LEAVES_AND_TUPLES: Final = frozenset({tuple, type(None), bool, int, float, str, bytes})
_FLAT: Final[dict[type, Callable[[Any], Any]]] = {list: list.copy, dict: dict.copy, set: set.copy}

# What is found out about a type, once.
_ATOM: Final = 0  # cannot be changed
_FROZEN: Final = 1  # cannot be changed itself, may hold what can be
_OPEN: Final = 2  # can be changed; the collector names all that it holds
_OPAQUE: Final = 3  # nothing is known
_KNOWN: Final[dict[type, int]] = {
    **dict.fromkeys(ATOMS, _ATOM),
    **dict.fromkeys((tuple, frozenset), _FROZEN),
    **dict.fromkeys((list, dict, set, deque, defaultdict, OrderedDict, bytearray), _OPEN),
}
_KNOWN_CONTAINERS: Final = frozenset({tuple, frozenset})
_IMMUTABLE_MODULES: Final = frozenset({"ipaddress", "pathlib", "pyarrow", "uuid", "zoneinfo"})
_CHANGED_IN_PLACE: Final = frozenset(
    {("builtins", "mappingproxy"), ("_contextvars", "ContextVar"), ("numpy", "void")}
)
"""Types with a hash that can be changed nevertheless: a row with fields, a variable, a dict behind its view."""
_WEAK_COLLECTIONS: Final = frozenset({"weakref", "_weakrefset"})
"""Modules of the callbacks by which weak collections learn that an object is gone."""
_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the type was made at run time, as every class statement does


def _kind(cls: type) -> int:
    known = _KNOWN.get(cls)
    if known is None:
        known = _KNOWN[cls] = _find_kind(cls)
    return known


def _find_kind(cls: type) -> int:
    if issubclass(cls, (Enum, type)) or cls.__module__.partition(".")[0] in _IMMUTABLE_MODULES:
        return _ATOM
    config = getattr(cls, "__struct_config__", None)  # of msgspec
    if config is not None:
        return _OPAQUE if not config.gc else _FROZEN if config.frozen else _OPEN
    python = all(b in _KNOWN or b is object or _is_python_class(b) for b in cls.__mro__)
    if not python:
        # Types written in C with a hash by value are immutable by convention: dates of pandas, scalars of numpy.
        by_value = cls.__hash__ is not None and cls.__hash__ is not object.__hash__
        if any((base.__module__, base.__name__) in _CHANGED_IN_PLACE for base in cls.__mro__):
            return _OPAQUE
        return _ATOM if by_value and not _is_python_class(cls) else _OPAQUE
    if issubclass(cls, tuple) and not cls.__dictoffset__:
        return _FROZEN  # a named tuple
    # Of its own: a plain subclass of a frozen class may set attributes that are no fields.
    params = vars(cls).get("__dataclass_params__")
    return _FROZEN if params is not None and params.frozen and not hasattr(cls, "__setstate__") else _OPEN


def _is_python_class(cls: type) -> bool:
    """Return whether a class statement made it; the collector then visits all attributes of its objects."""
    return bool(cls.__flags__ & _HEAP_TYPE) and (
        "__dict__" in vars(cls) or "__slots__" in vars(cls) or any(map(_is_python_class, cls.__bases__))
    )


# ---- what cannot be changed ----------------------------------------------------------------------------------


def unchangeable(value: Any) -> bool:
    """Return whether neither ``value`` nor anything in it can be changed in place, as far as types tell."""
    kind = _KNOWN.get(type(value))
    if kind == _ATOM:
        return True
    if kind is None:
        kind = _kind(type(value))
    if kind == _FROZEN:
        return all(unchangeable(part) for part in _parts(value))
    return kind == _ATOM


def all_unchangeable(values: Sequence[Any]) -> bool:
    """Return whether :func:`unchangeable` holds for all of them; cheap where they are frozen and hold atoms.

    True for :class:`~sluiceway.elements.Columns`, of which each consumer makes rows of its own.
    """
    if type(values) is Columns:
        return True
    kinds = set(map(type, values))
    others = kinds.difference(ATOMS)
    if not others:
        return True
    if not all(_kind(cls) in (_ATOM, _FROZEN) for cls in others):
        return False
    if not all(_kind(cls) == _FROZEN for cls in kinds):
        values = [value for value in values if _kind(type(value)) == _FROZEN]
    # One call for all that they hold, which is several times as fast as one for each.
    parts = get_referents(*values)
    if ATOMS.issuperset(map(type, parts)):
        return True
    return all_unchangeable([part for part in parts if type(part) not in ATOMS and not isinstance(part, type)])


def is_data(value: Any) -> bool:
    """Return whether :func:`unchangeable` holds, and nothing in ``value`` can be called or is a module."""
    if callable(value) or isinstance(value, ModuleType):
        return False
    if isinstance(value, Enum):
        return all(is_data(held) for held in vars(value).values() if not isinstance(held, type))
    kind = _kind(type(value))
    if kind == _FROZEN:
        return all(is_data(part) for part in get_referents(value) if part is not type(value))
    return kind == _ATOM


def classes_in(value: Any) -> set[type]:
    """Return the classes of an object and of what it holds, as far as that is known; of the first hundred."""
    found: set[type] = set()
    seen: set[int] = set()
    left = [value]
    while left and len(seen) < _LOOKED_AT:
        part = left.pop()
        found.add(type(part))
        if _kind(type(part)) in (_FROZEN, _OPEN) and id(part) not in seen:
            left += (held for held in get_referents(part) if not isinstance(held, type))
        seen.add(id(part))
    return found


def share_changeable(values: Iterable[Any]) -> bool:
    """Return whether an object that can be changed is reached twice from ``values``, as a list in two of them.

    What is behind an object of which nothing is known is not looked at.
    """
    seen: set[int] = set()
    level = [value for value in values if _kind(type(value)) != _ATOM]
    while level:
        holders = []
        for value in level:
            kind = _kind(type(value))
            if id(value) in seen:
                if kind != _FROZEN or not unchangeable(value):
                    return True
                continue
            seen.add(id(value))
            if kind != _OPAQUE:
                holders.append(value)
        parts = get_referents(*holders)
        level = [part for part in parts if _kind(type(part)) != _ATOM and not isinstance(part, type)]
    return False


def unchangeable_type(hint: Any) -> bool:
    """Return whether a type hint promises that :func:`unchangeable` holds for all of its values."""
    try:
        return _says_unchangeable(hint)
    except Exception:  # a hint may be any object
        return False


def _says_unchangeable(hint: Any) -> bool:
    if hint is None:
        return False  # it is not known
    hint = unaliased(hint)
    if hint in ATOMS:
        return True
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return True
    if origin in (tuple, frozenset, Union, UnionType):
        return all(part is Ellipsis or _says_unchangeable(part) for part in parts)
    if not isinstance(hint, type):
        return False
    kind = _kind(hint)
    if kind != _FROZEN or hint in _KNOWN_CONTAINERS:
        return kind == _ATOM
    hints = get_type_hints(hint)
    return bool(hints) and all(map(_says_unchangeable, hints.values()))


def _parts(value: Any) -> list[Any]:
    return [part for part in get_referents(value) if type(part) not in ATOMS and not isinstance(part, type)]


# ---- who else refers to a value ------------------------------------------------------------------------------


def _references(value: object) -> int:
    return sys.getrefcount(value)


def _references_of_parts(value: object) -> int:
    parts = get_referents(value)
    for part in parts:
        return sys.getrefcount(part)
    return 0


def _references_while_read(values: list[Any]) -> int:
    for _ in values:
        return _references_below(values)
    return 0


def _references_below(value: object) -> int:
    return _references(value)


def _calibrate() -> tuple[int, int, int]:
    mine: list[object] = [[]]
    return _references(mine), _references_of_parts(mine), _references_while_read(mine)


# How many references are counted where there is no other: of an argument, of a part, of a list in a loop over it.
# Measured at the depth at which they are needed, since versions of Python differ in what each call adds: from 3.14
# on, most calls add nothing.
_ALONE, _ALONE_IN_PARENT, _ALONE_WHILE_READ = _calibrate()


def _in_weak_collection(value: Any) -> bool:
    """Return whether a collection of the module weakref has a value.

    Other weak references do not count: a part of a record refers so to what it is in, and in a copy it would refer
    to the original.
    """
    if not getweakrefcount(value):
        return False
    told = (ref.__callback__ for ref in getweakrefs(value))
    return any(type(each) is FunctionType and each.__module__ in _WEAK_COLLECTIONS for each in told)


def _owns_its_parts(value: Any, *, alone: bool, opaque: bool = False) -> bool:
    """Return whether all that can be changed in ``value`` is referred to from one place there, and nowhere else.

    Args:
        value: an object.
        alone: whether nobody else refers to it; if somebody does, nothing in it may be changeable at all.
        opaque: whether objects will do of which it is not known what they hold, or that a weak collection has.
    """
    left: list[tuple[Any, bool]] = [(value, alone)]
    while left:
        holder, is_alone = left.pop()
        holder = get_referents(holder)
        for part in holder:
            kind = _KNOWN.get(type(part))
            if kind == _ATOM:
                continue
            if kind is None:
                kind = _kind(type(part))
            part_is_alone = (
                is_alone
                and sys.getrefcount(part) <= _ALONE_IN_PARENT
                and (opaque or not _in_weak_collection(part))
            )
            if kind == _OPAQUE and not (opaque and part_is_alone):
                return False
            if kind == _OPEN and not part_is_alone:
                return False
            if kind != _ATOM:
                left.append((part, part_is_alone))
    return True


def isolated(value: Any, holders: int = 0) -> Any:
    """Return ``value`` if nobody but the caller can change it, else a deep copy of it.

    Args:
        value: the caller has it in one local variable, not in an expression alone: references are counted.
        holders: in how many other places the caller has it.

    Raises:
        FunctionContractError: it has to be copied and cannot be.
    """
    cls = type(value)
    # Most records that get here are tuples.
    if cls is tuple and ATOMS.issuperset(map(type, value)):
        return value
    kind = _kind(cls)
    if kind == _ATOM:
        return value
    if _COUNTED:
        referred_to = sys.getrefcount(value) - holders > _ALONE
        alone = not referred_to and not _in_weak_collection(value)
        if (
            kind != _OPAQUE
            and (alone or kind == _FROZEN)
            # Most records hold atoms and nothing else.
            and (ATOMS.issuperset(map(type, get_referents(value))) or _owns_its_parts(value, alone=alone))
        ):
            return value
        try:
            return copied(value)
        except FunctionContractError as error:
            failure, cause = error, error.__cause__
        # The frames of the attempt refer to the value, too.
        failure.__traceback__ = failure.__context__ = None
        if cause is not None:
            cause.__traceback__ = None
        if not referred_to and _owns_its_parts(value, alone=True, opaque=True):
            return value  # nothing is known of what such objects hold, but nobody else refers to any of them
        raise failure
    return copied(value)


def copied(value: Any) -> Any:
    """Return a copy that shares nothing with ``value`` that can be changed; ``value`` itself if nothing can be.

    Raises:
        FunctionContractError: it cannot be copied.
    """
    cls = type(value)
    if cls in ATOMS or (cls is tuple and ATOMS.issuperset(map(type, value))):
        return value
    flat = _FLAT.get(cls)
    if flat is None:
        if unchangeable(value):
            return value
    else:
        parts = [*value, *value.values()] if cls is dict else value
        if ATOMS.issuperset(map(type, parts)) or all_unchangeable(list(parts)):
            return flat(value)
    try:
        return deepcopy(value)
    except Exception as error:
        raise FunctionContractError(
            f"a record of type {cls.__name__} cannot be copied ({type(error).__name__}: {error!s:.200}), and "
            "its function, or another record or consumer, still refers to it: emit an object of its own for each "
            "record, without what cannot be copied, or run with the option object-reuse, which shares records"
        ) from error


_COUNTED = True


# ---- records of a batch --------------------------------------------------------------------------------------


def isolated_all(values: list[Any]) -> list[Any]:
    """Return the records for one more consumer: ``values`` itself if none can be changed, else copies."""
    return values if all_unchangeable(values) else list(map(copied, values))


def look_unchangeable(values: Sequence[Any]) -> bool:
    """Return whether the first and the last record, at least, cannot be changed."""
    return not values or isinstance(values, Columns) or (unchangeable(values[0]) and unchangeable(values[-1]))


def separated(values: list[Any]) -> list[Any]:
    """Return the results of functions that keep nothing, with copies for those that share anything with another.

    Looks at the type of each, and into tuples at all that they hold.

    Raises:
        FunctionContractError: a record has to be copied and cannot be.
    """
    # A look at the type of each record is saved where tuples hold leaves: anything else holds its class, at least.
    if values and type(values[0]) is tuple and _are_leaves(values, get_referents(*values)):
        return values
    kinds = set(map(type, values))
    others = kinds.difference(ATOMS)
    if not others:
        return values
    if all(map(_is_plain_tuple, others)):
        # Named tuples hold their class, too, which iterating over them leaves out.
        named = tuple not in kinds and others == kinds
        if (named and _are_leaves(values, list(chain.from_iterable(values)))) or all_unchangeable(values):
            return values
    return isolated_list(values)


def _is_plain_tuple(cls: type) -> bool:
    return cls is tuple or (
        issubclass(cls, tuple)
        and _kind(cls) == _FROZEN
        and cls.__hash__ == tuple.__hash__
        and cls.__iter__ is tuple.__iter__
    )


def _are_leaves(values: list[Any], parts: list[Any]) -> bool:
    """Return whether tuples and atoms have nothing in them but what has a hash and refers to nothing.

    Costs half as much as a look at the type of each part. What can be changed and is compared by value has no
    hash; what has attributes refers to them, or to its class. An object of an extension module may be compared
    by identity and name nothing that it holds: it is found by its type in the first record and the last alone.

    Args:
        values: the records.
        parts: what they hold.
    """
    if not look_unchangeable(values):
        return False
    try:
        hash(tuple(values))
    except Exception:  # that of a writable memoryview raises a ValueError
        return False
    while held := get_referents(*parts):
        if not _LEAVES_AND_TUPLES.issuperset(map(type, parts)):
            return False
        parts = held
    return True


def extend_isolated(out: list[Any], returned: Iterable[Any]) -> None:
    """Append what a user's function has returned, each record as it is when its turn comes.

    The same as ``list.extend``, which takes its place where records are shared.

    Args:
        out: is extended.
        returned: a list, a generator that runs here, or any other iterable; the caller has it in a local variable.

    Raises:
        FunctionContractError: a record has to be copied and cannot be.
    """
    atoms = ATOMS
    append = out.append
    for made in returned:
        if type(made) is tuple:
            # Most tuples are pairs. No variable for what is in them: it would count as one more reference.
            if len(made) == _PAIR and type(made[0]) in atoms and type(made[1]) in atoms:
                append(made)
                continue
            made = isolated(made, _holders(returned))
        elif type(made) not in atoms:
            made = isolated(made, _holders(returned))
        append(made)


def isolated_list(returned: Iterable[Any]) -> list[Any]:
    """Return a list of what a user's function has returned, each record as it is when its turn comes."""
    out: list[Any] = []
    extend_isolated(out, returned)
    return out


def _holders(returned: Iterable[Any]) -> int:
    """Return in how many places an iterable holds each of its records; a list counts if it is nobody else's."""
    return 1 if type(returned) is list and _references(returned) <= _ALONE_WHILE_READ else 0


def holders_in(returned: Iterable[Any]) -> int:
    """Return the same as an argument for :func:`isolated`, before a loop over ``returned``, a local variable."""
    return 1 if type(returned) is list and sys.getrefcount(returned) <= _ALONE else 0


def _counts_are_exact() -> bool:
    """Try it: a version of Python may count otherwise."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    alone: list[object] = [[]]
    shared: list[object] = [[]]
    others = [shared]
    part: list[object] = []
    of_others: list[object] = [part]
    others.append(part)
    found = [isolated(alone) is alone, isolated(shared) is shared, isolated(of_others) is of_others]
    out: list[object] = []
    extend_isolated(out, alone)
    extend_isolated(out, shared)
    found += [out[0] is alone[0], out[1] is shared[0]]
    return found == [True, False, False, True, False]


_COUNTED = _counts_are_exact()
