"""Harness of an operator that takes rows in columns."""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa

from sluiceway.elements import Batch
from sluiceway.keygroups import key_group, subtask_for_key_group
from sluiceway.testing import OperatorHarness


class ColumnHarness(OperatorHarness):
    """Harness that feeds rows in columns.

    Args:
        program: as for the base.
        schema: the columns.
        options: as for the base.
    """

    def __init__(self, program: Any, schema: pa.Schema, **options: Any) -> None:
        self._schema = schema
        super().__init__(program, **options)

    def _split(self, partitioner: Any, values: list[Any], stamps: list[int] | None) -> Any:
        groups, count = self._subtasks[0].max_parallelism, len(self._subtasks)
        owners = [subtask_for_key_group(key_group(partitioner.key(row), groups), count, groups) for row in values]
        split = []
        for owner in sorted(set(owners)):
            mine = [i for i, of in enumerate(owners) if of == owner]
            times = None if stamps is None else array("q", [stamps[i] for i in mine])
            data = pa.RecordBatch.from_pylist([values[i] for i in mine], self._schema)
            split.append((self._subtasks[owner], Batch.of_columns(data, times)))
        return split
