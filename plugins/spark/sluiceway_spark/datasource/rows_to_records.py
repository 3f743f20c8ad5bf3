"""Conversion of Spark's rows to the records of a sink."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sluiceway.elements import Batch
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway_spark.conversion.arrow_to_records import ARROW, Convert, converter, record_type, values_of
from sluiceway_spark.datasource.named_objects import find_object

__all__ = ["COLUMNS", "Rows"]

COLUMNS: Final = "columns"
"""Form of rows that stay columns, where a pipeline takes them as such."""

_VALUE: Final = "value"


@dataclass(frozen=True)
class Rows:
    """Form of the records that rows are converted to.

    Attributes:
        records: ``dict``, ``tuple``, a type with the columns' names, or ``"arrow"``, ``"value"`` or ``"columns"``.
        timestamp: the column with the event time, or None.
    """

    records: Any
    timestamp: str | None

    @classmethod
    def of(cls, records: str | None, timestamp: str | None, columns: Sequence[str]) -> Rows:
        """As the options say. Without ``records``, the one column ``value`` is the record, else it is a dict.

        Raises:
            ConfigurationError: they cannot be used with these columns.
        """
        if records is None:
            records = _VALUE if list(columns) == [_VALUE] else "dict"
        if timestamp is not None and timestamp not in columns:
            raise ConfigurationError(f"option timestamp={timestamp!r} is none of the columns {', '.join(columns)}")
        named: Any = {"dict": dict, "tuple": tuple, ARROW: ARROW, _VALUE: _VALUE}.get(records.lower())
        if named is None:
            if ":" not in records:
                raise ConfigurationError(
                    f"option records={records!r} must be dict, tuple, value, arrow, or a type like "
                    "'package.module:Type'"
                )
            named = find_object("records", records)
            record_type(named)
        if named == _VALUE and len(columns) - (timestamp is not None) != 1:
            raise ConfigurationError(
                f"option records='value' takes one column, and this has {', '.join(columns) or 'none'}"
            )
        return cls(named, timestamp)

    def batches(self, rows: Iterable[Any]) -> Iterator[Batch[Any]]:
        """Yield batches of records, with event times in ms if there is a column of them.

        Raises:
            ConnectorError: a row has no event time, or does not become the type.
        """
        convert: Convert | None = None
        for batch in rows:
            if not batch.num_rows:
                continue
            times = None if self.timestamp is None else _times(batch, self.timestamp)
            if self.records == COLUMNS:
                yield Batch.of_columns(batch, None if times is None else array("q", times))
                continue
            if self.records == ARROW:
                yield Batch([batch], None if times is None else [max(times)])
                continue
            if self.records == _VALUE:
                [name] = [name for name in batch.schema.names if name != self.timestamp]
                yield Batch(values_of(batch.column(name)), times)
                continue
            convert = convert or converter(self.records, batch.schema, "the DataFrame")
            yield Batch(convert(batch), times)


def _times(batch: Any, name: str) -> list[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = batch.column(name)
    if column.null_count:
        raise ConnectorError(f"a row has no event time: column {name!r} is null")
    if pa.types.is_timestamp(column.type):
        cut = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
        # Arrow cuts towards 1970, and event times are rounded down.
        is_later = pc.greater(cut.cast(column.type), column)
        column = pc.subtract(cut.cast(pa.int64()), is_later.cast(pa.int64()))
    elif not pa.types.is_integer(column.type):
        raise ConnectorError(f"column {name!r} is no event time: it is {column.type}, not a timestamp or ms")
    times: list[int] = column.to_pylist()
    return times
