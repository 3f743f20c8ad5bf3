"""Jobs that begin with a savepoint that was made of tables."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import threading
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.connector.lib import DiscardSink
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.savepoint import edit, read, write

pytest.importorskip("pyarrow")

WORDS = [f"word {number}" for number in range(300)]


@dataclass(frozen=True)
class Shop:
    town: str
    number: int


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


@dataclass
class Account:
    owner: str
    balance: float = 0.0


class Deposit(sw.KeyedProcessFunction[Any, tuple[str, float], Account]):
    """Adds to the account of a key, and keeps the last amounts."""

    def open(self, runtime_context: sw.RuntimeContext) -> None:
        self._account = runtime_context.get_state(sw.ValueStateDescriptor("account", Account))
        self._amounts = runtime_context.get_list_state(sw.ListStateDescriptor("amounts", float))
        self._by_day = runtime_context.get_map_state(sw.MapStateDescriptor("by day", float, key_type=dt.date))

    def process_element(self, value: Any, ctx: sw.KeyedProcessFunction.Context) -> Any:
        account = self._account.value() or Account(value[0])
        self._account.update(Account(account.owner, account.balance + value[1]))
        self._amounts.add(value[1])
        day = dt.date(2026, 1, 1)
        self._by_day.put(day, (self._by_day.get(day) or 0.0) + value[1])
        yield account.owner, account.balance + value[1], self._amounts.get(), dict(self._by_day.items())


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_count_goes_on_from_a_table(tmp_path: Path, parallelism: int, backend: str) -> None:
    with write(str(tmp_path / "first")) as savepoint:
        rows = enumerate(WORDS)
        savepoint.put("counted", sw.ValueStateDescriptor("aggregate"), rows, key=1, value=0)
    flow = sw.Pipeline("words")
    counted = flow.from_collection(WORDS).key_by(lambda word: word).count().uid("counted").collect()
    flow.run(from_checkpoint=savepoint.location, parallelism=parallelism, state_backend=backend)
    assert dict(counted) == {word: number + 1 for number, word in enumerate(WORDS)}


def test_workers_go_on_from_a_table(tmp_path: Path) -> None:
    with write(str(tmp_path / "first"), max_parallelism=30) as savepoint:
        savepoint.put("counted", sw.ValueStateDescriptor("aggregate"), enumerate(WORDS), key=1, value=0)
    flow = sw.Pipeline("words")
    counted = flow.from_collection(WORDS).key_by(lambda word: word).count().uid("counted").collect()
    flow.run(from_checkpoint=savepoint.location, workers=2)
    assert dict(counted) == {word: number + 1 for number, word in enumerate(WORDS)}


def test_more_key_groups_let_a_job_have_more_subtasks(tmp_path: Path) -> None:
    with write(str(tmp_path / "first"), max_parallelism=2) as savepoint:
        savepoint.put("counted", sw.ValueStateDescriptor("aggregate"), enumerate(WORDS), key=1, value=0)
    with edit(savepoint.location, str(tmp_path / "second"), max_parallelism=40) as savepoint:
        pass
    flow = sw.Pipeline("words")
    counted = flow.from_collection(WORDS).key_by(lambda word: word).count().uid("counted").collect()
    flow.run(from_checkpoint=savepoint.location, parallelism=4)
    assert dict(counted) == {word: number + 1 for number, word in enumerate(WORDS)}


def test_a_function_goes_on_from_several_tables(tmp_path: Path) -> None:
    day = dt.date(2026, 1, 1)
    with write(str(tmp_path / "first")) as savepoint:
        accounts = [{"key": word, "owner": word, "balance": 5} for word in WORDS]
        savepoint.put("accounts", sw.ValueStateDescriptor("account", Account), accounts)
        amounts = [(word, amount) for word in WORDS for amount in (2, 3)]
        savepoint.put("accounts", sw.ListStateDescriptor("amounts", float), amounts, key=0, value=1)
        days = [(word, day, 5) for word in WORDS]
        by_day = sw.MapStateDescriptor("by day", float, key_type=dt.date)
        savepoint.put("accounts", by_day, days, key=0, map_key=1, value=2)
    flow = sw.Pipeline("accounts")
    stream = flow.from_collection([(word, 1.0) for word in WORDS])
    got = stream.key_by(lambda record: record[0]).process(Deposit()).uid("accounts").collect()
    flow.run(from_checkpoint=savepoint.location, parallelism=2)
    assert sorted(got) == sorted((word, 6.0, [2.0, 3.0, 1.0], {day: 6.0}) for word in WORDS)


KEYS: list[Any] = [
    7,
    7.5,
    "seven",
    b"seven",
    None,
    ("a", 7),
    Decimal("7.25"),
    dt.date(2026, 1, 2),
    dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    UUID(int=7),
    Shop("here", 7),
    Size.LARGE,
    frozenset({7, 8}),
]


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_keys_of_all_types_are_found(tmp_path: Path, backend: str) -> None:
    with write(str(tmp_path / "first")) as savepoint:
        rows = [(key, 10) for key in KEYS]
        savepoint.put("counted", sw.ValueStateDescriptor("aggregate"), rows, key=0, value=1)
    flow = sw.Pipeline("keys")
    counted = flow.from_collection(KEYS).key_by(lambda key: key).count().uid("counted").collect()
    flow.run(from_checkpoint=savepoint.location, parallelism=3, state_backend=backend)
    assert [count for _, count in counted] == [11] * len(KEYS)


class Reminder(sw.KeyedProcessFunction[str, str, str]):
    def process_element(self, value: str, ctx: sw.KeyedProcessFunction.Context) -> Any:
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp


@pytest.mark.parametrize("domain", ["event time", "processing time"])
def test_timers_of_a_table_fire(tmp_path: Path, domain: str) -> None:
    with write(str(tmp_path / "first")) as savepoint:
        savepoint.put_timers("reminded", [("a", 5), ("b", 3)], key=0, at=1, domain=domain)
    flow = sw.Pipeline("reminders")
    got = flow.from_collection(["c"]).key_by(lambda word: word).process(Reminder()).uid("reminded").collect()
    flow.run(from_checkpoint=savepoint.location)
    assert sorted(got) == [("a", 5), ("b", 3)]


def test_a_savepoint_that_was_edited_goes_on(tmp_path: Path) -> None:
    """A real job stops with a savepoint; what it counted is doubled; it goes on where its source was."""

    some = threading.Event()

    def noticed(number: int) -> int:
        if number == 100:
            some.set()
        return number

    def flow() -> sw.Pipeline:
        pipeline = sw.Pipeline("numbers")
        source = GeneratorSource(lambda number: number, 20_000, rate=2_000 if not finished else None)
        stream = pipeline.source(source).uid("numbers").map(noticed)
        stream.key_by(lambda number: number % 10).count().uid("counted").sink(DiscardSink())
        return pipeline

    async def stopped() -> str:
        handle = await flow().start(parallelism=2, checkpoint_interval="1h", checkpoints=str(tmp_path))
        assert await asyncio.to_thread(some.wait, PATIENT_S)
        return await handle.stop(savepoint=str(tmp_path / "saved"))

    finished = False
    first = asyncio.run(stopped())
    before = {row["key"]: row["value"] for row in read(first)["counted"]["aggregate"].rows()}
    with edit(first, str(tmp_path / "edited")) as savepoint:
        savepoint.transform("counted", sw.ValueStateDescriptor("aggregate"), lambda key, count: count + 1_000_000)
    finished = True
    flow().run(
        from_checkpoint=savepoint.location,
        parallelism=3,
        checkpoints=str(tmp_path / "kept"),
        checkpoint_interval="1h",
    )
    [last] = (tmp_path / "kept").glob("*/chk-*")
    after = {row["key"]: row["value"] for row in read(str(last))["counted"]["aggregate"].rows()}
    assert len(before) == 10
    assert after == dict.fromkeys(range(10), 1_002_000)


@pytest.mark.slow
def test_a_million_rows(tmp_path: Path) -> None:
    import pyarrow as pa

    count = 1_000_000
    table = pa.table({"word": [f"w{n}" for n in range(count)], "n": range(count)})
    with write(str(tmp_path / "first")) as savepoint:
        savepoint.put("counted", sw.ValueStateDescriptor("aggregate"), table, key="word", value="n")
    flow = sw.Pipeline("words")
    counted = flow.from_collection(["w5", "w999999"]).key_by(lambda word: word).count().uid("counted").collect()
    flow.run(from_checkpoint=savepoint.location, parallelism=2)
    assert sorted(counted) == [("w5", 6), ("w999999", 1_000_000)]
