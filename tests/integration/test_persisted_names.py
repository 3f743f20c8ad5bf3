"""What a checkpoint stores names no module of the core but the registry of persisted classes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.windows import EventTimeSessionWindows, TumblingEventTimeWindows

# How a pickle spells the module and the name of a class.
CLASS = re.compile(rb"\x8c.(sluiceway[\w.]*)\x94\x8c.([\w.]+)\x94\x93", re.DOTALL)


class Collecting(sw.ProcessWindowFunction[Any, Any, Any]):
    def process(self, key: Any, ctx: Any, elements: Any) -> Any:
        return [len(list(elements))]


@pytest.mark.parametrize("backend", ["memory", "rocksdb", "filesystem"])
def test_stored_state_names_tags_alone(tmp_path: Path, backend: str) -> None:
    flow = sw.Pipeline("tags")
    stream = flow.generate(lambda n: n, count=400, timestamp=lambda n: n)
    keyed = stream.key_by(lambda n: n % 7)
    keyed.window(TumblingEventTimeWindows("200s")).process(Collecting()).collect()
    keyed.window(EventTimeSessionWindows("1s")).reduce(lambda a, b: a + b).collect()
    flow.from_collection(range(50)).key_by(lambda n: n).reduce(lambda a, b: a + b).collect()
    flow.run(
        state_backend=backend,
        checkpoints=str(tmp_path / "checkpoints"),
        checkpoint_interval="1ms",
        checkpoint_retained=5,
        batch_size=5,
    )
    files = [file.read_bytes() for file in (tmp_path / "checkpoints").rglob("*") if file.is_file()]
    found = {(module.decode(), name.decode()) for data in files for module, name in CLASS.findall(data)}
    assert found
    assert {module for module, _ in found} <= {"sluiceway.persisted"}, found
