"""Split of records of one class into columns, one for each field, and their reconstruction.

As with pickle, reconstruction runs no ``__init__`` and no ``__post_init__``. A class that customises its
copies is left to pickle.
"""

from __future__ import annotations

import copyreg
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from itertools import repeat
from operator import attrgetter, itemgetter
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final

import msgspec

__all__ = ["kind_of", "names_of", "put_together", "take_apart", "why_not"]

_Columns = list[Sequence[Any]]

_state = attrgetter("__dict__")
_PYDANTIC: Final = "pydantic.main"


def kind_of(cls: type) -> str | None:
    """Return how records of a class are split; None where they are not.

    ``tuple``, ``struct``, ``slots`` or ``model``, or ``attributes``: those that each record happens to have.
    """
    return _judged(cls)[0]


def why_not(cls: type) -> str | None:
    """Return why records of a class are not split, in words that follow its name; None where they are."""
    kind, why = _judged(cls)
    return None if kind is not None else why


@lru_cache(maxsize=256)
def _judged(cls: Any) -> tuple[str | None, str]:
    # Each test leaves out classes whose objects pickle would make in another way than put_together() does.
    if issubclass(cls, tuple):
        return ("tuple" if _is_named_tuple(cls) else None), "is a tuple with more to it than its fields"
    if cls in copyreg.dispatch_table or cls.__reduce_ex__ is not object.__reduce_ex__:
        return None, "says itself how it is pickled"
    if issubclass(cls, msgspec.Struct):
        return (
            "struct" if _is_plain_struct(cls) else None
        ), "is a struct with keyword-only fields or __post_init__"
    if cls.__reduce__ is not object.__reduce__:
        return None, "says itself how it is pickled, by __reduce__()"
    if cls.__new__ is not object.__new__:
        return None, "has a __new__() of its own, or is derived from a built-in type"
    if any(hasattr(cls, name) for name in ("__getnewargs__", "__getnewargs_ex__")) or _hides_state(cls):
        return None, "has more to it than attributes"
    if any(base.__module__ == _PYDANTIC and base.__qualname__ == "BaseModel" for base in cls.__mro__):
        usual = cls.__getstate__.__module__ == cls.__setstate__.__module__ == _PYDANTIC
        return ("model" if usual else None), "is a model that says itself what its state is"
    if not _is_copied_by_state(cls):
        return None, "says itself what its state is, by __getstate__() or __setstate__()"
    slots = _slots(cls)
    if cls.__dictoffset__ and not slots:
        return "attributes", ""
    if slots and not cls.__dictoffset__ and is_dataclass(cls) and slots == {f.name for f in fields(cls)}:
        members = (inspect.getattr_static(cls, name, None) for name in slots)
        if all(type(member) is MemberDescriptorType for member in members):
            return "slots", ""
    return None, "has slots, and is no dataclass of just these" if slots else "has no attributes"


def names_of(kind: str, record: Any) -> tuple[str, ...]:
    """Return the names of the fields that the records of its class have, derived from one of them."""
    cls: Any = type(record)
    if kind == "tuple":
        names: tuple[str, ...] = cls._fields
    elif kind == "struct":
        names = cls.__struct_fields__
    elif kind == "slots":
        names = tuple(f.name for f in fields(cls))
    else:
        state = record.__dict__
        names = tuple(state) if type(state) is dict and {str}.issuperset(map(type, state)) else ()
        if not _can_be_set(cls, names):
            return ()
    return names


def take_apart(kind: str, names: tuple[str, ...], records: Sequence[Any]) -> _Columns | None:
    """Return the columns of records of one class; None where a record has more than its fields."""
    try:
        if kind == "tuple":
            return list(zip(*records, strict=True))
        if kind in ("struct", "slots"):
            return [list(map(attrgetter(name), records)) for name in names]
        states = list(map(_state, records))
        if not {len(names)}.issuperset(map(len, states)):
            return None
        columns: _Columns = [list(map(itemgetter(name), states)) for name in names]
        if kind == "model":
            if not _are_plain_models(records):
                return None
            columns.append(_given(records))
        return columns
    except (AttributeError, KeyError, ValueError):
        return None


