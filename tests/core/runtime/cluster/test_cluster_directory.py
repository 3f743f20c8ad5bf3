"""Directories of clusters that were killed as a whole are removed by the next one, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import sluiceway as sw
from sluiceway.runtime.cluster.cluster_directory import (
    lock_directory,
    make_directory,
    place_of_directories,
    remove_dead,
)

HOLDER = """
import sys
from pathlib import Path
from sluiceway.runtime.cluster.cluster_directory import lock_directory
lock = lock_directory(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_directory_is_kept_as_long_as_its_process_lives_however_that_ends(place: Path) -> None:
    directory = make_directory()
    assert directory.stat().st_mode & 0o777 == 0o700
    (directory / "manager").touch()
    command = [sys.executable, "-c", HOLDER, str(directory)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(BlockingIOError):
            lock_directory(directory)
        assert remove_dead(place) == []
        assert directory.exists()
    finally:
        holder.kill()
        holder.communicate()
    assert remove_dead(place) == [directory]
    assert not directory.exists()


def test_what_is_being_made_and_what_is_not_ours_stays(place: Path) -> None:
    fresh = make_directory()
    old = make_directory()
    os.utime(old, (0, 0))
    foreign = place / "sluiceway-notes"
    foreign.mkdir()
    (foreign / "thoughts.txt").touch()
    os.utime(foreign, (0, 0))
    (place / "sluiceway-file").touch()
    (place / "sluiceway-link").symlink_to(foreign)
    (place / "other").mkdir()
    assert remove_dead(place) == [old]
    assert sorted(p.name for p in place.iterdir()) == sorted(
        [fresh.name, "sluiceway-notes", "sluiceway-file", "sluiceway-link", "other"]
    )


def test_a_lock_is_free_again_when_its_file_is_closed() -> None:
    directory = make_directory()
    lock_directory(directory).close()
    lock_directory(directory).close()


def test_clusters_that_start_at_a_time_do_not_take_one_another_for_dead(place: Path) -> None:
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            remove_dead(place)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(500):
            directory = make_directory()
            with lock_directory(directory):
                assert [path.name for path in directory.iterdir()] == ["lock"]
    finally:
        ended.set()
        looking.join()


@pytest.mark.parametrize("transport", ["shm", "zmq"])
def test_workers_run_where_temporary_files_have_a_long_path(
    transport: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if transport == "zmq":
        pytest.importorskip("zmq")
    room = 107 - len("/sluiceway-12345678/worker-99999.line") - len(str(place)) - 1
    for length in (room, room + 1, 150):
        if length <= 0:
            continue
        long = place / ("d" * length)
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        assert (place_of_directories() == long) is (length == room)
        flow = sw.Pipeline("long")
        numbers = flow.from_collection(range(10)).rebalance().map(str).collect()
        flow.run(workers=2, transport=transport)
        assert sorted(numbers) == list("0123456789")
        assert list(long.iterdir()) == []
