"""``sluiceway run`` of a job with nothing to do: how long it takes, and how much memory it needs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import Plan, Row

__all__ = ["measure"]

_RUNS = 10

_EMPTY = """\
import sluiceway as sw

flow = sw.Pipeline("empty")
flow.from_collection([]).print()
"""

# The last thing that such a process does is tell its resident memory.
_TELLING = """\
import atexit

def tell():
    with open("/proc/self/status") as status:
        print(*(line.split()[1] for line in status if line.startswith("VmRSS:")))

atexit.register(tell)
"""


def measure(plan: Plan) -> Iterator[Row]:
    command = Path(sys.executable).with_name("sluiceway")
    if not command.exists():
        raise RuntimeError(
            f"there is no command {command.name} beside {sys.executable}: install the project first"
        )
    with tempfile.TemporaryDirectory() as directory:
        empty, telling = Path(directory, "empty.py"), Path(directory, "telling.py")
        empty.write_text(_EMPTY)
        telling.write_text(_EMPTY + _TELLING)
        environment = _environment(directory)
        runs = plan.size(max(plan.runs, _RUNS), 1)
        yield _time([str(command), "run", str(empty)], environment, runs)
        if sys.platform == "linux":
            yield _memory([str(command), "run", str(telling)], environment, plan.runs)
        else:
            yield Row("memory after an empty job", "MB", (), note="measured on Linux only")


def _time(command: Sequence[str], environment: dict[str, str], runs: int) -> Row:
    bare = [sys.executable, "-c", "pass"]
    _seconds(command, environment)
    _seconds(bare, environment)
    pairs = [(_seconds(bare, environment), _seconds(command, environment)) for _ in range(runs)]
    python = statistics.median(bare for bare, _ in pairs)
    ratio = statistics.median(ours / bare for bare, ours in pairs)
    return Row(
        "sluiceway run of an empty job",
        "s",
        tuple(ours for _, ours in pairs),
        aim=0.4,
        note=f"{runs} runs; {ratio:.0f} times the {python:.2g} s of python -c pass",
        details={"python_s": [bare for bare, _ in pairs]},
    )


def _memory(command: Sequence[str], environment: dict[str, str], runs: int) -> Row:
    bare = _megabytes([sys.executable, "-c", _TELLING], environment)
    return Row(
        "memory after an empty job",
        "MB",
        tuple(_megabytes(command, environment) for _ in range(runs)),
        aim=60,
        note=f"resident at exit; python -c pass {bare:.3g} MB",
        details={"python_mb": bare},
    )


def _seconds(command: Sequence[str], environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


def _megabytes(command: Sequence[str], environment: dict[str, str]) -> float:
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return int(done.stdout) / 1024


def _environment(directory: str) -> dict[str, str]:
    """Without what somebody has set for their own runs; with compiled modules, as an installed package has."""
    ours = {n: v for n, v in os.environ.items() if not n.startswith("SLUICEWAY_")}
    ours.pop("PYTHONDONTWRITEBYTECODE", None)
    return ours | {"PYTHONPYCACHEPREFIX": directory}
