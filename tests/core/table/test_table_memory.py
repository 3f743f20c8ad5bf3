"""Memory of aggregates in columns: bytes per key, and state that is larger than the memory for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENT_S

_WINDOWS = Path(__file__).parent / "state_in_memory.py"
_KEYS = Path(__file__).parent / "keys_in_memory.py"
_ROWS = Path(__file__).parent / "rows_in_memory.py"


def run(*arguments: Any, program: Path = _WINDOWS, **env: str) -> tuple[list[str], int]:
    """Return the results of a program, and the most memory that it has had, in bytes."""
    done = subprocess.run(
        [sys.executable, str(program), *map(str, arguments)],
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
    expected, whole = run("memory", 80, 100_000, "")
    limits = {
        "SLUICEWAY_ROCKSDB_COLUMNS": "32mb",
        "SLUICEWAY_ROCKSDB_CACHE": "16mb",
        "SLUICEWAY_ROCKSDB_DIRECTORY": str(tmp_path),
    }
    found, bounded = run("rocksdb", 80, 100_000, "", **limits)
    assert found == expected
    assert bounded < whole - (100 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_ten_windows_of_a_million_keys_take_less_than_a_gibibyte(backend: str, tmp_path: Path) -> None:
    kept = str(tmp_path / "kept") if backend == "rocksdb" else ""
    (rows, *_), memory = run(backend, 10, 1_000_000, kept, SLUICEWAY_ROCKSDB_DIRECTORY=str(tmp_path / "databases"))
    assert rows == "10000000"
    assert memory < 1 << 30


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["totals", "running"])
def test_keys_may_be_larger_than_their_memory(kind: str, tmp_path: Path) -> None:
    count = ("600000", "600000", "")
    expected, whole = run("memory", kind, *count, program=_KEYS)
    limits = {
        "SLUICEWAY_ROCKSDB_COLUMNS": "16mb",
        "SLUICEWAY_ROCKSDB_CACHE": "8mb",
        "SLUICEWAY_ROCKSDB_WRITE_BUFFER": "4mb",
        "SLUICEWAY_ROCKSDB_BLOCK_CACHE": "8mb",
        "SLUICEWAY_ROCKSDB_DIRECTORY": str(tmp_path),
    }
    found, bounded = run("rocksdb", kind, *count, program=_KEYS, **limits)
    assert found == expected
    assert bounded < whole - (25 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["interval", "asof", "over"])
def test_rows_may_be_larger_than_their_memory(kind: str, tmp_path: Path) -> None:
    expected, whole = run("memory", kind, 900_000, 300, program=_ROWS)
    limits = {
        "SLUICEWAY_ROCKSDB_COLUMNS": "16mb",
        "SLUICEWAY_ROCKSDB_CACHE": "8mb",
        "SLUICEWAY_ROCKSDB_WRITE_BUFFER": "4mb",
        "SLUICEWAY_ROCKSDB_BLOCK_CACHE": "8mb",
        "SLUICEWAY_ROCKSDB_DIRECTORY": str(tmp_path),
    }
    found, bounded = run("rocksdb", kind, 900_000, 300, program=_ROWS, **limits)
    assert found == expected
    assert bounded < whole - (100 << 20)
