"""State from rows: written to the tables of a state backend in the form that a job writes."""

from __future__ import annotations

import datetime as dt
import re
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final

import msgspec

from sluiceway.errors import ConfigurationError, StateError
from sluiceway.functions import ReduceFunction
from sluiceway.operators.keyed_timers import TIMERS, timers_in
from sluiceway.savepoint.column_names import FIELD, WINDOW, Taken, nested_columns, taken_columns
from sluiceway.savepoint.input_tables import GivenPart, Selector, select
from sluiceway.serializers import MsgspecSerializer, serializer_for
from sluiceway.serializers.models import is_pydantic, model_of
from sluiceway.state import (
    VOID_NAMESPACE,
    AggregatingStateDescriptor,
    KeyedStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTable,
)
from sluiceway.state.declared import check_of
from sluiceway.types import conformity, is_known, type_name
from sluiceway.windows.base import TimeWindow

__all__ = ["Filling", "fill_timers"]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DOMAINS: Final = {"event time": True, "processing time": False}


class Filling:
    """Writer of one state of one operator.

    Args:
        uid: uid of the operator.
        descriptor: descriptor of the state.
        backend: backend that holds the state.
        now_ms: default access time of values, in ms since the epoch.
        accumulators: whether the values of an aggregating state are accumulators, not values to add.
    """

    def __init__(
        self, uid: str, descriptor: StateDescriptor, backend: KeyedStateBackend, now_ms: int, accumulators: bool
    ) -> None:
        self._uid = uid
        self._descriptor = descriptor
        self._now_ms = now_ms
        self._table: StateTable = backend.table(descriptor)
        self._value_type = _Type(descriptor.type)
        self._merge: Callable[[Any, Any], Any] | None = None
        self._begin: Callable[[], Any] | None = None
        if isinstance(descriptor, ReducingStateDescriptor):
            reduce: Any = descriptor.reduce
            self._merge = reduce.reduce if isinstance(reduce, ReduceFunction) else reduce
        elif isinstance(descriptor, AggregatingStateDescriptor) and not accumulators:
            aggregate = descriptor.aggregate
            self._begin = aggregate.create_accumulator
            self._merge = lambda accumulator, value: aggregate.add(value, accumulator)
            self._value_type = _Type(None)
        self._check = check_of(descriptor)

    def add(
        self,
        part: GivenPart,
        *,
        key: Selector | None,
        value: Selector | None,
        map_key: Selector | None,
        namespace: Selector | None,
        touched_at: Selector | None,
    ) -> int:
        """Write rows, and return their number.

        Raises:
            ConfigurationError: there is no such column.
            DeclaredTypeError: the result of a reduce or aggregate function is not of the declared type.
            StateError: a value is not of the declared type, or two rows are of one key that has one value.
        """
        others = self._other_columns()
        taken = taken_columns(part.names or (), self._value_type.fields, others)
        by_default = {
            *(taken.key if key is None else ()),
            *(WINDOW if namespace is None and taken.windows else ()),
            *(("map_key",) if map_key is None and "map_key" in others else ()),
            *(("touched_at",) if touched_at is None and self._descriptor.expires else ()),
        }
        where = self._where()
        fields = {} if value is not None else self._fields(part.names or (), by_default, taken)
        if key is None and namespace is None and not taken.windows:
            check_namespaces(part, fields.values(), where)
        keys = keys_of(part, key, taken.key, where)
        values = self._value_type.made(self._values(part, value, fields, by_default), self._where)
        touched = self._touched(part, touched_at)
        names: list[Any] | None = None
        if isinstance(self._descriptor, MapStateDescriptor):
            names = part_of(part, map_key, "map_key", where)
            names = _Type(self._descriptor.key_type).made(names, lambda: f"the keys in {where}")
        for space, places in spaces_of(part, namespace, self._descriptor.name, taken.windows):
            if places is None:
                self._put(space, keys, names, values, touched)
            else:
                columns = (keys, names, values, touched)
                own = [None if column is None else [column[place] for place in places] for column in columns]
                self._put(space, *own)  # type: ignore[arg-type]
        return len(keys)

    def _where(self) -> str:
        return f"state {self._descriptor.name!r} of operator {self._uid!r}"

    def _other_columns(self) -> list[str]:
        """Return the fixed columns of a table of the state, besides key and window."""
        others = ["touched_at", "expires_at"] if self._descriptor.expires else []
        if isinstance(self._descriptor, MapStateDescriptor):
            others.append("map_key")
        return [*others, "index"] if isinstance(self._descriptor, ListStateDescriptor) else others

    def _values(
        self, part: GivenPart, value: Selector | None, fields: Mapping[str, str], by_default: Collection[str]
    ) -> list[Any]:
        if value is not None:
            return select(part, value)
        names, own = part.names or [], self._value_type.fields
        in_one = "value" in names or nested_columns(names, "value") is not None
        # A class of which each field has a default may as well be in one column.
        if own and (fields or not in_one) and own.keys() <= {*fields, *self._value_type.optional}:
            check_doubts(part, fields.values(), "value", self._where(), but=FIELD)
            # Rows may have optional fields that the first one lacks.
            rest = {field: field for field in own if field not in by_default}
            return self._value_type.records(_as_dicts(part), rest | dict(fields))
        if in_one:
            return part_of(part, None, "value", self._where())
        raise ConfigurationError(
            f"no column is named for the values of {self._where()}: set value= to a column or a function of a row."
            f" Columns are {', '.join(names) or 'not named'}"
        )

    def _fields(self, names: Sequence[str], by_default: Collection[str], taken: Taken) -> Mapping[str, str]:
        """Return the columns of the fields that have one, by field. Raises ConfigurationError."""
        if taken.fields is not None:
            return taken.fields
        columns: dict[str, str] = {}
        for field in self._value_type.fields:
            column = f"value_{field}" if field in by_default and f"value_{field}" in names else field
            if column in names:
                columns[field] = column
        both = next((field for field, column in columns.items() if column in by_default), None)
        if both is not None and self._value_type.fields.keys() <= {*columns, *self._value_type.optional}:
            raise ConfigurationError(
                f"column {both!r} may be that of the state, or the field of the values of {self._where()}: call "
                f"the field's column 'value_{both}', or set the selector of the other, such as key="
            )
        return {field: column for field, column in columns.items() if column not in by_default}

    def _touched(self, part: GivenPart, touched_at: Selector | None) -> list[int] | None:
        if not self._descriptor.expires:
            if touched_at is not None:
                raise ConfigurationError(f"touched_at= is for state with a time to live, unlike {self._where()}")
            return None
        if touched_at is None:
            if "touched_at" not in (part.names or ()):
                return [self._now_ms] * len(part)
            touched_at = "touched_at"
        return [self._now_ms if at is None else as_ms(at) for at in select(part, touched_at)]

    def _put(
        self,
        namespace: Hashable,
        keys: list[Any],
        names: list[Any] | None,
        values: list[Any],
        touched: list[int] | None,
    ) -> None:
        stored = values if touched is None or self._merge else list(zip(touched, values, strict=True))
        if names is not None:
            self._put_maps(namespace, keys, names, stored)
            return
        entries = self._table.entries(namespace)
        if isinstance(self._descriptor, ListStateDescriptor):
            lists: dict[Any, list[Any]] = {}
            for key, value in zip(keys, stored, strict=True):
                lists.setdefault(key, []).append(value)
            for key, added in lists.items():
                entries[key] = [*entries.get(key, ()), *added]
        elif self._merge is not None:
            self._put_merged(entries, keys, values, touched)
        else:
            new = dict(zip(keys, stored, strict=True))
            twice = [key for key in new if key in entries] if len(new) == len(keys) else [_twice(keys)]
            if twice:
                raise StateError(
                    f"{self._where()}: there are two rows of key {twice[0]!r}, which has one value"
                    + ("" if namespace == () else f" in {namespace!r}")
                )
            entries.update(new)

    def _put_merged(self, entries: Any, keys: list[Any], values: list[Any], touched: list[int] | None) -> None:
        assert self._merge is not None
        merge, begin = self._merge, self._begin
        for place, (key, value) in enumerate(zip(keys, values, strict=True)):
            held = entries.get(key)
            known = held if touched is None or held is None else held[1]
            if known is None and begin is not None:
                known = begin()
            made = value if known is None else merge(known, value)
            if self._check is not None:
                self._check(made)
            # A result is as fresh as the latest of the values in it.
            entries[key] = made if touched is None else (max(touched[place], held[0] if held else 0), made)

    def _put_maps(self, namespace: Hashable, keys: list[Any], names: list[Any], stored: list[Any]) -> None:
        maps: dict[Any, dict[Any, Any]] = {}
        for key, name, value in zip(keys, names, stored, strict=True):
            own = maps.setdefault(key, {})
            if name in own:
                raise StateError(f"{self._where()}: there are two rows of entry {name!r} of key {key!r}")
            own[name] = value
        for key, own in maps.items():
            mapping = self._table.mapping(key, namespace)
            twice = next((name for name in own if name in mapping), None)
            if twice is not None:
                raise StateError(f"{self._where()}: there are two rows of entry {twice!r} of key {key!r}")
            mapping.update(own)


