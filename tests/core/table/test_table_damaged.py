"""State of steps in columns whose bytes are damaged: the error names the step."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.core.table.column_harness import ColumnHarness

from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import StateError
from sluiceway.table import TableStream, agg
from sluiceway.windows import EventTimeSessionWindows, TumblingEventTimeWindows

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
PROGRAMS: dict[str, Any] = {
    "windows": lambda table: table.window(TumblingEventTimeWindows(10)).aggregate(n=agg.sum("n")),
    "totals": lambda table: table.aggregate(n=agg.sum("n"), low=agg.min("user")),
    "sessions": lambda table: table.window(EventTimeSessionWindows(10)).aggregate(n=agg.sum("n")),
    "over": lambda table: table.over(rows=2).aggregate(total=agg.sum("n")),
}


def harness(program: str, **options: Any) -> ColumnHarness:
    def build(stream: Any) -> Any:
        table = TableStream(stream._pipeline, stream._inputs, SCHEMA, "test").key_by("user")
        return PROGRAMS[program](table).to_records()

    return ColumnHarness(build, SCHEMA, **options)


def _overwritten(block: bytes) -> bytes:
    middle = len(block) // 2
    return block[:middle] + b"\xff" * 20 + block[middle + 20 :]


@pytest.mark.parametrize("damage", [lambda block: block[:-40], lambda block: b"junk", _overwritten])
@pytest.mark.parametrize("program", PROGRAMS)
def test_damaged_blocks_are_named(program: str, damage: Any) -> None:
    with harness(program) as one:
        one.process_batch([{"user": user, "n": 1} for user in "abcabc"], [1, 2, 3, 4, 5, 6])
        one.snapshot()
        operator: Any = one._subtasks[0].operators[0]
        table = operator._waiting._table if program == "over" else operator._blocks
        for namespace in list(table.namespaces()):
            entries = table.entries(namespace)
            for key in list(entries):
                entries[key] = damage(entries[key])
        taken = one.snapshot()  # nothing has changed since, so that no block is written anew
    with pytest.raises(
        StateError, match=r"state .* of step .* cannot be read: no .* Start from another checkpoint"
    ):
        harness(program, restored=taken).process_watermark(MAX_WATERMARK)
