"""Harnesses that feed rows in columns."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from sluiceway.elements import Batch
from sluiceway.keygroups import key_group, subtask_for_key_group
from sluiceway.testing import OperatorHarness, TwoInputOperatorHarness

__all__ = ["ColumnHarness", "TwoColumnHarness", "many_steps"]


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


def many_steps(seed: int, batch: Any, restore: Any, count: int = 60) -> list[Any]:
    """Return many steps for few keys and times, so that rows meet each other, the watermark and restarts.

    Args:
        seed: of the choices.
        batch: makes a batch of a list of pairs: a number, and a time after the watermark, or a little before it.
        restore: makes a restart of a random generator.
        count: number of steps.
    """
    dice = random.Random(seed)
    steps: list[Any] = []
    for _ in range(count):
        kind = dice.random()
        if kind < 0.65:
            rows = [(dice.randrange(10), dice.randrange(4, 14)) for _ in range(dice.randrange(1, 6))]
            steps.append(batch(dice, rows))
        elif kind < 0.9:
            steps.append(dice.randrange(4))
        else:
            steps.append(restore(dice))
    return steps
