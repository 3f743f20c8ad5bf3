"""Orphans are collected while a job goes on that writes checkpoints."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.checkpoint import CheckpointDirectory
from sluiceway.clock import SystemClock
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.plugins import default_manager
from sluiceway.testing import KeySequence, NumberFiles

COUNT, KEYS = 15_000, 12


class Ends(Exception):
    """The first run is over."""


def flow_of(out: Path, until: int | None = None) -> tuple[sw.Pipeline, NumberFiles]:
    def check(value: int) -> int:
        if value == until:
            raise Ends
        return value

    flow = sw.Pipeline("numbers", parallelism=2)
    sink = NumberFiles(out)
    numbers: sw.DataStream[int] = flow.source(GeneratorSource(count=COUNT, rate=4_000 if until else None))
    numbers.uid("numbers").map(check).key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("counted").sink(sink)
    return flow, sink


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_job_goes_on_from_what_is_left(backend: str, tmp_path: Path) -> None:
    """Each checkpoint here takes far less than the age that is asked for."""
    kept = tmp_path / "kept"
    broken = kept / "savepoint-numbers-1795295472607-1" / "0-0-0.state"
    over = threading.Event()
    collected: list[int] = []
    problems: list[BaseException] = []

    def collect() -> None:
        place = CheckpointDirectory(default_manager().checkpoint_storage(str(kept)))
        while not over.is_set():
            try:
                found = place.collect(SystemClock().now_ms(), 5_000)
            except BaseException as error:
                problems.append(error)
                return
            collected.append(len(found.files))

    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"half")
    collecting = threading.Thread(target=collect)
    collecting.start()
    flow, _ = flow_of(tmp_path / "out", 2 * COUNT // 3)
    options = {"state_backend": backend, "checkpoint_interval": "10ms"}
    try:
        with pytest.raises(Ends):
            flow.run(checkpoints=kept, restart="none", **options)  # type: ignore[arg-type]
    finally:
        over.set()
        collecting.join()
    assert not problems
    assert len(collected) > 10
    again, sink = flow_of(tmp_path / "out")
    again.run(from_checkpoint=kept, **options)  # type: ignore[arg-type]
    report = sink.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report
    place = CheckpointDirectory(default_manager().checkpoint_storage(str(kept)))
    found = place.collect(SystemClock().now_ms() + 9_000, 5_000)
    assert str(broken.relative_to(kept)) in [file.name for file in found.files]
    assert not broken.exists()


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("problem", [{}, {"checkpoint_timeout": "8ms"}, {"checkpoint_max_concurrent": 3}])
def test_a_job_that_ends_leaves_complete_checkpoints_and_nothing_else(
    problem: dict[str, Any], backend: str, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    flow, _ = flow_of(tmp_path / "out", COUNT)

    async def cancelled() -> None:
        options = {"checkpoint_interval": "15ms", "checkpoint_tolerated_failures": 1_000, "state_backend": backend}
        async with await flow.start(checkpoints=kept, restart="none", **options, **problem) as handle:
            while handle.metrics().records_out < 2_000:
                await asyncio.sleep(0.005)
            handle.cancel()
            assert (await handle.result()).status is JobStatus.CANCELED

    asyncio.run(cancelled())
    place = CheckpointDirectory(default_manager().checkpoint_storage(str(kept)))
    left = place.collect(1 << 62, 0, dry_run=True)
    assert [file.name for file in left.files] == []
    assert left.kept == ()
