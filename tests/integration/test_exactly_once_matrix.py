"""Every kind of failure, on every state backend, transport, mode and number of workers: none lost, none twice.

The numbers go through an operator that asserts n + 1 after n for each key, into a sink that counts what is lost,
comes twice or out of order. `make test` runs each failure alone on changing combinations; the rest is slow.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connector import END_OF_INPUT, Poll, Reader, ReaderContext, Wait
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.errors import CheckpointFailedError
from sluiceway.testing import FailOnce, KeySequence, NumberFiles

slow = pytest.mark.slow
COUNT = 12_000
RESTORED, CLOSED = "while-it-was-restored", "when-it-was-closed"
KEYS = 12  # a multiple of every parallelism here
QUARTER, HALF = COUNT // 4, COUNT // 2 + 1


class Told(sw.MapFunction[int, int], sw.CheckpointListener):
    """Passes numbers on; makes a file once a checkpoint is complete for whoever restores, not only on disk."""

    def __init__(self, told: Path) -> None:
        self._told = told

    def map(self, value: int) -> int:
        return value

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._told.touch()


class CutOnce(sw.MapFunction[int, int]):
    """Passes numbers on; at one of them it cuts the connections that its process has with other workers, once."""

    def __init__(self, marks: Path, at: int | None) -> None:
        self._mark = marks / "cut"
        self._at = at

    def map(self, value: int) -> int:
        if value == self._at:
            with suppress(FileExistsError):
                self._mark.touch(exist_ok=False)
                assert cut_links() > 0
        return value


def cut_links() -> int:
    """Those that go by the name of a socket in the cluster's directory, but for that of the job manager."""
    cut = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            connection = socket.socket(fileno=os.dup(number))
        except OSError:  # no socket, or closed by now
            continue
        with connection, suppress(OSError):
            names = {connection.getpeername(), connection.getsockname()} - {"", b""}
            if names and not any("manager" in str(name) for name in names):
                connection.shutdown(socket.SHUT_RDWR)
                cut += 1
    return cut


class PatientSource(GeneratorSource[int]):
    """Has its end wait for what goes wrong in checkpoints: on a busy machine there are few of them.

    What is to go wrong in a restore needs one before anything else does.
    """

    def __init__(self, marks: Path, wanted: frozenset[str], rate: float | None, told: Path) -> None:
        super().__init__(count=COUNT, rate=rate)
        self._marks = marks
        self._wanted = wanted
        self._told = told

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        reader = super().create_reader(context)
        original = reader.poll

        def poll(limit: int) -> Poll[int]:
            nonlocal last, polls
            first = RESTORED in self._wanted and not self._told.exists()
            if first and polls:
                return Wait(until=context.clock.monotonic() + 0.005)
            polls += 1
            polled = last or original(limit)
            if polled is END_OF_INPUT and not self._wanted <= {path.name for path in self._marks.iterdir()}:
                last = polled
                return Wait(until=context.clock.monotonic() + 0.005)
            return polled

        last: Poll[int] | None = None
        polls = 0
        reader.poll = poll  # type: ignore[method-assign]
        return reader


@dataclass(frozen=True)
class Failure:
    """What goes wrong: arguments of the function that fails, and the number at which links are cut."""

    name: str
    once: dict[str, Any] = field(default_factory=dict)
    cut: int | None = None
    workers: int = 0

    def __str__(self) -> str:
        return self.name

    def marks(self) -> set[str]:
        """What it leaves behind once all of it has happened."""
        marks = {f"at-{number}" for number in self.once.get("at", ())}
        marks |= {f"kill-at-{number}" for number in self.once.get("kill_at", ())}
        marks |= {f"in-snapshot-{number}" for number in self.once.get("in_snapshots", ())}
        told = {"in_restore": RESTORED, "at_close": CLOSED, "in_notify": "when-a-checkpoint-was-complete"}
        marks |= {told[name] for name in told.keys() & self.once.keys()}
        return marks | ({"cut"} if self.cut is not None else set())


FAILURES = [
    Failure("exceptions", {"at": (QUARTER, HALF)}),
    Failure("in snapshots", {"in_snapshots": (1, 3)}),
    Failure("in the restore", {"at": (HALF,), "in_restore": True}),
    Failure("at close", {"at_close": True}),
    Failure("when told of a checkpoint", {"in_notify": True}),
    Failure("killed", {"kill_at": (QUARTER, HALF)}, workers=1),
    Failure("killed and in the restore", {"kill_at": (HALF,), "in_restore": True}, workers=1),
    Failure("links cut", cut=HALF, workers=2),
]
EVERYTHING: dict[str, Any] = {"at": (QUARTER,), "in_snapshots": (2,)}
EVERYTHING |= {"in_restore": True, "at_close": True, "in_notify": True}


@dataclass(frozen=True)
class Cell:
    """Where it goes wrong."""

    backend: str
    mode: str
    workers: int
    transport: str

    def __str__(self) -> str:
        return f"{self.backend}, {self.mode}, {self.workers} workers by {self.transport}"

    @property
    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"state_backend": self.backend, **MODES[self.mode], "workers": self.workers}
        if self.workers:
            options["transport"] = self.transport
        return options


BACKENDS = ["memory", "filesystem", "rocksdb"]
MODES: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"checkpoint_unaligned": True},
    "timeout": {"checkpoint_unaligned": True, "checkpoint_aligned_timeout": "2ms"},
    "at-least-once": {"checkpoint_mode": "at-least-once"},
}
PLACES = [(0, "one process"), *product((1, 2, 3), ("shm", "zmq"))]
CELLS = [Cell(backend, mode, *place) for backend, mode, place in product(BACKENDS, MODES, PLACES)]


