"""Directories of clusters that were killed as a whole are removed by the next one, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sluiceway.runtime.cluster.directories import lock_directory, make_directory, remove_dead

HOLDER = """
import sys
from pathlib import Path
from sluiceway.runtime.cluster.directories import lock_directory
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
