"""Rows of joins and `over` that exceed the memory for them: the same results, from and to state of each form."""

from __future__ import annotations

from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from effort import diagonal, first
from tests.core.table.column_harness import ColumnHarness, TwoColumnHarness, many_steps

from sluiceway.columns.kept import keyed_runs, stored_rows, timed_rows
from sluiceway.columns.keys import idle_keys
from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import IncompatibleStateError, StateError, UnknownNameError
from sluiceway.operators.columns import asof_join, cold_rows, interval_join, over
from sluiceway.table import TableStream, agg

LEFT = pa.schema([("user", pa.string()), ("number", pa.int64()), ("note", pa.list_(pa.string()))])
RIGHT = pa.schema([("who", pa.string()), ("paid", pa.int64())])
JOINS = [(bounds, how) for bounds in [(-5, 5), (0, 7), (3, 9)] for how in ("inner", "left", "right", "full")]
PLACES = [(1, "rocksdb", 1), (2, "rocksdb", 1), (3, "rocksdb", 3000), (2, "memory", 1), (1, "rocksdb", 1 << 20)]
"""Parallelism, backend, and the bytes of memory for rows with RocksDB."""


def joined(bounds: tuple[int, int], how: Any, memory: int, **options: Any) -> TwoColumnHarness:
    def program(left: Any, right: Any) -> Any:
        one = TableStream(left._pipeline, left._inputs, LEFT, "left").key_by("user")
        other = TableStream(right._pipeline, right._inputs, RIGHT, "right").key_by("who")
        return one.interval_join(other, *bounds, how=how).uid("it").to_records()

    with patch.dict("os.environ", SLUICEWAY_ROCKSDB_COLUMNS=str(memory)):
        return TwoColumnHarness(program, LEFT, RIGHT, **options)


def spilled(
    *, parallelism: int = 1, memory: int = 1, bounds: Any = (0, 100), how: str = "inner", **options: Any
) -> Any:
    return joined(bounds, how, memory, parallelism=parallelism, state_backend="rocksdb", **options)


def left(user: int, number: int) -> dict[str, Any]:
    return {"user": f"u{user}", "number": number, "note": ["x"] * (number % 3)}


def right(user: int, number: int) -> dict[str, Any]:
    return {"who": f"u{user}", "paid": number}


def sides(harness: Any) -> list[Any]:
    return [side for subtask in harness._subtasks for side in subtask.operators[0]._sides]


def stored(harness: Any) -> int:
    """Return the number of runs that the state alone has."""
    return sum(run.is_stored for side in sides(harness) for runs in side._slices.values() for run in runs)


