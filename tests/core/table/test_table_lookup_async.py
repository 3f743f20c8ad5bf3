"""Look-ups of columns by async functions: equal to look-ups in a table, whatever the batches."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from effort import diagonal

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.errors import FunctionContractError, GraphError
from sluiceway.functions import AsyncFunction, AsyncRetryStrategy
from sluiceway.table import agg, col
from sluiceway.windows import TumblingEventTimeWindows

COUNT = 300
ORDERS = pa.table(
    {
        "n": list(range(COUNT)),
        "user": [None if n % 17 == 0 else f"u{n % 23}" for n in range(COUNT)],
        "at": pa.array([n * 100 for n in range(COUNT)], pa.timestamp("ms")),
    }
)
USERS = pa.table({"user": [f"u{n}" for n in range(0, 23, 2)], "country": [f"c{n % 3}" for n in range(0, 23, 2)]})
FOUND = pa.schema([("country", pa.string())])


async def table_of(users: pa.Array[Any]) -> pa.Table:
    assert len(users.unique()) == len(users)
    assert not users.null_count
    await asyncio.sleep(0)
    return USERS.filter(pa.compute.is_in(USERS["user"], users))


async def dicts_of(users: list[str]) -> list[dict[str, str]]:
    assert isinstance(users, list)
    return [row for row in USERS.to_pylist() if row["user"] in users]


class Client(AsyncFunction[Any, Any]):
    """Function with a connection of its own."""

    def __init__(self) -> None:
        self.opened = False

    async def open(self, context: Any) -> None:
        self.opened = True

    async def async_invoke(self, value: list[str]) -> Any:
        assert self.opened
        return await dicts_of(value)


def _looked_up(fn: Any, how: Any, *, ordered: bool = True, **options: Any) -> list[dict[str, Any]]:
    rows = sw.Pipeline().table(ORDERS).lookup_async(fn, "user", FOUND, how, timeout=None, ordered=ordered)
    found = rows.to_arrow(**options)
    assert found.schema == rows.schema
    return sorted(found.to_pylist(), key=lambda row: row["n"])


@pytest.mark.parametrize(
    ("how", "options"),
    diagonal(
        ["inner", "left"],
        [
            {},
            {"batch_size": 1},
            {"parallelism": 3, "batch_size": 1, "ordered": False},
            {"workers": 2, "parallelism": 2},
        ],
    ),
)
def test_rows_are_those_of_a_lookup_in_a_table(how: Any, options: dict[str, Any]) -> None:
    wanted = sw.Pipeline().table(ORDERS).lookup(USERS, on="user", how=how).to_arrow().to_pylist()
    assert _looked_up(table_of, how, **options) == wanted


@pytest.mark.parametrize("fn", [dicts_of, Client()])
def test_functions_of_a_list_return_dicts(fn: Any) -> None:
    assert _looked_up(fn, "left", batch_size=1) == _looked_up(table_of, "left")


def test_each_value_of_a_batch_is_asked_once() -> None:
    asked: list[int] = []

    async def counting(users: pa.Array[Any]) -> pa.Table:
        asked.append(len(users))
        return await table_of(users)

    _looked_up(counting, "inner", workers=0)
    assert sum(asked) < COUNT - ORDERS["user"].null_count


def test_watermarks_keep_their_place() -> None:
    strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness("1ms").with_timestamp_column("at")
    for batch_size in (1, 1024):
        rows = sw.Pipeline().table(ORDERS, watermark_strategy=strategy)
        rows = rows.lookup_async(table_of, "user", FOUND, timeout="1min", ordered=False, capacity=3)
        windows = rows.key_by("country").window(TumblingEventTimeWindows("1s"))
        sums = windows.aggregate(n=agg.count()).to_arrow(batch_size=batch_size)
        wanted = sw.Pipeline().table(ORDERS).lookup(USERS, on="user").to_arrow().num_rows
        assert sum(sums["n"].to_pylist()) == wanted


def test_calls_under_way_are_made_again_after_a_failure(tmp_path: Path) -> None:
    failed = tmp_path / "failed"

    def fail_once(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows and rows.column(0)[-1].as_py() > 200 and not failed.exists():
            failed.touch()
            raise RuntimeError("planted")
        return rows

    async def slow(users: pa.Array[Any]) -> pa.Table:
        await asyncio.sleep(0.002)
        return await table_of(users)

    flow = sw.Pipeline()
    rows = flow.table(ORDERS).lookup_async(slow, "user", FOUND, "left", timeout=None, capacity=8)
    found = rows.map_batches(fail_once).to_arrow(
        batch_size=1, checkpoint_interval="5ms", checkpoints=str(tmp_path / "kept"), restart="fixed-delay:3:10ms"
    )
    assert failed.exists()
    wanted = sw.Pipeline().table(ORDERS).lookup(USERS, on="user", how="left").to_arrow().to_pylist()
    assert {row["n"]: row for row in found.to_pylist()} == {row["n"]: row for row in wanted}


def test_a_call_that_fails_is_made_again() -> None:
    calls: list[int] = []

    async def flaky(users: pa.Array[Any]) -> pa.Table:
        calls.append(len(users))
        if len(calls) == 1:
            raise ConnectionError("once")
        return await table_of(users)

    retry = AsyncRetryStrategy.fixed_delay(3, "1ms")
    rows = sw.Pipeline().table(ORDERS).lookup_async(flaky, "user", FOUND, timeout=None, retry=retry)
    wanted = sw.Pipeline().table(ORDERS).lookup(USERS, on="user").to_arrow()
    assert rows.to_arrow(workers=0).equals(wanted)
    assert len(calls) > 1


class Hesitant(Client):
    """Finds nothing at first."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def async_invoke(self, value: list[str]) -> Any:
        self.calls += 1
        return await dicts_of(value) if self.calls > 1 else []