def fill_timers(
    backend: KeyedStateBackend,
    part: GivenPart,
    *,
    key: Selector | None,
    at: Selector | None,
    domain: str | None,
    namespace: Selector | None,
) -> int:
    """Register timers, and return their number.

    Raises:
        ConfigurationError: there is no such column, or no such domain.
    """
    entries = backend.table(TIMERS).entries()
    taken = taken_columns(part.names or (), (), ())
    if key is None and namespace is None and not taken.windows:
        check_namespaces(part, (), "the timers")
    keys = keys_of(part, key, taken.key, "the timers")
    times = list(map(as_ms, select(part, _default(part, at, "fires_at"))))
    domains = part.column("domain") if domain is None else [domain] * len(keys)
    unknown = next((one for one in domains if one not in _DOMAINS), None)
    if unknown is not None:
        raise ConfigurationError(
            f"the domain of a timer must be {' or '.join(map(repr, _DOMAINS))}, not {unknown!r}"
        )
    for space, places in spaces_of(part, namespace, "timers", taken.windows):
        for place in range(len(keys)) if places is None else places:
            timer = (_DOMAINS[domains[place]], times[place], space)
            known = list(timers_in(entries.get(keys[place], ())))
            if timer not in known:
                entries[keys[place]] = [*known, timer]
    return len(keys)