def put_together(kind: str, cls: Any, names: tuple[str, ...], columns: Sequence[Sequence[Any]]) -> list[Any]:
    """Return records of a class from their columns."""
    if kind == "tuple":
        return list(map(partial(tuple.__new__, cls), zip(*columns, strict=True)))
    if kind == "struct":
        return list(map(cls, *columns))
    records = list(map(object.__new__, repeat(cls, len(columns[0]))))
    if kind == "model":
        _fill_models(records, names, columns)
        return records
    # The first is the fastest; the others go past a __setattr__ that refuses, or does more.
    usual = cls.__setattr__ is object.__setattr__
    for name, column in zip(names, columns, strict=True):
        if usual:
            _for_each(setattr, records, repeat(name), column)
        elif kind == "slots":
            _for_each(getattr(cls, name).__set__, records, column)
        else:
            _for_each(object.__setattr__, records, repeat(name), column)
    return records


def _for_each(function: Callable[..., Any], *columns: Any) -> None:
    deque(map(function, *columns), maxlen=0)


# ---- which classes ------------------------------------------------------------------------------------------


def _is_named_tuple(cls: Any) -> bool:
    return (
        cls.__bases__ == (tuple,)
        and bool(getattr(cls, "_fields", ()))
        and cls.__reduce_ex__ is object.__reduce_ex__
        and cls.__reduce__ is object.__reduce__
        # Of the __new__() that collections.namedtuple() generates; any other one is the user's.
        and cls.__new__.__module__ == f"namedtuple_{cls.__name__}"
        and not cls.__dictoffset__
        and not hasattr(cls, "__setstate__")
    )


def _is_plain_struct(cls: Any) -> bool:
    return (
        cls.__reduce__ is msgspec.Struct.__reduce__
        and not hasattr(cls, "__post_init__")
        and bool(cls.__struct_fields__)
        and cls.__match_args__ == cls.__struct_fields__  # all may be given by position
        and not cls.__dictoffset__
    )


def _is_copied_by_state(cls: Any) -> bool:
    """Return whether its state is its attributes: no ``__getstate__`` but the dataclasses' own."""
    for name in ("__getstate__", "__setstate__"):
        method = getattr(cls, name, None)
        own = method is not None and method is not getattr(object, name, None)
        if own and getattr(method, "__module__", None) != "dataclasses":
            return False
    return True


def _hides_state(cls: Any) -> bool:
    """Return whether instances have more than ``__dict__`` and slots, as where a base is written in C."""
    # tuple.__itemsize__ is the size of a pointer. A dict that Python manages itself has a negative offset, and no
    # place in the basic size.
    words = len(_slots(cls)) + bool(cls.__weakrefoffset__) + (cls.__dictoffset__ > 0)
    if cls.__basicsize__ > object.__basicsize__ + words * tuple.__itemsize__:
        return True
    own = (vars(base)["__dict__"] for base in cls.__mro__ if "__dict__" in vars(base))
    return any(type(descriptor) is not GetSetDescriptorType for descriptor in own)


def _slots(cls: type) -> set[str]:
    found: set[str] = set()
    for base in cls.__mro__:
        own = vars(base).get("__slots__", ())
        found.update([own] if isinstance(own, str) else own)
    return found - {"__dict__", "__weakref__"}


@lru_cache(maxsize=256)
def _can_be_set(cls: type, names: tuple[str, ...]) -> bool:
    """Return whether setting each name only changes the ``__dict__``."""
    return not any(hasattr(type(inspect.getattr_static(cls, name, None)), "__set__") for name in names)


# ---- pydantic -----------------------------------------------------------------------------------------------


def _are_plain_models(records: Sequence[Any]) -> bool:
    """Return whether models have neither private attributes nor extra ones."""
    nothing = {type(None)}
    return all(
        nothing.issuperset(map(type, map(attrgetter(name), records)))
        for name in ("__pydantic_extra__", "__pydantic_private__")
    )


def _given(records: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return which fields were given to each and are no defaults; one entry where that is the same for all."""
    sets = list(map(attrgetter("__pydantic_fields_set__"), records))
    return [tuple(sets[0])] if sets.count(sets[0]) == len(sets) else list(map(tuple, sets))


def _fill_models(records: list[Any], names: tuple[str, ...], columns: Sequence[Sequence[Any]]) -> None:
    *values, given = columns
    each = given if len(given) == len(records) else repeat(given[0], len(records))
    set_one = object.__setattr__
    _for_each(
        set_one,
        records,
        repeat("__dict__"),
        [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)],
    )
    _for_each(set_one, records, repeat("__pydantic_extra__"), repeat(None))
    _for_each(set_one, records, repeat("__pydantic_private__"), repeat(None))
    _for_each(set_one, records, repeat("__pydantic_fields_set__"), map(set, each))