def pipeline(cell: Cell, failure: Failure, place: Path) -> sw.Pipeline:
    marks = place / "marks"
    marks.mkdir(exist_ok=True)
    flow = sw.Pipeline("matrix", parallelism=max(cell.workers, 2))
    patient = frozenset(failure.marks() - {CLOSED})
    told = place / "told"
    numbers = flow.source(PatientSource(marks, patient, 40_000 if cell.workers else None, told)).uid("numbers")
    # Where channels do not wait for one another, some come again.
    step: Any = KeySequence(KEYS) if cell.mode != "at-least-once" else Counted()
    checked = numbers.key_by(lambda n: n % KEYS).map(step).uid("checked").map(Told(told))
    cut = checked.map(CutOnce(marks, failure.cut))
    cut.map(FailOnce(marks, **failure.once)).uid("failing").sink(NumberFiles(place / "out")).uid("out")
    return flow


class Counted(sw.MapFunction[int, int]):
    """Has state that grows with every number."""

    def open(self, context: sw.RuntimeContext) -> None:
        self._count = context.get_state(sw.ValueStateDescriptor("count", int))

    def map(self, value: int) -> int:
        self._count.update((self._count.value() or 0) + 1)
        return value


def options_of(cell: Cell, place: Path) -> dict[str, Any]:
    return {
        **cell.options,
        "checkpoint_interval": "20ms" if cell.workers else "4ms",
        "checkpoint_tolerated_failures": 3,
        "checkpoints": place / "kept",
        "restart": "fixed-delay:30:1ms",
    }


def check(cell: Cell, place: Path) -> None:
    report = NumberFiles(place / "out").report(COUNT, lanes=KEYS)
    if cell.mode == "at-least-once":
        assert report.lost == 0, report
    else:
        assert (report.received, report.lost, report.duplicates, report.out_of_order) == (COUNT, 0, 0, 0), report
    assert {path.suffix for path in (place / "out").iterdir()} == {".done"}


def run(cell: Cell, failure: Failure, place: Path) -> None:
    result = pipeline(cell, failure, place).run(**options_of(cell, place))
    assert result.status is JobStatus.FINISHED
    assert {path.name for path in (place / "marks").iterdir()} == failure.marks()
    assert result.metrics.restarts > 0
    check(cell, place)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # killed workers leave something behind
    return tmp_path


def few() -> list[Any]:
    """Each failure alone, on combinations that change from one to the next, as pairs that cover much."""
    chosen = []
    for index, failure in enumerate(FAILURES):
        fit = [cell for cell in CELLS if cell.workers >= failure.workers]
        # tests/integration/test_exactly_once.py has those of one process alone.
        marks = () if failure.workers or failure.name in ("in the restore", "when told of a checkpoint") else slow
        chosen.append(pytest.param(fit[(5 * index + 3) % len(fit)], failure, marks=marks))
    return chosen


@pytest.mark.parametrize(("cell", "failure"), few(), ids=str)
def test_none_is_lost_and_none_comes_twice(cell: Cell, failure: Failure, place: Path) -> None:
    run(cell, failure, place)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_one_failure_after_the_other(cell: Cell, place: Path) -> None:
    once = {**EVERYTHING, **({"kill_at": (HALF,)} if cell.workers else {})}
    run(cell, Failure("everything", once, HALF + KEYS if cell.workers > 1 else None), place)


@pytest.mark.slow
@pytest.mark.parametrize("failure", FAILURES, ids=str)
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.workers in (0, 2)], ids=str)
def test_each_failure_alone(cell: Cell, failure: Failure, place: Path) -> None:
    if cell.workers < failure.workers:
        pytest.skip("there is nobody to fail so")
    run(cell, failure, place)


# ---- asked to stop meanwhile -----------------------------------------------------------------------------------


def stopped_meanwhile(cell: Cell, failure: Failure, place: Path) -> None:
    """Stop with a savepoint while the job fails and begins anew; another run goes on from there."""

    async def first() -> str:
        handle = await pipeline(cell, failure, place).start(**options_of(cell, place))
        while not any((place / "marks").iterdir()):
            await asyncio.sleep(0.001)  # until something has gone wrong
        while True:
            # A failure that the job has not heard of when it is asked takes the savepoint along, and it goes on.
            with suppress(CheckpointFailedError):
                return await handle.stop(savepoint=place / "saved")

    savepoint = asyncio.run(first())
    result = pipeline(cell, failure, place).run(**options_of(cell, place), from_checkpoint=savepoint)
    assert result.status is JobStatus.FINISHED
    assert {path.name for path in (place / "marks").iterdir()} == failure.marks()
    check(cell, place)


@pytest.mark.parametrize(
    ("cell", "failure"),
    [
        (Cell("memory", "aligned", 0, "one process"), FAILURES[0]),
        pytest.param(Cell("rocksdb", "aligned", 2, "shm"), FAILURES[6], marks=pytest.mark.slow),
        pytest.param(Cell("memory", "at-least-once", 3, "zmq"), FAILURES[7], marks=pytest.mark.slow),
        pytest.param(Cell("rocksdb", "aligned", 2, "zmq"), FAILURES[1], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_stop_with_a_savepoint_in_the_midst_of_it(cell: Cell, failure: Failure, place: Path) -> None:
    stopped_meanwhile(cell, failure, place)
