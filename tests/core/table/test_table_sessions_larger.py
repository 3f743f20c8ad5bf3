"""Sessions that exceed the memory for them: the same results, from and to state of each form."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from effort import diagonal, examples, tries
from hypothesis import example, given
from hypothesis import strategies as st
from tests.core.table.column_harness import ColumnHarness

from sluiceway import OutputTag
from sluiceway.elements import MAX_WATERMARK, Watermark
from sluiceway.errors import IncompatibleStateError, StateError
from sluiceway.operators.columns import cold_sessions
from sluiceway.serializers import decode_rows
from sluiceway.table import TableStream, agg
from sluiceway.windows import EventTimeSessionWindows

SCHEMA = pa.schema([("user", pa.string()), ("item", pa.int32()), ("price", pa.int64()), ("weight", pa.float64())])
NAMED = {
    "n": agg.count(),
    "total": agg.sum("price"),
    "weights": agg.sum("weight"),
    "high": agg.max("user"),
    "first": agg.first("price"),
    "different": agg.count_distinct("price"),
    "all": agg.collect("price"),
    "top": agg.top_k("price", 2),
    "median": agg.quantile("weight", 0.5),
}
PLAIN = {"n": agg.count(), "total": agg.sum("price")}
LATE = OutputTag[Any]("late")
GAP = 1000
LARGE = 2**62


def harness(
    memory: int, *, gap: int = GAP, lateness: int = 0, named: Any = None, bounds: bool = True, **options: Any
) -> ColumnHarness:
    def program(stream: Any) -> Any:
        table = TableStream(stream._pipeline, stream._inputs, SCHEMA, "test").key_by("user", "item")
        windows = table.window(EventTimeSessionWindows(gap)).side_output_late_data(LATE)
        if lateness:
            windows = windows.allowed_lateness(lateness)
        found = windows.aggregate(**(named or NAMED)).uid("it")
        return (found if bounds else found.drop("window_start", "window_end")).to_records()

    with patch.dict("os.environ", SLUICEWAY_ROCKSDB_COLUMNS=str(memory)):
        return ColumnHarness(program, SCHEMA, **options)


def row(user: str | None, price: int | None = 1, item: int | None = 1, weight: float = 0.1) -> dict[str, Any]:
    return {"user": user, "item": item, "price": price, "weight": weight}


ROW = st.builds(
    row,
    st.sampled_from(["a", "b", "c", "", None]),
    st.sampled_from([0, 1, 7, None]),
    st.sampled_from([1, 2, None]),
    st.sampled_from([0.1, 1e16, -3.0]),
)
PLACES = st.tuples(
    st.sampled_from([1, 2, 3]),
    st.sampled_from(["memory", "filesystem", "rocksdb", "rocksdb"]),
    st.sampled_from([1, 6000]),
)
"""Parallelism, backend, and the bytes of memory for sessions with RocksDB."""

STEPS = st.lists(
    st.lists(st.tuples(ROW, st.integers(-2500, 2500)), min_size=1, max_size=8) | st.integers(0, 1500) | PLACES,
    max_size=10,
)


def results(lateness: int, steps: list[Any], *, whole: bool = True) -> list[Any]:
    """Return what comes of rows and watermarks, with the restarts that are among them.

    Times of rows are relative to the last watermark.
    """
    found: list[Any] = []
    now = 0
    one = harness(1, lateness=lateness)
    try:
        for step in steps:
            match step:
                case tuple():
                    taken = one.snapshot()
                    found += one.records + one.side_records(LATE)
                    one.close()
                    parallelism, backend, memory = step
                    one = harness(
                        memory, lateness=lateness, parallelism=parallelism, state_backend=backend, restored=taken
                    )
                case int():
                    now += step
                    one.process_watermark(now)
                case list():
                    for part in [step] if whole else [[pair] for pair in step]:
                        one.process_batch([value for value, _ in part], [now + at for _, at in part])
        one.process_watermark(MAX_WATERMARK)
        found += one.records + one.side_records(LATE)
    finally:
        one.close()
    return found


@examples(10, 300)
@given(st.sampled_from([0, 0, 700, 3000]), STEPS, st.booleans())
@example(0, [[(row("a"), 5)], 10, [(row("a"), 900), (row("b"), 0)], 1100, [(row("a"), 0)]], True)
def test_results_are_those_of_state_in_memory(lateness: int, steps: list[Any], whole: bool) -> None:
    rows = [step for step in steps if not isinstance(step, tuple)]
    expected = results(lateness, rows)
    # Without restarts in the same order; in another one after those that change who has which keys.
    assert results(lateness, [(1, "rocksdb", 1), *rows], whole=whole) == expected
    found = results(lateness, [(2, "rocksdb", 1), *steps], whole=whole)
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def many(begin: int, end: int) -> list[dict[str, Any]]:
    return [row(f"u{number}", number) for number in range(begin, end)]


def tables(taken: Any) -> dict[str, set[int]]:
    """Return the key groups in which a snapshot has each table."""
    found: dict[str, set[int]] = {}
    for operator in taken.operators:
        if operator.keyed is not None:
            for group, data in operator.keyed.groups.items():
                for line in decode_rows(data):
                    found.setdefault(operator.keyed.tables[line.table].name, set()).add(group)
    return found


def operator_of(one: ColumnHarness) -> Any:
    return one._subtasks[0].operators[0]


def test_sessions_leave_memory_and_blocks_leave_the_state() -> None:
    with harness(80_000, named=PLAIN, state_backend="rocksdb") as one:
        one.process_batch(many(0, 100), list(range(100)))
        assert "slices in columns" in tables(one.snapshot())
        assert "sessions in columns" not in tables(one.snapshot())
        for begin in range(100, 5000, 100):
            one.process_batch(many(begin, begin + 100), list(range(100)))
        operator = operator_of(one)
        assert operator._cold.nbytes < 160_000
        assert len(operator._keys) < 1000
        taken = one.snapshot()
        assert "slices in columns" not in tables(taken)
        assert "sessions in columns" in tables(taken)
        one.process_batch(many(0, 100), [500] * 100)
        found = one.process_watermark(MAX_WATERMARK)
        assert [each["n"] for each in found].count(2) == 100
        assert len(found) == 5000
        assert len(operator._keys) < 1000
        assert {len(name) for name in operator._cold._table.namespaces()} == {1}  # forms of rows alone
    with harness(1, named=PLAIN, state_backend="memory", restored=taken) as one:
        back = one.snapshot()
        assert "slices in columns" in tables(back)
        assert "sessions in columns" not in tables(back)
        assert len(one.process_watermark(MAX_WATERMARK)) == 5000
    with harness(80_000, named=PLAIN, state_backend="rocksdb", restored=back) as one:
        assert len(operator_of(one)._keys) < 1000
        assert "slices in columns" not in tables(one.snapshot())
        assert len(one.process_watermark(MAX_WATERMARK)) == 5000


@pytest.mark.parametrize("spread", [0, 40, 15_000])
def test_those_that_end_together_are_read_in_parts(monkeypatch: pytest.MonkeyPatch, spread: int) -> None:
    monkeypatch.setattr(cold_sessions, "_PART", 64)
    dice = random.Random(spread)
    stamps = [dice.randint(0, spread) for _ in range(3000)]
    with harness(1, gap=20_000, named=PLAIN, state_backend="memory") as one:
        one.process_batch(many(0, 3000), stamps)
        expected = one.process_watermark(MAX_WATERMARK)
    with harness(60_000, gap=20_000, named=PLAIN, state_backend="rocksdb") as one:
        for begin in range(0, 3000, 100):
            one.process_batch(many(begin, begin + 100), stamps[begin : begin + 100])
        cold = operator_of(one)._cold
        most, load = [0], cold._load

        def measured(values: Any, **options: Any) -> None:
            load(values, **options)
            most[0] = max(most[0], len(operator_of(one)._sessions))

        monkeypatch.setattr(cold, "_load", measured)
        assert one.process_watermark(MAX_WATERMARK) == expected
        assert most[0] > 2900 if not spread else most[0] < 1500
        assert not cold._buckets
        assert {len(name) for name in cold._table.namespaces()} == {1}


def test_what_is_kept_of_keys_goes_with_their_sessions() -> None:
    dice = random.Random(3)
    with harness(60_000, named=PLAIN, state_backend="rocksdb", lateness=200) as one:
        cold, most, buckets = operator_of(one)._cold, 0, 0
        for step in range(tries(60, 400)):
            users = [row(f"u{dice.randrange(step * 40, step * 40 + 800)}") for _ in range(100)]
            one.process_batch(users, [step * 100 + dice.randrange(100) for _ in users])
            one.process_watermark(step * 100)
            if step % 7 == 0:
                one.snapshot()
            most, buckets = max(most, sum(1 for _ in cold._entries)), max(buckets, len(cold._buckets))
        assert cold.by_key
        assert most < 3000  # of 800 + 40 a step
        assert buckets < 300
        one.process_watermark(MAX_WATERMARK)
        assert not list(cold._entries)
        assert not cold._buckets
        assert len(operator_of(one)._sessions) == 0


def test_a_checkpoint_has_the_keys_that_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    with harness(60_000, named=PLAIN, state_backend="rocksdb") as one:
        one.process_batch(many(0, 5000), list(range(5000)))
        one.snapshot()
        cold = operator_of(one)._cold
        written: list[int] = []
        write = cold._write
        monkeypatch.setattr(cold, "_write", lambda ids: (written.append(len(ids)), write(ids)))
        one.process_batch(many(4000, 4003), [1, 2, 3])
        one.snapshot()
        assert sum(written) == 3
        written.clear()
        one.snapshot()
        assert sum(written) == 0


def test_columns_may_change_as_they_may_in_blocks() -> None:
    with harness(1, named=PLAIN, state_backend="rocksdb") as one:
        one.process_batch(many(0, 20), list(range(20)))
        one.process_batch([row("large", LARGE), row("large", LARGE)], [1, 2])  # a sum in several parts
        taken = one.snapshot()
    for backend in ("memory", "rocksdb"):
        with harness(1, named={"n": agg.count()}, state_backend=backend, restored=taken) as one:
            one.process_batch(many(0, 2), [1, 2])
            found = {each["user"]: each["n"] for each in one.process_watermark(MAX_WATERMARK)}
            assert found == {"large": 2, **{f"u{n}": 2 if n < 2 else 1 for n in range(20)}}
        with pytest.raises(IncompatibleStateError, match="of its aggregates, 'total' was sum"):
            harness(1, named={"total": agg.max("price")}, state_backend=backend, restored=taken)


@pytest.mark.parametrize("what", ["values", "forms"])
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_damaged_sessions_are_named(backend: str, what: str) -> None:
    with harness(1, named=PLAIN, state_backend="rocksdb") as one:
        one.process_batch(many(0, 20), list(range(20)))
        one.snapshot()
        table = operator_of(one)._cold._table
        for space in [space for space in table.namespaces() if len(space) == (1 if what == "forms" else 0)]:
            entries = table.entries(space)
            for key in list(entries):
                entries[key] = entries[key][:-2]
        taken = one.snapshot()
    with pytest.raises(StateError, match=r"state 'sessions in columns' of step .* cannot be read: "):  # noqa: SIM117
        with harness(1, named=PLAIN, state_backend=backend, restored=taken) as one:
            one.process_batch(many(0, 20), list(range(20)))


def test_a_shorter_lateness_has_no_use_for_some() -> None:
    with harness(1, named=PLAIN, state_backend="rocksdb", lateness=5000) as one:
        one.process_batch(many(0, 3), [0, 100, 5000])
        one.process_watermark(1150)
        taken = one.snapshot()
    for backend in ("memory", "rocksdb"):
        with harness(1, named=PLAIN, state_backend=backend, lateness=20, restored=taken) as one:
            one.process_batch(many(0, 3), [1200, 1200, 5000])
            found = one.process_watermark(MAX_WATERMARK)
            assert [(each["user"], each["n"]) for each in found] == [("u0", 1), ("u1", 1), ("u2", 2)]


@pytest.mark.parametrize(
    ("place", "lateness"), diagonal([("memory", 1), ("rocksdb", 1), ("rocksdb", 20_000)], [800, 0])
)
def test_key_groups_that_are_not_equally_far_meet(place: tuple[str, int], lateness: int) -> None:
    backend, memory = place
    dice = random.Random(7)
    first = [(row(f"u{dice.randrange(20)}", n), dice.randrange(4000)) for n in range(70)]
    later = [(row(f"u{dice.randrange(20)}", n), dice.randrange(1000, 6000)) for n in range(70, 120)]

    def rows(one: ColumnHarness, pairs: list[Any]) -> None:
        for value, at in pairs:
            one.process_batch([value], [at])

    def watermarks(one: ColumnHarness, *times: int) -> None:
        # A subtask that is ahead hears of none that is not later.
        for at in times:
            for subtask in one._subtasks if len(one._subtasks) == 1 or at > 3000 else one._subtasks[1:]:
                subtask.control(Watermark(at))

    found = []
    for restarts in (False, True):
        with harness(memory, lateness=lateness, parallelism=2, state_backend=backend) as one:
            rows(one, first)
            one._subtasks[0].control(Watermark(3000))
            if not restarts:
                rows(one, later)
                watermarks(one, 1500, 2900, 3500, MAX_WATERMARK)
                found.append(sorted(map(repr, one.records + one.side_records(LATE))))
                continue
            taken, before = one.snapshot(), one.records + one.side_records(LATE)
        options: Any = {"lateness": lateness, "state_backend": backend, "restored": taken}
        with harness(memory, parallelism=1, **options) as one:
            rows(one, later)
            watermarks(one, 1500, 2900, 3500, MAX_WATERMARK)
            found.append(sorted(map(repr, before + one.records + one.side_records(LATE))))
    assert found[0] == found[1]


@pytest.mark.parametrize(("backend", "memory"), [("memory", 1), ("rocksdb", 1), ("rocksdb", 1 << 20)])
def test_a_first_watermark_after_a_restart_may_be_an_earlier_one(backend: str, memory: int) -> None:
    with harness(memory, named=PLAIN, state_backend="rocksdb", lateness=5000) as one:
        one.process_batch(many(0, 3), [0, 500, 8000])
        assert len(one.process_watermark(2000)) == 2
        one.process_batch([row("x")], [9000])
        taken = one.snapshot()
    with harness(memory, named=PLAIN, state_backend=backend, lateness=5000, restored=taken) as one:
        for watermark in (1200, 1600, 2100):
            assert one.process_watermark(watermark) == []
        assert {each["user"]: each["n"] for each in one.process_batch(many(1, 2), [600])} == {"u1": 2}
        assert {each["user"] for each in one.process_watermark(MAX_WATERMARK)} == {"u2", "x"}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("gap", [2, 7, 64, 100, 500, 2**40, 2**62])
def test_sessions_at_the_ends_of_what_there_is(gap: int, backwards: bool) -> None:
    first, last = -(2**63), MAX_WATERMARK
    times = [
        first,
        first + 3 * (gap // 4),
        0,
        5 * gap if gap < 2**40 else gap,
        last - gap - 1,
        last - gap,
        last - 1,
        last,
    ]
    if backwards:
        times.reverse()
    found = []
    for memory in (1 << 28, 1):
        with harness(memory, gap=gap, named=PLAIN, bounds=False, state_backend="rocksdb") as one:
            for number, time in enumerate(times):
                one.process_batch([row(f"u{number}")], [time])
            if memory == 1:
                assert not len(operator_of(one)._sessions)
            one.process_watermark(0)
            one.process_watermark(MAX_WATERMARK)
            found.append(one.values)
            assert not list(operator_of(one)._cold._entries)
    assert [each["user"] for each in found[0]] == [each["user"] for each in found[1]]
    assert len(found[0]) == len(times)


def test_sessions_far_apart_are_in_few_namespaces() -> None:
    for gap, lateness, span in ((1000, 0, 10**12), (1000, 10**9, 10**6)):
        with harness(1, gap=gap, lateness=lateness, named=PLAIN, state_backend="rocksdb") as one:
            dice = random.Random(1)
            stamps = [dice.randrange(span) for _ in range(400)]
            for begin in range(0, 400, 20):
                one.process_batch(many(begin, begin + 20), stamps[begin : begin + 20])
            one.process_watermark(span // 2)
            one.process_batch([row("last")], [span])
            cold = operator_of(one)._cold
            assert len(cold._buckets) < 100
            assert len(cold._ahead) == len(cold._buckets)
            one.process_watermark(MAX_WATERMARK)
            assert len(one.values) == 401
            assert not cold._buckets
            assert not cold._ahead


def test_large_values_are_read_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"gap": 20_000, "named": {"all": agg.collect("price")}, "state_backend": "rocksdb"}
    with harness(100_000, **options) as one:
        for begin in range(0, 400, 20):
            users = [each for each in many(begin, begin + 20) for _ in range(100)]
            one.process_batch(users, [dice % 3000 for dice in range(begin, begin + 2000)])
        taken = one.snapshot()
    with harness(
        100_000, gap=20_000, named={"all": agg.collect("price")}, restored=taken, state_backend="rocksdb"
    ) as one:
        operator, most = operator_of(one), [0]
        read = operator._cold._table.read

        def measured(keys: Any, *rest: Any) -> Any:
            found = read(keys, *rest)
            most[0] = max(most[0], sum(map(len, found.values())))
            return found

        monkeypatch.setattr(operator._cold._table, "read", measured)
        assert len(one.process_watermark(MAX_WATERMARK)) == 400
        assert 0 < most[0] < 300_000  # of 400 KB
