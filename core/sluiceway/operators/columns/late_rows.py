"""Late rows of an operator in columns: sent to a side output, or dropped and counted."""

from __future__ import annotations

from typing import Any

from sluiceway.columns.numpy_arrays import array_of
from sluiceway.columns.times import as_array
from sluiceway.elements import Batch
from sluiceway.functions import OutputTag
from sluiceway.operators.base import Operator
from sluiceway.operators.late_records import count_late

__all__ = ["give_late_rows"]


def give_late_rows(operator: Operator, tag: OutputTag[Any] | None, data: Any, stamps: Any, rows: Any) -> None:
    """Send rows to the side output of a tag; None: drop and count them.

    Args:
        operator: the operator that they are late for.
        tag: of the side output.
        data: ``pyarrow.RecordBatch`` that they are in.
        stamps: ``numpy`` array of its timestamps in ms.
        rows: ``numpy`` array of the numbers of the late ones.
    """
    if tag is None:
        count_late(operator, len(rows))
    else:
        operator.output.side(tag.name, Batch.of_columns(data.take(array_of(rows)), as_array(stamps[rows])))
