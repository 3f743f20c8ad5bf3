"""Input of savepoints: tables and iterables of rows, part by part, as columns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from sluiceway.errors import ConfigurationError
from sluiceway.savepoint.arrow_schema import arrow
from sluiceway.savepoint.column_names import DOUBT

__all__ = ["GivenPart", "Selector", "parts_of", "select"]

Selector: TypeAlias = str | int | Callable[[Any], Any] | Sequence["Selector"]
"""Part of a row: a column by name or position, the result of a function of the row, or a tuple of these."""

_ROWS: Final = 1 << 16


class GivenPart:
    """Part of the input: columns of a table, or rows.

    Args:
        columns: columns by name; None for rows.
        rows: the rows; None for a table.
        doubts: for columns of a read table, why values cannot be taken back from them, by name.

    Attributes:
        doubts: as given.
    """

    def __init__(
        self,
        columns: dict[str, list[Any]] | None,
        rows: list[Any] | None,
        doubts: Mapping[str, str] | None = None,
    ) -> None:
        self.doubts = doubts or {}
        self._columns = columns
        self._rows = rows
        self._dicts: list[Any] | None = None

    def __len__(self) -> int:
        if self._rows is not None:
            return len(self._rows)
        return len(next(iter((self._columns or {}).values()), ()))

    @property
    def rows(self) -> list[Any]:
        """Rows; those of a table as dicts."""
        if self._rows is not None:
            return self._rows
        if self._dicts is None:
            columns = self._columns or {}
            self._dicts = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return self._dicts

    @property
    def names(self) -> list[str] | None:
        """Names of the columns, taken from the first row if there is no table; None if rows have no names."""
        if self._columns is not None:
            return list(self._columns)
        first = (self._rows or [None])[0]
        if isinstance(first, Mapping):
            return list(first)
        if isinstance(first, tuple):
            return list(getattr(first, "_fields", ())) or None
        return None if first is None or isinstance(first, list) else sorted(getattr(first, "__dict__", ()))

    def column(self, name: str | int) -> list[Any]:
        """Return a column by name or position. Raises ConfigurationError if it does not exist."""
        if self._columns is not None:
            if isinstance(name, int):
                return list(self._columns.values())[name]
            if name not in self._columns:
                raise ConfigurationError(f"there is no column {name!r}; there are {', '.join(self._columns)}")
            return self._columns[name]
        return [_part(row, name) for row in self._rows or ()]


def _part(row: Any, name: str | int) -> Any:
    try:
        if isinstance(name, int) or isinstance(row, Mapping):
            return row[name]
        return getattr(row, name)
    except (LookupError, AttributeError, TypeError):
        raise ConfigurationError(f"a row has no {name!r}: {row!r:.80}") from None


def parts_of(data: Any) -> Iterator[GivenPart]:
    """Yield the input in parts.

    Args:
        data: an Arrow table or reader, a data frame, or another object with Arrow's stream interface; or an
            iterable of dicts, tuples or objects.
    """
    if hasattr(data, "to_arrow_reader"):  # a query of DuckDB
        data = data.to_arrow_reader()
    if hasattr(data, "__arrow_c_stream__"):
        try:
            reader = arrow().RecordBatchReader.from_stream(data)
        except (arrow().ArrowInvalid, arrow().ArrowTypeError) as error:  # pandas has objects of any kind
            text = ": ".join(map(str, reversed(error.args)))
            raise ConfigurationError(
                f"the {type(data).__name__} has values that have no type in Arrow ({text}): make that column one "
                "type, such as text, or give an Arrow table, as to_arrow() of a table of read() returns"
            ) from None
        for batch in reader:
            doubts = {f.name: f.metadata[DOUBT].decode() for f in batch.schema if DOUBT in (f.metadata or {})}
            yield GivenPart({name: _python(batch.column(name)) for name in batch.schema.names}, None, doubts)
        return
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | Mapping):
        raise ConfigurationError(
            f"state is made from a table or an iterable of rows, not from {type(data).__name__} {data!r:.60}"
        )
    rows = iter(data)
    while part := list(islice(rows, _ROWS)):
        yield GivenPart(None, part)


def _python(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    convert = _conversion(column.type)
    return values if convert is None else list(map(convert, values))


def _conversion(kind: Any) -> Callable[[Any], Any] | None:
    """Return a function that makes maps, tuples and times of what pyarrow makes of them; None: not needed."""
    types = arrow().types
    if types.is_timestamp(kind):
        # Of another class of time zones, they would not be what msgpack keeps.
        return None if kind.tz is None else _unless_none(lambda moment: moment.astimezone(dt.UTC))
    if types.is_map(kind):
        to_key, to_value = (_conversion(part) or _same for part in (kind.key_type, kind.item_type))
        return _unless_none(lambda pairs: {to_key(name): to_value(value) for name, value in pairs})
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _conversion(kind.value_type)
        return None if inner is None else _unless_none(lambda values: list(map(inner, values)))
    if types.is_struct(kind):
        fields = {field.name: _conversion(field.type) for field in kind}
        # A table that was read has tuples in this form.
        if fields and [*fields] == [f"_{place}" for place in range(len(fields))]:
            parts = [(name, convert or _same) for name, convert in fields.items()]
            return _unless_none(lambda found: tuple(convert(found[name]) for name, convert in parts))
        made = {name: convert for name, convert in fields.items() if convert is not None}
        if made:
            return _unless_none(lambda found: {**found, **{name: to(found[name]) for name, to in made.items()}})
    return None


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def select(part: GivenPart, selector: Selector) -> list[Any]:
    """Return the selected value of each row."""
    if callable(selector):
        return list(map(selector, part.rows))
    if isinstance(selector, str | int):
        return part.column(selector)
    return list(zip(*(select(part, one) for one in selector), strict=True))
