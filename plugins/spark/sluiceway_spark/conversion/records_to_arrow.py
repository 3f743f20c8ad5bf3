"""Conversion of records to Arrow batches: dicts, tuples, objects of a type, or batches as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Final

from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway_spark.conversion.arrow_schema import fields_of, for_spark, schema_of

__all__ = ["Columns", "column_of"]

_SHOWN: Final = 200
_Take = Callable[[Sequence[Any]], Sequence[Sequence[Any]]]


class Columns:
    """Converter of records to batches with one schema.

    Args:
        schema: an Arrow schema; None: that of the first record's type, or of the first batch.
        where: names the sink in messages.

    Attributes:
        schema: None until it is known.
    """

    def __init__(self, schema: Any, where: str) -> None:
        self.schema = schema
        self._where = where
        self._takes: dict[type, _Take] = {}

    def batches(self, values: Sequence[Any]) -> list[Any]:
        """These records, in order.

        Raises:
            ConnectorError: one of them does not fit the schema.
            ConfigurationError: the schema is not given, and cannot be told from them.
        """
        import pyarrow as pa

        if not values:
            return []
        made = []
        kinds = set(map(type, values))
        groups = [values] if len(kinds) == 1 else [list(group) for _, group in groupby(values, type)]
        for group in groups:
            if isinstance(group[0], (pa.RecordBatch, pa.Table)):
                for batch in group:
                    made += self._conform(batch)
            else:
                made.append(self._batch(group))
        return made

    def _batch(self, rows: Sequence[Any]) -> Any:
        import pyarrow as pa

        cls = type(rows[0])
        if self.schema is None:
            self.schema = self._schema_of(cls)
        take = self._takes.get(cls)
        if take is None:
            take = self._takes[cls] = self._take_for(cls, rows[0])
        columns = take(rows)
        arrays = []
        for column, field in zip(columns, self.schema, strict=True):
            try:
                arrays.append(column_of(column, field.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
                raise self._misfit(rows, column, field, error) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _schema_of(self, cls: Any) -> Any:
        if not (issubclass(cls, Mapping) or hasattr(cls, "__fields__")) and fields_of(cls) is not None:
            return schema_of(cls, self._where)
        raise ConfigurationError(
            f"{self._where}: a {cls.__name__} does not say which columns there are and what types they have. Give "
            "schema= a pyarrow.Schema, a StructType, or a dataclass with these fields"
        )

    # -- which columns ---------------------------------------------------------------------------------------

    def _take_for(self, cls: Any, first: Any) -> _Take:
        names = list(self.schema.names)
        if issubclass(cls, Mapping):
            return self._of_mappings
        fields = [(name, name) for name in first.__fields__] if hasattr(first, "__fields__") else fields_of(cls)
        if fields is None:
            if issubclass(cls, (tuple, list)):
                return self._of_tuples
            raise ConnectorError(
                f"{self._where}: {first!r:.{_SHOWN}} ({cls.__name__}) is no row: a dict, a tuple, a dataclass, a "
                "NamedTuple, a msgspec.Struct or an Arrow batch is"
            )
        attributes = {column: attribute for attribute, column in fields}
        if attributes.keys() != set(names):
            raise ConnectorError(
                f"{self._where}: {cls.__name__} has the fields {', '.join(attributes)}, the columns are "
                f"{', '.join(names)}"
            )
        if issubclass(cls, tuple):
            if [column for _, column in fields] == names:
                return self._of_tuples
            places = [list(attributes).index(name) for name in names]
            return lambda rows: [list(map(itemgetter(place), rows)) for place in places]
        getters = [attrgetter(attributes[name]) for name in names]
        return lambda rows: [list(map(getter, rows)) for getter in getters]

    def _of_mappings(self, rows: Sequence[Any]) -> Sequence[Sequence[Any]]:
        names = self.schema.names
        try:
            # As many keys as columns, and each column among them: then there is no other key to look for. Not so
            # with __missing__(), as of a defaultdict, which has a value for any key.
            if {len(names)}.issuperset(map(len, rows)) and not hasattr(type(rows[0]), "__missing__"):
                return [list(map(itemgetter(name), rows)) for name in names]
        except KeyError:
            pass
        known = set(names)
        if odd := next((row for row in rows if not known.issuperset(row)), None):
            key = next(key for key in odd if key not in known)
            raise ConnectorError(
                f"{self._where}: {odd!r:.{_SHOWN}} has {key!r}, the columns are {', '.join(names)}"
            )
        return [[row.get(name) for row in rows] for name in names]

    def _of_tuples(self, rows: Sequence[Any]) -> Sequence[Sequence[Any]]:
        width = len(self.schema.names)
        if odd := next((row for row in rows if len(row) != width), None):
            raise ConnectorError(
                f"{self._where}: {odd!r:.{_SHOWN}} has {len(odd)} fields, there are {width} columns: "
                f"{', '.join(self.schema.names)}"
            )
        return list(zip(*rows, strict=True))

    def _misfit(self, rows: Sequence[Any], column: Sequence[Any], field: Any, error: Exception) -> ConnectorError:
        import pyarrow as pa

        for row, value in zip(rows, column, strict=True):
            try:
                column_of([value], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
                return ConnectorError(
                    f"{self._where}: column {field.name!r} is {field.type}, which {value!r:.{_SHOWN}} is not, of "
                    f"{row!r:.{_SHOWN}}"
                )
        return ConnectorError(f"{self._where}: column {field.name!r} is {field.type}: {error}")

    # -- batches -----------------------------------------------------------------------------------------------

    def _conform(self, batch: Any) -> list[Any]:
        """As batches with the schema, in its order."""
        import pyarrow as pa

        from sluiceway.columns.not_null import cast

        if self.schema is None:
            self.schema = for_spark(batch.schema, self._where)
        if batch.schema.names != self.schema.names:
            if set(batch.schema.names) != set(self.schema.names) or batch.num_columns != len(self.schema.names):
                raise ConnectorError(
                    f"{self._where}: an Arrow batch has the columns {', '.join(batch.schema.names)}, the columns "
                    f"are {', '.join(self.schema.names)}"
                )
            batch = batch.select(self.schema.names)
        castable = self._castable(batch.schema)
        try:
            return [
                cast(cast(each, castable), self.schema, safe=False)
                for each in (batch.to_batches() if isinstance(batch, pa.Table) else [batch])
            ]
        except (pa.ArrowException, ValueError) as error:
            raise ConnectorError(f"{self._where}: an Arrow batch does not fit the schema: {error}") from error

    def _castable(self, given: Any) -> Any:
        """Return the schema, except for times, which are to be cut off and not refused."""
        import pyarrow as pa

        return pa.schema(
            [(f.name, f.type if pa.types.is_timestamp(f.type) else self.schema.field(f.name).type) for f in given]
        )


def column_of(column: Sequence[Any], kind: Any) -> Any:
    """Return values as an Arrow array of a type, without cutting off fractions or times of the day.

    Raises:
        Exception: pyarrow's, or one of Python's: a value does not fit.
    """
    import pyarrow as pa

    from sluiceway.columns.exact import exact_array

    if pa.types.is_nested(kind):
        column = [_plain(value, kind) for value in column]
    return exact_array(column, kind)


def _plain(value: Any, kind: Any) -> Any:
    """Return a value in the form that pyarrow accepts for a nested type: records as dicts, and so on."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_struct(kind):
        found = _as_dict(value, kind)
        return {field.name: _plain(found.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(_plain(k, kind.key_type), _plain(v, kind.item_type)) for k, v in pairs]
    if pa.types.is_list(kind):
        if isinstance(value, (str, bytes)):
            raise TypeError("a text is no list")
        return [_plain(part, kind.value_type) for part in value]
    return value


def _as_dict(value: Any, kind: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    fields = fields_of(type(value))
    if fields is not None:
        return {column: getattr(value, attribute) for attribute, column in fields}
    if isinstance(value, (tuple, list)) and len(value) == kind.num_fields:
        return {field.name: part for field, part in zip(kind, value, strict=True)}
    raise TypeError(f"{type(value).__name__} is no record")
