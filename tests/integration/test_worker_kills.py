"""Workers that are killed at any moment, under a job that begins anew: nothing is lost, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from effort import first

import sluiceway as sw
from sluiceway.engine import JobStatus
from sluiceway.transport.carrier import LinkLostError

COUNT = 2_000
KILLS = 3


def workers() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                above, name = int((entry / "stat").read_text().rpartition(")")[2].split()[1]), entry.name
                if b"sluiceway.entrypoint.worker" in line and above == os.getpid():
                    found.append(int(name))
    return found


def kill_some(seed: int, over: threading.Event) -> None:
    """While starting, while deploying, in the middle of an exchange: wherever chance has it."""
    lots = random.Random(seed)
    for _ in range(KILLS):
        pause = lots.choice([0.0, 0.05, 0.2, 0.6]) * lots.random()
        if over.wait(pause):
            return
        while not (there := workers()):
            if over.wait(0.005):
                return
        with suppress(ProcessLookupError):
            os.kill(lots.choice(there), signal.SIGKILL)


def slow(value: int) -> int:
    if value % 100 == 0:
        threading.Event().wait(0.01)
    return value


@pytest.mark.parametrize("seed", first(1, range(int(os.environ.get("KILL_SEEDS", "3")))))
def test_nothing_is_lost_when_workers_are_killed_at_any_moment(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    flow = sw.Pipeline("killed", parallelism=2)
    numbers = flow.from_collection(range(COUNT)).map(lambda v: slow(v))
    out = numbers.key_by(lambda v: v % 7).map(lambda v: v).rebalance().map(lambda v: v).collect()
    over = threading.Event()
    killer = threading.Thread(target=kill_some, args=(seed, over))
    killer.start()
    try:
        result = flow.run(workers=2, restart="fixed-delay:20:10ms")
    finally:
        over.set()
        killer.join()
    assert result.status is JobStatus.FINISHED
    assert set(out) == set(range(COUNT))
    reasons = [failure.cause for failure in result.failures]
    assert not [cause for cause in reasons if isinstance(cause, LinkLostError)], (
        "the worker is told of, not the link"
    )
    assert workers() == []
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("sluiceway-")]
