"""A job that ``check`` refuses is refused by ``run``, in the same words and with the same exit code; and back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway.plugins import PluginManager

HEAD = """
import threading
import sluiceway as sw
from sluiceway.windows import GlobalWindows, TumblingEventTimeWindows

def seen():
    open("ran", "a").close()

def text(value: int) -> str:
    seen()
    return str(value)

def half(value: float) -> float:
    seen()
    return value / 2

def unhashable(value: int) -> list[int]:
    return [value]

def locked():
    lock = threading.Lock()
    def careful(value):
        with lock:
            return value
    return careful

flow = sw.Pipeline("job")
numbers = flow.from_collection([1]).uid("numbers")
"""

SOUND = "numbers.map(text).print()"
COUNTED = "numbers.key_by(lambda v: 1).count().uid('{}').print()"

REFUSED = [
    ("type clash", "numbers.map(text).map(half).print()", "", 2, "'map(text)' (...) produces str, but"),
    ("key", "numbers.key_by(unhashable).count().uid('n').print()", "", 2, "which cannot be a key"),
    ("hint", "numbers.map(text).returns(int).print()", "", 2, "is said to produce int, but its hints say str"),
    ("flat_map", "numbers.flat_map(half).print()", "", 2, "flat_map() needs an iterable"),
    (
        "windows of columns",
        "import pyarrow\nby = flow.table(pyarrow.table({'a': [1]})).key_by('a')\nby.window(GlobalWindows())",
        "",
        2,
        "rows of several senders have no order",
    ),
    ("dangling", "numbers.map(text)", "", 2, "pipeline 'job' has no sink"),
    (
        "one dangles",
        "numbers.map(text).print()\nnumbers.map(text)",
        "",
        2,
        "leads to no sink: add a sink",
    ),
    ("uids", "numbers.map(text).uid('numbers').print()", "", 2, "both have uid 'numbers'"),
    (
        "no timestamps",
        "numbers.map(str).key_by(str).window(TumblingEventTimeWindows('1s')).count().uid('n').print()",
        "",
        2,
        "goes by event time, but its records have no timestamps: put assign_timestamps_and_watermarks(...)",
    ),
    ("unpicklable here", "numbers.map(locked()).print()", "", 0, ""),
    ("unpicklable", "numbers.map(locked()).print()", "--workers 1", 2, "variable 'lock' (lock) cannot be pickled"),
    ("no connector", "flow.source('pulsar').print()", "", 2, "there is no connector 'pulsar'"),
    ("scheduler", SOUND, "--scheduler soon", 2, "there is no scheduling strategy 'soon'"),
    ("restart", SOUND, "--restart never", 2, "there is no restart strategy 'never'"),
    ("state backend", SOUND, "--state-backend stone", 2, "there is no state backend 'stone'"),
    ("metrics", SOUND, "--metrics nobody", 2, "there is no metrics reporter 'nobody'"),
    ("transport", SOUND, "--transport pigeon", 2, "there is no transport 'pigeon'"),
    ("transport of workers", SOUND, "--workers 1 --transport pigeon", 2, "there is no transport 'pigeon'"),
    ("engine", SOUND, "--engine steam", 2, "there is no engine 'steam'"),
    ("hosted", SOUND, "--hosted", 2, "does not have"),
    ("no checkpoint", SOUND, "--from nowhere", 3, "there is no complete checkpoint in"),
    (
        "storage",
        SOUND,
        "--checkpoints odd://x --checkpoint-interval 1s",
        2,
        "checkpoints cannot be kept in 'odd://x'",
    ),
    (
        "state",
        COUNTED.format("renamed"),
        "--from kept",
        2,
        "state of 'counted', which no step of job 'job' goes by",
    ),
    ("fails while loading", "raise ValueError('no')", "", 1, "ValueError: no"),
    ("not a value", SOUND, "--parallelism none", 2, "is not a whole number"),
]


SAVING = """
import asyncio
import sluiceway as sw

async def go():
    flow = sw.Pipeline("job")
    flow.generate(rate=1000).uid("numbers").key_by(lambda v: 1).count().uid("counted").print()
    async with await flow.start() as handle:
        while not handle.metrics().records_in:
            await asyncio.sleep(0.01)
        await handle.stop(savepoint="kept")

asyncio.run(go())
"""


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("code", "options", "exit_code", "told"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_what_check_refuses_run_refuses_and_the_other_way_round(
    sluiceway: Any, write: Any, place: Path, code: str, options: str, exit_code: int, told: str
) -> None:
    write("job.py", HEAD + code, head="")
    if "kept" in options:
        subprocess.run([sys.executable, "-c", SAVING], check=True, timeout=PATIENT_S, stdout=subprocess.DEVNULL)
    checked = sluiceway("check", *options.split(), "job.py")
    assert checked.exit_code == exit_code, checked.output
    ran = sluiceway("run", "-q", *options.split(), "job.py")
    assert ran.exit_code == exit_code, ran.output
    if not exit_code:
        return
    assert not (place / "ran").exists(), "nothing has run"
    pattern = words(told).split("(...)")
    for said in (checked.output, ran.stderr):
        assert all(part.strip() in words(said) for part in pattern), said
    for line in checked.stdout.splitlines():
        if line.startswith("error: "):
            message = line.removeprefix("error: ").rpartition(" [")[0]
            assert words(message) in words(ran.stderr), "in the same words"


def test_submit_refuses_it_too(cluster: Any, write: Any, place: Path) -> None:
    assert cluster("cluster", "start", "--workers", "1").returncode == 0
    for code, told in (
        (REFUSED[0][1], "'map(text)' ("),
        ("numbers.map(locked()).print()", "variable 'lock' (lock) cannot be pickled"),
        ("numbers.map(text)", "pipeline 'job' has no sink"),
    ):
        write("job.py", HEAD + code, head="")
        refused = cluster("submit", "job.py")
        assert refused.returncode == 2, refused.stderr
        assert told in refused.stderr
    assert cluster.json("list") == []


def test_a_missing_library_is_3_in_both(
    sluiceway: Any, write: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sluiceway.plugins.manager._default", PluginManager())
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    write("job.py", HEAD + SOUND, head="")
    checked = sluiceway("check", "--state-backend", "rocksdb", "job.py")
    ran = sluiceway("run", "--state-backend", "rocksdb", "job.py")
    assert (checked.exit_code, ran.exit_code) == (3, 3)
    (line,) = [line for line in checked.stdout.splitlines() if line.startswith("error: ")]
    assert line == ran.stderr.splitlines()[0] + " [unavailable]"
    assert "pip install" in line
