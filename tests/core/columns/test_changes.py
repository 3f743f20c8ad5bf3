"""Changes of slices in the state: what is written, and what is read back from chunks and changes."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from effort import first

from sluiceway.columns.aggregation import aggregates as agg
from sluiceway.columns.aggregation import slices
from sluiceway.columns.aggregation.layout import Layout
from sluiceway.columns.aggregation.slices import AggregateSlice
from sluiceway.columns.aggregation.stored import Stored, open_stored
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.keys.key_ids import KeyIds, key_groups_of_rows

SCHEMA = pa.schema([("user", pa.int64()), ("price", pa.int64())])
NAMED = {
    "n": agg.count(),
    "total": agg.sum("price"),
    "last": agg.last("price"),
    "all": agg.collect("price"),
    "different": agg.count_distinct("price"),
}
LAYOUT = Layout(
    {"user": pa.int64()}, {name: each.bind(SCHEMA, "step 's'") for name, each in NAMED.items()}, "s", SCHEMA
)
GROUPS = 4


class State:
    """Blocks of a slice as a backend has them."""

    def __init__(self) -> None:
        self.blocks: dict[int, dict[int, bytes]] = {}
        self.written = 0

    def save(self, one: AggregateSlice) -> None:
        if one.moved:
            self.blocks.clear()
        for number, blocks in one.take_changes():
            if blocks is None:
                del self.blocks[number]
                continue
            self.blocks.setdefault(number, {}).update(blocks)
            self.written += sum(map(len, blocks.values()))

    def stored(self, groups: Any = range(GROUPS)) -> list[Stored]:
        return [
            open_stored(group, number, block)
            for number, blocks in self.blocks.items()
            for group, block in blocks.items()
            if group in groups
        ]


class Kept:
    """Slice with its keys."""

    def __init__(self, stored: Any = ()) -> None:
        self.keys = KeyIds([pa.int64()], GROUPS)
        self.slice = AggregateSlice(LAYOUT, self.keys)
        self.slice.restore(stored)

    def add(self, users: Any, prices: Any, arrival: int) -> None:
        columns = {"price": Values(pa.array(prices, pa.int64()))}
        ids = self.keys.find([pa.array(users, pa.int64())])
        self.slice.update(ids, columns, np.arange(arrival, arrival + len(users)))

    def shown(self) -> dict[int, Any]:
        rows = pa.RecordBatch.from_pydict(self.slice.results()).to_pylist()
        return {row["user"]: row for row in rows}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "CHUNK", 16)
    monkeypatch.setattr(slices, "KEYS_OF_CHANGES", 0)
    monkeypatch.setattr(slices, "_MOST_CHANGES", 5)


@pytest.mark.parametrize("seed", first(8, range(30)))
def test_random_histories(seed: int) -> None:
    dice = random.Random(seed)
    model, subtasks, states = Kept(), [Kept()], [State()]
    arrival, with_changes = 0, 0
    for _ in range(60):
        kind = dice.random()
        if kind < 0.6:
            count, most = dice.randrange(1, 5), dice.choice([20, 90])
            users = [dice.randrange(most) for _ in range(count)]
            prices = [dice.choice([1, 2, 1 << 56]) if dice.random() < 0.9 else None for _ in range(count)]
            model.add(users, prices, arrival)
            for index, one in enumerate(subtasks):
                groups = key_groups_of_rows([pa.array(users, pa.int64())], GROUPS)
                mine = np.flatnonzero(groups % len(subtasks) == index)
                if len(mine):
                    columns = {"price": Values(pa.array([prices[at] for at in mine], pa.int64()))}
                    ids = one.keys.find([pa.array([users[at] for at in mine], pa.int64())])
                    one.slice.update(ids, columns, arrival + mine)
            arrival += count
            continue
        for one, state in zip(subtasks, states, strict=True):
            state.save(one.slice)
        with_changes += any(min(state.blocks, default=0) < 0 for state in states)
        if kind < 0.8:
            continue
        stored = list(chain.from_iterable(state.stored() for state in states))
        parallelism = dice.choice([len(subtasks), 1, 2, 3])
        whole = states if parallelism == len(subtasks) else [State() for _ in range(parallelism)]
        if whole is not states:
            for block in stored:
                # Blocks of one number of several subtasks meet in a namespace, as a backend restores them.
                index = block.group % parallelism
                data = states[block.group % len(states)].blocks[block.number][block.group]
                whole[index].blocks.setdefault(block.number, {})[block.group] = data
        states = whole
        subtasks = [Kept(state.stored()) for state in states]
        found: dict[int, Any] = {}
        for one in subtasks:
            found |= one.shown()
        expected = model.shown()
        assert found == expected
    assert with_changes > 0


def test_few_changes_of_many_keys_are_written_alone() -> None:
    one, state = Kept(), State()
    one.add(range(1000), [1] * 1000, 0)
    state.save(one.slice)
    assert min(state.blocks) == 0
    whole, state.written = state.written, 0
    for number in range(1, 6):
        one.add([7, 900], [number, number], 1000 + number)
        state.save(one.slice)
        assert sorted(state.blocks)[:number] == list(range(-number, 0))
    assert state.written < whole / 10
    one.add([7, 500], [9, 9], 2000)
    state.save(one.slice)  # too many of them: chunks with changes are written, and these are gone
    assert min(state.blocks) == 0
    assert Kept(state.stored()).shown() == one.shown()
    state.save(one.slice)
    assert one.slice.take_changes() == []


def test_a_chunk_that_is_written_replaces_its_changes() -> None:
    one, state = Kept(), State()
    one.add(range(64), [1] * 64, 0)
    state.save(one.slice)
    one.add([1, 33], [2, 2], 100)
    state.save(one.slice)
    assert -1 in state.blocks
    one.add(range(16), [3] * 16, 200)
    state.save(one.slice)  # chunk 0 alone
    assert -1 in state.blocks
    assert Kept(state.stored()).shown() == one.shown()
    again = Kept(state.stored())
    again.add([33], [5], 300)
    one.add([33], [5], 300)
    state.save(again.slice)
    assert sorted(state.blocks)[:2] == [-2, -1]
    assert Kept(state.stored()).shown() == one.shown()
