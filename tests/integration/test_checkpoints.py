"""A job that fails goes on from its last checkpoint: every record counts once, whatever was under way."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.checkpoint import load_metadata, read_operators
from sluiceway.connector import Poll, Reader, ReaderContext, Wait
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.errors import CheckpointError, GraphError, StateError
from sluiceway.plugins import default_manager
from sluiceway.testing import (
    EOF,
    PAUSE,
    FailOnce,
    InjectedError,
    KeySequence,
    NumberFiles,
    PipelineHarness,
    TestSource,
)

COUNT = 40_000
KEYS = 7


class Injected(Exception):
    pass


def failing_at(numbers: tuple[int, ...], marks: Path) -> Callable[[int], int]:
    """Fails once at each of the numbers, whichever process comes by."""

    def check(value: int) -> int:
        if value in numbers:
            try:
                os.close(os.open(marks / str(value), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return value
            raise Injected(value)
        return value

    return check


class Told(sw.MapFunction[int, int], sw.CheckpointListener):
    """Passes numbers on, and notes the last checkpoint that is complete."""

    def __init__(self, told: Path) -> None:
        self._told = told

    def map(self, value: int) -> int:
        return value

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        new = self._told.with_name(f"{self._told.name}-{os.getpid()}-{threading.get_ident()}")
        new.write_text(str(checkpoint_id))
        new.rename(self._told)


class Covered(GeneratorSource[int]):
    """Numbers, the first of which are in a completed checkpoint before the others come, however slow it is."""

    def __init__(self, told: Path, first: int, **options: Any) -> None:
        super().__init__(**options)
        self._told = told
        self._first = first

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        reader = super().create_reader(context)
        original = reader.poll
        read, since = 0, -1

        def last() -> int:
            return int(self._told.read_text()) if self._told.exists() else 0

        def poll(limit: int) -> Poll[int]:
            nonlocal read, since
            if read < self._first:
                polled = original(min(limit, self._first - read))
                read += len(polled) if isinstance(polled, list) else 0
                return polled
            since = last() if since < 0 else since
            # The next one may have begun before the last of them was read.
            if last() < since + 2:
                return Wait(until=context.clock.monotonic() + 0.005)
            return original(limit)

        reader.poll = poll  # type: ignore[method-assign]
        return reader


def owed() -> Counter[tuple[int, int]]:
    """Each key's running counts."""
    return Counter((key, n) for key in range(KEYS) for n in range(1, len(range(key, COUNT, KEYS)) + 1))


