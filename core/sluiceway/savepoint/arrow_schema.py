"""Arrow columns of state: from the schema saved with it, or inferred from its values."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, Final
from uuid import UUID

from sluiceway.checkpoint.offline_reader import Opaque
from sluiceway.savepoint.column_names import CHANGED, FIELD
from sluiceway.savepoint.json_text import as_text
from sluiceway.serializers.schemas import Schema
from sluiceway.util.install_hints import install_command
from sluiceway.util.overriding import override

__all__ = ["Fixed", "Found", "MisfitError", "Moments", "NamespaceFound", "Shape", "Typed", "arrow", "can_be_typed"]

Convert = Callable[[Any], Any]

# Dicts with more different keys become JSON text instead of columns.
_MOST_FIELDS: Final = 64
_KEPT: Final = frozenset({bool, int, float, str, bytes, dt.date, dt.datetime, dt.timedelta})
_MOST_AS_FLOAT: Final = 1 << 53
_FIRST_MS: Final = -62_135_596_800_000  # what a datetime can hold
_LAST_MS: Final = 253_402_300_799_999


def arrow() -> Any:
    """Import and return pyarrow. Raises MissingExtraError."""
    try:
        import pyarrow
    except ImportError as error:
        from sluiceway.errors import MissingExtraError

        raise MissingExtraError(
            f"state as Arrow tables needs pyarrow: {install_command('sluiceway[arrow]')}"
        ) from error
    return pyarrow


class MisfitError(Exception):
    """A value does not fit the type of its column."""

    def __init__(self, column: str, kind: Any, value: Any) -> None:
        super().__init__(f"{value!r:.80} does not go into column {column!r} of type {kind}")


class Shape(ABC):
    """Columns for one role of the entries, such as the keys."""

    @abstractmethod
    def columns(self, name: str) -> list[tuple[str, Any]]:
        """Return names and types of the columns; ``name`` is the role."""

    @abstractmethod
    def arrays(self, name: str, values: Sequence[Any]) -> list[Any]:
        """Return the arrays of the columns. Raises MisfitError."""

    @property
    def infers(self) -> bool:
        """True if the columns depend on the values."""
        return False

    def see(self, values: Sequence[Any]) -> None:
        """Infer types from values; called for all values before :meth:`columns`, if :attr:`infers`."""

    def doubts(self) -> list[str]:
        """Return for each column why values cannot be taken back from it: CHANGED, FIELD; empty if they can."""
        return [""] * len(self.columns(""))


class Fixed(Shape):
    """One column of a fixed type.

    Args:
        kind: the type.
        convert: conversion of a value to the form that Arrow accepts.
        exact: whether the values can be made of that form again.
    """

    def __init__(self, kind: Any, convert: Convert | None = None, exact: bool = True) -> None:
        self.kind = kind
        self.exact = exact
        self._convert = convert

    @override
    def doubts(self) -> list[str]:
        return ["" if self.exact else CHANGED]

    @override
    def columns(self, name: str) -> list[tuple[str, Any]]:
        return [(name, self.kind)]

    @override
    def arrays(self, name: str, values: Sequence[Any]) -> list[Any]:
        convert = self._convert
        return [_array(name, self.kind, values if convert is None else [_or_none(convert, v) for v in values])]


class Typed(Shape):
    """Columns from a schema: the fields of a record, the elements of a tuple, or one column.

    Args:
        schema: schema of the values; not ``any``.
        whole: whether the values are lists or maps of the state, one to a row.
    """

    def __init__(self, schema: Schema, *, whole: bool = False) -> None:
        inner = _required(schema)
        self._is_whole = whole
        self._names: list[str] | None = None  # of the fields of a record
        self._schemas: list[Schema] | None = None  # of these, or of the elements of a tuple
        if isinstance(inner, dict) and "record" in inner and inner["fields"]:
            self._names = [f["name"] for f in inner["fields"]]
            self._schemas = [f["type"] for f in inner["fields"]]
        elif isinstance(inner, dict) and "tuple" in inner and inner["tuple"]:
            self._schemas = inner["tuple"]
        self._parts = [_Part(part) for part in ([inner] if self._schemas is None else self._schemas)]

    @property
    @override
    def infers(self) -> bool:
        return any(part.infers for part in self._parts)

    @override
    def see(self, values: Sequence[Any]) -> None:
        for part, taken in zip(self._parts, self._taken(values), strict=True):
            part.see(taken)

    @override
    def columns(self, name: str) -> list[tuple[str, Any]]:
        if self._schemas is None:
            return self._parts[0].fixed.columns(name)
        names = self._names or [f"{name}_{place}" for place in range(len(self._parts))]
        return [(column, part.fixed.kind) for column, part in zip(names, self._parts, strict=True)]

    @override
    def doubts(self) -> list[str]:
        return [CHANGED if self._is_whole or not part.fixed.exact else "" for part in self._parts]

    @override
    def arrays(self, name: str, values: Sequence[Any]) -> list[Any]:
        made = []
        parts = zip(self.columns(name), self._parts, self._taken(values), strict=True)
        for (column, _), part, taken in parts:
            made += part.fixed.arrays(column, taken)
        return made

    def _taken(self, values: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Yield the values of each part."""
        if self._schemas is None:
            yield values
        elif self._names is not None:
            for name in self._names:
                yield [None if v is None else v.get(name) for v in values]
        else:
            for place in range(len(self._parts)):
                yield [None if v is None else v[place] for v in values]


