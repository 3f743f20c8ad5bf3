"""Harnesses that feed rows in columns."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from sluiceway.elements import Batch
from sluiceway.keygroups import key_group, subtask_for_key_group
from sluiceway.testing import OperatorHarness, TwoInputOperatorHarness

__all__ = ["ColumnHarness", "TwoColumnHarness"]


class ColumnHarness(OperatorHarness):
    """Harness that feeds dicts as rows in columns, each batch to the subtasks that own its keys.

    Args:
        schemas: the columns, by the set of their names.
    """

    def __init__(self, program: Any, *schemas: pa.Schema, **options: Any) -> None:
        self._schemas: Mapping[frozenset[str], pa.Schema] = {frozenset(each.names): each for each in schemas}
        super().__init__(program, **options)

    def _split(self, partitioner: Any, values: list[Any], stamps: list[int] | None) -> Any:
        groups, count = self._subtasks[0].max_parallelism, len(self._subtasks)
        owners = [subtask_for_key_group(key_group(partitioner.key(row), groups), count, groups) for row in values]
        split = []
        for owner in sorted(set(owners)):
            mine = [i for i, of in enumerate(owners) if of == owner]
            times = None if stamps is None else array("q", [stamps[i] for i in mine])
            data = pa.RecordBatch.from_pylist([values[i] for i in mine], self._schemas[frozenset(values[0])])
            split.append((self._subtasks[owner], Batch.of_columns(data, times)))
        return split


class TwoColumnHarness(ColumnHarness, TwoInputOperatorHarness):
    """The same for steps with two inputs."""