# ---- columns -----------------------------------------------------------------------------------------------


def keys_of(part: GivenPart, key: Selector | None, columns: Sequence[str], where: str) -> list[Any]:
    """Return the keys of rows: by the selector, else from ``key``, or ``key_0``, ``key_1`` and so on.

    Args:
        part: the rows.
        key: the selector.
        columns: the columns of the keys, if the table is one that was read.
        where: the state, for messages.
    """
    if key is None and not columns:
        raise ConfigurationError(
            "no column is named for the keys: set key= to a column, a list of columns, or a function of a row."
            f" Columns are {', '.join(part.names or ()) or 'not named'}"
        )
    keys = part_of(part, key, "key", where, columns)
    return [_as_key(one) for one in keys] if any(type(one) is list for one in keys) else keys


def part_of(
    part: GivenPart, selector: Selector | None, role: str, where: str, columns: Sequence[str] = ()
) -> list[Any]:
    """Return what a selector selects, else the column that is named as the role, or a tuple of those with numbers.

    Raises:
        ConfigurationError: there are no such columns, or the values cannot be taken back from them for certain.
    """
    if selector is not None:
        return select(part, selector)
    names = columns or part.names or ()
    if role in names:
        check_doubts(part, [role], role, where)
        return part.column(role)
    nested = nested_columns(names, role)
    if nested is None:
        return select(part, _default(part, None, role))
    check_doubts(part, [name for name in names if re.fullmatch(rf"{role}(_\d+)+", name)], role, where)
    found = select(part, nested)
    if any(map(_is_empty, found)):
        raise ConfigurationError(
            f"{where} has a row with nulls in {role}_0 and all other parts of a tuple, which may stand for None "
            f"or for the tuple: set {role}= to a function of a row"
        )
    return found


