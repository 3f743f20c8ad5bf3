"""Modules that a program pays for although it does not use them: none, so that jobs start fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# What takes long to import, or starts something when it is.
HEAVY = {
    "asyncio",
    "cloudpickle",
    "concurrent.futures",
    "ctypes",
    "http",
    "logging",
    "multiprocessing",
    "numpy",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "pyspark",
    "rocksdict",
    "sqlalchemy",
    "sqlite3",
    "ssl",
    "statistics",
    "subprocess",
    "unittest",
    "urllib.request",
    "xml",
    "zmq",
    "zstandard",
}
# What other commands, other engines and other kinds of steps need.
APART = {
    "sluiceway.savepoint",
    "sluiceway.network.transport",
    "sluiceway.operators.asynchronous",
    "sluiceway.operators.broadcast",
    "sluiceway.operators.co",
    "sluiceway.operators.joins",
    "sluiceway.operators.keyed",
    "sluiceway.operators.process",
    "sluiceway.operators.windows",
    "sluiceway.entrypoint",
    "sluiceway.runtime.loop.asyncio_thread",
    "sluiceway.runtime.cluster",
    "sluiceway.runtime.stepped",
    "sluiceway.runtime.microbatch",
    "sluiceway.runtime.source.threaded_function",
    "sluiceway.templates",
    "sluiceway.testing",
}

PROGRAM = """\
import atexit, json, sys
import sluiceway as sw
{early}
flow = sw.Pipeline("empty")
flow.from_collection([]).map(abs).filter(bool).print()
"""
TELL = 'atexit.register(lambda: print("loaded", json.dumps(sorted(sys.modules))))'
# A dataclass compiles up to six functions when its module is imported; a struct of msgspec compiles none.
MOST_DATACLASSES = 100
COUNT = """\
def count():
    ours = [module for name, module in sys.modules.items() if name.startswith("sluiceway")]
    classes = {each for module in ours for each in vars(module).values() if isinstance(each, type)}
    print("dataclasses", sum("__dataclass_params__" in vars(each) for each in classes))

atexit.register(count)
"""


def output(*arguments: str, cwd: Path, word: str) -> str:
    # Coverage and the like are no part of this; a site's .pth files are, and are subtracted.
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("SLUICEWAY_", "COV_"))}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=cwd, check=True, capture_output=True, text=True
    )
    return next(each for each in done.stdout.splitlines() if each.startswith(f"{word} ")).partition(" ")[2]


def loaded(*arguments: str, cwd: Path) -> set[str]:
    return set(json.loads(output(*arguments, cwd=cwd, word="loaded")))


@pytest.fixture
def bare(tmp_path: Path) -> set[str]:
    return loaded("-c", 'import json, sys; print("loaded", json.dumps(sorted(sys.modules)))', cwd=tmp_path)


def test_importing_the_package_loads_no_part_of_it(tmp_path: Path, bare: set[str]) -> None:
    program = 'import json, sys, sluiceway; print("loaded", json.dumps(sorted(sys.modules)))'
    ours = loaded("-c", program, cwd=tmp_path) - bare
    assert not ours & (HEAVY | APART)
    assert len({m for m in ours if m.startswith("sluiceway")}) < 10


def test_a_run_in_one_process_loads_what_the_job_needs(tmp_path: Path, bare: set[str]) -> None:
    (tmp_path / "empty.py").write_text(PROGRAM.format(early=TELL))
    ours = loaded("-m", "sluiceway", "run", "empty.py", cwd=tmp_path) - bare
    assert "sluiceway.runtime.local.engine" in ours, "it ran"
    assert not ours & (HEAVY | APART)


def test_a_run_in_one_process_makes_few_dataclasses(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text(PROGRAM.format(early=COUNT))
    assert int(output("-m", "sluiceway", "run", "empty.py", cwd=tmp_path, word="dataclasses")) <= MOST_DATACLASSES
