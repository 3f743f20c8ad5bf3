"""Open sessions: equal to those of rows one by one, to the last bit, whatever the batches and snapshots."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from effort import tries
from hypothesis import example, given
from hypothesis import strategies as st

from sluiceway.columns.aggregation import aggregates as agg
from sluiceway.columns.aggregation import sessions as sessions_module
from sluiceway.columns.aggregation.due_places import DuePlaces
from sluiceway.columns.aggregation.sessions import Sessions
from sluiceway.columns.aggregation.slices import Layout
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.keys.idle_keys import forget_idle
from sluiceway.columns.keys.key_ids import KeyIds, key_groups_of_rows
from sluiceway.elements import MAX_WATERMARK

SCHEMA = pa.schema([("user", pa.int64()), ("price", pa.float64()), ("word", pa.string())])
NAMED = {
    "n": agg.count(),
    "total": agg.sum("price"),
    "high": agg.max("word"),
    "first": agg.first("price"),
    "different": agg.count_distinct("word"),
    "top": agg.top_k("price", 2),
    "all": agg.collect("price"),
    "spread": agg.variance("price"),
}
LAYOUT = Layout({"user": pa.int64()}, {name: a.bind(SCHEMA, "step 's'") for name, a in NAMED.items()}, "s")
GAP = 5


class Fed:
    """Sessions that rows are added to, with results and late rows."""

    def __init__(self) -> None:
        self.arrived, self.kept, self.over = 0, 0, 0
        self.found: list[object] = []
        self.late: list[int] = []
        self.begin([])

    def begin(self, blocks: list[bytes]) -> None:
        self.blocks: dict[int, bytes] = {}
        self.keys = KeyIds([pa.int64()], 4)
        self.sessions = Sessions(LAYOUT, self.keys, GAP)
        self.sessions.restore(blocks)

    def add(self, rows: list[tuple[int, int]]) -> None:
        if not rows:
            return
        arrivals = np.arange(self.arrived, self.arrived + len(rows))
        self.arrived += len(rows)
        columns = {
            "price": Values(pa.array([1 / (3 + n) if n % 7 else None for n in arrivals.tolist()], pa.float64())),
            "word": Values(pa.array([f"w{n % 5}" for n in arrivals.tolist()])),
        }
        users, stamps = (np.array(each, np.int64) for each in zip(*rows, strict=True))
        ids = self.keys.find([pa.array(users)])
        late = self.sessions.add(ids, stamps, columns, arrivals, np.full(len(rows), self.over))
        self.late += arrivals[late].tolist()

    def close(self, until: int) -> None:
        self.over = max(self.over, until)
        results, starts, ends = self.sessions.close(self.over)
        columns = [*results.values(), pa.array(starts), pa.array(ends)]
        self.found += pa.RecordBatch.from_arrays(columns, [*results, "start", "end"]).to_pylist()
        self.kept = forget_idle(self.keys, [self.sessions], self.kept)

    def restore(self) -> None:
        for group, block in self.sessions.blocks().items():
            self.blocks.pop(group, None)
            if block is not None:
                self.blocks[group] = block
        blocks = self.blocks
        self.begin(list(blocks.values()))
        self.blocks = blocks


ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=30)


@given(
    ROWS,
    st.lists(st.integers(0, 30), max_size=4),
    st.lists(st.integers(0, 30), max_size=3),
    st.sampled_from([0, 64]),
)
@example([(0, 0), (0, 12), (0, 1), (0, 13), (0, 6), (0, 20), (0, 9), (0, 2), (0, 18)], [], [], 64)
@example([(0, 30), (0, 2), (0, 6), (0, 9), (0, 14), (0, 20), (0, 25), (0, 2)], [], [1], 0)
def test_batches_and_snapshots_change_nothing(rows, cuts, ends, keys_per_row):
    one_by_one, batches = Fed(), Fed()
    closing = {end: 7 * (place + 1) for place, end in enumerate(sorted(ends))}
    for at, row in enumerate(rows):
        if at in closing:
            one_by_one.close(closing[at])
        one_by_one.add([row])
    # Of few keys all are looked at, of many those of the batch alone.
    with patch.object(sessions_module, "_KEYS_PER_ROW", keys_per_row):
        for low, high in pairwise(sorted({0, len(rows), *cuts, *ends} - set(range(len(rows) + 1, 99)))):
            if low in closing:
                batches.close(closing[low])
            if low in cuts:
                batches.restore()
            batches.add(rows[low:high])
    one_by_one.close(100)
    batches.close(100)
    assert batches.found == one_by_one.found
    assert batches.late == one_by_one.late
    assert len(batches.sessions) == 0


def test_sessions_that_have_ended_take_no_memory():
    fed, dice, most = Fed(), random.Random(5), 0
    for step in range(tries(100, 400)):
        fed.add(
            [(dice.randrange(step * 100, step * 100 + 3000), step * 10 + dice.randrange(10)) for _ in range(400)]
        )
        fed.close(step * 10)
        fed.found.clear()
        most = max(most, len(fed.sessions))
    assert 100 < most < 2000
    assert fed.sessions.nbytes < 4_000_000
    assert len(fed.keys) < 100_000
    assert not fed.late


def test_times_at_the_ends_of_what_there_is():
    fed = Fed()
    fed.over = -(2**63)
    fed.add([(0, 2**63 - 1), (0, -(2**63)), (1, 0), (0, 2**63 - 3), (0, -(2**63) + 4)])
    results, starts, ends = fed.sessions.close(2**63 - 1)
    assert results["n"].to_pylist() == [2, 1, 2]
    assert starts.tolist() == [-(2**63), 0, 2**63 - 3]
    assert ends.tolist() == [-(2**63) + 9, 5, 2**63 - 1]


def test_a_batch_costs_nothing_for_keys_that_it_does_not_have() -> None:
    count = 200_000
    layout = Layout({"user": pa.int64()}, {"n": agg.count().bind(SCHEMA, "step 's'")}, "s")
    keys = KeyIds([pa.int64()], 128)
    sessions = Sessions(layout, keys, GAP)

    def add(users: Sequence[int]) -> None:
        ids = keys.find([pa.array(users, pa.int64())])
        never = np.full(len(ids), -(1 << 40))
        assert not len(sessions.add(ids, np.zeros(len(ids), np.int64), {}, np.arange(len(ids)), never))

    add(range(count + 1))
    add([count + 1])  # arrays grow by half here
    for user in (7, count + 2):  # one that is known, and a new one
        tracemalloc.start()
        try:
            add([user])
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < count / 4
    assert keys.groups().tolist() == key_groups_of_rows(keys.columns(), 128).tolist()
    results, _, _ = sessions.close(1 << 40)
    wanted = np.ones(count + 3, np.int64)
    wanted[7] = 2
    assert dict(zip(results["user"].to_pylist(), results["n"].to_pylist(), strict=True)) == dict(
        enumerate(wanted.tolist())
    )


def test_ends_cost_nothing_for_sessions_that_stay_open() -> None:
    count = 200_000
    layout = Layout({"user": pa.int64()}, {"n": agg.count().bind(SCHEMA, "step 's'")}, "s")
    for lateness in (0, 1000):
        keys = KeyIds([pa.int64()], 128)
        sessions = Sessions(layout, keys, GAP, lateness)

        def add(users: Sequence[int], stamp: int, keys: KeyIds = keys, sessions: Sessions = sessions) -> None:
            ids = keys.find([pa.array(users, pa.int64())])
            stamps, never = np.full(len(ids), stamp), np.full(len(ids), -(1 << 40))
            assert not len(sessions.add(ids, stamps, {}, np.arange(len(ids)), never))

        add(range(count), 100_000)
        add([count, count + 1], 0)
        add([count], 4)  # found at its first end, and filed again
        ended: list[int] = []
        for until in (5, 8, 9, 1004, 1009, 2000):
            tracemalloc.start()
            try:
                if sessions.is_due(until):
                    results, _, _ = sessions.close(until, np.full(128, until - 1))
                    ended += results["user"].to_pylist()
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < count / 4
        assert ended == [count + 1, count]
        assert len(sessions) == count
        assert not sessions.is_due(100_004)
        results, _, _ = sessions.close(100_005)
        assert len(results["user"]) == count
        assert len(sessions) == (count if lateness else 0)
        assert sessions.is_due(1 << 40) == bool(lateness)


def test_ends_read_the_values_of_sessions_that_have_ended_alone() -> None:
    count = 50_000
    named = {
        "different": agg.count_distinct("word"),
        "top": agg.top_k("price", 2),
        "all": agg.collect("word"),
        "middle": agg.quantile("price", 0.5),
    }
    layout = Layout({"user": pa.int64()}, {name: a.bind(SCHEMA, "step 's'") for name, a in named.items()}, "s")
    keys = KeyIds([pa.int64()], 128)
    sessions = Sessions(layout, keys, GAP)

    def add(users: Sequence[int], stamps: Sequence[int], arrived: int) -> None:
        ids, never = keys.find([pa.array(users, pa.int64())]), np.full(len(users), -(1 << 40))
        words = Values(pa.array([f"w{user}" for user in users]))
        columns = {"price": Values(pa.array(users, pa.float64())), "word": words}
        arrivals = np.arange(arrived, arrived + len(users))
        assert not len(sessions.add(ids, np.array(stamps, np.int64), columns, arrivals, never))

    stays = 1_000_000
    add(range(count), [stays] * (count - 1) + [0], 0)
    sessions.close(GAP)  # the values are put in order
    for turn in range(3):
        add([count + turn], [10 * (turn + 1)], count + turn)
        tracemalloc.start()
        try:
            results, _, _ = sessions.close(10 * (turn + 1) + GAP)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert {name: results[name].to_pylist() for name in ("user", "different", "top", "all")} == {
            "user": [count + turn],
            "different": [1],
            "top": [[count + turn]],
            "all": [[f"w{count + turn}"]],
        }
        assert peak < 4 * count  # of the values of all it takes several times as much


@given(st.lists(st.one_of(st.lists(st.integers(-9, 9), max_size=9), st.integers(-9, 9)), max_size=30))
def test_places_are_taken_by_their_times(steps: list[list[int] | int]) -> None:
    due, model, count = DuePlaces(), {}, 0
    for step in steps:
        if isinstance(step, list):
            places = np.arange(count, count + len(step))
            count += len(step)
            model |= dict(zip(places.tolist(), step, strict=True))
            due.add(np.array(step, np.int64), places)
        else:
            gone = {place for place, time in model.items() if time <= step}
            assert sorted(due.take(step).tolist()) == sorted(gone)
            model = {place: time for place, time in model.items() if place not in gone}
        assert len(due) == len(model)
        assert due.earliest == min(model.values(), default=MAX_WATERMARK)
        assert len(due._runs) <= max(1, count).bit_length()
