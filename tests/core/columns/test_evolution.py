"""State in columns of a program that has changed: read in wider types and without what is gone, or refused."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluiceway.columns.aggregation import aggregates as agg
from sluiceway.columns.aggregation.layout import Layout
from sluiceway.columns.aggregation.sessions import Sessions
from sluiceway.columns.aggregation.slices import AggregateSlice
from sluiceway.columns.aggregation.stored import LAYOUT, open_stored
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.kept.blocks import rows_of_block, write_blocks
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.columns.widening import is_wider, widened
from sluiceway.errors import GraphError, IncompatibleStateError

NUMBERS: dict[str, Any] = {
    "sum": agg.sum("v"),
    "mean": agg.mean("v"),
    "min": agg.min("v"),
    "max": agg.max("v"),
    "first": agg.first("v"),
    "last": agg.last("v"),
    "different": agg.count_distinct("v"),
    "top": agg.top_k("v", 2),
    "all": agg.collect("v"),
}
FLOATS = {"spread": agg.variance("v"), "middle": agg.quantile("v", 0.5)}


def layout(key: Any, kind: Any, named: dict[str, Any]) -> Layout:
    schema = pa.schema([("k", key), ("v", kind)])
    return Layout({"k": key}, {n: a.bind(schema, "step 's'") for n, a in named.items()}, "s", schema)


def slice_of(one: Layout, rows: list[tuple[Any, Any]], kind: Any) -> AggregateSlice:
    made = AggregateSlice(one, KeyIds([one.keys["k"]], 8))
    if rows:
        add(made, rows, kind, 0)
    return made


def add(target: AggregateSlice, rows: list[tuple[Any, Any]], kind: Any, arrival: int) -> None:
    keys = target._keys.find([pa.array([key for key, _ in rows], target._layout.keys["k"])])
    columns = {"v": Values(pa.array([value for _, value in rows], kind))}
    target.update(keys, columns, np.arange(arrival, arrival + len(rows)))


def restored(one: AggregateSlice, into: Layout) -> AggregateSlice:
    made = AggregateSlice(into, KeyIds([into.keys["k"]], 8))
    made.restore([open_stored(group, 0, block) for group, block in one.blocks().items()])
    return made


def shown(one: AggregateSlice) -> list[Any]:
    return pa.RecordBatch.from_pydict(one.results()).to_pylist()


WIDER = [
    (pa.int8(), pa.int64(), [1, None, 3, -5]),
    (pa.int32(), pa.int64(), [1, None, 2**31 - 1, 3]),
    (pa.uint16(), pa.uint32(), [1, None, 2, 65535]),
    (pa.float32(), pa.float64(), [1.5, None, 0.25, -3.0]),
    (pa.decimal128(5, 2), pa.decimal128(9, 2), [Decimal("1.50"), None, Decimal("9.99"), Decimal("-3.00")]),
]


@pytest.mark.parametrize(("old", "new", "values"), WIDER)
def test_wider_types_go_on(old: Any, new: Any, values: list[Any]) -> None:
    named = NUMBERS | FLOATS
    if pa.types.is_decimal(old):
        named = {name: each for name, each in NUMBERS.items() if name != "top"}
    rows = list(zip(["a", "b", "a", "b"], values, strict=True))
    one = restored(slice_of(layout(pa.string(), old, named), rows, old), layout(pa.string(), new, named))
    add(one, rows, new, 4)
    expected = slice_of(layout(pa.string(), new, named), [*rows, *rows], new)
    assert shown(one) == shown(expected)


def test_structs_with_wider_fields_go_on() -> None:
    old = pa.struct([("x", pa.int16()), ("y", pa.list_(pa.float32()))])
    new = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.float64()))])
    named = {name: NUMBERS[name] for name in ("first", "last", "all")}
    values = [{"x": 1, "y": [0.5, None]}, None, {"x": None, "y": None}, {"x": 2, "y": []}]
    rows: list[Any] = list(zip("abab", values, strict=True))
    one = restored(slice_of(layout(pa.string(), old, named), rows, old), layout(pa.string(), new, named))
    add(one, [("a", {"x": 2**40, "y": [1e300]})], new, 4)
    expected = slice_of(layout(pa.string(), new, named), [*rows, ("a", {"x": 2**40, "y": [1e300]})], new)
    assert shown(one) == shown(expected)


def test_keys_may_be_wider() -> None:
    named = {"n": agg.count()}
    one = slice_of(layout(pa.int32(), pa.int8(), named), [(1, 1), (None, 1), (1, 1)], pa.int8())
    wide = restored(one, layout(pa.int64(), pa.int8(), named))
    add(wide, [(1, 1), (2**40, 1)], pa.int8(), 3)
    assert shown(wide) == [{"k": 1, "n": 3}, {"k": None, "n": 1}, {"k": 2**40, "n": 1}]


def test_an_aggregate_may_be_gone_or_in_another_place() -> None:
    one = slice_of(layout(pa.string(), pa.int64(), NUMBERS), [("a", 1), ("b", 2)], pa.int64())
    fewer = restored(one, layout(pa.string(), pa.int64(), {"max": NUMBERS["max"], "sum": NUMBERS["sum"]}))
    assert shown(fewer) == [{"k": "a", "max": 1, "sum": 1}, {"k": "b", "max": 2, "sum": 2}]


def test_sessions_go_on() -> None:
    old, new = layout(pa.string(), pa.int32(), NUMBERS), layout(pa.string(), pa.int64(), {"sum": NUMBERS["sum"]})
    keys = KeyIds([pa.string()], 8)
    sessions = Sessions(old, keys, 5)
    columns = {"v": Values(pa.array([3, 4], pa.int32()))}
    sessions.add(keys.find([pa.array(["a", "a"])]), np.array([1, 3]), columns, np.arange(2), np.zeros(2, np.int64))
    blocks = [block for block in sessions.blocks().values() if block is not None]
    again = Sessions(new, KeyIds([pa.string()], 8), 5)
    again.restore(blocks)
    found, starts, ends = again.close(100)
    assert (found["sum"].to_pylist(), starts.tolist(), ends.tolist()) == ([7], [1], [8])


REFUSED = [
    (pa.int64(), pa.int64(), NUMBERS, r"of its keys, 'k' was string, and is int64 now"),
    (pa.string(), pa.int32(), {"max": agg.max("v")}, r"'max' was max\('v'\): int64, and is max\('v'\): int32 now"),
    (pa.string(), pa.float64(), {"sum": agg.sum("v")}, r"'sum' was sum\('v'\): int64, and is sum\('v'\): double"),
    (
        pa.string(),
        pa.float64(),
        {"mean": agg.mean("v")},
        r"'mean', mean\('v'\): double, kept int64, and keeps double now; column 'v' was int64, and is double",
    ),
    (
        pa.string(),
        pa.string(),
        {"different": agg.count_distinct("v")},
        r"'different'.* kept int64, and keeps string now; column 'v' was int64, and is string",
    ),
    (pa.string(), pa.int64(), {"sum": agg.mean("v")}, r"'sum' was sum\('v'\): int64, and is mean\('v'\): double"),
    (pa.string(), pa.int64(), {"n": agg.count()}, r"'n' was not there, and is count\(\): int64 now"),
    (pa.string(), pa.int64(), {}, r"'sum' was sum\('v'\): int64, and is not there now"),
    (pa.string(), pa.int64(), {"top": agg.top_k("v", 3)}, r"'top' was top_k\('v', k=2\).* is top_k\('v', k=3"),
]


@pytest.mark.parametrize(("key", "kind", "named", "message"), REFUSED)
def test_other_changes_are_refused(key: Any, kind: Any, named: dict[str, Any], message: str) -> None:
    one = slice_of(layout(pa.string(), pa.int64(), NUMBERS), [("a", 1)], pa.int64())
    with pytest.raises(IncompatibleStateError, match=rf"step 's' cannot restore .*{message}"):
        restored(one, layout(key, kind, named))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.decimal128(10, 2), pa.decimal128(12, 3)),
        (pa.int64(), pa.decimal128(20, 2)),
        (pa.decimal128(20, 0), pa.int64()),
        (pa.int64(), pa.uint64()),
        (pa.uint32(), pa.int64()),
        (pa.duration("ms"), pa.duration("us")),
        (pa.duration("s"), pa.int64()),
        (pa.int64(), pa.float64()),
        (pa.decimal128(10, 2), pa.float64()),
    ],
)
@pytest.mark.parametrize(
    "kind", ["sum", "mean", "variance", "quantile", "last", "count_distinct", "collect", "top_k"]
)
def test_numbers_of_another_scale_unit_or_sign_are_refused(old: Any, new: Any, kind: str) -> None:
    named = {
        "x": {"quantile": agg.quantile("v", 0.5), "top_k": agg.top_k("v", 2)}.get(kind) or getattr(agg, kind)("v")
    }
    try:
        before, after = layout(pa.string(), old, named), layout(pa.string(), new, named)
    except GraphError:
        return  # the aggregate does not take one of the types
    one = slice_of(before, [("a", 3), ("a", 1)], old)
    with pytest.raises(
        IncompatibleStateError, match=r"'x'.*column 'v' was .*, and is .* now|'x' was .*, and is .* now"
    ):
        restored(one, after)


def test_counts_go_on_whatever_is_counted() -> None:
    named = {"n": agg.count("v")}
    one = restored(
        slice_of(layout(pa.string(), pa.int64(), named), [("a", 1), ("a", None)], pa.int64()),
        layout(pa.string(), pa.decimal128(9, 2), named),
    )
    assert shown(one) == [{"k": "a", "n": 1}]


def test_keys_in_another_order_are_refused() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    bound = {"n": agg.count().bind(schema, "s")}
    kinds = {"a": pa.int64(), "b": pa.int64()}
    keys = KeyIds(list(kinds.values()), 8)
    one = AggregateSlice(Layout(kinds, bound, "s", schema), keys)
    one.update(keys.find([pa.array([1]), pa.array([2])]), {}, np.arange(1))
    turned = Layout(dict(reversed(kinds.items())), bound, "s", schema)
    other = AggregateSlice(turned, KeyIds(list(kinds.values()), 8))
    with pytest.raises(IncompatibleStateError, match="its keys were a, b, and are b, a now"):
        other.restore([open_stored(group, 0, block) for group, block in one.blocks().items()])


@pytest.mark.parametrize("values", [[1, None, 3, 2], [1 << 62, None, 1 << 62, 2]])
def test_blocks_of_before_the_types_were_saved_are_read(values: list[Any]) -> None:
    one = layout(pa.string(), pa.int64(), {name: each for name, each in NUMBERS.items() if name != "sum"})
    rows = list(zip(["a", "b", "a", "b"], values, strict=True))
    before = slice_of(one, rows, pa.int64())
    earlier = json.dumps({what: json.loads(one.metadata)[what] for what in ("keys", "aggregates")}).encode()
    found = []
    for group, block in before.blocks().items():
        stored = open_stored(group, 0, block)
        assert stored.rows.schema.metadata[LAYOUT] == one.metadata
        found.append(stored._replace(metadata=earlier))
    again = AggregateSlice(one, KeyIds([pa.string()], 8))
    again.restore(found)
    assert shown(again) == shown(before)


# ---- rows -----------------------------------------------------------------------------------------------------

SAVED = pa.schema([("k", pa.string()), ("v", pa.int32()), ("w", pa.float32())])


def block() -> bytes:
    data = pa.RecordBatch.from_pylist([{"k": "a", "v": 1, "w": 0.5}, {"k": "b", "v": None, "w": None}], SAVED)
    entries: dict[int, bytes] = {}
    write_blocks(entries, [0], np.zeros(2, np.int64), np.array([10, 20]), data)
    return entries[0]


def read(schema: Any, **options: Any) -> list[Any]:
    stamps, rows = rows_of_block(block(), schema, "s", ("k",), **options)
    assert stamps.tolist() == [10, 20]
    assert rows.schema == schema
    found: list[Any] = rows.to_pylist()
    return found


def test_rows_have_new_columns_wider_ones_and_fewer() -> None:
    new = pa.field("note", pa.list_(pa.string()))
    assert read(SAVED.append(new))[0] == {"k": "a", "v": 1, "w": 0.5, "note": None}
    assert read(pa.schema([("v", pa.int64()), ("k", pa.string())])) == [{"v": 1, "k": "a"}, {"v": None, "k": "b"}]
    assert read(SAVED.set(2, pa.field("w", pa.float64())))[0]["w"] == 0.5


ROWS_REFUSED: list[Any] = [
    (SAVED.set(1, pa.field("v", pa.int16())), {}, "column 'v' was int32, and is int16 now"),
    (SAVED.set(1, pa.field("v", pa.float64())), {}, "column 'v' was int32, and is double now"),
    (SAVED.set(1, pa.field("x", pa.int32())), {}, r"column 'v' \(int32\) is gone and column 'x' \(int32\) is new"),
    (SAVED.append(pa.field("x", pa.int32(), nullable=False)), {}, r"'x' \(int32\) is new and not nullable"),
    (SAVED.append(pa.field("x", pa.int32())), {"added": False}, r"'x' \(int32\) is read now, and was not"),
    (SAVED.remove(0), {}, r"column 'k' \(string\) of the key is gone"),
]


@pytest.mark.parametrize(("schema", "options", "message"), ROWS_REFUSED)
def test_rows_are_refused(schema: Any, options: Any, message: str) -> None:
    with pytest.raises(IncompatibleStateError, match=rf"step 's' cannot restore the rows .*{message}"):
        read(schema, **options)


def test_nested_types_become_wider() -> None:
    old = pa.array([[{"a": 1}, None], None, [], [{"a": 2}]], pa.list_(pa.struct([("a", pa.int8())])))
    new = pa.list_(pa.struct([("a", pa.int64())]))
    assert is_wider(old.type, new)
    assert not is_wider(new, old.type)
    assert widened(old, new).to_pylist() == old.to_pylist()
    assert widened(old.slice(2), new).to_pylist() == old.to_pylist()[2:]
    assert widened(old[:0], new).to_pylist() == []
