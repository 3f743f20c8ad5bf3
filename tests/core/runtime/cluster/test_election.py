"""Leader election by a lock on the job store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from patience import PATIENT_S

from sluiceway.election import LeadershipLostError
from sluiceway.errors import ConfigurationError
from sluiceway.runtime.cluster.election import FileLeaderElection
from sluiceway.runtime.cluster.home import next_epoch
from sluiceway.runtime.cluster.job_store import JobStore, StoredJob

LEADING = dedent(
    """
    import sys
    from pathlib import Path
    from sluiceway.runtime.cluster.election import FileLeaderElection
    election = FileLeaderElection(Path(sys.argv[1]))
    print(election.campaign(), flush=True)
    sys.stdin.read()
    """
)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that leads."""
    process = subprocess.Popen(
        [sys.executable, "-c", LEADING, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    yield process
    process.kill()
    process.communicate()


def job() -> StoredJob:
    return StoredJob(job="job-1", name="job", number=1, submitted_ms=0, path=[], needs_slots=1)


def test_one_leads_at_a_time_and_each_has_a_higher_epoch(tmp_path: Path) -> None:
    elections = [FileLeaderElection(tmp_path) for _ in range(3)]
    for number, election in enumerate(elections, 1):
        assert election.campaign()
        assert election.campaign()
        assert election.is_leader()
        assert election.epoch == number
        election.announce(f"where {number} is")
        for other in elections[number:]:
            assert not other.campaign()
            assert not other.is_leader()
            told = other.leader()
            assert told is not None
            assert (told.pid, told.epoch, told.address) == (os.getpid(), number, f"where {number} is")
        election.close()
        assert not election.is_leader()
        assert not election.campaign(), "who has lost leads never again"
    least = FileLeaderElection(tmp_path, 10)
    assert least.campaign()
    assert least.epoch == 10
    least.close()


def test_a_leader_that_dies_or_is_deposed_while_suspended_is_followed(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    election = FileLeaderElection(tmp_path)
    os.kill(other.pid, signal.SIGSTOP)
    assert not election.campaign(), "who is suspended leads"
    assert election.depose()
    assert other.wait(PATIENT_S) == -signal.SIGKILL
    assert election.campaign()
    assert election.epoch == 2
    election.close()


@pytest.mark.parametrize(
    "content", ["", "{", '{"pid": "x"}', "\x00\xff", '{"address": "\xff"}', '{"pid": %d, "began": 1, "epoch": 1}']
)
def test_a_damaged_file_of_the_lock_deposes_nobody(
    tmp_path: Path, other: subprocess.Popen[str], content: str
) -> None:
    # Of one byte each: \xff is no UTF-8.
    (tmp_path / "lock").write_text(content % other.pid if "%d" in content else content, encoding="latin-1")
    election = FileLeaderElection(tmp_path)
    assert not election.depose()
    assert not election.campaign()
    assert other.poll() is None
    other.kill()
    other.wait()
    assert election.campaign()
    assert election.epoch == 2
    election.close()


@pytest.mark.parametrize("content", ["", "x", "\xff", "-7", "9" * 32])
def test_a_damaged_epoch_is_followed_by_one_that_messages_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (tmp_path / "epoch").write_text(content, encoding="latin-1")
    election = FileLeaderElection(tmp_path)
    assert election.campaign()
    assert 1_700_000_000 < election.epoch < 1 << 53
    election.close()
    monkeypatch.setenv("SLUICEWAY_HOME", str(tmp_path))
    (tmp_path / "epoch").write_text(content, encoding="latin-1")
    assert 1_700_000_000 < next_epoch() < 1 << 53


def test_a_forked_child_does_not_keep_the_lock_of_a_leader_that_is_dead(tmp_path: Path) -> None:
    election = FileLeaderElection(tmp_path)
    assert election.campaign()
    ready, says_ready = os.pipe()
    ends, says_end = os.pipe()
    child = os.fork()
    if not child:
        os.close(says_end)
        os.write(says_ready, b".")
        os.read(ends, 1)
        os._exit(0)
    os.read(ready, 1)
    election.close()
    following = FileLeaderElection(tmp_path)
    assert following.campaign()
    following.close()
    for descriptor in (says_end, ends, ready, says_ready):
        os.close(descriptor)
    os.waitpid(child, 0)


def test_where_the_lock_was_removed_the_leader_locks_the_next_file_unless_somebody_has(tmp_path: Path) -> None:
    election, other = FileLeaderElection(tmp_path), FileLeaderElection(tmp_path)
    assert election.campaign()
    (tmp_path / "lock").unlink()
    assert election.is_leader()
    assert not other.campaign()
    (tmp_path / "lock").unlink()
    assert other.campaign()
    assert other.epoch == 2
    assert not election.is_leader()
    other.close()
    assert not election.is_leader(), "what was led by another is lost"
    third = FileLeaderElection(tmp_path)
    assert third.campaign()
    (tmp_path / "lock").unlink()
    fourth = FileLeaderElection(tmp_path)
    assert fourth.campaign()
    fourth.close()
    assert not third.is_leader(), "somebody has led in between"
    third.close()


def test_who_has_lost_does_not_write_the_job_store(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    stored = job()
    store.add(stored, b"program")
    (tmp_path / "lock").unlink()
    with JobStore(tmp_path) as next_one:
        before = next_one.load().jobs
        for write in (
            lambda: store.add(job(), b"other"),
            lambda: store.update(stored),
            lambda: store.forget(stored),
            lambda: store.drop_checkpoints(stored),
        ):
            with pytest.raises(LeadershipLostError, match="another job manager leads the jobs in"):
                write()
        assert next_one.load().jobs == before
        assert next_one.program(stored) == b"program"
    store.close()


def test_a_job_store_that_cannot_be_written_is_named_and_nobody_leads(tmp_path: Path) -> None:
    (tmp_path / ".epoch.part").mkdir()  # as on a file system that is full, or read-only
    with pytest.raises(ConfigurationError, match=f"the job store {tmp_path} cannot be written: "):
        JobStore(tmp_path)
    (tmp_path / ".epoch.part").rmdir()
    with JobStore(tmp_path) as store:
        assert store.election.epoch == 1