def _is_empty(found: Any) -> bool:
    """Return whether a tuple, or one in it, has nulls alone."""
    return type(found) is tuple and (all(part is None for part in found) or any(map(_is_empty, found)))


def check_doubts(part: GivenPart, columns: Iterable[str], role: str, where: str, *, but: str = "") -> None:
    """Raise ConfigurationError if values cannot be taken back from a column of a table that was read."""
    for column in columns:
        if part.doubts.get(column, but) != but:
            raise ConfigurationError(
                f"column {column!r} for {where} does not have the values as they were: it has text, as they are "
                "of several types, pickled bytes, whole lists, or fields of no declared type. Set "
                f"{role}= to a column or a function of a row that returns what the state is to have"
            )


def _as_key(value: Any) -> Any:
    return tuple(map(_as_key, value)) if type(value) is list else value


def check_namespaces(part: GivenPart, fields: Collection[str], where: str) -> None:
    """Raise ConfigurationError if a table that was read has namespaces that cannot be taken back."""
    for name in part.names or ():
        if re.fullmatch(r"namespace(_\d+)*", name) and name not in fields:
            raise ConfigurationError(
                f"column {name!r} for {where} does not say which namespaces it has: set namespace= to a function "
                "of a row that returns them, or None for state of the key alone"
            )


def spaces_of(
    part: GivenPart, namespace: Selector | None, state: str, windows: bool
) -> Iterator[tuple[Hashable, Sequence[int] | None]]:
    """Yield the namespaces of rows, each with the indices of its rows; None: all rows.

    Args:
        part: the rows.
        namespace: the selector.
        state: name of the state.
        windows: whether ``window_start`` and ``window_end`` are those of the namespaces.
    """
    if namespace is None and windows:
        # Namespaces of slices are plain tuples.
        make: Any = tuple if state.startswith("slices") else TimeWindow._make
        starts, ends = part.column("window_start"), part.column("window_end")
        given = [
            VOID_NAMESPACE if start is None else make((as_ms(start), as_ms(end)))
            for start, end in zip(starts, ends, strict=True)
        ]
    elif namespace is None:
        if len(part):
            yield VOID_NAMESPACE, None
        return
    else:
        given = [VOID_NAMESPACE if one is None else _as_key(one) for one in select(part, namespace)]
    found: dict[Hashable, list[int]] = {}
    for place, space in enumerate(given):
        found.setdefault(space, []).append(place)
    yield from found.items()


def as_ms(moment: Any) -> int:
    """Return a time as ms since the epoch. Raises ConfigurationError."""
    if isinstance(moment, dt.datetime):
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
        return (aware - _EPOCH) // dt.timedelta(milliseconds=1)
    if type(moment) is int:
        return moment
    raise ConfigurationError(f"a time must be a datetime, or ms since the epoch as an int, not {moment!r:.60}")


def _default(part: GivenPart, selector: Selector | None, name: str) -> Selector:
    if selector is not None:
        return selector
    if name not in (part.names or ()):
        raise ConfigurationError(
            f"there is no column {name!r}: set {name.replace('fires_', '')}=. Columns are "
            f"{', '.join(part.names or ()) or 'not named'}"
        )
    return name


def _twice(keys: list[Any]) -> Any:
    seen: set[Any] = set()
    return next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]


def _as_dicts(part: GivenPart) -> list[Any]:
    rows = part.rows
    if rows and not isinstance(rows[0], dict):
        names = part.names or ()
        return [{name: getattr(row, name) for name in names} for row in rows]
    return rows


# ---- types -------------------------------------------------------------------------------------------------


