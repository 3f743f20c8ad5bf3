"""Slices of aggregates: batches, merging, blocks by key group, and keys that are forgotten."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.columns.aggregation import aggregates as agg
from sluiceway.columns.aggregation import slices
from sluiceway.columns.aggregation.layout import Layout
from sluiceway.columns.aggregation.slices import AggregateSlice, Positions
from sluiceway.columns.aggregation.stored import open_stored
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.keys.idle_keys import forget_idle
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.errors import IncompatibleStateError
from sluiceway.keygroups import key_group

SCHEMA = pa.schema([("user", pa.string()), ("item", pa.int32()), ("price", pa.float64()), ("tag", pa.string())])
NAMED = {
    "n": agg.count(),
    "total": agg.sum("price"),
    "top": agg.top_k("price", 2),
    "tags": agg.count_distinct("tag"),
    "firsts": agg.first("tag"),
    "all": agg.collect("item"),
    "middle": agg.quantile("price", 0.5),
    "spread": agg.stddev("price"),
}
LAYOUT = Layout(
    {"user": pa.string(), "item": pa.int32()}, {n: a.bind(SCHEMA, "step 's'") for n, a in NAMED.items()}, "s"
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]), st.integers(0, 2), st.floats(-9, 9), st.sampled_from(["x", "y", None])
    ),
    max_size=25,
)


def add(target, keys, rows, start):
    columns = [pa.array([row[i] for row in rows], SCHEMA.field(i).type) for i in range(4)]
    values = {name: Values(column) for name, column in zip(SCHEMA.names, columns, strict=True)}
    target.update(keys.find(columns[:2]), values, np.arange(start, start + len(rows)))


def shown(one):
    return pa.RecordBatch.from_pydict(one.results()).to_pylist()


@given(ROWS, st.lists(st.integers(0, 25), max_size=4), st.integers(1, 3))
def test_neither_batches_nor_snapshots_change_a_slice(rows, cuts, subtasks):
    keys = KeyIds(list(LAYOUT.keys.values()), 8)
    whole = AggregateSlice(LAYOUT, keys)
    add(whole, keys, rows, 0)
    expected = shown(whole)
    other_keys = KeyIds(list(LAYOUT.keys.values()), 8)
    cut = AggregateSlice(LAYOUT, other_keys)
    borders = [0, *sorted(min(c, len(rows)) for c in cuts), len(rows)]
    for low, high in pairwise(borders):
        add(cut, other_keys, rows[low:high], low)
    assert shown(cut) == expected
    blocks = cut.blocks()
    assert set(blocks) == {key_group((row["user"], row["item"]), 8) for row in expected}
    # Key groups go to any number of subtasks.
    found = []
    for subtask in range(subtasks):
        mine = KeyIds(list(LAYOUT.keys.values()), 8)
        restored = AggregateSlice(LAYOUT, mine)
        restored.restore(
            [open_stored(group, 0, block) for group, block in blocks.items() if group % subtasks == subtask]
        )
        found.append(shown(restored))
    if subtasks == 1:
        assert found == [expected]
    order = [(row["user"], row["item"]) for row in expected]
    assert sorted(chain.from_iterable(found), key=lambda row: order.index((row["user"], row["item"]))) == expected


@given(
    st.lists(st.lists(st.integers(0, 7), max_size=6), max_size=6),
    st.lists(st.integers(0, 7), max_size=4),
    st.sampled_from([(1 << 12, 16), (0, 1), (0, 0)]),
)
def test_positions_follow_the_arrival_of_keys_in_the_slice(batches, seen_elsewhere, dense):
    keys, order = KeyIds([pa.int64()], 8), []
    keys.find([pa.array(seen_elsewhere, pa.int64())])
    positions = Positions(keys)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slices, "_FEW_KEYS", dense[0])
        patched.setattr(slices, "_SPARSE", dense[1])
        for batch in batches:
            ids = keys.find([pa.array(batch, pa.int64())])
            order += [key for key in dict.fromkeys(batch) if key not in order]
            assert positions.find(ids).tolist() == [order.index(key) for key in batch]
            assert keys.columns(positions.ids)[0].to_pylist() == order


@pytest.mark.parametrize("most", [1 << 16, 0])
def test_blocks_are_restored_together_where_they_have_the_same_types(monkeypatch, most):
    monkeypatch.setattr(slices, "_TOGETHER", most)
    schema = pa.schema([("item", pa.int64()), ("price", pa.int64())])
    layout = Layout({"item": pa.int64()}, {"total": agg.sum("price").bind(schema, "step 's'")}, "s")
    blocks, expected = [], {}
    for first, prices in (
        (0, range(100)),
        (100, [2**62, -(2**62)] * 50),
    ):  # sums in one part of 64 bits, and in more
        keys = KeyIds([pa.int64()], 16)
        part = AggregateSlice(layout, keys)
        for start in (0, 100, 200):
            columns = [pa.array(range(first, first + 100)), pa.array(prices)]
            part.update(keys.find(columns[:1]), {"price": Values(columns[1])}, np.arange(start, start + 100))
            if first:
                prices = [-price for price in prices]
        expected |= {row["item"]: row["total"] for row in shown(part)}
        blocks += [open_stored(group, 0, block) for group, block in part.blocks().items()]
    assert len({tuple(block.rows.schema.types) for block in blocks}) == 2
    restored, pieces = AggregateSlice(layout, KeyIds([pa.int64()], 16)), []
    (total,) = restored.accumulators.values()
    restore = total.restore
    monkeypatch.setattr(total, "restore", lambda at, state: (pieces.append(len(at)), restore(at, state)))
    restored.restore(blocks)
    assert {row["item"]: row["total"] for row in shown(restored)} == expected
    assert len(pieces) == (2 if most else len(blocks))


def test_merged_slices_are_one():
    rows = [("a", 1, 1.0, "x"), ("b", 1, 2.0, None), ("a", 1, 4.0, "y"), (None, 2, 8.0, "x")]
    keys = KeyIds(list(LAYOUT.keys.values()), 8)
    whole, parts = AggregateSlice(LAYOUT, keys), [AggregateSlice(LAYOUT, keys) for _ in range(2)]
    add(whole, keys, rows, 0)
    for index, part in enumerate(parts):
        add(part, keys, rows[2 * index : 2 * index + 2], 2 * index)
    merged = AggregateSlice(LAYOUT, keys)
    for part in parts:
        merged.merge(part)
    assert shown(merged) == shown(whole)


def test_keys_without_rows_are_forgotten():
    layout = Layout({"item": pa.int64()}, {"n": agg.count().bind(SCHEMA, "step 's'")}, "s")
    keys, kept, stayed = KeyIds([pa.int64()], 128), 0, AggregateSlice(layout, KeyIds([pa.int64()], 128))
    stayed = AggregateSlice(layout, keys)
    stayed.update(keys.find([pa.array([-1, -2])]), {}, np.arange(2))
    for start in range(0, 10**6, 50_000):
        passing = AggregateSlice(layout, keys)
        passing.update(keys.find([pa.array(np.arange(start, start + 50_000))]), {}, np.arange(50_000))
        assert shown(passing)[::49_999] == [{"item": start, "n": 1}, {"item": start + 49_999, "n": 1}]
        kept = forget_idle(keys, [stayed.positions], kept)
    assert len(keys) < 200_000
    stayed.update(keys.find([pa.array([-3, -2])]), {}, np.arange(2))
    assert shown(stayed) == [{"item": -1, "n": 1}, {"item": -2, "n": 2}, {"item": -3, "n": 1}]


@pytest.mark.parametrize("count", [60_000, 10**6])
def test_a_slice_with_few_of_many_keys_is_small(count):
    layout = Layout({"item": pa.int64()}, {"n": agg.count().bind(SCHEMA, "step 's'")}, "s")
    keys = KeyIds([pa.int64()], 128)
    ids = keys.find([pa.array(np.arange(count))])
    few = AggregateSlice(layout, keys)
    few.update(ids[[count - 1, 5, count - 1]], {}, np.arange(3))
    assert few.nbytes < 100_000
    assert shown(few) == [{"item": count - 1, "n": 2}, {"item": 5, "n": 1}]
    few.update(ids[::-1], {}, np.arange(count))
    assert shown(few)[:3] == [{"item": count - 1, "n": 3}, {"item": 5, "n": 2}, {"item": count - 2, "n": 1}]


def test_changed_aggregates_are_refused():
    keys = KeyIds([pa.string(), pa.int32()], 8)
    one = AggregateSlice(LAYOUT, keys)
    add(one, keys, [("a", 1, 1.0, "x")], 0)
    changed = {n: a.bind(SCHEMA, "step 's'") for n, a in {**NAMED, "total": agg.mean("price")}.items()}
    other = AggregateSlice(Layout(LAYOUT.keys, changed, "s"), KeyIds([pa.string(), pa.int32()], 8))
    with pytest.raises(IncompatibleStateError, match=r"'total' was sum\('price'\): double, and is mean"):
        other.restore([open_stored(group, 0, block) for group, block in one.blocks().items()])
