"""State of checkpoints as Arrow tables."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import sluiceway as sw
from sluiceway.errors import CheckpointError, StateError, UnknownNameError
from sluiceway.keygroups import KeyGroupRange, key_group, subtask_for_key_group
from sluiceway.operators import OperatorSnapshot
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.operators.keyed_timers import TIMERS
from sluiceway.operators.operator_state import ListMode, ListSnapshot
from sluiceway.savepoint import read
from sluiceway.savepoint.json_text import as_json, as_text
from sluiceway.state import BackendContext, KeyedSnapshot, StateBackend
from sluiceway.windows.base import GLOBAL_WINDOW, TimeWindow

pa = pytest.importorskip("pyarrow")

Keyed = Callable[..., KeyedSnapshot]
Save = Callable[..., str]

both = pytest.mark.parametrize("backend", ["memory", "rocksdb"], indirect=True)

UTC_MS = pa.timestamp("ms", "UTC")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    street: str
    number: int


@dataclass
class Account:
    owner: str
    balance: Decimal
    id: UUID
    home: Address
    colour: Colour
    tags: list[str] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)
    since: dt.datetime | None = None
    either: int | str = 0


class Job:
    """A class that nothing knows how to describe."""

    def __init__(self, name: str) -> None:
        self.name = name


ANN = Account(
    "ann",
    Decimal("1.20"),
    UUID(int=7),
    Address("High Street", 3),
    Colour.RED,
    ["a", "b"],
    {"day": 5.0},
    dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "x",
)


def one_key(descriptor: Any, value: Any, *, key: Any = "ann", namespace: Any = ()) -> Callable[..., None]:
    def fill(store: KeyedStateStore) -> None:
        store.current_key = key
        store.value_state(descriptor, namespace).update(value)

    return fill


def table_of(save: Save, snapshot: KeyedSnapshot, name: str, **options: Any) -> Any:
    path = save([OperatorSnapshot("op", keyed=snapshot)])
    return read(path, **options)["op"][name].to_arrow()


@both
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_state_in_two_forms_is_read_whole(
    backend: StateBackend, keyed: Keyed, save: Save, parallelism: int
) -> None:
    """Subtasks that have not asked for it since its type changed write it as it was, also beside another form."""

    @dataclass
    class Count:
        n: int

    old = Count

    @dataclass
    class Count:  # type: ignore[no-redef]
        n: int
        note: str = "-"

    keys = [next(k for k in "abcdefgh" if subtask_for_key_group(key_group(k, 128), 2, 128) == i) for i in (0, 1)]
    snapshots = [
        keyed(one_key(sw.ValueStateDescriptor("count", of), of(i), key=keys[i]), i, 2)
        for i, of in enumerate((old, Count))
    ]
    if parallelism == 1:
        context = BackendContext("op", 0, KeyGroupRange.of_subtask(0, 1, 128), 128)
        state = backend.create_keyed(context)
        state.restore(snapshots)
        snapshots = [state.snapshot()]
        state.close()
    path = save(*([OperatorSnapshot("op", keyed=each)] for each in snapshots))
    found = read(path)["op"]["count"].to_arrow().to_pylist()
    assert {row["key"]: (row["n"], row["note"]) for row in found} == {keys[0]: (0, None), keys[1]: (1, "-")}


# -- what becomes of types --------------------------------------------------------------------------------------


@both
def test_fields_are_columns(keyed: Keyed, save: Save) -> None:
    found = table_of(save, keyed(one_key(sw.ValueStateDescriptor("account", Account), ANN)), "account")
    assert {field.name: field.type for field in found.schema} == {
        "key": pa.string(),
        "owner": pa.string(),
        "balance": pa.string(),
        "id": pa.string(),
        "home": pa.struct([("street", pa.string()), ("number", pa.int64())]),
        "colour": pa.string(),
        "tags": pa.list_(pa.string()),
        "limits": pa.map_(pa.string(), pa.float64()),
        "since": pa.timestamp("us", "UTC"),
        "either": pa.string(),
    }
    assert found.to_pylist() == [
        {
            "key": "ann",
            "owner": "ann",
            "balance": "1.20",
            "id": str(UUID(int=7)),
            "home": {"street": "High Street", "number": 3},
            "colour": "red",
            "tags": ["a", "b"],
            "limits": [("day", 5.0)],
            "since": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
            "either": "x",
        }
    ]


@pytest.mark.parametrize(
    ("type_", "value", "kind", "given"),
    [
        (int, 3, pa.int64(), 3),
        (float | None, None, pa.float64(), None),
        (bytes, b"\xc1x", pa.binary(), b"\xc1x"),
        (dt.date, dt.date(2026, 1, 2), pa.date32(), dt.date(2026, 1, 2)),
        (dt.timedelta, dt.timedelta(seconds=1.5), pa.duration("us"), dt.timedelta(seconds=1.5)),
        (set[int], {3}, pa.list_(pa.int64()), [3]),
        (list[tuple[int, str]], [(1, "a")], pa.list_(pa.struct([("_0", "i8"), ("_1", "str")])), None),
        (None, Decimal("1.5"), pa.string(), "1.5"),
        (None, {"limit": 3}, None, None),
    ],
    ids=str,
)
def test_types(keyed: Keyed, save: Save, type_: Any, value: Any, kind: Any, given: Any) -> None:
    found = table_of(save, keyed(one_key(sw.ValueStateDescriptor("v", type_), value)), "v")
    if isinstance(value, dict):
        assert found.to_pylist() == [{"key": "ann", "limit": 3}]
        return
    if isinstance(given, type(None)) and value is not None:
        assert found.column("value").to_pylist() == [[{"_0": 1, "_1": "a"}]]
        return
    assert found.schema.field("value").type == kind
    assert found.column("value").to_pylist() == [given]


@both
def test_tuples_are_columns(keyed: Keyed, save: Save) -> None:
    typed = sw.ValueStateDescriptor("typed", tuple[str, int])
    untyped = sw.ValueStateDescriptor("untyped")

    def fill(store: KeyedStateStore) -> None:
        for number in range(200):  # enough for blocks
            store.current_key = ("k", number)
            store.value_state(typed).update(("a", number))
            store.value_state(untyped).update((number, 0.5))

    path = save([OperatorSnapshot("op", keyed=keyed(fill))])
    for name, first, second in (("typed", pa.string(), pa.int64()), ("untyped", pa.int64(), pa.float64())):
        found = read(path)["op"][name].to_arrow()
        assert [field.name for field in found.schema] == ["key_0", "key_1", "value_0", "value_1"]
        assert [field.type for field in found.schema] == [pa.string(), pa.int64(), first, second]
        assert sorted(found.column("key_1").to_pylist()) == list(range(200))


def test_keys_of_several_kinds_are_texts(keyed: Keyed, save: Save) -> None:
    descriptor = sw.ValueStateDescriptor("v", int)

    def fill(store: KeyedStateStore) -> None:
        for key in (1, "one", (1, "one"), None):
            store.current_key = key
            store.value_state(descriptor).update(1)

    found = table_of(save, keyed(fill), "v")
    assert found.schema.field("key").type == pa.string()
    assert sorted(map(str, found.column("key").to_pylist())) == ["1", "None", '[1, "one"]', "one"]


def test_a_field_called_like_a_column_of_ours(keyed: Keyed, save: Save) -> None:
    @dataclass
    class Pair:
        key: int
        value: int

    found = table_of(save, keyed(one_key(sw.ValueStateDescriptor("v", Pair), Pair(1, 2))), "v")
    assert found.to_pylist() == [{"key": "ann", "value_key": 1, "value": 2}]


def test_a_value_of_another_type_than_declared_makes_texts(keyed: Keyed, save: Save) -> None:
    def fill(store: KeyedStateStore) -> None:
        for key, value in (("a", 1), ("b", "two"), ("c", 2**70)):
            # Not by update(), which refuses it.
            store.value_state(sw.ValueStateDescriptor("v", int)).bulk()[key] = value  # type: ignore[attr-defined]

    found = table_of(save, keyed(fill), "v")
    assert sorted(found.column("value").to_pylist()) == ["1", str(2**70), "two"]


@pytest.mark.parametrize(
    "values",
    [
        [5, "a"],
        [None, 5, "a"],
        [1, "a", 2.5],
        [1, True],
        [True, 1],
        [b"x", 5],
        [1, 2**70],
        [2**60, 2.5],
        [dt.date(2020, 1, 2), 5],
        [dt.date(2020, 1, 2), dt.datetime(2020, 1, 2, 3)],
        [[1], ["a"]],
        [{}, True],
    ],
    ids=str,
)
def test_values_of_several_types_are_text_in_any_order(keyed: Keyed, save: Save, values: list[Any]) -> None:
    def fill(store: KeyedStateStore) -> None:
        store.current_key = "k"
        store.list_state(sw.ListStateDescriptor("one way")).add_all(values)
        store.list_state(sw.ListStateDescriptor("other way")).add_all(reversed(values))
        for number, value in enumerate(values):
            store.current_key = number
            store.value_state(sw.ValueStateDescriptor("apart")).update([value])

    found = read(save([OperatorSnapshot("op", keyed=keyed(fill))]))["op"]
    text = [as_text(value) for value in values]
    assert [row["value"] for row in found["one way"].rows()] == text
    assert [row["value"] for row in found["other way"].rows()] == text[::-1]
    assert found["apart"].to_arrow().num_rows == len(values)


def test_integers_beside_floats_are_floats(keyed: Keyed, save: Save) -> None:
    def fill(store: KeyedStateStore) -> None:
        store.current_key = "ann"
        store.list_state(sw.ListStateDescriptor("v")).add_all([(1, [2, 2.5]), (1.5, [1])])

    found = table_of(save, keyed(fill), "v")
    assert found.select(["value_0", "value_1"]).to_pylist() == [
        {"value_0": 1.0, "value_1": [2.0, 2.5]},
        {"value_0": 1.5, "value_1": [1.0]},
    ]


def test_an_integer_beyond_the_column_is_named(keyed: Keyed, save: Save) -> None:
    big = 2**64 - 1
    with pytest.raises(StateError, match=rf"state 'v' of operator 'op' .* {big} does not go into column 'value'"):
        table_of(save, keyed(one_key(sw.ValueStateDescriptor("v", int), big)), "v")


# -- kinds of state ---------------------------------------------------------------------------------------------


@both
def test_lists_and_maps_are_rows_or_nested(keyed: Keyed, save: Save) -> None:
    def fill(store: KeyedStateStore) -> None:
        store.current_key = "ann"
        store.list_state(sw.ListStateDescriptor("seen", int)).add_all([7, 8])
        store.map_state(sw.MapStateDescriptor("pages", int, key_type=str)).put_all({"/": 1, "/about": 2})

    path = save([OperatorSnapshot("op", keyed=keyed(fill))])
    seen, pages = (read(path)["op"][name] for name in ("seen", "pages"))
    assert list(seen.rows()) == [
        {"key": "ann", "index": 0, "value": 7},
        {"key": "ann", "index": 1, "value": 8},
    ]
    assert list(pages.rows()) == [
        {"key": "ann", "map_key": "/", "value": 1},
        {"key": "ann", "map_key": "/about", "value": 2},
    ]
    assert list(seen.nested.rows()) == [{"key": "ann", "value": [7, 8]}]
    assert list(pages.nested.rows()) == [{"key": "ann", "value": [("/", 1), ("/about", 2)]}]
    assert (seen.kind, seen.type, pages.kind, pages.type) == ("list", "list[int]", "map", "dict[str, int]")


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_times_to_live(keyed: Keyed, save: Save, kind: str) -> None:
    ttl = sw.StateTtlConfig("1h")

    def fill(store: KeyedStateStore) -> None:
        store.current_key = "ann"
        store.value_state(sw.ValueStateDescriptor("value", int, ttl=ttl)).update(3)
        store.list_state(sw.ListStateDescriptor("list", int, ttl=ttl)).add(3)
        store.map_state(sw.MapStateDescriptor("map", int, key_type=int, ttl=ttl)).put(9, 3)

    path = save([OperatorSnapshot("op", keyed=keyed(fill))])
    table = read(path)["op"][kind]
    [row] = table.rows()
    touched = dt.datetime.fromtimestamp(5, dt.UTC)
    assert (row["value"], row["touched_at"], row["expires_at"]) == (3, touched, touched + dt.timedelta(hours=1))
    assert table.ttl_ms == 3_600_000
    assert table.schema.field("expires_at").type == UTC_MS
    if kind != "value":
        [whole] = table.nested.rows()
        assert (whole["value"], whole["touched_at"]) == ([3] if kind == "list" else [(9, 3)], touched)


@both
@pytest.mark.parametrize("ttl", [None, sw.StateTtlConfig("1h")], ids=["for ever", "for an hour"])
@pytest.mark.parametrize("type_", [int, None], ids=["typed", "untyped"])
def test_lists_and_maps_of_many_keys(keyed: Keyed, save: Save, type_: Any, ttl: Any) -> None:
    pages = sw.MapStateDescriptor("pages", type_, key_type=type_ and str, ttl=ttl)

    def fill(store: KeyedStateStore) -> None:
        for number in range(300):
            store.current_key = number
            store.list_state(sw.ListStateDescriptor("seen", type_, ttl=ttl)).add_all([number, 8])
            store.map_state(pages).put_all({"/": number, "/about": 2})

    found = read(save([OperatorSnapshot("op", keyed=keyed(fill))]))["op"]
    seen = sorted((row["key"], row["index"], row["value"]) for row in found["seen"].rows())
    assert seen == [row for n in range(300) for row in ((n, 0, n), (n, 1, 8))]
    visited = sorted((row["key"], row["map_key"], row["value"]) for row in found["pages"].rows())
    assert visited == [row for n in range(300) for row in ((n, "/", n), (n, "/about", 2))]


@both
def test_windows_are_columns(keyed: Keyed, save: Save) -> None:
    descriptor = sw.ValueStateDescriptor("windows: reduced")

    def fill(store: KeyedStateStore) -> None:
        store.current_key = "ann"
        store.value_state(descriptor, TimeWindow(1_000, 2_000)).update(1)
        store.value_state(descriptor, (2_000, 3_000)).update(2)

    found = table_of(save, keyed(fill), "windows: reduced")
    assert [field.name for field in found.schema] == ["key", "window_start", "window_end", "value"]
    second = dt.datetime.fromtimestamp(2, dt.UTC)
    assert sorted(zip(*(found.column(n).to_pylist() for n in ("window_end", "value")), strict=True)) == [
        (second, 1),
        (second + dt.timedelta(seconds=1), 2),
    ]


def test_the_global_window_has_a_name(keyed: Keyed, save: Save) -> None:
    fill = one_key(sw.ValueStateDescriptor("v"), 1, namespace=GLOBAL_WINDOW)
    assert table_of(save, keyed(fill), "v").to_pylist() == [
        {"key": "ann", "namespace": "global window", "value": 1}
    ]


def test_timers_are_a_table(keyed: Keyed, save: Save) -> None:
    window, end_of_time = TimeWindow(0, 10), 2**63 - 1

    def fill(store: KeyedStateStore) -> None:
        store.current_key = "ann"
        store.value_state(TIMERS).update([(True, 9, window), (False, end_of_time, window)])

    path = save([OperatorSnapshot("op", keyed=keyed(fill))])
    timers = read(path)["op"].timers
    assert timers is not None
    assert timers.kind == "timers"
    rows = [(r["key"], r["domain"], r["fires_at"]) for r in timers.rows()]
    assert rows == [("ann", "event time", 9), ("ann", "processing time", end_of_time)]
    assert [row["window_end"] for row in timers.rows()] == [dt.datetime.fromtimestamp(0.01, dt.UTC)] * 2


@both
def test_timers_without_a_namespace_are_a_table(keyed: Keyed, save: Save) -> None:
    def fill(store: KeyedStateStore) -> None:
        for number in range(100):
            store.current_key = number
            store.value_state(TIMERS).update((True, number, False, 7))

    path = save([OperatorSnapshot("op", keyed=keyed(fill))])
    timers = read(path)["op"].timers
    assert timers is not None
    rows = sorted((r["key"], r["domain"], round(r["fires_at"].timestamp() * 1000)) for r in timers.rows())
    assert rows == [row for n in range(100) for row in ((n, "event time", n), (n, "processing time", 7))]


def test_state_that_is_not_keyed(save: Save) -> None:
    pytest.importorskip("pyarrow")
    parts = []
    for subtask in range(2):
        offsets = ListSnapshot(
            "offsets", ListMode.SPLIT, "msgspec", 1, "int", subtask, 2, (b"\x05", b"\x06"), "int"
        )
        parts.append(
            [
                OperatorSnapshot(
                    "rules",
                    lists=(offsets,),
                    broadcast={"rules": {"a": {"limit": 3}}},
                    splits=(("file", subtask),),
                    pending=((("late", 1), 7),),
                )
            ]
        )
    found = read(save(*parts))
    assert found.in_flight == {}
    rules = found["rules"]
    assert (rules.parallelism, rules.max_parallelism, rules.kind, rules.name) == (2, 128, "process", "step rules")
    assert {name: table.kind for name, table in rules.states.items()} == {
        "offsets": "operator list",
        "rules": "broadcast",
        "splits": "splits",
        "in flight": "in flight",
    }
    assert [(r["subtask"], r["index"], r["value"]) for r in rules["offsets"].rows()] == [
        (0, 0, 5),
        (0, 1, 6),
        (1, 0, 5),
        (1, 1, 6),
    ]
    assert list(rules["rules"].rows()) == [{"map_key": "a", "limit": 3}]
    assert [row["value_1"] for row in rules["splits"].rows()] == [0, 1]
    moment = dt.datetime.fromtimestamp(0.007, dt.UTC)
    assert [(r["timestamp"], r["value_0"]) for r in rules["in flight"].rows()] == [(moment, "late")] * 2


# -- what is pickled ---------------------------------------------------------------------------------------------


def test_objects_are_bytes_with_a_name(keyed: Keyed, save: Save) -> None:
    def fill(store: KeyedStateStore) -> None:
        for key, value in (("a", Job("x")), ("b", 5), ("c", None)):
            store.current_key = key
            store.value_state(sw.ValueStateDescriptor("v")).update(value)

    path = save([OperatorSnapshot("op", keyed=keyed(fill))])
    rows = {row["key"]: row for row in read(path)["op"]["v"].rows()}
    assert (rows["a"]["value_type"], rows["b"]["value_type"]) == ("Job", "int")
    assert b"Job" in rows["a"]["value"]
    assert rows["b"]["value"] == b"5"


def test_objects_are_unpickled_where_that_is_allowed(keyed: Keyed, save: Save) -> None:
    snapshot = keyed(one_key(sw.ValueStateDescriptor("v"), ANN))
    [row] = table_of(save, snapshot, "v", allow_pickle=True).to_pylist()
    assert (row["owner"], row["home"], row["balance"]) == ("ann", {"street": "High Street", "number": 3}, "1.20")


def test_nothing_runs(keyed: Keyed, save: Save, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.makedirs, (str(tmp_path / "hacked"), 0o777, True)

    typed = sw.ValueStateDescriptor("typed", int)

    def fill(store: KeyedStateStore) -> None:
        store.current_key = "a"
        store.value_state(sw.ValueStateDescriptor("v")).update(Evil())
        store.value_state(typed).bulk()["a"] = Evil()  # type: ignore[attr-defined]

    path = save([OperatorSnapshot("op", keyed=keyed(fill), splits=(Evil(),))])
    for table in read(path).tables():
        [row] = table.rows()
        assert row["value_type"] == "makedirs"
    assert not (tmp_path / "hacked").exists()
    read(path, allow_pickle=True)["op"]["v"].to_arrow()
    assert (tmp_path / "hacked").exists(), "it would have"


def in_itself() -> Any:
    value: dict[str, Any] = {"name": "root"}
    value["parent"] = value
    return value


def nested(levels: int) -> Any:
    value: Any = (1,)
    for _ in range(levels):
        value = (value,)
    return value


class OfLength:
    """Pickled as a bytearray that has a length and no bytes."""

    def __reduce__(self) -> Any:
        return bytearray, (50_000_000,)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(in_itself(), id="a value that contains itself"),
        pytest.param(nested(450), id="a value nested deeply"),
        pytest.param([["x" * (1 << 20)] * 10] * 10, id="a value far longer written out than pickled"),
        pytest.param(OfLength(), id="a length without bytes"),
    ],
)
def test_a_value_without_an_end_in_sight_stays_pickled(keyed: Keyed, save: Save, value: Any) -> None:
    snapshot = keyed(one_key(sw.ValueStateDescriptor("v"), value))
    path = save([OperatorSnapshot("op", keyed=snapshot)])
    [row] = read(path)["op"]["v"].rows()
    assert isinstance(row["value"], bytes)
    assert row["value_type"] in ("pickle", "bytearray", "msgspec")
    [found] = sw.read_state(path)
    assert as_json(found.value) == f'"<{found.value.serializer}, {len(found.value.data)} bytes>"'


def test_what_is_in_several_places_is_shown_in_each(keyed: Keyed, save: Save) -> None:
    shared = [1, {"a": bytearray(b"b"), "c": {2}}]
    snapshot = keyed(one_key(sw.ValueStateDescriptor("v"), (shared, nested(150), shared)))
    [found] = sw.read_state(save([OperatorSnapshot("op", keyed=snapshot)]))
    assert found.value == (shared, nested(150), shared)


def test_a_value_that_contains_itself_is_no_table_where_it_is_unpickled(keyed: Keyed, save: Save) -> None:
    snapshot = keyed(one_key(sw.ValueStateDescriptor("v"), in_itself()))
    path = save([OperatorSnapshot("op", keyed=snapshot)])
    with pytest.raises(StateError) as caught:
        read(path, allow_pickle=True)["op"]["v"].to_arrow()
    assert str(caught.value) == (
        "state 'v' of operator 'op' cannot be a table: a value contains itself, or is nested too deeply. "
        "Read its rows with sluiceway.read_state() instead"
    )
    [found] = sw.read_state(path, trusted=True)
    assert found.value["parent"]["parent"]["name"] == "root"


# -- batches, and who takes them ------------------------------------------------------------


def numbers(store: KeyedStateStore, subtask: int = 0, parallelism: int = 1) -> None:
    from sluiceway.keygroups import key_group, subtask_for_key_group

    for number in range(1_000):
        if subtask_for_key_group(key_group(number, 128), parallelism, 128) == subtask:
            store.current_key = number
            store.value_state(sw.ValueStateDescriptor("n", int)).update(number * 2)


@both
def test_batches_are_of_the_size_that_is_asked_for(keyed: Keyed, save: Save) -> None:
    parts = [
        [OperatorSnapshot("op", keyed=keyed(lambda store, i=i: numbers(store, i, 3), i, 3))] for i in range(3)
    ]
    table = read(save(*parts))["op"]["n"]
    sizes = [batch.num_rows for batch in table.batches(rows=150)]
    assert sizes == [150] * 6 + [100]
    assert {row["key"]: row["value"] for row in table.rows()} == {n: 2 * n for n in range(1_000)}
    assert table.schema == table.to_arrow().schema


@both
def test_one_key_group_is_read_at_a_time(keyed: Keyed, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    from sluiceway.savepoint import arrow_reader as sources

    table = read(save([OperatorSnapshot("op", keyed=keyed(numbers))]))["op"]["n"]
    assert table.schema.names == ["key", "value"]
    decoded = []
    decode = sources.decode_blocks
    monkeypatch.setattr(sources, "decode_blocks", lambda data: decoded.append(len(data)) or decode(data))
    batches = table.batches(rows=20)
    next(batches)
    assert 0 < len(decoded) < 10
    batches.close()  # type: ignore[attr-defined]


def test_pandas(keyed: Keyed, save: Save) -> None:
    pytest.importorskip("pandas")
    table = read(save([OperatorSnapshot("op", keyed=keyed(numbers))]))["op"]["n"]
    assert table.to_pandas()["value"].sum() == 999_000


def test_polars(keyed: Keyed, save: Save) -> None:
    polars = pytest.importorskip("polars")
    table = read(save([OperatorSnapshot("op", keyed=keyed(numbers))]))["op"]["n"]
    assert table.to_polars()["value"].sum() == polars.DataFrame(table)["value"].sum() == 999_000


def test_duckdb(keyed: Keyed, save: Save) -> None:
    duckdb = pytest.importorskip("duckdb")
    table = read(save([OperatorSnapshot("op", keyed=keyed(numbers))]))["op"]["n"]
    assert table is not None
    query = "SELECT sum(value), count(*) FROM table_ WHERE key < 500"
    table_ = table
    assert table_ is table
    for _ in range(2):  # each time from the files
        assert duckdb.sql(query).fetchall() == [(249_500, 500)]


# -- what is not there ----------------------------------------------------------------------


def test_what_is_not_there_is_named(keyed: Keyed, save: Save, tmp_path: Path) -> None:
    found = read(save([OperatorSnapshot("op", keyed=keyed(numbers))]))
    with pytest.raises(UnknownNameError, match=r"no step with the uid 'po' in the checkpoint\. Known: 'op'"):
        found["po"]
    with pytest.raises(UnknownNameError, match=r"no state 'm' of step 'op'\. Known: 'n'"):
        found["op"]["m"]
    with pytest.raises(UnknownNameError, match=r"no state 'm' in the checkpoint"):
        found.tables(state="m")
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        read(str(tmp_path))


def test_it_says_what_there_is(keyed: Keyed, save: Save) -> None:
    found = read(save([OperatorSnapshot("op", keyed=keyed(numbers))]))
    assert repr(found) == "<checkpoint 1 of job 'job' with op>"
    assert [repr(operator) for operator in found] == ["<operator 'op' with n>"]
    assert repr(found.tables("op", "n")) == "[<value 'n' of int of operator 'op'>]"
