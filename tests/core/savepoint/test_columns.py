"""State of steps in columns as tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.core.table.column_harness import ColumnHarness, TwoColumnHarness

import sluiceway as sw
from sluiceway.columns.state_names import DEFINITION, LATEST, LEFT, PROGRESS, SLICES
from sluiceway.errors import CheckpointError, StateError
from sluiceway.operators import OperatorSnapshot
from sluiceway.savepoint import edit, read
from sluiceway.savepoint.lookup import find_state
from sluiceway.savepoint.sizes import state_sizes
from sluiceway.table import TableStream, agg
from sluiceway.windows import EventTimeSessionWindows, TumblingEventTimeWindows

SCHEMA = pa.schema([("user", pa.string()), ("item", pa.int32()), ("price", pa.int64())])
NAMED = {
    "n": agg.count(),
    "total": agg.sum("price"),
    "high": agg.max("price"),
    "different": agg.count_distinct("item"),
}
Save = Callable[..., str]


def moment(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


def windows(assigner: Any, named: Any = NAMED, keys: Any = ("user", "item"), **options: Any) -> ColumnHarness:
    def program(stream: Any) -> Any:
        table = TableStream(stream._pipeline, stream._inputs, SCHEMA, "test").key_by(*keys)
        return (table if assigner is None else table.window(assigner)).aggregate(**named).to_records()

    return ColumnHarness(program, SCHEMA, **options)


def row(user: str | None, item: int, price: int | None) -> dict[str, Any]:
    return {"user": user, "item": item, "price": price}


def saved(harness: Any, save: Save, kind: str = "columns window") -> tuple[str, str]:
    """Return the place of a checkpoint of a harness, and the uid of its step."""
    taken = harness.snapshot()
    subtasks: dict[int, list[Any]] = {}
    for one in taken.operators:
        if one.keyed is not None:
            subtasks.setdefault(one.subtask, []).append(one)
    (uid,) = {one.uid for some in subtasks.values() for one in some}
    return save(*(subtasks[index] for index in sorted(subtasks)), kind=kind), uid


@pytest.mark.parametrize("parallelism", [1, 3])
def test_aggregates_are_a_row_for_each_key_and_window(save: Save, parallelism: int) -> None:
    with windows(TumblingEventTimeWindows(10), parallelism=parallelism) as columns:
        columns.process_batch([row("a", 1, 5), row("b", 2, None), row("a", 1, 7), row(None, 3, 1)], [1, 2, 3, 14])
        place, uid = saved(columns, save)
    table = read(place)[uid][SLICES]
    assert table.kind == "aggregates"
    assert table.schema.names == ["user", "item", "window_start", "window_end", *NAMED]
    assert table.schema.field("item").type == pa.int32()
    found = sorted(table.rows(), key=lambda found: str(found["user"]))
    assert [(f["user"], f["item"], f["window_start"], f["window_end"]) for f in found] == [
        (None, 3, moment(10), moment(20)),
        ("a", 1, moment(0), moment(10)),
        ("b", 2, moment(0), moment(10)),
    ]
    assert [f["n"] for f in found] == [{"count": 1}, {"count": 2}, {"count": 1}]
    assert [(f["total"]["total"], f["total"]["some"]) for f in found] == [(1, True), (12, True), (0, False)]
    assert {f["number"] for f in read(place)[uid][PROGRESS].rows()} <= {0, 1, 2, 3, 4}
    assert table.to_arrow().num_rows == 3
    assert len(list(table.batches(rows=1))) == 3


def test_one_subtask_may_have_sums_in_several_parts(save: Save) -> None:
    with windows(TumblingEventTimeWindows(10), {"total": agg.sum("price"), "mean": agg.mean("price")}) as columns:
        columns.process_batch([row("a", 1, 5)], [1])
        columns.process_batch([row("b", 1, 2**62), row("b", 1, 2**62), row("c", 1, -3)], [11, 11, 11])
        place, uid = saved(columns, save)
    found = {f["user"]: f["total"] for f in read(place)[uid][SLICES].rows()}
    of = {user: (parts["limb1"] << 32) + parts["limb0"] for user, parts in found.items()}
    assert of == {"a": 5, "b": 2**63, "c": -3}


def test_without_windows_there_are_no_columns_of_them(save: Save) -> None:
    with windows(None, {"n": agg.count()}, ["user"]) as columns:
        columns.process_batch([row("a", 1, 5)])
        place, uid = saved(columns, save)
    assert list(read(place)[uid][SLICES].rows()) == [{"user": "a", "n": {"count": 1}}]
    definitions = list(read(place)[uid][DEFINITION].rows())
    assert {found["key_group"] for found in definitions} == set(range(128))
    assert all('"windows": "none"' in found["definition"] for found in definitions)
    shown = {found.state: found.value for found in sw.read_state(place)}
    assert shown.keys() == {SLICES, PROGRESS, DEFINITION}
    assert shown[DEFINITION]["windows"] == "none"
    (value,) = find_state(place, uid, SLICES, "a")
    assert (value.namespace, value.value) == ((), {"n": {"count": 1}})


def test_sessions_have_their_bounds(save: Save) -> None:
    with windows(EventTimeSessionWindows(4), {"n": agg.count()}, ["user"]) as columns:
        columns.process_batch([row("a", 1, 5), row("a", 1, 5), row("a", 1, 5)], [1, 3, 20])
        place, uid = saved(columns, save, "columns session")
    found = sorted(read(place)[uid][SLICES].rows(), key=lambda f: f["window_start"])
    assert found == [
        {"user": "a", "window_start": moment(1), "window_end": moment(7), "n": {"count": 2}},
        {"user": "a", "window_start": moment(20), "window_end": moment(24), "n": {"count": 1}},
    ]


def test_rows_that_a_join_keeps_are_a_table(save: Save) -> None:
    other = pa.schema([("user", pa.string()), ("rate", pa.float64())])

    def program(left: Any, right: Any) -> Any:
        one, two = (
            TableStream(s._pipeline, s._inputs, schema, "test").key_by("user")
            for s, schema in ((left, SCHEMA), (right, other))
        )
        return one.interval_join(two, -5, 5).to_records()

    with TwoColumnHarness(program, SCHEMA, other) as columns:
        columns.process_batch1([row("a", 1, 5), row("b", 2, None)], [100, 200])
        place, uid = saved(columns, save, "columns interval_join")
    found = sorted(read(place)[uid][LEFT].rows(), key=lambda f: f["user"])
    assert found == [
        {"event_time": moment(100), **row("a", 1, 5)},
        {"event_time": moment(200), **row("b", 2, None)},
    ]
    assert LATEST not in read(place)[uid].states
    with pytest.raises(StateError, match="has rows, not values of keys"):
        find_state(place, uid, LEFT, "a")


@pytest.fixture
def place_and_uid(save: Save) -> tuple[str, str]:
    with windows(TumblingEventTimeWindows(10)) as columns:
        columns.process_batch([row("a", 1, 5), row("b", 2, None), row("a", 1, 7)], [1, 2, 3])
        return saved(columns, save)


def test_a_key_is_found(place_and_uid: tuple[str, str]) -> None:
    place, uid = place_and_uid
    (value,) = find_state(place, uid, SLICES, '["a", 1]')
    assert (value.key, value.namespace, value.kind) == (("a", 1), (0, 10), "aggregates")
    assert value.value["n"] == {"count": 2}
    assert len(find_state(place, uid, SLICES, '["a", 1]', namespace="[0, 10]")) == 1
    with pytest.raises(StateError, match=r"the key 'c' has no state .* others are "):
        find_state(place, uid, SLICES, "c")


def test_sizes_count_rows(place_and_uid: tuple[str, str]) -> None:
    place, _ = place_and_uid
    found = {size.state: size for size in state_sizes(place)}
    assert (found[SLICES].kind, found[SLICES].keys, found[SLICES].entries) == ("aggregates", 2, 2)
    assert found[SLICES].largest_key is None
    assert found[PROGRESS].kind == "progress"


def test_rows_are_shown(place_and_uid: tuple[str, str]) -> None:
    place, uid = place_and_uid
    found = sorted(sw.read_state(place, state=SLICES), key=lambda r: r.key)
    assert [(r.uid, r.kind, r.namespace, r.key, r.value["n"]) for r in found] == [
        (uid, "aggregates", (0, 10), ("a", 1), {"count": 2}),
        (uid, "aggregates", (0, 10), ("b", 2), {"count": 1}),
    ]


def test_it_is_not_edited_value_by_value(place_and_uid: tuple[str, str], tmp_path: Path) -> None:
    place, uid = place_and_uid
    blocks = sw.ValueStateDescriptor(SLICES, bytes)
    changed = edit(place, str(tmp_path / "1"))
    with pytest.raises(StateError, match="held in columns, many keys to a block"), changed as savepoint:
        savepoint.transform(uid, blocks, lambda key, value: value)
    replaced = edit(place, str(tmp_path / "2"))
    with pytest.raises(StateError, match="held in columns, many keys to a block"), replaced as savepoint:
        savepoint.put(uid, blocks, [(1, b"")], key=0, value=1)
    divided = edit(place, str(tmp_path / "3"), max_parallelism=64)
    with pytest.raises(StateError, match=r"cannot be divided into 64 key groups.*Keep the number.*128"), divided:
        pass
    with edit(place, str(tmp_path / "4")) as savepoint:
        savepoint.rename(uid, "other")
    assert read(str(tmp_path / "4"))["other"][SLICES].to_arrow().num_rows == 2


def test_a_state_of_a_function_may_have_such_a_name(keyed: Any, save: Save) -> None:
    def fill(store: Any) -> None:
        store.current_key = "k"
        store.value_state(sw.ValueStateDescriptor(SLICES, bytes)).update(b"mine")

    place = save([OperatorSnapshot("op", keyed=keyed(fill))])
    assert list(read(place)["op"][SLICES].rows()) == [{"key": "k", "value": b"mine"}]
    assert [r.value for r in sw.read_state(place)] == [b"mine"]


@pytest.mark.parametrize("kind", ["columns window", "columns interval_join"])
def test_a_damaged_block_is_named(keyed: Any, save: Save, kind: str) -> None:
    name = SLICES if kind == "columns window" else LEFT

    def fill(store: Any) -> None:
        store.current_key = 1
        store.value_state(sw.ValueStateDescriptor(name, bytes)).update(b"broken")

    place = save([OperatorSnapshot("op", keyed=keyed(fill))], kind=kind)
    for attempt in (lambda: read(place)["op"][name].to_arrow(), lambda: list(sw.read_state(place))):
        with pytest.raises(CheckpointError, match=f"state '{name}' of step 'op' cannot be read: no (block|Arrow)"):
            attempt()