@pytest.mark.parametrize(
    ("workers", "mode", "where"),
    [
        (0, "exactly-once", "in files"),
        (0, "at-least-once", "in memory"),
        (2, "exactly-once", "in files"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (0, "exactly-once", "in memory"),
                (0, "at-least-once", "in files"),
                (2, "exactly-once", "in memory"),
                (2, "at-least-once", "in memory"),
                (2, "at-least-once", "in files"),
            ]
        ),
    ],
)
def test_state_goes_on_from_the_last_checkpoint(workers: int, mode: str, where: str, tmp_path: Path) -> None:
    flow = sw.Pipeline("counted", parallelism=2)
    told = tmp_path / "told"
    numbers = flow.source(Covered(told, 1_000, count=COUNT, rate=80_000 if workers else None)).map(Told(told))
    # Numbers of one subtask, so that the second one comes after the restart: two subtasks could fail at once.
    checked = numbers.map(failing_at((COUNT // 4, COUNT // 2 - 2), tmp_path))
    out = checked.key_by(lambda v: v % KEYS).count().collect()
    result = flow.run(
        workers=workers,
        checkpoint_interval="30ms" if workers else "2ms",
        checkpoint_mode=mode,
        checkpoints=tmp_path / "kept" if where == "in files" else None,
        restart="fixed-delay:3:1ms",
    )
    assert result.status is JobStatus.FINISHED
    assert result.metrics.restarts == 2
    came = Counter(out)
    if mode == "exactly-once":
        assert set(came) == set(owed()), "a count is missing, or too high"
    else:
        assert set(came) >= set(owed())
    assert all(came[key, 1] == 1 for key in range(KEYS)), "it has not begun at the beginning"
    if where == "in files":
        (kept,) = (tmp_path / "kept").glob("*/chk-*/metadata.json")
        found = load_metadata(default_manager().checkpoint_storage(str(kept.parent.parent)), kept.parent.name)
        assert all(subtask.finished for vertex in found.vertices for subtask in vertex.subtasks)
        assert sum(len(vertex.subtasks) for vertex in found.vertices) == 4, "that of the end"


def test_a_task_that_has_finished_is_in_the_checkpoints_after_it(tmp_path: Path) -> None:
    flow = sw.Pipeline("one ends")
    short = flow.from_collection([1, 2, 3]).uid("short").key_by(lambda v: 0).count().uid("counted")
    long = flow.source(GeneratorSource(count=20_000, rate=40_000)).uid("long")
    failing = long.map(failing_at((15_000,), tmp_path))
    out = failing.key_by(lambda v: v % KEYS).count().collect()
    few = short.collect()
    result = flow.run(
        checkpoint_interval="20ms",
        checkpoints=tmp_path / "kept",
        checkpoint_retained=2,
        restart="fixed-delay:1:0ms",
    )
    assert result.metrics.restarts == 1
    assert few == [(0, 1), (0, 2), (0, 3)], "what has finished does not begin anew"
    assert max(n for _, n in out) == len(range(0, 20_000, KEYS))
    kept = list((tmp_path / "kept").glob("*/chk-*"))
    assert len(kept) == 2
    for directory in kept:
        storage = default_manager().checkpoint_storage(str(directory.parent))
        states = read_operators(storage, directory.name, load_metadata(storage, directory.name))
        (counted,) = [s for s in states if s.uid == "counted"]
        assert counted.drained
        assert counted.keyed is not None
        assert len(counted.keyed.groups) == 1


def test_what_has_not_changed_since_is_not_read_again(tmp_path: Path) -> None:
    flow = sw.Pipeline("rewound")
    numbers = flow.source(GeneratorSource(count=COUNT, rate=100_000))
    out = numbers.map(failing_at((COUNT * 3 // 4,), tmp_path)).collect()
    flow.run(checkpoint_interval="10ms", restart="fixed-delay:1:0ms")
    assert set(out) == set(range(COUNT))
    assert len(out) < COUNT * 3 // 2


def test_a_job_that_ends_before_its_first_checkpoint_is_due_takes_one_at_its_end() -> None:
    flow = sw.Pipeline("short")
    out = flow.from_collection([1, 2, 3]).key_by(lambda v: 0).count().collect()
    assert flow.run(checkpoint_interval="1h").status is JobStatus.FINISHED
    assert out == [(0, 1), (0, 2), (0, 3)]


def test_a_job_with_a_loop_is_refused() -> None:
    flow = sw.Pipeline("loop")
    numbers = flow.from_collection([3])
    loop = numbers.iterate()
    down = loop.map(lambda v: v - 1)
    loop.close_with(down.filter(lambda v: v > 0))
    down.print()
    with pytest.raises(GraphError, match="checkpoints of a job with a feedback loop are not supported"):
        flow.run(checkpoint_interval="1s")


class Buffering(sw.MapFunction[int, int], sw.CheckpointedFunction):
    """Counts in the object itself, as people do, and keeps that with each checkpoint."""

    def __init__(self) -> None:
        self.count = 0

    def initialize_state(self, context: sw.FunctionInitializationContext) -> None:
        self._kept = context.operator_state_store.get_list_state(sw.ListStateDescriptor("count", int))
        self.count += sum(self._kept.get())

    def snapshot_state(self, context: sw.FunctionSnapshotContext) -> None:
        self._kept.update([self.count])

    def map(self, value: int) -> int:
        self.count += 1
        return self.count


@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_attempt_knows_nothing_of_what_an_earlier_one_left_in_an_object(
    parallelism: int, tmp_path: Path
) -> None:
    flow = sw.Pipeline("objects", parallelism=parallelism)
    numbers = flow.source(GeneratorSource(count=COUNT)).map(failing_at((COUNT // 2,), tmp_path))
    out = numbers.map(Buffering()).collect()
    assert flow.run(checkpoint_interval="2ms", restart="fixed-delay:1:1ms").metrics.restarts == 1
    assert max(out) == COUNT // parallelism


@pytest.mark.parametrize(("workers", "parallelism"), [(0, 1), (0, 2), (0, 3), (2, 3)])
def test_another_run_goes_on_from_the_newest_checkpoint(workers: int, parallelism: int, tmp_path: Path) -> None:
    def flow(parallelism: int, marks: Path) -> tuple[sw.Pipeline, NumberFiles]:
        flow = sw.Pipeline("again", parallelism=parallelism, max_parallelism=16)
        out = NumberFiles(tmp_path / "out")
        numbers = flow.source(GeneratorSource(count=20_000, rate=40_000)).uid("numbers")
        counted = numbers.key_by(lambda n: n % 12).map(KeySequence(12)).uid("counted")
        counted.map(FailOnce(marks, in_notify=True)).uid("failing").sink(out).uid("out")
        return flow, out

    first, _ = flow(2, tmp_path)
    with pytest.raises(InjectedError):
        first.run(checkpoint_interval="20ms", checkpoints=tmp_path / "kept", restart="none")
    second, out = flow(parallelism, tmp_path)
    second.run(workers=workers, from_checkpoint=tmp_path / "kept", checkpoint_interval="20ms")
    report = out.report(20_000)
    assert (report.received, report.lost, report.duplicates) == (20_000, 0, 0), report


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_runs(tmp_path: Path) -> None:
    def flow(uid: str, max_parallelism: int, job: str = "fits") -> sw.Pipeline:
        flow = sw.Pipeline(job, max_parallelism=max_parallelism)
        flow.from_collection([1]).uid("numbers").key_by(lambda v: v).count().uid(uid).print()
        return flow

    flow("counted", 16).run(checkpoint_interval="1h", checkpoints=tmp_path)
    with pytest.raises(StateError, match="state of 'counted', which no step of job 'fits' goes by"):
        flow("other", 16).run(from_checkpoint=tmp_path)
    with pytest.raises(StateError, match=r"no step of job 'others' goes by: .*\. The snapshot is of job 'fits'"):
        flow("other", 16, "others").run(from_checkpoint=tmp_path)
    with pytest.raises(StateError, match="saved in 16 key groups, and the job divides it into 32: set max-para"):
        flow("counted", 32).run(from_checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"there is no complete checkpoint in .*nowhere"):
        flow("counted", 16).run(from_checkpoint=tmp_path / "nowhere")


def test_in_virtual_time_there_is_one_each_interval() -> None:
    flow = sw.Pipeline("virtual")
    out = flow.source(TestSource([1, 2, PAUSE, 3, EOF])).key_by(lambda v: 0).count().collect()
    with PipelineHarness(flow, checkpoint_interval="1s") as harness:
        harness.advance(5_500)
        history = harness._job._master.checkpoints.coordinator.history  # type: ignore[union-attr]
        at = [record.triggered_ms for record in history if record.status == "completed"]
    assert out == [(0, 1), (0, 2)]
    assert 0 <= at[0] <= 1000
    assert len(at) in (5, 6)
    assert {later - earlier for earlier, later in pairwise(at)} <= {1000, 1001}
