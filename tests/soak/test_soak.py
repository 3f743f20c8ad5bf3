"""Ten minutes of random kills, as ``python -m benchmarks.soak`` runs them, and nothing is lost or comes twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.postgresql import programs
from benchmarks.soak import KEYS, Counted

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_random_kills_of_workers_and_of_the_job_manager() -> None:
    pytest.importorskip("rocksdict", reason="rocksdict is not installed")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    if programs() is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    minutes = os.environ.get("SOAK_MINUTES", "10")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", "--minutes", minutes],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_what_counts_as_lost_as_a_duplicate_and_as_out_of_order() -> None:
    good = Counted(2)
    good.take([0, 1, 2, 3, 5, 4, 6])  # one reader has come further than the other
    assert (good.received, good.lost, good.duplicates, good.out_of_order) == (7, 0, 0, 0)
    bad = Counted(2)
    bad.take([0, 1, 2, 5, 6, 6, KEYS, KEYS + 4])
    assert bad.duplicates == 1
    assert bad.lost == 1 + (KEYS + 4) // 2 - 4, "3, and all even numbers to the last that has come"
    bad.take([4])
    assert bad.out_of_order == 1
    assert not good.same_as(bad)
    again = Counted(2)
    again.take([6, 5, 4, 3, 2, 1, 0])
    assert good.same_as(again)