@pytest.mark.parametrize("seed", first(6, range(2 * len(JOINS))))
def test_pairs_are_those_of_rows_in_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval_join, "_LEAST_WIDTH", 4)
    monkeypatch.setattr(timed_rows, "_BURST", 3)
    monkeypatch.setattr(idle_keys, "_IDLE", 2)
    # Runs of a row that are not put together, of two or three, and of many.
    monkeypatch.setattr(stored_rows, "_LEAST", [1, 100, 1 << 20][seed % 3])
    (bounds, how), one_by_one = JOINS[seed * 5 % len(JOINS)], seed % 2 == 0
    number = count()

    def batch(dice: Any, rows: list[Any]) -> Any:
        return dice.randrange(2), [(user, next(number), time) for user, time in rows]

    found: list[Any] = []
    most, now = 0, 0
    one, other = joined(bounds, how, 1), spilled(bounds=bounds, how=how)
    try:
        for step in many_steps(seed, batch, lambda dice: (*dice.choice(PLACES), dice.choice([4, 4, 4, 1000]))):
            if isinstance(step, int):
                now += step
                for each in (one, other):
                    each.process_watermark(now)
            elif len(step) == 4:
                taken = other.snapshot()
                found += other.records
                other.close()
                parallelism, backend, memory, width = step
                monkeypatch.setattr(interval_join, "_LEAST_WIDTH", width)
                options = {"parallelism": parallelism, "state_backend": backend, "restored": taken}
                other = joined(bounds, how, memory, **options)
            else:
                port, triples = step
                rows = [(right if port else left)(user, value) for user, value, _ in triples]
                stamps = [now + apart - 6 for _, _, apart in triples]
                for harness, single in ((one, False), (other, one_by_one)):
                    feed = harness.process_batch2 if port else harness.process_batch1
                    for begin, end in [(n, n + 1) for n in range(len(rows))] if single else [(0, len(rows))]:
                        feed(rows[begin:end], stamps[begin:end])
            most = max(most, stored(other))
        for each in (one, other):
            each.process_watermark(MAX_WATERMARK)
        found += other.records
        assert sorted(map(repr, found)) == sorted(map(repr, one.records))
        assert len(found) > 20
        assert most > 5
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize("how", ["inner", "full"])
@pytest.mark.parametrize("again", [1, 3])
def test_a_snapshot_of_stored_rows_is_restored_elsewhere(how: str, again: int) -> None:
    with spilled(how=how, parallelism=2) as harness:
        for n in range(40):
            harness.process1(left(n % 10, n), n)
        assert stored(harness) > 5
        harness.process2(right(3, 100), 20)  # rows that the state alone has are marked there
        early = harness.records
        taken = harness.snapshot()
    assert {row["number"] for row, _ in early} == {3, 13}
    for backend, memory in (("memory", 1), ("rocksdb", 1), ("rocksdb", 1 << 20)):
        options = {"parallelism": again, "state_backend": backend, "restored": taken}
        with joined((0, 100), how, memory, **options) as harness:
            if memory == 1 and backend == "rocksdb":
                assert stored(harness) > 0
            harness.process2(right(4, 101), 20)
            assert {row["number"] for row, _ in harness.records} == {4, 14}
            harness.process_watermark(MAX_WATERMARK)
            alone = {row["number"] for row, _ in harness.records[2:]}
            assert alone == (set(range(40)) - {3, 13, 4, 14} if how == "full" else set())


def test_the_state_is_that_of_rows_in_memory_and_goes_with_them() -> None:
    with spilled(bounds=(0, 4000), memory=2000) as harness:
        operator: Any = harness._subtasks[0].operators[0]  # type: ignore[attr-defined]
        sizes = []
        for second in range(0, 100, 2):
            rows = [left(n, n) for n in range(20)]
            harness.process_batch1(rows, [second * 1000 + n for n in range(20)])
            # Rows of slices whose rows are in the state already.
            harness.process_batch1(rows[:2], [second * 1000 - 500 + n for n in range(2)])
            harness.process_watermark(second * 1000 - 1000)
            tables = [operator.backend.table(each) for each in (interval_join._LEFT, interval_join._RIGHT)]
            sizes.append(sum(1 for table in tables for _ in table.namespaces()))
            assert sum(side.rows_nbytes for side in sides(harness)) < 4000
        assert max(sizes[5:]) <= 30  # runs of the slices that are open
        assert stored(harness)
        harness.process_watermark(MAX_WATERMARK)
        harness.snapshot()
        assert not [name for table in tables for name in table.namespaces()]


def test_a_probe_reads_the_key_groups_of_its_matches() -> None:
    with spilled() as harness:
        harness.process_batch1([left(n, n) for n in range(200)], [10] * 200)
        harness.process2(right(1000, 1), 20)  # memory is looked at before rows come
        (run,) = sides(harness)[0]._slices[0]
        read: list[int] = []
        blocks = run.data._blocks
        harness_read = blocks.read
        run.data._blocks = blocks._replace(read=lambda block: (read.append(len(block)), harness_read(block))[1])
        harness.process2(right(1001, 1), 21)
        assert not read
        harness.process2(right(7, 1), 22)
        assert len(read) == 1
        assert [row["number"] for row, _ in harness.records] == [7]