class _Part:
    """Column of a declared type.

    Args:
        schema: schema of the values.

    Attributes:
        infers: True if the type depends on the values: times have zones, or not.
        fixed: the column.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._zones: set[bool] = set()
        self.infers = _has_times(schema)
        self.fixed = Fixed(*_of(schema, self._zones))

    def see(self, values: Sequence[Any]) -> None:
        """Find out about the zones of times."""
        if self.infers:
            self._zones.update(*map(_zones_in, values))
            self.fixed = Fixed(*_of(self._schema, self._zones))


def can_be_typed(schema: Schema | None) -> bool:
    """Return whether a schema determines the type of the values, except nested parts."""
    if schema is None:
        return False
    inner = _required(schema)
    return inner != "any" and not (isinstance(inner, dict) and "union" in inner)


class Found(Shape):
    """Columns inferred from values: scalars, tuples of one length, dicts with string keys; else JSON text.

    Args:
        records: whether dicts are records with a column per field.
        whole: whether the values are lists or maps of the state, one to a row.
    """

    def __init__(self, *, records: bool = False, whole: bool = False) -> None:
        self._records = records
        self._exact = not whole
        self._scalar: Any = None  # a type, or None: nothing was seen
        self._is_text = False
        self._seen_scalars = False
        self._most = 0  # of the integers
        self._parts: list[Found] | None = None
        self._fields: dict[str, Found] | None = None
        self._opaque = False

    @property
    @override
    def infers(self) -> bool:
        return True

    def see(self, values: Sequence[Any]) -> None:
        """Widen what is known."""
        kinds = set(map(type, values))
        kinds.discard(type(None))
        # One value that cannot be read makes the column binary for good, beside one with the names of types.
        if Opaque in kinds:
            self._opaque = True
            return
        if self._opaque or self._is_text or not kinds:
            return
        values = [value for value in values if value is not None]
        if all(issubclass(kind, tuple) for kind in kinds):
            self._see_tuples(values)
        elif self._records and kinds == {dict}:
            self._see_records(values)
        elif self._parts is not None or self._fields is not None:
            self._is_text = True
        else:
            self._see_scalars(kinds, values)

    def _see_tuples(self, values: Sequence[Any]) -> None:
        widths = set(map(len, values))
        if self._seen_scalars or self._fields is not None or len(widths) > 1 or 0 in widths:
            self._is_text = True
            return
        [width] = widths
        if self._parts is None:
            self._parts = [Found() for _ in range(width)]
        if len(self._parts) != width:
            self._is_text = True
            return
        for part, column in zip(self._parts, zip(*values, strict=True), strict=True):
            part.see(column)

    def _see_records(self, values: Sequence[Any]) -> None:
        names = dict.fromkeys(name for value in values for name in value)
        fits = not self._seen_scalars and self._parts is None and all(isinstance(name, str) for name in names)
        self._fields = {} if self._fields is None and fits else self._fields
        if not fits or self._fields is None or len(self._fields.keys() | names.keys()) > _MOST_FIELDS:
            self._is_text = True
            return
        for name in names:
            self._fields.setdefault(name, Found()).see([value.get(name) for value in values])

    def _see_scalars(self, kinds: set[type], values: Sequence[Any]) -> None:
        self._seen_scalars = True
        self._exact = self._exact and all(map(_is_kept, values))
        found = _scalar_type(kinds, values)
        if self._scalar is not None and found is not None:
            found = _common(self._scalar, found)
        if int in kinds:
            self._most = max(self._most, *(abs(value) for value in values if type(value) is int))
        if self._most > _MOST_AS_FLOAT and found == arrow().float64():
            found = None
        self._scalar = found
        self._is_text = found is None

    @override
    def doubts(self) -> list[str]:
        parts = self._kinds()
        if parts is None:
            changed = self._opaque or self._is_text or self._fields is not None or not self._exact
            return [CHANGED if changed else ""] * len(self.columns(""))
        doubts = [doubt for _, part in parts for doubt in part.doubts()]
        return doubts if self._parts is not None else [doubt or FIELD for doubt in doubts]

    def _kinds(self) -> list[tuple[str, Shape]] | None:
        if self._opaque or self._is_text:
            return None
        if self._parts is not None:
            return [(f"_{place}", part) for place, part in enumerate(self._parts)]
        return None if not self._fields else [(name, part) for name, part in self._fields.items()]

    @override
    def columns(self, name: str) -> list[tuple[str, Any]]:
        pa = arrow()
        if self._opaque:
            return [(name, pa.binary()), (f"{name}_type", pa.string())]
        parts = self._kinds()
        if parts is None:
            kind = pa.string() if self._is_text or self._fields is not None else self._scalar
            return [(name, pa.null() if kind is None else kind)]
        whole = name if self._parts is not None else ""
        return [column for suffix, part in parts for column in part.columns(whole + suffix)]

    @override
    def arrays(self, name: str, values: Sequence[Any]) -> list[Any]:
        if self._opaque:
            return _opaque_arrays(name, values)
        parts = self._kinds()
        if parts is None:
            [(_, kind)] = self.columns(name)
            if arrow().types.is_string(kind):
                return [_array(name, kind, list(map(as_text, values)))]
            return [_array(name, kind, list(map(_plain, values)))]
        made: list[Any] = []
        whole = name if self._parts is not None else ""
        for place, (suffix, part) in enumerate(parts):
            if self._parts is not None:
                taken = [None if v is None else v[place] for v in values]
            else:
                taken = [None if v is None else v.get(suffix) for v in values]
            made += part.arrays(whole + suffix, taken)
        return made


class Moments(Shape):
    """Column of times in ms since the epoch; integers if one exceeds the range of timestamps."""

    def __init__(self) -> None:
        self._as_times = True

    @property
    @override
    def infers(self) -> bool:
        return True

    def see(self, values: Sequence[Any]) -> None:
        """Check that the values are within the range of timestamps."""
        known = [value for value in values if value is not None]
        self._as_times = self._as_times and (not known or _FIRST_MS <= min(known) <= max(known) <= _LAST_MS)

    @override
    def columns(self, name: str) -> list[tuple[str, Any]]:
        pa = arrow()
        return [(name, pa.timestamp("ms", "UTC") if self._as_times else pa.int64())]

    @override
    def arrays(self, name: str, values: Sequence[Any]) -> list[Any]:
        [(_, kind)] = self.columns(name)
        return [_array(name, kind, values)]


class NamespaceFound(Shape):
    """Columns of namespaces: none for state of keys alone; start and end of windows; or inferred ones."""

    def __init__(self) -> None:
        self._other = Found()
        self._windows = True
        self._as_times = True
        self._any = False

    @property
    @override
    def infers(self) -> bool:
        return True

    def see(self, values: Sequence[Any]) -> None:
        """Widen what is known."""
        for value in set(values):
            if value == ():
                continue
            self._any = True
            pair = isinstance(value, tuple) and len(value) == 2 and all(type(part) is int for part in value)
            self._windows = self._windows and pair
            self._as_times = self._as_times and pair and _FIRST_MS <= value[0] <= value[1] <= _LAST_MS
            self._other.see([_shown_window(value)])

    @override
    def columns(self, name: str) -> list[tuple[str, Any]]:
        if not self._any:
            return []
        if not self._windows:
            return self._other.columns(name)
        pa = arrow()
        kind = pa.timestamp("ms", "UTC") if self._as_times else pa.int64()
        return [("window_start", kind), ("window_end", kind)]

    @override
    def arrays(self, name: str, values: Sequence[Any]) -> list[Any]:
        if not self._any:
            return []
        given = [None if value == () else value for value in values]
        if not self._windows:
            return self._other.arrays(name, [_shown_window(value) for value in given])
        return [
            _array(column, kind, [None if v is None else v[place] for v in given])
            for place, (column, kind) in enumerate(self.columns(name))
        ]


def _shown_window(value: Any) -> Any:
    return "global window" if type(value).__name__ == "GlobalWindow" else value


# ---- types ----------------------------------------------------------------------------------------------------


def _required(schema: Schema) -> Schema:
    """Return a schema without ``| None``."""
    if isinstance(schema, dict) and "union" in schema:
        rest = [part for part in schema["union"] if part != "null"]
        if len(rest) == 1:
            return rest[0]  # type: ignore[no-any-return]
    return schema


def _of(schema: Schema, zones: Collection[bool] = ()) -> tuple[Any, Convert | None, bool]:
    """Return the Arrow type of a schema, the conversion that its values need, and whether it can be undone.

    Args:
        schema: the schema.
        zones: whether times have no zones, of all that were found.
    """
    pa = arrow()
    schema = _required(schema)
    if isinstance(schema, str):
        simple: dict[str, Any] = {
            "null": pa.null(),
            "bool": pa.bool_(),
            "int": pa.int64(),
            "float": pa.float64(),
            "str": pa.string(),
            "bytes": pa.binary(),
            "date": pa.date32(),
            "time": pa.time64("us"),
            "timedelta": pa.duration("us"),
        }
        if schema in simple:
            return simple[schema], None, True
        if schema in ("decimal", "uuid"):
            return pa.string(), str, True
        if schema == "datetime":
            # Times without a zone beside others are shown as those of UTC.
            return pa.timestamp("us", None if {*zones} == {True} else "UTC"), None, len(zones) < 2
        return pa.string(), as_text, False
    if "record" in schema and schema["fields"]:
        return _struct([(f["name"], f["type"]) for f in schema["fields"]], zones, by_name=True)
    if schema.get("tuple"):
        return _struct([(f"_{place}", part) for place, part in enumerate(schema["tuple"])], zones, by_name=False)
    for kind in ("list", "set", "frozenset", "row"):
        if kind in schema:
            inner, convert, exact = _of(schema[kind], zones)
            return pa.list_(inner), None if convert is None else _each(convert), exact
    if "dict" in schema:
        (key, to_key, exact), (value, to_value, also) = (_of(part, zones) for part in schema["dict"])
        return (
            pa.map_(key, value),
            lambda found: [
                (_or_none(to_key, k) if to_key else k, _or_none(to_value, v) if to_value else v)
                for k, v in found.items()
            ],
            exact and also,
        )
    known = schema.get("values") or schema.get("literal") or [None]
    for python, kind_of in ((str, pa.string()), (int, pa.int64())):
        if all(type(one) is python for one in known):
            return kind_of, None, True
    return pa.string(), as_text, False


def _has_times(schema: Schema) -> bool:
    if isinstance(schema, str):
        return schema == "datetime"
    parts = [f["type"] for f in schema.get("fields", ())] + schema.get("tuple", []) + schema.get("dict", [])
    parts += [schema[kind] for kind in ("list", "set", "frozenset", "row") if kind in schema]
    return any(map(_has_times, parts + schema.get("union", [])))


def _zones_in(value: Any) -> set[bool]:
    """Return whether the times in a value have no zones, of each."""
    if isinstance(value, dt.datetime):
        return {value.tzinfo is None}
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return set().union(*map(_zones_in, value)) if isinstance(value, (list, tuple, set, frozenset)) else set()


def _is_kept(value: Any) -> bool:
    """Return whether Arrow gives back a value of no declared type as it is."""
    if type(value) is list:
        return all(map(_is_kept, value))
    return value is None or type(value) in _KEPT or (type(value) is dt.time and value.tzinfo is None)


def _each(convert: Convert) -> Convert:
    return lambda values: [_or_none(convert, value) for value in values]


def _struct(
    parts: list[tuple[str, Schema]], zones: Collection[bool], *, by_name: bool
) -> tuple[Any, Convert, bool]:
    pa = arrow()
    made = [(name, *_of(schema, zones)) for name, schema in parts]

    def convert(value: Any) -> dict[str, Any]:
        found = {}
        for place, (name, _, inside, _) in enumerate(made):
            part = value.get(name) if by_name else value[place]
            found[name] = part if inside is None else _or_none(inside, part)
        return found

    kind = pa.struct([(name, kind) for name, kind, _, _ in made])
    return kind, convert, all(exact for _, _, _, exact in made)


def _or_none(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _scalar_type(kinds: set[type], values: Sequence[Any]) -> Any:
    """Return the common type of untyped values, None if there is none."""
    if len(kinds) == 1:
        return _type_of_kind(next(iter(kinds)), values)
    # pyarrow takes the type of the first value for that of all, so the classes are asked one by one.
    found = [_type_of_kind(kind, [value for value in values if type(value) is kind]) for kind in kinds]
    return reduce(lambda one, other: None if one is None or other is None else _common(one, other), found)


def _type_of_kind(kind: type, values: Sequence[Any]) -> Any:
    """Return the type of values of one class, None if there is none."""
    pa = arrow()
    if kind is float:
        return pa.float64()
    if kind is str:
        return pa.string()
    if kind is dt.datetime and len({value.tzinfo is None for value in values}) > 1:
        return None
    try:
        return pa.array([_plain(value) for value in values]).type
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None


def _common(one: Any, other: Any) -> Any:
    pa = arrow()
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_list(one) and types.is_list(other):
        inner = _common(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    # Arrow would unify strings with bytes, and structs without fields with anything.
    if types.is_string(one) or types.is_string(other) or types.is_nested(one) != types.is_nested(other):
        return None
    try:
        both = [pa.schema([("x", one)]), pa.schema([("x", other)])]
        return pa.unify_schemas(both, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value), key=repr)
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, Opaque):
        raise TypeError("bytes that cannot be read")
    return value


def _opaque_arrays(name: str, values: Sequence[Any]) -> list[Any]:
    pa = arrow()
    data: list[bytes | None] = []
    names: list[str | None] = []
    for value in values:
        if isinstance(value, Opaque):
            data.append(value.data)
            names.append(value.type_name or value.serializer)
        else:
            data.append(None if value is None else (as_text(value) or "").encode())
            names.append(None if value is None else type(value).__name__)
    return [_array(name, pa.binary(), data), _array(f"{name}_type", pa.string(), names)]


def _array(name: str, kind: Any, values: Sequence[Any]) -> Any:
    pa = arrow()
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        for value in values:
            try:
                pa.array([value], kind)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                raise MisfitError(name, kind, value) from error
        raise
