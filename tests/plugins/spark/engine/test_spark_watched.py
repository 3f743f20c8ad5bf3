"""What is told of a job in micro-batches, to its pages and to programs: with a real session on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.monitoring.rates import RateMeter
from sluiceway.plugins import PluginManager

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def _nothing_leaks() -> None:
    """py4j keeps the connections by which Spark calls this process until the JVM collects its garbage."""


def test_micro_batches_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sluiceway.runtime.microbatch.batch_limits import BatchLimits
    from sluiceway_spark.structured import streaming_query

    monkeypatch.setattr(streaming_query, "LIMITS", BatchLimits(records=150, wait_s=0.1, linger_s=0.05))
    flow = sw.Pipeline("words", parallelism=2)
    flow.from_collection(list(range(600))).uid("numbers").key_by(lambda n: n % 10).count().uid("count").collect()
    settings = Settings(engine="spark", checkpoints=str(tmp_path), parallelism=2)
    job: Any = flow.prepare(settings, PluginManager().services())
    before = job.describe()
    assert {e.state for e in before.executions} == {"created"}
    job.run()
    after = job.describe()
    assert [v.uid for v in after.vertices] == ["numbers", "count", *[v.uid for v in after.vertices[2:]]]
    assert {e.state for e in after.executions} == {"finished"}
    batches = after.micro_batches
    numbers = [batch.number for batch in batches]
    assert numbers == sorted(set(numbers))
    assert sum(batch.records for batch in batches) == 600
    assert all(batch.duration_ms > 0 and "addBatch" in batch.phases for batch in batches)
    assert batches[-1].state_rows > 0
    assert len(RateMeter().read("words", job.metrics())) > 0