def test_marks_are_written_into_the_blocks_that_change() -> None:
    with spilled(how="full") as harness:
        harness.process_batch1([left(n, n) for n in range(200)], [10] * 200)
        harness.process2(right(1000, 1), 20)
        harness.snapshot()
        operator: Any = harness._subtasks[0].operators[0]
        table = operator.backend.table(interval_join._LEFT)
        (name,) = table.namespaces()
        before = dict(table.entries(name).items())
        harness.process2(right(7, 1), 22)
        harness.snapshot()
        after = dict(table.entries(name).items())
        assert before.keys() == after.keys()
        assert sum(before[key] != after[key] for key in before) == 1


def test_a_damaged_block_is_named() -> None:
    with spilled() as harness:
        harness.process_batch1([left(n, n) for n in range(5)], [10] * 5)
        harness.process2(right(1000, 1), 20)
        operator: Any = harness._subtasks[0].operators[0]
        table = operator.backend.table(interval_join._LEFT)
        (name,) = table.namespaces()
        entries = table.entries(name)
        for key in list(entries):
            entries[key] = entries[key][:-40]
        with pytest.raises(StateError, match=r"the state of rows of step .* cannot be read: .*another checkpoint"):
            harness.process2(right(3, 1), 22)


@pytest.mark.parametrize("kind", ["interval", "asof", "over rows"])
def test_queries_of_a_key_do_not_offer_the_tables_of_the_operator(kind: str) -> None:
    with joined((-5, 5), "inner", 1) if kind == "interval" else waiting(kind, 1) as harness:
        operator = harness._subtasks[0].operators[0]
        with pytest.raises(UnknownNameError) as error:
            operator.backend.look("it", "nothing", "k", ["k"], None, operator.own_tables)
        assert "in columns" not in str(error.value)


# ---- rows that wait for event time ------------------------------------------------------------------------------

WAITING = ["asof", "asof inner", "over rows", "over range", "over both"]


def waiting(kind: str, memory: int, **options: Any) -> Any:
    def over_rows(stream: Any) -> Any:
        table = TableStream(stream._pipeline, stream._inputs, LEFT, "left").key_by("user")
        window = {"rows": 3} if kind != "over range" else {}
        window |= {"range": 4} if kind != "over rows" else {}
        found = table.over(**window).aggregate(n=agg.count(), last=agg.last("number"), all=agg.collect("number"))
        return found.uid("it").to_records()

    def as_of(left: Any, right: Any) -> Any:
        one = TableStream(left._pipeline, left._inputs, LEFT, "left").key_by("user")
        other = TableStream(right._pipeline, right._inputs, RIGHT, "right").key_by("who")
        if kind == "asof":
            return one.asof_join(other).uid("it").to_records()
        return one.asof_join(other, how="inner", tolerance=6).uid("it").to_records()

    with patch.dict("os.environ", SLUICEWAY_ROCKSDB_COLUMNS=str(memory)):
        if kind.startswith("over"):
            return ColumnHarness(over_rows, LEFT, **options)
        return TwoColumnHarness(as_of, LEFT, RIGHT, **options)


def due_rows(harness: Any) -> list[Any]:
    operators = [subtask.operators[0] for subtask in harness._subtasks]
    return [getattr(each, name) for each in operators for name in ("_waiting", "_coming") if hasattr(each, name)]


def parts(harness: Any) -> int:
    """Return the number of parts of runs that the state alone has."""
    return sum(hasattr(run, "first") for rows in due_rows(harness) for run in rows._runs)