class _Type:
    """Conversion of the values of tables to a declared type.

    Args:
        hint: the type; None: any.
    """

    def __init__(self, hint: Any) -> None:
        self._hint = hint
        self._takes_all = _takes_all(hint)
        self.fields, self.optional, self._defaults = _fields_of(hint)
        cls: Any = typing.get_origin(hint) or hint
        config = getattr(cls, "__struct_config__", None)
        # For msgspec, named tuples and array_like Structs are arrays, not maps.
        by_place = hasattr(cls, "_fields") or (config is not None and config.array_like)
        self._places = list(self.fields) if by_place else None
        own = msgspec.structs.fields(cls) if config is not None else ()
        self._keys = {f.name: f.encode_name for f in own}
        self._factories: dict[str, Any] = {
            f.encode_name: f.default_factory for f in own if f.default_factory is not msgspec.NODEFAULT
        }

    def records(self, rows: list[dict[str, Any]], columns: Mapping[str, str]) -> list[Any]:
        """Return the inputs of :meth:`made`, from rows with a column per field.

        Args:
            rows: the rows.
            columns: the columns of the fields that have one, by field.
        """
        # With defaults filled in: msgspec does not set a missing field of a dataclass on the instance.
        unsaid, keys = self._defaults, self._keys
        own = {column: keys.get(field, field) for field, column in columns.items()}
        made = [{**unsaid, **{own[name]: value for name, value in row.items() if name in own}} for row in rows]
        if self._places is None:
            return made
        places = [keys.get(name, name) for name in self._places]
        return [[row[name] if name in row else self._factories[name]() for name in places] for row in made]

    def made(self, values: list[Any], where: Callable[[], str]) -> list[Any]:
        """Return values of exactly the type. Raises StateError."""
        if self._takes_all(values):
            return values
        convert = self._convert
        try:
            # All in one call; one by one only after a failure, to name the value.
            found: list[Any] = convert(values, list[self._hint])  # type: ignore[name-defined]
        except (msgspec.ValidationError, ValueError, TypeError):
            for value in values:
                try:
                    convert(value, self._hint)
                except (msgspec.ValidationError, ValueError, TypeError) as error:
                    raise StateError(
                        f"{value!r:.80} does not fit the type {type_name(self._hint)} of {where()}: {error}"
                    ) from error
            raise
        return found

    def _convert(self, value: Any, hint: Any) -> Any:
        return msgspec.convert(value, hint, strict=False, dec_hook=model_of)


def _takes_all(hint: Any) -> Callable[[list[Any]], bool]:
    """Return a check of whether values need no conversion to a type."""
    serializer = serializer_for(hint) if is_known(hint) else None
    if isinstance(serializer, MsgspecSerializer):
        return serializer.takes_all
    conforms = conformity(hint)
    return lambda values: conforms is None or all(map(conforms, values))


def _fields_of(hint: Any) -> tuple[dict[str, None], set[str], dict[str, Any]]:
    """Return the fields of a class in order, the optional ones, and defaults to fill in for missing ones."""
    hint = typing.get_origin(hint) or hint
    if not isinstance(hint, type):
        return {}, set(), {}
    if issubclass(hint, msgspec.Struct):
        own = msgspec.structs.fields(hint)
        simple = {f.encode_name: f.default for f in own if f.default is not msgspec.NODEFAULT}
        return dict.fromkeys(f.name for f in own), {f.name for f in own if not f.required}, simple
    if is_dataclass(hint):
        found = fields(hint)
        given = {f.name: f.default for f in found if f.default is not MISSING}
        made = {f.name for f in found if f.default_factory is not MISSING}
        return dict.fromkeys(f.name for f in found), given.keys() | made, given
    if issubclass(hint, tuple) and hasattr(hint, "_fields"):
        named: Any = hint
        return dict.fromkeys(named._fields), set(named._field_defaults), dict(named._field_defaults)
    if is_pydantic(hint):
        model: Any = hint
        optional = {name for name, f in model.model_fields.items() if not f.is_required()}
        return dict.fromkeys(model.model_fields), optional, {}
    return {}, set(), {}
