"""A job goes on where its checkpoints cannot be written for a while, and the next that can be is complete."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway import exit_codes
from sluiceway.checkpoint import CheckpointMetadata, find_checkpoints, load_metadata
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.errors import CheckpointError, CheckpointFailedError, ConnectorError, StateError
from sluiceway.plugins import default_manager
from sluiceway.testing import InjectedError, KeySequence, NumberFiles

COUNT, KEYS = 100_000, 12


def flow_of(out: Path, rate: int | None) -> tuple[sw.Pipeline, NumberFiles]:
    flow = sw.Pipeline("numbers", parallelism=2)
    sink = NumberFiles(out)
    numbers: sw.DataStream[int] = flow.source(GeneratorSource(count=COUNT, rate=rate)).uid("numbers")
    numbers.key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("counted").sink(sink).uid("out")
    return flow, sink


def newest(kept: Path) -> CheckpointMetadata | None:
    storage = default_manager().checkpoint_storage(str(kept))
    for directory in find_checkpoints(storage):
        try:
            return load_metadata(storage, directory)
        except CheckpointError:
            if any(file.name == f"{directory}/metadata.json" for file in storage.files(directory)):
                raise
            # the job that runs has completed a newer one and deleted this one since it was listed
    return None


async def interrupted(
    flow: sw.Pipeline,
    kept: Path,
    breaks: Callable[[], Callable[[], None]],
    again: bool = False,
    lasts: int = 4_000,
    **options: Any,
) -> CheckpointMetadata:
    """Run it; have the storage break when there is a checkpoint, and mend it ``lasts`` records later."""
    async with await flow.start(checkpoints=kept, checkpoint_interval="20ms", restart="none", **options) as handle:

        async def until(reached: Callable[[], bool], meanwhile: Callable[[], object] | None = None) -> None:
            while not reached():
                if meanwhile is not None:
                    meanwhile()
                if handle.status.ended:
                    await handle.result()
                    raise AssertionError("it has ended too soon")
                await asyncio.sleep(0.005)

        def records() -> int:
            return handle.metrics().records_out

        await until(lambda: newest(kept) is not None)
        mend = breaks()
        then = records()
        try:
            await until(lambda: records() > then + lasts, breaks if again else None)
        finally:
            mend()
        last = newest(kept)
        number = 0 if last is None else last.checkpoint_id
        await until(lambda: (found := newest(kept)) is not None and found.checkpoint_id > number + 1)
        assert handle.status is JobStatus.RUNNING
        handle.cancel()
    found = newest(kept)
    assert found is not None
    return found


def check(out: Path, kept: Path) -> None:
    """What was kept is whole."""
    flow, sink = flow_of(out, None)
    flow.run(from_checkpoint=kept, checkpoint_interval="1h")
    report = sink.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report


def filled(disk: Path) -> Callable[[], None]:
    """Leave no room on a disk, also where some has come free since. Returns what makes room again."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 512)
    return filler.unlink


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_full_disk_fails_checkpoints_and_not_the_job(
    backend: str, small_disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = small_disk / "kept"

    flow, _ = flow_of(tmp_path / "out", 10_000)
    options = {"checkpoint_tolerated_failures": 1_000, "state_backend": backend}
    found = asyncio.run(interrupted(flow, kept, lambda: filled(small_disk), again=True, **options))
    failed = [entry for entry in found.history if entry.status == "failed"]
    assert failed
    assert all("No space left on device" in entry.reason for entry in failed), failed
    assert (
        "the job continues without it: checkpoint-tolerated-failures is 1000, and this is failure 1" in caplog.text
    )
    check(tmp_path / "out", kept)


def test_more_failures_than_are_tolerated_fail_the_job(small_disk: Path, tmp_path: Path) -> None:
    kept = small_disk / "kept"

    flow, _ = flow_of(tmp_path / "out", 10_000)
    told = r"No space left on device.*checkpoint-tolerated-failures is 2"
    with pytest.raises(CheckpointFailedError, match=told):
        asyncio.run(
            interrupted(
                flow, kept, lambda: filled(small_disk), again=True, lasts=COUNT, checkpoint_tolerated_failures=2
            )
        )


@pytest.mark.parametrize("what", ["deleted", "replaced by a file"])
def test_a_directory_that_goes_away_may_come_back(what: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"

    def breaks() -> Callable[[], None]:
        while kept.exists():
            shutil.rmtree(kept, ignore_errors=True)
            if what != "deleted":
                try:
                    kept.write_text("in the way")
                except OSError:
                    continue
                return kept.unlink
        return lambda: None

    flow, _ = flow_of(tmp_path / "out", 10_000)
    found = asyncio.run(interrupted(flow, kept, breaks, checkpoint_tolerated_failures=1_000))
    if what != "deleted":
        failed = [entry.reason for entry in found.history if entry.status == "failed"]
        assert any("Not a directory" in reason for reason in failed), failed
    check(tmp_path / "out", kept)


def failing(kept: Path, out: Path) -> tuple[sw.Pipeline, NumberFiles, Path]:
    """A job that fails when there is a checkpoint, and takes the directory away as it does."""
    away, mark = kept.with_name("away"), kept.with_name("mark")

    def has_completed() -> bool:
        # One whose metadata is there may still fail. Where a later one has them, an earlier one has not.
        return any(place.parent.name != "chk-1" for place in kept.glob("*/*/metadata.json"))

    def check(value: int) -> int:
        if value % 100 == 0 and not mark.exists():
            if has_completed():
                mark.touch()
                kept.rename(away)
                raise InjectedError("gone")
            if value > COUNT / 2:  # a busy machine needs more time for two checkpoints than the input takes
                time.sleep(0.05)  # polls for them
        return value

    flow = sw.Pipeline("numbers", parallelism=2)
    sink = NumberFiles(out)
    numbers: sw.DataStream[int] = flow.source(GeneratorSource(count=COUNT, rate=50_000)).uid("numbers")
    numbers.map(check).key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("counted").sink(sink).uid("out")
    return flow, sink, away


def test_a_checkpoint_that_cannot_be_read_for_a_while_is_read_when_it_can_be(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    flow, sink, away = failing(kept, tmp_path / "out")

    def put_back() -> bool:
        """Fails where a checkpoint is written between the two steps."""
        shutil.rmtree(kept, ignore_errors=True)
        with suppress(OSError):
            away.rename(kept)
        return not away.exists()

    async def go() -> sw.JobResult:
        options: dict[str, Any] = {"restart": "fixed-delay:1000:10ms", "checkpoint_tolerated_failures": 1_000}
        async with await flow.start(checkpoints=kept, checkpoint_interval="20ms", **options) as handle:
            while not any(isinstance(failure.cause, CheckpointError) for failure in handle.failures):
                assert not handle.status.ended
                await asyncio.sleep(0.005)
            while not put_back():
                await asyncio.sleep(0.005)
            return await handle.result()

    result = asyncio.run(go())
    assert result.status is JobStatus.FINISHED
    report = sink.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report


def test_a_checkpoint_that_cannot_be_read_fails_the_job_in_the_end(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    flow, _, _ = failing(kept, tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"cannot read .*kept/.*chk-\d+/.*: No such file") as caught:
        flow.run(checkpoints=kept, checkpoint_interval="20ms", restart="fixed-delay:3:1ms")
    assert any("the job is not restarted" in note for note in caught.value.__notes__)


PROGRAM = """
import os

import sluiceway as sw
from sluiceway.connector.lib.generator import GeneratorSource

PLACE = os.environ["PLACE"]


def keep(number):
    with open(PLACE, "ab") as file:
        file.write(bytes(65_536))
    return number


flow = sw.Pipeline("fills the disk")
flow.source(GeneratorSource(count=1_000)).map(keep).for_each(id)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_full_disk_is_a_failure_outside_the_pipeline(workers: str, small_disk: Path, tmp_path: Path) -> None:
    program = tmp_path / "fills.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "-m", "sluiceway", "run", "--workers", workers, "--restart", "none", str(program)],
        env={**os.environ, "PLACE": str(small_disk / "written")},
        capture_output=True,
        text=True,
        timeout=PATIENT_S / 4,
    )
    assert "No space left on device" in ended.stderr
    assert ended.returncode == exit_codes.OUTSIDE, ended.stderr


def test_a_full_disk_in_the_chain_of_causes() -> None:
    failed = ConnectorError("cannot write")
    failed.__cause__ = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    wrapped = ValueError("of a function's own")
    wrapped.__cause__ = failed
    assert exit_codes.of(wrapped) == exit_codes.OUTSIDE
    assert exit_codes.of(StateError("cannot write: IO error: No space left on device")) == exit_codes.OUTSIDE
    assert exit_codes.of(ValueError("No space left on device")) == exit_codes.FAILED
    assert exit_codes.of(OSError(errno.EACCES, "denied")) == exit_codes.FAILED
    failed.__cause__ = wrapped
    assert exit_codes.of(wrapped) == exit_codes.FAILED, "a chain that has no end is followed once"