@pytest.mark.parametrize("seed", first(len(WAITING), range(4 * len(WAITING))))
def test_results_are_those_of_rows_in_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_keys, "_IDLE", 2)
    monkeypatch.setattr(stored_rows, "_LEAST", [1, 100, 1 << 20][seed % 3])
    monkeypatch.setattr(cold_rows, "_PART", [1, 2, 4096][seed % 3])
    monkeypatch.setattr(cold_rows, "_BYTES", [1 << 24, 100, 1][seed % 3])
    kind, one_by_one = WAITING[seed % len(WAITING)], seed // len(WAITING) % 2 == 1
    number = count()

    def batch(dice: Any, rows: list[Any]) -> Any:
        # Rows of one key and time among them, whose order counts, and rows that wait for long.
        port = 0 if kind.startswith("over") else dice.randrange(2)
        return port, [(user % 4, next(number), time + dice.choice([0, 0, 0, 9])) for user, time in rows]

    found: list[Any] = []
    most, now = 0, 0
    one, other = waiting(kind, 1), waiting(kind, [1, 2000][seed % 2], state_backend="rocksdb")
    try:
        for step in many_steps(seed, batch, lambda dice: ("restored", *dice.choice(PLACES))):
            if isinstance(step, int):
                now += step
                for each in (one, other):
                    each.process_watermark(now)
            elif len(step) == 4:
                taken = other.snapshot()
                found += other.records
                other.close()
                _, parallelism, backend, memory = step
                other = waiting(kind, memory, parallelism=parallelism, state_backend=backend, restored=taken)
            else:
                port, triples = step
                rows = [(right if port else left)(user, value) for user, value, _ in triples]
                stamps = [now + apart - 6 for _, _, apart in triples]
                for harness, single in ((one, False), (other, one_by_one)):
                    feed = harness.process_batch2 if port else getattr(harness, "process_batch1", None)
                    feed = feed or harness.process_batch
                    for begin, end in [(n, n + 1) for n in range(len(rows))] if single else [(0, len(rows))]:
                        feed(rows[begin:end], stamps[begin:end])
            most = max(most, parts(other))
        for each in (one, other):
            each.process_watermark(MAX_WATERMARK)
        found += other.records
        assert sorted(map(repr, found)) == sorted(map(repr, one.records))
        assert len(found) > 20
        assert most > 2
        assert not parts(other)
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize(("kind", "spread"), diagonal(["asof", "over rows"], [1, 1000]))
def test_rows_that_wait_are_within_memory_and_go(kind: str, spread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in order of time, and in none."""
    monkeypatch.setattr(stored_rows, "_LEAST", 1 << 12)
    with waiting(kind, 30_000, state_backend="rocksdb") as harness:
        feed = getattr(harness, "process_batch1", None) or harness.process_batch
        for begin in range(0, 5000, 50):
            rows = [left(n % 7, n) for n in range(begin, begin + 50)]
            feed(rows, [n * 997 % 5000 if spread > 1 else n for n in range(begin, begin + 50)])
            assert sum(rows.rows_nbytes for rows in due_rows(harness)) < 60_000
        assert parts(harness) > 10
        assert len(due_rows(harness)[0]._runs) < 300
        taken = harness.snapshot()
    with waiting(kind, 30_000, state_backend="rocksdb", restored=taken, parallelism=2) as harness:
        assert parts(harness) > 10
        for watermark in range(0, 5000, 100):
            harness.process_watermark(watermark)
            assert len(harness.records) == watermark + 1
            assert sum(rows.rows_nbytes for rows in due_rows(harness)) < 60_000
        harness.process_watermark(MAX_WATERMARK)
        assert len(harness.records) == 5000
        harness.snapshot()
        for subtask in harness._subtasks:
            for name in (asof_join._WAITING, asof_join._COMING) if kind == "asof" else (over._WAITING,):
                assert not list(subtask.operators[0].backend.table(name).namespaces())


def test_rows_due_at_once_come_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "_LEAST", 1 << 12)
    with waiting("over rows", 30_000, state_backend="rocksdb") as harness:
        for begin in range(0, 5000, 50):
            harness.process_batch(
                [left(n % 7, n) for n in range(begin, begin + 50)], list(range(begin, begin + 50))
            )
        (rows,) = due_rows(harness)
        taken: list[int] = []
        take = rows.take
        monkeypatch.setattr(rows, "take", lambda until: (taken.append(until), take(until))[1])
        harness.process_watermark(MAX_WATERMARK)
        assert len(taken) > 5
        assert [stamp for _, stamp in harness.records] == list(range(5000))


@pytest.mark.parametrize("kind", ["asof", "over rows"])
def test_rows_in_memory_that_are_due_at_once_come_in_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluiceway.columns.kept.due_rows._STEP", 20_000)
    with waiting(kind, 1) as harness:
        feed = getattr(harness, "process_batch1", None) or harness.process_batch
        for begin in range(0, 5000, 500):
            stamps = [n * 997 % 5000 for n in range(begin, begin + 500)]
            feed([left(n % 7, n) for n in range(begin, begin + 500)], stamps)
        rows, taken = due_rows(harness)[0], []
        take = rows.take

        def noted(until: int) -> Any:
            taken.append(take(until))
            return taken[-1]

        monkeypatch.setattr(rows, "take", noted)
        harness.process_watermark(MAX_WATERMARK)
        assert len(taken) > 5
        assert max(due.data.nbytes for due in taken if due is not None) < 40_000
        assert [stamp for _, stamp in harness.records] == list(range(5000))


def test_rows_of_one_time_stay_in_order_of_arrival() -> None:
    """A run that has been read again stays before one with a row of the same time that has not."""
    with waiting("over rows", 1 << 20, state_backend="rocksdb") as one, waiting("over rows", 1) as other:
        number = count()

        def arrive(*stamps: int) -> None:
            rows = [left(0, next(number)) for _ in stamps]
            for harness in (one, other):
                harness.process_batch(rows, list(stamps))

        (rows,) = due_rows(one)
        arrive(1, 2, 3, 4, 5)
        arrive(50, 60)
        one.snapshot()  # so that the second run is stored as it is
        rows.store()
        arrive(58, 60)
        rows.store()
        assert parts(one) > 2
        for harness in (one, other):
            harness.process_watermark(50)
        arrive(55, 90, 91)
        rows.store()
        taken = one.snapshot()
        for harness in (one, other):
            harness.process_watermark(MAX_WATERMARK)
        assert one.records == other.records
        with waiting("over rows", 1, state_backend="rocksdb", restored=taken) as again:
            again.process_watermark(MAX_WATERMARK)
            assert again.records == other.records[-len(again.records) :]
            assert len(again.records) == 6


def test_stored_rows_that_have_had_their_result_do_not_come_again() -> None:
    """Rows in the state that are put to others are those that may have a match."""
    with spilled(how="left", bounds=(0, 1)) as harness:
        harness.process_batch1([left(n, n) for n in range(4)], [1, 2, 3, 4])
        harness.process2(right(9, 1), 9)
        assert stored(harness)
        harness.process_batch1([left(n, n) for n in range(4, 7)], [1, 2, 3])
        harness.process_watermark(3)
        harness.process2(right(9, 2), 9)
        harness.process_watermark(MAX_WATERMARK)
        assert sorted(row["number"] for row, _ in harness.records) == list(range(7))


# ---- rows that are kept of keys ---------------------------------------------------------------------------------


def cold(harness: Any) -> Any:
    return harness._subtasks[0].operators[0]._cold


def kept(harness: Any) -> Any:
    operator = harness._subtasks[0].operators[0]
    return operator._latest if hasattr(operator, "_latest") else operator._recent


def fill(harness: Any, kind: str, begin: int, end: int, step: int = 100) -> None:
    """Have a row of each of many keys at the time that is its number, and the watermark behind it."""
    for first_ in range(begin, end, step):
        numbers = range(first_, first_ + step)
        feed = harness.process_batch2 if kind.startswith("asof") else harness.process_batch
        feed([(right if kind.startswith("asof") else left)(n, n) for n in numbers], list(numbers))
        harness.process_watermark(first_ + step - 1)


def ask(harness: Any, kind: str, users: list[int], time: int) -> dict[str, Any]:
    """Return what a later row of some keys finds: the row before, or the number of rows."""
    before = len(harness.records)
    feed = harness.process_batch1 if kind.startswith("asof") else harness.process_batch
    feed([left(user, -1) for user in users], [time] * len(users))
    harness.process_watermark(time)
    found = [row for row, _ in harness.records[before:]]
    return {row["user"]: row["paid"] if kind.startswith("asof") else row["n"] for row in found}


@pytest.mark.parametrize("kind", ["asof", "over rows"])
def test_rows_of_keys_leave_memory(kind: str) -> None:
    users = [*range(0, 3000, 7), 5000]
    known = {f"u{n}": n if kind == "asof" else 2 for n in users[:-1]}
    expected = known | {"u5000": None if kind == "asof" else 1}
    with waiting(kind, 60_000, state_backend="rocksdb") as harness:
        fill(harness, kind, 0, 3000)
        assert 0 < len(kept(harness)) < 1500
        assert kept(harness).nbytes < 60_000
        assert sum(1 for _ in cold(harness)._entries) == 3000 - len(kept(harness))
        taken = harness.snapshot()
        assert ask(harness, kind, users, 4000) == expected
        in_memory = np.unique(np.concatenate([np.zeros(0, np.int64), *kept(harness).used_ids()]))
        # A key has its rows in one place; of a left row none is kept.
        assert sum(1 for _ in cold(harness)._entries) + len(in_memory) == (3000 if kind == "asof" else 3001)
    for backend, memory in (("memory", 1), ("rocksdb", 1), ("rocksdb", 60_000), ("rocksdb", 1 << 28)):
        with waiting(kind, memory, state_backend=backend, restored=taken) as harness:
            if backend == "memory":
                assert len(kept(harness)) == 3000
                assert not list(cold(harness)._table.namespaces())
            assert ask(harness, kind, users, 4000) == expected
    with waiting(kind, 1, state_backend="rocksdb", restored=taken, parallelism=3) as harness:
        assert ask(harness, kind, users, 4000) == expected


@pytest.mark.parametrize("kind", ["asof inner", "over range", "over both"])
def test_rows_of_keys_that_are_too_old_leave_the_state(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_rows, "_LEAST_WIDTH", 2)
    monkeypatch.setattr(keyed_runs, "_PAUSE", 1)
    with waiting(kind, 1, state_backend="rocksdb") as harness:
        most = spaces = 0
        for begin in range(0, 1000, 10):
            fill(harness, kind, begin, begin + 10, 2)
            most = max(most, sum(1 for _ in cold(harness)._entries))
            spaces = max(spaces, len(list(cold(harness)._table.namespaces())))
        assert 0 < most < 60
        assert spaces < 20
        assert ask(harness, kind, [997, 999], 1001) == (
            {"u997": 997, "u999": 999} if kind == "asof inner" else {"u997": 2, "u999": 2}
        )
        harness.process_watermark(MAX_WATERMARK)
        assert {len(name) for name in cold(harness)._table.namespaces()} <= {1}  # forms of rows


@pytest.mark.parametrize("kind", ["asof", "over rows"])
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_damaged_rows_of_keys_are_named(kind: str, backend: str) -> None:
    with waiting(kind, 1, state_backend="rocksdb") as harness:
        fill(harness, kind, 0, 20, 2)
        harness.snapshot()
        entries = cold(harness)._entries
        for key in list(entries):
            entries[key] = entries[key][:-2]
        taken = harness.snapshot()
    with pytest.raises(StateError, match=r"state '.* keys in columns' of step .* cannot be read: "):  # noqa: SIM117
        with waiting(kind, 1, state_backend=backend, restored=taken) as harness:
            ask(harness, kind, list(range(20)), 100)


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_columns_of_rows_of_keys_may_change_as_those_of_blocks(backend: str) -> None:
    def program(schema: pa.Schema) -> Any:
        def join(left: Any, right: Any) -> Any:
            one = TableStream(left._pipeline, left._inputs, LEFT, "left").key_by("user")
            other = TableStream(right._pipeline, right._inputs, schema, "right").key_by("who")
            return one.asof_join(other).uid("it").to_records()

        return join

    narrow = pa.schema([("who", pa.string()), ("paid", pa.int32())])
    wider = pa.schema([("who", pa.string()), ("paid", pa.int64()), ("more", pa.int8())])
    other = pa.schema([("who", pa.string()), ("paid", pa.string())])
    with patch.dict("os.environ", SLUICEWAY_ROCKSDB_COLUMNS="1"):
        with TwoColumnHarness(program(narrow), LEFT, narrow, state_backend="rocksdb") as harness:
            fill(harness, "asof", 0, 20, 2)
            taken = harness.snapshot()
        with TwoColumnHarness(
            program(wider), LEFT, wider, state_backend=backend, restored=taken, parallelism=2
        ) as harness:
            harness.process_batch1([left(3, -1)], [100])
            harness.process_watermark(100)
            ((found, _),) = harness.records
            assert (found["paid"], found["more"]) == (3, None)
        with pytest.raises(IncompatibleStateError, match="column 'paid' was int32, and is string now"):
            TwoColumnHarness(program(other), LEFT, other, state_backend=backend, restored=taken)


@pytest.mark.parametrize("kind", ["asof", "over rows"])
def test_rows_of_keys_leave_memory_while_a_watermark_is_processed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_rows, "_LEAST", 1 << 12)
    with waiting(kind, 60_000, state_backend="rocksdb") as harness:
        feed = harness.process_batch2 if kind == "asof" else harness.process_batch
        for begin in range(0, 5000, 50):
            rows = [(right if kind == "asof" else left)(n, n) for n in range(begin, begin + 50)]
            feed(rows, list(range(begin, begin + 50)))
        most, runs = [0], kept(harness)
        put = runs.put

        def measured(*rows: Any) -> None:
            put(*rows)
            most[0] = max(most[0], len(runs))

        monkeypatch.setattr(runs, "put", measured)
        harness.process_watermark(6000)
        assert 0 < most[0] < 2500
        assert sum(1 for _ in cold(harness)._entries) > 4000
        expected = {"u7": 7 if kind == "asof" else 2}
        assert ask(harness, kind, [7], 7000) == expected


def test_rows_that_were_kept_for_ever_become_too_old_after_a_restart() -> None:
    def join(tolerance: Any, **options: Any) -> TwoColumnHarness:
        def as_of(left: Any, right: Any) -> Any:
            one = TableStream(left._pipeline, left._inputs, LEFT, "left").key_by("user")
            other = TableStream(right._pipeline, right._inputs, RIGHT, "right").key_by("who")
            return one.asof_join(other, tolerance=tolerance).uid("it").to_records()

        with patch.dict("os.environ", SLUICEWAY_ROCKSDB_COLUMNS="1"):
            return TwoColumnHarness(as_of, LEFT, RIGHT, state_backend="rocksdb", **options)

    with join(None) as harness:
        fill(harness, "asof", 0, 20, 2)
        taken = harness.snapshot()
    with join("10s", restored=taken) as harness:
        assert sum(1 for _ in cold(harness)._entries) >= 18
        assert ask(harness, "asof", [3], 5000) == {"u3": 3}
        harness.process_watermark(40_000)
        assert not list(cold(harness)._entries)
        assert not cold(harness)._buckets


@pytest.mark.parametrize("kind", ["asof inner", "over range"])
def test_the_first_times_that_there_are_become_too_old(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_runs, "_PAUSE", 1)
    with waiting(kind, 1, state_backend="rocksdb") as harness:
        first_ = -(2**63)
        feed = harness.process_batch2 if kind == "asof inner" else harness.process_batch
        feed(
            [(right if kind == "asof inner" else left)(n, n) for n in range(5)], [first_ + n for n in range(1, 6)]
        )
        harness.process_watermark(first_ + 10)
        feed([(right if kind == "asof inner" else left)(9, 9)], [first_ + 12])
        assert sum(1 for _ in cold(harness)._entries) == 5
        harness.process_watermark(first_ + 5000)
        assert sum(1 for _ in cold(harness)._entries) <= 1
        harness.process_watermark(-1000)
        assert not list(cold(harness)._entries)
        assert len(kept(harness)) == 0
