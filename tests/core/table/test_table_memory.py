"""Memory of windows in columns: bytes per key, and state that is larger than the memory for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENT_S

_PROGRAM = Path(__file__).parent / "state_in_memory.py"


def run(backend: str, windows: int, keys: int, checkpoints: str = "", **env: str) -> tuple[list[str], int]:
    """Return the results of the program, and the most memory that it has had, in bytes."""
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), backend, str(windows), str(keys), checkpoints],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *results, memory = done.stdout.split()
    return results, int(memory) << 10


@pytest.mark.slow
def test_state_may_be_larger_than_its_memory(tmp_path: Path) -> None:
    expected, whole = run("memory", 80, 100_000)
    limits = {
        "SLUICEWAY_ROCKSDB_COLUMNS": "32mb",
        "SLUICEWAY_ROCKSDB_CACHE": "16mb",
        "SLUICEWAY_ROCKSDB_DIRECTORY": str(tmp_path),
    }
    found, bounded = run("rocksdb", 80, 100_000, **limits)
    assert found == expected
    assert bounded < whole - (100 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_ten_windows_of_a_million_keys_take_less_than_a_gibibyte(backend: str, tmp_path: Path) -> None:
    kept = str(tmp_path / "kept") if backend == "rocksdb" else ""
    (rows, *_), memory = run(backend, 10, 1_000_000, kept, SLUICEWAY_ROCKSDB_DIRECTORY=str(tmp_path / "databases"))
    assert rows == "10000000"
    assert memory < 1 << 30
