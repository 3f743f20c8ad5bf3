"""Every example whose input ends gives the same wherever it runs."""

from __future__ import annotations

import socketserver
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from equality_engines import IN_PROCESS, ON_SPARK, OTHERS, Engine

import sluiceway as sw
from sluiceway.cli.target import MODULE_NAME, load_target
from sluiceway.errors import GraphError

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Example:
    """One of them.

    Attributes:
        name: of its file.
        keys: for each of its results, by what of a record order is promised; None: by nothing.
        looped: whether it has a loop, which Spark's own queries cannot have.
    """

    name: str
    keys: tuple[Callable[[Any], Any] | None, ...]
    looped: bool = False

    def __str__(self) -> str:
        return self.name


WITH_RESULTS = [
    Example("aggregate", (itemgetter(0), attrgetter("road"), itemgetter(0))),
    Example("async_lookup", (None,)),
    Example("broadcast_rules", (None,)),
    Example("custom_source", (itemgetter(0),)),
    Example("custom_trigger", (itemgetter(0),)),
    Example("interval_join", (None,)),
    Example("iterate", (None,), looped=True),
    Example("keyed_state", (lambda alert: alert.partition(":")[0],)),
    Example("late_data", (attrgetter("meter"), attrgetter("meter"))),
    Example("sessions", (lambda visit: visit.user.partition(" ")[0], None)),
    Example("side_outputs", (itemgetter(0), None, None)),
    Example("wordcount", (itemgetter(0),)),
]
WITH_FILES = ["checkpoints", "wordcount_files"]
# Their input has no end, or they are programs of their own, have columns, or wait for a server.
NOT_COMPARED = [
    "background",
    "columns_shop",
    "demo",
    "demo_files",
    "demo_wordcount",
    "kafka_orders",
    "serve_lines",
    "slow_sink",
    "socket_wordcount",
    "spark_transform",
]
# Their results go by the order in which records come, and nobody has said that one subtask should read: so one
# subtask does, as everywhere that nobody asks for more. Two examples ask for two themselves.
ENGINES = [replace(engine, parallelism=1).parameter for engine in [OTHERS[-1], *ON_SPARK]]


def test_no_example_is_forgotten() -> None:
    named = [example.name for example in WITH_RESULTS] + WITH_FILES + ["columns_orders"] + NOT_COMPARED
    assert sorted(named) == sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.fixture(autouse=True)
def _servers_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those that examples start go with the program, which goes on here."""
    servers: list[socketserver.TCPServer] = []
    serve = socketserver.TCPServer.serve_forever

    def note_and_serve(self: socketserver.TCPServer, poll_interval: float = 0.01) -> None:
        servers.append(self)
        serve(self, 0.01)

    monkeypatch.setattr(socketserver.TCPServer, "serve_forever", note_and_serve)
    yield
    for server in servers:
        server.shutdown()
        server.server_close()


def results(example: Example, engine: Engine, place: Path, batch: int = 1) -> tuple[int, tuple[list[Any], ...]]:
    """How many records were read, and what came of them."""
    with load_target(str(EXAMPLES / f"{example.name}.py")) as flow:
        assert isinstance(flow, sw.Pipeline)
        seen = sys.modules[MODULE_NAME].seen
        count = engine.run(flow, place, batch)
        return count, tuple(list(one) for one in seen) if isinstance(seen, tuple) else (list(seen),)


def by(key: Callable[[Any], Any], records: Sequence[Any]) -> dict[Any, list[str]]:
    found = defaultdict(list)
    for record in records:
        found[key(record)].append(repr(record))
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("example", WITH_RESULTS, ids=str)
def test_an_example_gives_the_same(example: Example, engine: Engine, tmp_path: Path) -> None:
    count, expected = results(example, IN_PROCESS, tmp_path)
    batch = max(1, count // 6)
    if example.looped and not engine.loops:
        with pytest.raises(GraphError, match="feedback loops"):
            results(example, engine, tmp_path, batch)
        return
    _, got = results(example, engine, tmp_path, batch)
    assert len(expected) == len(example.keys)
    for key, one, other in zip(example.keys, expected, got, strict=True):
        assert one
        assert Counter(map(repr, one)) == Counter(map(repr, other))
        if key is not None:
            assert by(key, one) == by(key, other)


def lines_of(directory: Path) -> Counter[str]:
    return Counter(line for path in directory.iterdir() for line in path.read_text().splitlines())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("example", WITH_FILES)
def test_an_example_writes_the_same(
    example: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hamlet.txt").write_text("To be, or not to be,\nthat is the question\n" * 100)
    Path("other.txt").write_text("to be is to do\n" * 100)
    arguments = {
        "checkpoints": ["3000", "0"],
        "wordcount_files": ["totals", "hamlet.txt", "other.txt"],
    }[example]
    written = []
    for one in (IN_PROCESS, engine):
        with load_target(str(EXAMPLES / f"{example}.py"), arguments) as flow:
            assert isinstance(flow, sw.Pipeline)
            one.run(flow, tmp_path / one.name, batch=1000 if example == "checkpoints" else 100)
        out = Path("readings" if example == "checkpoints" else "totals")
        written.append(lines_of(out))
        out.rename(f"{out} of {one.name}")
    assert written[0] == written[1]
    assert written[0].total() == {"checkpoints": 3000, "wordcount_files": 9}[example]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_example_in_columns_writes_the_same(engine: Engine, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("narwhals")
    program, orders = str(EXAMPLES / "columns_orders.py"), str(tmp_path / "orders")
    run_path(program)["write"](orders)
    written = []
    for one in (IN_PROCESS, engine):
        sums = tmp_path / f"sums of {one.name}"
        with load_target(program, [orders, str(sums)]) as flow:
            assert isinstance(flow, sw.Pipeline)
            # A batch of columns has more rows than the limit of a micro-batch, which is checked between batches.
            one.run(flow, tmp_path / one.name, batch=9_000, several=False)
        written.append(Counter(tuple(row.items()) for row in pq.read_table(sums).to_pylist()))
    assert written[0] == written[1]
    assert written[0].total() == 36
