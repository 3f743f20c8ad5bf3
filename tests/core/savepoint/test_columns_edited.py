"""State of steps in columns that is read as a table, changed, and put into another savepoint."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest
from tests.core.table.column_harness import ColumnHarness, TwoColumnHarness

import sluiceway as sw
from sluiceway.checkpoint import StateReader, load_metadata, split_location
from sluiceway.checkpoint.native_files import with_rows
from sluiceway.columns.state_names import (
    KEYS,
    LATEST,
    LATEST_KEYS,
    LEFT,
    OVER_KEYS,
    OVER_RECENT,
    OVER_WAITING,
    PROGRESS,
    RIGHT,
    SESSIONS,
    SLICES,
)
from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import ConfigurationError, StateError, UnknownNameError
from sluiceway.operators import OperatorSnapshot
from sluiceway.plugins import default_manager
from sluiceway.savepoint import edit, read, write
from sluiceway.savepoint.sizes import state_sizes
from sluiceway.table import TableStream, agg
from sluiceway.windows import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows

SCHEMA = pa.schema([("user", pa.string()), ("item", pa.int32()), ("price", pa.int64())])
OTHER = pa.schema([("who", pa.string()), ("rate", pa.float64())])
NAMED = {
    "n": agg.count(),
    "total": agg.sum("price"),
    "mean": agg.mean("price"),
    "high": agg.max("price"),
    "last": agg.last("item"),
    "different": agg.count_distinct("item"),
    "all": agg.collect("price"),
}
Save = Callable[..., str]


def _table(stream: Any, schema: Any = SCHEMA) -> Any:
    return TableStream(stream._pipeline, stream._inputs, schema, "test")


def keyed(build: Any, **options: Any) -> ColumnHarness:
    def program(stream: Any) -> Any:
        return build(_table(stream).key_by("user", "item")).uid("it").to_records()

    return ColumnHarness(program, SCHEMA, **options)


def joined(build: Any, **options: Any) -> TwoColumnHarness:
    def program(left: Any, right: Any) -> Any:
        return build(_table(left).key_by("user"), _table(right, OTHER).key_by("who")).uid("it").to_records()

    return TwoColumnHarness(program, SCHEMA, OTHER, **options)


def windows(assigner: Any) -> Any:
    return lambda table: table.window(assigner).aggregate(**NAMED)


KEYED = {
    "tumbling": (windows(TumblingEventTimeWindows(10)), "columns window"),
    "sliding": (windows(SlidingEventTimeWindows(10, 5)), "columns window"),
    "sessions": (windows(EventTimeSessionWindows(4)), "columns session"),
    "totals": (lambda table: table.aggregate(**NAMED), "columns window"),
    "over": (lambda table: table.over(rows=2).aggregate(n=agg.count(), total=agg.sum("price")), "columns over"),
}
JOINED = {
    "interval": (lambda a, b: a.interval_join(b, -5, 5), "columns interval_join"),
    "outer": (lambda a, b: a.interval_join(b, -5, 5, how="full"), "columns interval_join"),
    "asof": (lambda a, b: a.asof_join(b), "columns asof_join"),
}


def row(user: str | None, item: int = 1, price: int | None = 5) -> dict[str, Any]:
    return {"user": user, "item": item, "price": price}


def rate(who: str, rate: float) -> dict[str, Any]:
    return {"who": who, "rate": rate}


def saved(taken: Any, save: Save, kind: str) -> str:
    subtasks: dict[int, list[Any]] = {}
    for one in taken.operators:
        if one.keyed is not None:
            subtasks.setdefault(one.subtask, []).append(one)
    return save(*(subtasks[index] for index in sorted(subtasks)), kind=kind)


def restored(place: str, taken: Any) -> Any:
    """Return a snapshot with the keyed state of a savepoint in place of its own."""
    where, directory = split_location(place)
    storage = default_manager().checkpoint_storage(where)
    reader, open_backend = StateReader(storage, directory), default_manager().services().state_backend
    (vertex,) = load_metadata(storage, directory).vertices
    found = {}
    for subtask in vertex.subtasks:
        for operator in subtask.operators:
            if operator.keyed is not None:
                snapshot = reader.keyed(operator.uid, operator.keyed)
                found[subtask.index] = with_rows(snapshot, open_backend, operator.uid, subtask.index, 128)
    operators = tuple(
        replace(one, keyed=found.get(one.subtask)) if one.keyed is not None else one for one in taken.operators
    )
    return msgspec.structs.replace(taken, operators=operators)


def emitted(harness: Any) -> list[Any]:
    harness.process_watermark(MAX_WATERMARK)
    return sorted((repr(value), time) for value, time in harness.records)


def edited(place: str, new: Path, **backend: Any) -> None:
    """Put each state of the step into a new savepoint as it is, its rows in another order."""
    operator = read(place)["it"]
    with edit(place, str(new), **backend) as savepoint:
        for name, table in operator.states.items():
            if table.kind in ("aggregates", "rows") and (data := table.to_arrow()).num_rows:
                order = pa.array(range(data.num_rows - 1, -1, -1))
                assert savepoint.put("it", name, data.take(order)) == data.num_rows
    for name, table in operator.states.items():
        again = read(str(new))["it"].states.get(name)
        if table.kind in ("aggregates", "rows") and table.to_arrow().num_rows:
            assert sorted(map(repr, again.rows())) == sorted(map(repr, table.rows()))  # type: ignore[union-attr]


@pytest.mark.parametrize("memory", [1, 1 << 28])
@pytest.mark.parametrize("program", KEYED)
def test_a_job_goes_on_from_what_was_put(program: str, memory: int, save: Save, tmp_path: Path) -> None:
    build, kind = KEYED[program]
    rows = [row("a"), row("b", 2, None), row("a", 1, 7), row(None, 3, 1), row("c", 1, 2**62), row("c", 1, 2**61)]
    with patch.dict("os.environ", SLUICEWAY_ROCKSDB_COLUMNS=str(memory)):
        with keyed(build, state_backend="rocksdb", parallelism=2) as one:
            one.process_batch(rows, [1, 2, 3, 4, 14, 15])
            taken = one.snapshot()
            place = saved(taken, save, kind)
            one.process_batch(rows[:3], [16, 17, 18])
            expected = emitted(one)
        edited(place, tmp_path / "new")
        for backend in ("memory", "rocksdb"):
            with keyed(
                build, state_backend=backend, parallelism=3, restored=restored(str(tmp_path / "new"), taken)
            ) as one:
                one.process_batch(rows[:3], [16, 17, 18])
                assert emitted(one) == expected
    if program == "totals":
        filled = {name for name, table in read(place)["it"].states.items() if table.to_arrow().num_rows}
        assert (KEYS if memory == 1 else SLICES) in filled


@pytest.mark.parametrize("memory", [1, 1 << 28])
def test_over_goes_on_from_the_last_rows_of_keys_that_were_put(
    memory: int, save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_ROCKSDB_COLUMNS", str(memory))
    build: Any = lambda table: table.over(rows=3).aggregate(n=agg.count(), all=agg.collect("price"))  # noqa: E731
    rows = [
        row(user, item, price) for price, (user, item) in enumerate([("a", 1), ("b", 2), ("a", 1), (None, 3)] * 2)
    ]
    with keyed(build, state_backend="rocksdb", parallelism=2) as one:
        one.process_batch(rows, list(range(8)))
        one.process_watermark(8)
        one.process_batch([row("z"), row("y")], [20, 20])  # memory is looked at before rows come
        before, taken = len(one.records), one.snapshot()
        place = saved(taken, save, "columns over")
        one.process_batch(rows, [30] * 8)
        one.process_watermark(MAX_WATERMARK)
        expected = sorted((repr(value), time) for value, time in one.records[before:])
    filled = {name for name, table in read(place)["it"].states.items() if table.to_arrow().num_rows}
    assert filled >= {OVER_WAITING, OVER_KEYS if memory == 1 else OVER_RECENT}
    edited(place, tmp_path / "new")
    for backend in ("memory", "rocksdb"):
        state = restored(str(tmp_path / "new"), taken)
        with keyed(build, state_backend=backend, parallelism=3, restored=state) as one:
            one.process_batch(rows, [30] * 8)
            assert emitted(one) == expected
    if memory == 1:
        data = read(place)["it"][OVER_KEYS].to_arrow()
        (size,) = [each for each in state_sizes(place) if each.state == OVER_KEYS]
        assert size.keys == data.num_rows > 1


@pytest.mark.parametrize("memory", [1, 1 << 28])
@pytest.mark.parametrize("program", JOINED)
def test_a_join_goes_on_from_rows_that_were_read_and_put(
    program: str, memory: int, save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_ROCKSDB_COLUMNS", str(memory))
    build, kind = JOINED[program]
    with joined(build, state_backend="rocksdb") as one:
        one.process_batch1([row("a"), row("b", 2, None), row("x")], [10, 12, 2])
        one.process_batch2([rate("a", 0.5), rate("b", 1.5), rate("a", 2.5)], [7, 8, 30])
        one.process_watermark(9)
        one.process_batch1([row("y")], [40])  # memory is looked at before rows come
        before = len(one.records)
        taken = one.snapshot()
        place = saved(taken, save, kind)
        one.process_batch2([rate("b", 3.5)], [13])
        one.process_batch1([row("a", 7)], [28])
        one.process_watermark(MAX_WATERMARK)
        expected = sorted((repr(value), time) for value, time in one.records[before:])
    edited(place, tmp_path / "new", backend="rocksdb")
    with joined(build, parallelism=2, restored=restored(str(tmp_path / "new"), taken)) as one:
        one.process_batch2([rate("b", 3.5)], [13])
        one.process_batch1([row("a", 7)], [28])
        assert emitted(one) == expected
    if program == "asof":
        filled = {name for name, table in read(place)["it"].states.items() if table.to_arrow().num_rows}
        assert (LATEST_KEYS if memory == 1 else LATEST) in filled


@pytest.fixture
def place(save: Save) -> str:
    with keyed(KEYED["tumbling"][0]) as one:
        one.process_batch([row("a"), row("b", 2, None), row("a", 1, 7)], [1, 2, 13])
        return saved(one.snapshot(), save, "columns window")


def test_changed_values_and_new_keys_are_there(place: str, tmp_path: Path) -> None:
    rows = list(read(place)["it"][SLICES].rows())
    changed = next(r for r in rows if r["user"] == "b")
    changed |= {"total": {"total": 40, "some": True}, "user": "new", "item": 9}
    with edit(place, str(tmp_path / "new")) as savepoint:
        assert savepoint.put("it", SLICES, [changed]) == 1
        assert savepoint.put("it", SLICES, read(place)["it"][SLICES]) == 3  # beside those that were put before
    found = {(r["user"], r["item"]): r["total"] for r in read(str(tmp_path / "new"))["it"][SLICES].rows()}
    assert found.keys() == {("a", 1), ("b", 2), ("new", 9)}
    assert found["new", 9] == {"total": 40, "some": True}


def _with(**changed: Any) -> Any:
    def change(table: Any) -> Any:
        return [row | changed for row in table.rows()]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.to_arrow().drop_columns("n"), "column 'n' is missing: it has user, item, window_start"),
        (lambda t: t.to_arrow().append_column("more", pa.nulls(3)), "column 'more' is not one of user, item"),
        (_with(item="one"), "a value is not of the type of its column"),
        (_with(more=1), "column 'more' is not one of"),
        (lambda t: [{"user": "a"}], "column 'item' is missing in row 0"),
        (
            lambda t: t.to_arrow().set_column(1, "item", pa.array(["x", "y", "z"])),
            r"column 'item' is string, and has to be int32 \(Failed to parse",
        ),
        (
            lambda t: t.to_arrow().set_column(1, "item", pa.array([2**40, 1, 2])),
            r"column 'item' is int64, and has to be int32 \(Integer value 1099511627776 not in range",
        ),
        (_with(n=None), "column 'n' is null in some rows"),
        (_with(n={"count": None}), "column 'n.count' is null in some rows"),
        (_with(all=None), "column 'all' is null in some rows"),
        (
            _with(high={"value": None, "some": True}),
            "column 'high.value' is not null where there is none, or is null",
        ),
        (_with(window_start=None), "column 'window_start' is null"),
        (
            _with(window_start=dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
            "window_start and window_end are 0 and 20 ms in row .*, which are no bounds of a slice",
        ),
        (lambda t: [*t.rows(), *t.rows()], "the key user='.', item=. has two rows in one window"),
    ],
)
def test_what_does_not_fit_is_refused(place: str, tmp_path: Path, change: Any, message: str) -> None:
    data = change(read(place)["it"][SLICES])
    with (
        pytest.raises(StateError, match=rf"state '{SLICES}' of operator 'it' cannot be put: {message}"),
        edit(place, str(tmp_path / "new")) as savepoint,
    ):
        savepoint.put("it", SLICES, data)
    assert not (tmp_path / "new" / "_metadata").exists()


def test_other_mistakes_are_named(place: str, tmp_path: Path) -> None:
    with edit(place, str(tmp_path / "new")) as savepoint:
        with pytest.raises(UnknownNameError, match=r"did you mean|slices in columns"):
            savepoint.put("it", "slices in column", [])
        with pytest.raises(
            StateError, match="is that of the progress of a step in columns, and cannot be changed"
        ):
            savepoint.put("it", PROGRESS, [])
        with pytest.raises(ConfigurationError, match="key= and the like are for states"):
            savepoint.put("it", SLICES, [], key="user")
        with pytest.raises(
            ConfigurationError, match="is made from a table or an iterable of dicts, not from int 7"
        ):
            savepoint.put("it", SLICES, 7)
    with (
        pytest.raises(
            ConfigurationError, match=r"not 'slices in columns': the name of a state is for that of a step"
        ),
        write(str(tmp_path / "other")) as writer,
    ):
        writer.put("it", SLICES, [])


def test_sessions_of_a_key_must_be_apart(save: Save, tmp_path: Path) -> None:
    with keyed(KEYED["sessions"][0]) as one:
        one.process_batch([row("a"), row("b")], [1, 2])
        place = saved(one.snapshot(), save, "columns session")
    rows = [r | {"user": "a"} for r in read(place)["it"][SLICES].rows()]
    with (
        pytest.raises(StateError, match="two sessions of the key user='a', item=1 overlap or touch"),
        edit(place, str(tmp_path / "new")) as savepoint,
    ):
        savepoint.put("it", SLICES, rows)


@pytest.mark.parametrize("keys", [("user",), ("user", "item")])
def test_sessions_beyond_memory_are_the_same_table(keys: tuple[str, ...], save: Save, tmp_path: Path) -> None:
    def sessions(memory: int, **options: Any) -> ColumnHarness:
        def program(stream: Any) -> Any:
            return windows(EventTimeSessionWindows(4))(_table(stream).key_by(*keys)).uid("it").to_records()

        with patch.dict("os.environ", SLUICEWAY_ROCKSDB_COLUMNS=str(memory)):
            return ColumnHarness(program, SCHEMA, state_backend="rocksdb", **options)

    rows = [row(user, 1, price) for price, user in enumerate(["a", "b", "a", "c", "a", "b", None, "a"])]
    read_back, places, results = [], [], []
    for memory in (1 << 28, 1):
        with sessions(memory, parallelism=2) as one:
            one.process_batch(rows, [10, 10, 20, 30, 40, 2, 3, 11])
            taken = one.snapshot()
            places.append(saved(taken, save, "columns session"))
            results.append(emitted(one))
        name = SESSIONS if memory == 1 else SLICES
        table = read(places[-1])["it"][name]
        read_back.append(sorted(map(repr, table.rows())))
        (size,) = [each for each in state_sizes(places[-1]) if each.state == name]
        assert (table.kind, table.to_arrow().num_rows, size.keys) == ("aggregates", 7, 7)
    assert read_back[0] == read_back[1]
    assert results[0] == results[1]
    with edit(places[1], str(tmp_path / "new")) as savepoint:
        data = read(places[1])["it"][SESSIONS].to_arrow()
        assert savepoint.put("it", SESSIONS, data.take(pa.array([5, 6, 0, 1, 4, 3, 2]))) == 7
    for memory in (1 << 28, 1):
        with sessions(memory, parallelism=3, restored=restored(str(tmp_path / "new"), taken)) as one:
            assert emitted(one) == results[0]
    beside = str(tmp_path / "beside")
    with (
        pytest.raises(StateError, match="overlap or touch"),
        edit(places[1], beside) as savepoint,
    ):
        savepoint.put("it", SESSIONS, pa.concat_tables([data, data]))


def test_a_key_is_in_one_of_the_states_that_are_put(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_ROCKSDB_COLUMNS", "1")
    with joined(JOINED["asof"][0], state_backend="rocksdb") as one:
        one.process_batch2([rate("a", 0.5), rate("b", 1.5)], [7, 8])
        one.process_watermark(9)
        one.process_batch1([row("b"), row("z")], [40, 40])
        one.process_watermark(39)
        cold: Any = one._subtasks[0].operators[0]  # type: ignore[attr-defined]
        cold._cold.fetch()  # the row of b is needed soon
        place = saved(one.snapshot(), save, "columns asof_join")
    hot, alone = (read(place)["it"][name].to_arrow() for name in (LATEST, LATEST_KEYS))
    assert (hot["who"].to_pylist(), alone["who"].to_pylist()) == (["b"], ["a"])
    both = pa.concat_tables([hot, alone])
    with edit(place, str(tmp_path / "moved")) as savepoint:
        assert savepoint.put("it", LATEST_KEYS, alone.slice(1)) == 0
        assert savepoint.put("it", LATEST, both) == 2
    with edit(place, str(tmp_path / "new")) as savepoint:
        savepoint.put("it", LATEST_KEYS, alone)
        with pytest.raises(StateError, match=f"the key who='a' is in state '{LATEST_KEYS}' of the step, too"):
            savepoint.put("it", LATEST, both)


def test_a_key_may_have_the_name_of_the_event_time(save: Save, tmp_path: Path) -> None:
    schema = pa.schema([("event_time", pa.string()), ("price", pa.int64())])

    def over(**options: Any) -> ColumnHarness:
        def program(stream: Any) -> Any:
            table = TableStream(stream._pipeline, stream._inputs, schema, "test").key_by("event_time")
            return table.over(rows=3).aggregate(n=agg.count()).uid("it").to_records()

        return ColumnHarness(program, schema, **options)

    with over() as one:
        one.process_batch([{"event_time": user, "price": 1} for user in ("a", "b", "a")], [1, 2, 3])
        one.process_watermark(5)
        taken = one.snapshot()
        place = saved(taken, save, "columns over")
    edited(place, tmp_path / "new")
    with over(restored=restored(str(tmp_path / "new"), taken), parallelism=2) as one:
        one.process_batch([{"event_time": user, "price": 1} for user in ("a", "b")], [7, 7])
        one.process_watermark(MAX_WATERMARK)
        assert {value["event_time"]: value["n"] for value, _ in one.records} == {"a": 3, "b": 2}


def test_forms_that_no_row_has_any_more_are_no_obstacle(save: Save, tmp_path: Path) -> None:
    def totals(named: Any, **options: Any) -> ColumnHarness:
        def program(stream: Any) -> Any:
            return _table(stream).key_by("user").running(**named).uid("it").to_records()

        with patch.dict("os.environ", SLUICEWAY_ROCKSDB_COLUMNS="1"):
            return ColumnHarness(program, SCHEMA, state_backend="rocksdb", **options)

    two = {"n": agg.count(), "total": agg.sum("price")}
    with totals(two) as one:
        one.process_batch([row("a"), row("b")])
        one.process_batch([row("c")])
        taken = one.snapshot()
    with totals({"n": agg.count()}, restored=taken) as one:
        one.process_batch([row("a"), row("b")])
        one.process_batch([row("c")])
        place = saved(one.snapshot(), save, "columns window")
    data = read(place)["it"][KEYS].to_arrow()
    assert data.column_names == ["user", "n"]
    with edit(place, str(tmp_path / "new")) as savepoint:
        assert savepoint.put("it", KEYS, data) == 3


def test_a_latest_row_is_one_of_its_key(save: Save, tmp_path: Path) -> None:
    with joined(JOINED["asof"][0]) as one:
        one.process_batch2([rate("a", 0.5), rate("b", 1.5)], [7, 8])
        one.process_watermark(20)
        place = saved(one.snapshot(), save, "columns asof_join")
    table = read(place)["it"][LATEST].to_arrow()
    with (
        pytest.raises(StateError, match=r"the key who='.' has two rows"),
        edit(place, str(tmp_path / "new")) as savepoint,
    ):
        savepoint.put("it", LATEST, pa.concat_tables([table, table]))
    assert {LEFT, RIGHT}.isdisjoint(read(place)["it"].states)


def test_a_state_of_a_function_takes_its_descriptor(keyed: Any, save: Save, tmp_path: Path) -> None:
    def fill(store: Any) -> None:
        store.current_key = "k"
        store.value_state(sw.ValueStateDescriptor("mine", int)).update(1)

    place = save([OperatorSnapshot("op", keyed=keyed(fill))])
    with (
        edit(place, str(tmp_path / "new")) as savepoint,
        pytest.raises(StateError, match=r"give put.. its descriptor"),
    ):
        savepoint.put("op", "mine", [])
