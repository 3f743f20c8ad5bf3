"""Format of rows between stages: each row holds many elements of one channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SCHEMA", "Row", "arrow_schema", "rows_in", "to_batches", "together"]

SCHEMA: Final = "stage int, target int, sender int, seq long, payload binary"
"""For Spark. See :class:`Row`."""

_MANY: Final = 512
_LARGE: Final = 4 << 20


class Row(NamedTuple):
    """Elements of one channel.

    Attributes:
        stage: at which they are processed; whoever runs an earlier one hands the row on as it is.
        target: the subtask that they are for, by its number in the plan.
        sender: the channel that they come by, likewise.
        seq: their place in that channel.
        payload: the elements, as the plan packs them; or something else, for the driver.
    """

    stage: int
    target: int
    sender: int
    seq: int
    payload: Any


def arrow_schema() -> pa.Schema:
    """Return the Arrow schema of rows."""
    import pyarrow as pa

    numbers: list[pa.Field[Any]] = [pa.field(name, pa.int32()) for name in ("stage", "target", "sender")]
    return pa.schema([*numbers, pa.field("seq", pa.int64()), pa.field("payload", pa.binary())])


def rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Yield the rows of record batches; payloads are views of the batches' memory."""
    for batch in batches:
        columns: list[list[Any]] = [batch.column(index).to_pylist() for index in range(4)]
        payloads: Any = batch.column(4)
        for index, (stage, target, sender, seq) in enumerate(zip(*columns, strict=True)):
            yield Row(stage, target, sender, seq, memoryview(payloads[index].as_buffer()))


def to_batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Yield record batches of rows, each of some megabytes at the most."""
    import pyarrow as pa

    schema = arrow_schema()
    gathered: list[Row] = []
    size = 0

    def batch() -> pa.RecordBatch:
        columns = [
            pa.array(column, field.type) for column, field in zip(zip(*gathered, strict=True), schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    for row in rows:
        gathered.append(row)
        size += len(row.payload)
        if size >= _LARGE or len(gathered) >= _MANY:
            yield batch()
            gathered, size = [], 0
    if gathered:
        yield batch()


def together(rows: Any, targets: int, slots: int) -> Any:
    """Repartition rows by target, sorted by place in the channel, so that the senders of a target take turns."""
    parts = min(targets, slots)
    apart = rows.repartitionById if hasattr(rows, "repartitionById") else rows.repartition
    return apart(parts, "target").sortWithinPartitions("target", "seq", "sender")
