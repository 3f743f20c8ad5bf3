"""Savepoints made of tables: rows in, state out."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

import sluiceway as sw
from sluiceway.errors import CheckpointError, ConfigurationError, DeclaredTypeError, StateError, UnstableKeyError
from sluiceway.savepoint import read, write
from sluiceway.windows.base import TimeWindow

pa = pytest.importorskip("pyarrow")

COUNT = sw.ValueStateDescriptor("count", int)
SEEN = sw.ListStateDescriptor("seen", int)
PAGES = sw.MapStateDescriptor("pages", int, key_type=str)
ROWS = [{"word": "a", "n": 1}, {"word": "b", "n": 2}]


@dataclass
class Account:
    owner: str
    balance: Decimal
    tags: list[str] = field(default_factory=list)
    active: bool = True


class Point(NamedTuple):
    x: int
    y: int = 0


class Place(msgspec.Struct, rename="upper"):
    x: int
    y: int = 0


class Spot(msgspec.Struct, array_like=True):
    x: int
    y: int = 0


class Marked(msgspec.Struct, array_like=True, rename="camel"):
    its_tags: list[str] = []
    x: int = 0


class Pin(pydantic.BaseModel):
    x: int
    y: int = 0


@dataclass
class Named:
    """Pickled, as its fields alone do not make it."""

    name: str
    points: int = 0

    def __post_init__(self) -> None:
        self.name = self.name.strip()


class Shop:
    def __init__(self, word: str, n: int) -> None:
        self.word, self.n = word, n


class Total(sw.AggregateFunction[int, list[int], int]):
    def create_accumulator(self) -> list[int]:
        return [0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [accumulator[0] + value]

    def get_result(self, accumulator: list[int]) -> int:
        return accumulator[0]

    def merge(self, accumulator1: list[int], accumulator2: list[int]) -> list[int]:
        return [accumulator1[0] + accumulator2[0]]


def written(place: Path, descriptor: Any, data: Any, **how: Any) -> list[dict[str, Any]]:
    """The rows of a state that was made of a table, in the order of the keys."""
    with write(str(place / "made")) as savepoint:
        assert savepoint.put("op", descriptor, data, **how) >= 0
    rows = read(savepoint.location, allow_pickle=True)["op"][descriptor.name].rows()
    return sorted(rows, key=lambda row: str(row.get("key", row.get("key_0"))))


def frames() -> dict[str, Any]:
    table = pa.Table.from_pylist(ROWS)
    return {
        "dicts": ROWS,
        "tuples": [(row["word"], row["n"]) for row in ROWS],
        "objects": [Shop(**row) for row in ROWS],
        "generator": (row for row in ROWS),
        "arrow": table,
        "reader": table.to_reader(),
    }


@pytest.mark.parametrize("kind", frames())
def test_what_rows_may_be(tmp_path: Path, kind: str) -> None:
    word, n = (0, 1) if kind == "tuples" else ("word", "n")
    made = written(tmp_path, COUNT, frames()[kind], key=word, value=n)
    assert made == [{"key": "a", "value": 1}, {"key": "b", "value": 2}]


@pytest.mark.parametrize("kind", ["pandas", "polars", "duckdb"])
def test_data_frames(tmp_path: Path, kind: str) -> None:
    library = pytest.importorskip(kind)
    frame = library.sql("SELECT * FROM (VALUES ('a', 1), ('b', 2)) t(word, n)") if kind == "duckdb" else None
    data = frame if kind == "duckdb" else library.DataFrame(ROWS)
    made = written(tmp_path, COUNT, data, key="word", value="n")
    assert made == [{"key": "a", "value": 1}, {"key": "b", "value": 2}]


def test_keys_and_values_by_functions(tmp_path: Path) -> None:
    made = written(tmp_path, COUNT, ROWS, key=lambda row: (row["word"], 0), value=lambda row: row["n"] * 2)
    assert made == [{"key_0": "a", "key_1": 0, "value": 2}, {"key_0": "b", "key_1": 0, "value": 4}]


def test_keys_of_several_columns(tmp_path: Path) -> None:
    assert written(tmp_path, COUNT, ROWS, key=["word", "n"], value="n")[0] == {
        "key_0": "a",
        "key_1": 1,
        "value": 1,
    }


def test_columns_are_made_fields(tmp_path: Path) -> None:
    rows = [
        {"key": "k", "owner": "ann", "balance": "1.5", "tags": ["x"]},
        {"key": "l", "owner": "b", "balance": 2},
    ]
    descriptor = sw.ValueStateDescriptor("account", Account)
    assert written(tmp_path, descriptor, rows) == [
        {"key": "k", "owner": "ann", "balance": "1.5", "tags": ["x"], "active": True},
        {"key": "l", "owner": "b", "balance": "2", "tags": [], "active": True},
    ]


@pytest.mark.parametrize("cls", [Point, Place, Spot, Pin], ids=lambda cls: cls.__name__)
def test_other_classes_with_fields(tmp_path: Path, cls: type) -> None:
    rows = [{"key": 1, "x": 2, "y": 3}, {"key": 2, "x": 4}]
    found = written(tmp_path, sw.ValueStateDescriptor("at", cls), rows)
    assert found == [{"key": 1, "x": 2, "y": 3}, {"key": 2, "x": 4, "y": 0}]


def test_a_class_that_is_pickled_is_made_of_columns(tmp_path: Path) -> None:
    descriptor = sw.ValueStateDescriptor("named", Named)
    with write(str(tmp_path / "made")) as savepoint:
        savepoint.put("op", descriptor, [{"key": 1, "name": " ann ", "points": "5"}, {"key": 2, "name": "bob"}])
        savepoint.put("op", descriptor, [(3, Named("eve"))], key=0, value=1)
    found = {row.key: row.value for row in sw.read_state(savepoint.location, trusted=True)}
    assert found == {1: Named("ann", 5), 2: Named("bob"), 3: Named("eve")}


def test_the_first_row_may_lack_a_field(tmp_path: Path) -> None:
    rows = [{"key": 1, "x": 4}, {"key": 2, "x": 2, "y": 3}]
    found = written(tmp_path, sw.ValueStateDescriptor("at", Point), rows)
    assert found == [{"key": 1, "x": 4, "y": 0}, {"key": 2, "x": 2, "y": 3}]


def test_fields_by_place_that_are_made_by_a_factory(tmp_path: Path) -> None:
    rows = [{"key": 1, "x": 2}, {"key": 2, "x": 4}]
    found = written(tmp_path, sw.ValueStateDescriptor("at", Marked), rows)
    assert found == [{"key": 1, "its_tags": [], "x": 2}, {"key": 2, "its_tags": [], "x": 4}]


def test_lists_keep_their_order(tmp_path: Path) -> None:
    rows = [("a", 3), ("b", 1), ("a", 2)]
    assert written(tmp_path, SEEN, rows, key=0, value=1) == [
        {"key": "a", "index": 0, "value": 3},
        {"key": "a", "index": 1, "value": 2},
        {"key": "b", "index": 0, "value": 1},
    ]


def test_maps(tmp_path: Path) -> None:
    rows = [("a", "/", 3), ("a", "/x", 1)]
    assert written(tmp_path, PAGES, rows, key=0, map_key=1, value=2) == [
        {"key": "a", "map_key": "/", "value": 3},
        {"key": "a", "map_key": "/x", "value": 1},
    ]


def test_values_are_reduced_and_aggregated(tmp_path: Path) -> None:
    rows = [("a", 3), ("a", 4), ("b", 1)]
    reducing = sw.ReducingStateDescriptor("sum", int, reduce=lambda one, other: one + other)
    assert [row["value"] for row in written(tmp_path / "1", reducing, rows, key=0, value=1)] == [7, 1]
    adding = sw.AggregatingStateDescriptor("total", list[int], aggregate=Total())
    assert [row["value"] for row in written(tmp_path / "2", adding, rows, key=0, value=1)] == [[7], [1]]
    known = written(tmp_path / "3", adding, [("a", [9])], key=0, value=1, accumulators=True)
    assert [row["value"] for row in known] == [[9]]


@pytest.mark.parametrize("kind", ["value", "list", "map", "reducing"])
def test_times_to_live(tmp_path: Path, kind: str) -> None:
    ttl = sw.StateTtlConfig("1h")
    descriptor: Any = {
        "value": sw.ValueStateDescriptor("s", int, ttl=ttl),
        "list": sw.ListStateDescriptor("s", int, ttl=ttl),
        "map": sw.MapStateDescriptor("s", int, key_type=str, ttl=ttl),
        "reducing": sw.ReducingStateDescriptor("s", int, reduce=max, ttl=ttl),
    }[kind]
    moment = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    rows = [{"key": "a", "map_key": "x", "value": 1, "touched_at": moment}]
    [row] = written(tmp_path, descriptor, rows)
    assert (row["value"], row["touched_at"], row["expires_at"]) == (1, moment, moment + dt.timedelta(hours=1))


def test_without_a_time_it_was_touched_now(tmp_path: Path) -> None:
    before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    descriptor = sw.ValueStateDescriptor("s", int, ttl=sw.StateTtlConfig("1h"))
    [row] = written(tmp_path, descriptor, [("a", 1)], key=0, value=1)
    assert before <= row["touched_at"] <= dt.datetime.now(dt.UTC)


def test_windows_and_timers(tmp_path: Path) -> None:
    window = TimeWindow(1_000, 2_000)
    with write(str(tmp_path / "made")) as savepoint:
        savepoint.put("op", COUNT, [("a", 1, window), ("b", 2, None)], key=0, value=1, namespace=2)
        timers = [("a", 1_999, window), ("a", 1_999, window)]
        savepoint.put_timers("op", timers, key=0, at=1, namespace=2, domain="event time")
    found = read(savepoint.location)["op"]
    counts = {row["key"]: row["window_start"] for row in found["count"].rows()}
    assert counts == {"a": dt.datetime.fromtimestamp(1, dt.UTC), "b": None}
    assert found.timers is not None
    [timer] = found.timers.rows()
    assert (timer["domain"], timer["fires_at"]) == ("event time", dt.datetime.fromtimestamp(1.999, dt.UTC))


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_table_that_was_read_is_written_as_it_is(tmp_path: Path, backend: str) -> None:
    ttl = sw.StateTtlConfig("1h")
    account = sw.ValueStateDescriptor("account", Account, ttl=ttl)
    with write(str(tmp_path / "one")) as savepoint:
        savepoint.put("op", account, [{"key": (1, "a"), "owner": "ann", "balance": "1"}], touched_at=lambda row: 5)
        savepoint.put("op", SEEN, [("a", 1), ("a", 2)], key=0, value=1)
        savepoint.put("op", PAGES, [("a", "/", 1)], key=0, map_key=1, value=2)
        savepoint.put("op", COUNT, [("a", 1, TimeWindow(0, 5))], key=0, value=1, namespace=2)
        savepoint.put_timers("op", [("a", 5)], key=0, at=1, domain="processing time")
    first = read(savepoint.location)["op"]
    with write(str(tmp_path / "two"), backend=backend) as savepoint:
        for descriptor in (account, SEEN, PAGES, COUNT):
            savepoint.put("op", descriptor, first[descriptor.name])
        savepoint.put_timers("op", first["timers"])
    second = read(savepoint.location)["op"]
    assert {name: list(table.rows()) for name, table in first.states.items()} == {
        name: list(table.rows()) for name, table in second.states.items()
    }


def test_a_second_call_adds_rows(tmp_path: Path) -> None:
    with write(str(tmp_path / "made")) as savepoint:
        savepoint.put("op", COUNT, [("a", 1)], key=0, value=1)
        savepoint.put("op", COUNT, [("b", 2)], key=0, value=1)
        with pytest.raises(StateError, match="two rows of key 'a', which has one value"):
            savepoint.put("op", COUNT, [("a", 2)], key=0, value=1)
    assert len(list(read(savepoint.location)["op"]["count"].rows())) == 2


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("descriptor", "data", "how", "error", "says"),
    [
        (
            COUNT,
            ROWS,
            {"value": "n"},
            ConfigurationError,
            "no column is named for the keys: set key=.* Columns are word, n",
        ),
        (
            COUNT,
            ROWS,
            {"key": "word"},
            ConfigurationError,
            "no column is named for the values of state 'count' of operator",
        ),
        (COUNT, ROWS, {"key": "w", "value": "n"}, ConfigurationError, "a row has no 'w'"),
        (
            COUNT,
            pa.table({"x": [1]}),
            {"key": "w", "value": "x"},
            ConfigurationError,
            "no column 'w'; there are x",
        ),
        (
            COUNT,
            {"a": 1},
            {"key": 0, "value": 1},
            ConfigurationError,
            "a table or an iterable of rows, not from dict",
        ),
        (
            COUNT,
            [("a", "x")],
            {"key": 0, "value": 1},
            StateError,
            "'x' does not fit the type int of state 'count' of operator 'op'",
        ),
        (
            sw.ValueStateDescriptor("named", Named),
            [("a", 404)],
            {"key": 0, "value": 1},
            StateError,
            "404 does not fit the type Named of state 'named' of operator 'op'",
        ),
        (
            sw.ValueStateDescriptor("shop", Shop),
            [("a", {"word": "a"})],
            {"key": 0, "value": 1},
            StateError,
            "does not fit the type Shop of state 'shop' of operator 'op'",
        ),
        (
            sw.ReducingStateDescriptor("sum", int, reduce=lambda one, other: f"{one}{other}"),
            [("a", 1), ("a", 2)],
            {"key": 0, "value": 1},
            DeclaredTypeError,
            "state 'sum' is declared as int, and '12' of type str was written",
        ),
        (COUNT, [("a", 1), ("a", 2)], {"key": 0, "value": 1}, StateError, "there are two rows of key 'a'"),
        (PAGES, [("a", 1)], {"key": 0, "value": 1}, ConfigurationError, "no column 'map_key': set map_key="),
        (
            PAGES,
            [("a", 1)] * 2,
            {"key": 0, "map_key": 0, "value": 1},
            StateError,
            "two rows of entry 'a' of key 'a'",
        ),
        (
            PAGES,
            [("a", 1)],
            {"key": 0, "map_key": 1, "value": 1},
            StateError,
            "fit the type str of the keys in state 'pages'",
        ),
        (COUNT, ROWS, {"key": 0, "map_key": 1}, ConfigurationError, "map_key= is for a MapStateDescriptor"),
        (COUNT, ROWS, {"accumulators": True}, ConfigurationError, "is for an AggregatingStateDescriptor"),
        (COUNT, ROWS, {"key": "word", "value": "n", "touched_at": "n"}, ConfigurationError, "with a time to live"),
        ("count", ROWS, {}, ConfigurationError, "put\\(\\) takes a descriptor"),
    ],
)
def test_what_cannot_be_state(
    tmp_path: Path, descriptor: Any, data: Any, how: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says), write(str(tmp_path / "made")) as savepoint:
        savepoint.put("op", descriptor, data, **how)
    assert not list(tmp_path.rglob("*.state"))


def test_timers_of_an_unknown_domain(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match="must be 'event time' or 'processing time', not 'event'"),
        write(str(tmp_path / "made")) as savepoint,
    ):
        savepoint.put_timers("op", [("a", 5)], key=0, at=1, domain="event")


def test_keys_that_cannot_be_keys(tmp_path: Path) -> None:
    with pytest.raises(UnstableKeyError), write(str(tmp_path / "made")) as savepoint:
        savepoint.put("op", COUNT, [(float("nan"), 1)], key=0, value=1)
    assert not list(tmp_path.rglob("*.*")), "nothing is left"


def test_a_place_that_is_taken(tmp_path: Path) -> None:
    with write(str(tmp_path / "made")) as savepoint:
        savepoint.put("op", COUNT, ROWS, key="word", value="n")
    with pytest.raises(CheckpointError, match=r"made already has a checkpoint: choose another"):
        write(str(tmp_path / "made"))
    with pytest.raises(StateError, match="is closed: call its methods inside the with block"):
        savepoint.put("op", COUNT, ROWS, key="word", value="n")


def test_max_parallelism(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="max_parallelism must be an integer from 1 to 32768, not 0"):
        write(str(tmp_path / "made"), max_parallelism=0)
    with write(str(tmp_path / "made"), max_parallelism=7, job_name="words") as savepoint:
        savepoint.put("op", COUNT, ROWS, key="word", value="n")
    found = read(savepoint.location)
    assert (found["op"].max_parallelism, found.metadata.job_name, found.metadata.kind) == (7, "words", "savepoint")


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    def breaks() -> None:
        with write(str(tmp_path / "made")) as savepoint:
            savepoint.put("op", COUNT, ROWS, key="word", value="n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        breaks()
    assert not os.listdir(tmp_path)


def test_objects_of_pandas_that_arrow_has_no_type_for_are_named(tmp_path: Path) -> None:
    frame = pytest.importorskip("pandas").DataFrame({"key": ["a", "b"], "value": [[("x", 1)], 2]})
    says = r"the DataFrame has values that have no type in Arrow \(.*column value.*\): .* give an Arrow table"
    with pytest.raises(ConfigurationError, match=says), write(str(tmp_path / "made")) as savepoint:
        savepoint.put("op", COUNT, frame)
