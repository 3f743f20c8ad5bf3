"""Batches of columns in flight at an unaligned checkpoint, and how another parallelism shares them."""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa
import pytest

from sluiceway.columns.routing import ColumnKey
from sluiceway.elements import Batch
from sluiceway.keygroups import key_group, subtask_for_key_group
from sluiceway.network.channel_state import apart, deal
from sluiceway.streamgraph import PartitionerSpec

_BATCHES = [
    Batch.of_columns(
        pa.RecordBatch.from_pydict({"k": [f"k{n % 5}" for n in range(start, start + 7)]}),
        array("q", range(start, start + 7)),
    )
    for start in (0, 7, 14)
]


@pytest.mark.parametrize(
    "partitioner", [PartitionerSpec("hash", key=ColumnKey(("k",))), PartitionerSpec("rebalance")]
)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_each_row_comes_to_one_subtask_with_its_time(partitioner: PartitionerSpec, parallelism: int) -> None:
    came: list[tuple[int, Any, int]] = []
    for subtask in range(parallelism):
        for part in deal(_BATCHES, partitioner, subtask, parallelism, 128):
            assert part.columns is not None
            came += [
                (time, row["k"], subtask) for time, row in zip(part.timestamps or (), part.values, strict=True)
            ]
    assert [(time, key) for time, key, _ in sorted(came)] == [(n, f"k{n % 5}") for n in range(21)]
    if partitioner.name == "hash":
        wanted = {f"k{n}": subtask_for_key_group(key_group(f"k{n}", 128), parallelism, 128) for n in range(5)}
        assert {(key, subtask) for _, key, subtask in came} == set(wanted.items())


def test_columns_need_no_copy_to_be_kept() -> None:
    assert apart(_BATCHES[0]) is _BATCHES[0]