@pytest.mark.parametrize("kind", ["function", "object"])
def test_a_call_is_made_again_by_what_it_has_returned(kind: str) -> None:
    client = Hesitant()
    client.opened = True
    seen: list[Any] = []

    async def hesitant(users: list[str]) -> Any:
        return await client.async_invoke(users)

    def is_empty(found: Any) -> bool:
        seen.append(found)
        return found == []

    retry = AsyncRetryStrategy.fixed_delay(3, "1ms", if_result=is_empty)
    fn = client if kind == "object" else hesitant
    rows = sw.Pipeline().table(ORDERS).lookup_async(fn, "user", FOUND, timeout=None, retry=retry)
    wanted = sw.Pipeline().table(ORDERS).lookup(USERS, on="user").to_arrow()
    assert rows.to_arrow(workers=0).equals(wanted)
    assert [] in seen


def test_a_call_that_takes_too_long_fails_the_job() -> None:
    async def never(users: pa.Array[Any]) -> pa.Table:
        await asyncio.Event().wait()
        return USERS

    rows = sw.Pipeline().table(ORDERS).lookup_async(never, "user", FOUND, timeout="20ms")
    with pytest.raises(TimeoutError, match="has got no result within 20 ms"):
        rows.to_arrow(workers=0)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (pa.table({"user": ["u0"], "land": ["x"]}), "returned the columns user: string, land: string"),
        (pa.table({"user": ["u0"], "country": [5]}), ".* column 'country' is int64, whose cast to string could"),
        (pa.table({"user": ["u0", "u0"], "country": ["x", "y"]}), "several rows for one value of 'user'"),
        (
            [{"user": "u0", "contry": "x"}],
            "{'user': 'u0', 'contry': 'x'} in a list, of which each element is a dict with user, country",
        ),
        ([{"user": "u0", "country": 7}], "values that are none of the types in schema="),
        (7, r"returned 7 \(int\); it must return"),
    ],
)
def test_results_that_do_not_fit_name_the_step(made: Any, message: str) -> None:
    async def wrong(users: pa.Array[Any]) -> Any:
        return made

    rows = sw.Pipeline().table(ORDERS).lookup_async(wrong, "user", FOUND, timeout=None)
    with pytest.raises(FunctionContractError, match=rf"step 'lookup_async\(user\)' (returned )?{message}"):
        rows.to_arrow(workers=0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"on": "usr"}, GraphError, "there is no column 'usr'; did you mean 'user'"),
        ({"how": "outer"}, GraphError, "how='outer'; it is 'inner' or 'left'"),
        ({"schema": pa.schema([("n", pa.int64())])}, GraphError, "both have a column 'n': rename"),
        ({"schema": pa.schema([("user", pa.int64())])}, GraphError, "in schema= int64: make them equal"),
        ({"schema": pa.schema([("user", pa.string())])}, GraphError, "no column beside 'user'"),
        ({"fn": lambda users: users}, TypeError, "takes an async function"),
        ({"capacity": 0}, ValueError, "capacity"),
        ({"timeout": 0}, ValueError, "timeout must be at least 1 ms"),
    ],
)
def test_arguments_are_checked_before_anything_runs(arguments: dict[str, Any], error: Any, message: str) -> None:
    given = {"fn": table_of, "on": "user", "schema": FOUND, "timeout": None, **arguments}
    with pytest.raises(error, match=rf"lookup_async\S* at \S*test_table_lookup_async.*{message}|{message}"):
        sw.Pipeline().table(ORDERS).lookup_async(**given)


def test_the_plan_shows_columns_and_settings() -> None:
    flow = sw.Pipeline()
    rows = flow.table(ORDERS).lookup_async(table_of, "user", FOUND, timeout="1s", capacity=7, ordered=False)
    rows.filter(col("country") == "c1").collect()
    assert "lookup_async(user)" in (text := flow.explain())
    assert (
        "unordered, capacity 7, timeout 1s, gives columns n: int64, user: string, at: timestamp[ms], country"
        in text
    )
    assert flow.graph(Settings()).nodes[1].step.wanted_types() == []


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_both_zeros_are_one_value_in_any_batch(kind: Any) -> None:
    async def found(values: pa.Array[Any]) -> pa.Table:
        return pa.table({"x": values, "known": [True] * len(values)})

    schema = pa.schema([("x", kind)])
    rows = pa.RecordBatch.from_arrays([pa.array([-0.0, 0.0, None, -0.0], kind)], schema=schema)
    for batches in ([rows], [rows.slice(at, 1) for at in range(4)]):
        stream = sw.Pipeline().from_collection(batches).to_columns(schema)
        looked_up = stream.lookup_async(found, "x", pa.schema([("known", pa.bool_())]), "left", timeout=None)
        assert looked_up.to_arrow()["known"].to_pylist() == [True, True, None, True]


@pytest.mark.parametrize("kind", [pa.float16(), pa.list_(pa.int8()), pa.uuid()])
def test_columns_that_arrow_does_not_compare_are_refused(kind: Any) -> None:
    rows = sw.Pipeline().table(pa.table({"x": pa.array([], kind)}))
    with pytest.raises(GraphError, match=r"column 'x' has .*, by which rows cannot be found"):
        rows.lookup(pa.table({"x": pa.array([], kind), "y": pa.array([], pa.int8())}), on="x")
    with pytest.raises(GraphError, match=r"column 'x' has .*, whose values cannot be looked up"):
        rows.lookup_async(table_of, "x", FOUND, timeout=None)
