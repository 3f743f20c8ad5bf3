"""Results of keyed process functions: their timestamps, however many there are for a record, and who is blamed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.errors import UnstableKeyError
from sluiceway.testing import OperatorHarness

Record = tuple[str, int, int]  # key, results to emit, event time


class Emit(sw.KeyedProcessFunction[str, Record, Record]):
    """So many results for each record; by turns as a list, from a generator, or None where there are none."""

    def process_element(self, value: Record, ctx: sw.KeyedProcessFunction.Context) -> Iterable[Record] | None:
        assert ctx.get_current_key() == value[0]
        if value[1] == 0:
            return None
        results = [(value[0], index, ctx.timestamp() or -1) for index in range(value[1] - 1)]
        return iter(results) if value[1] % 2 else results


class Seen(sw.ProcessFunction[Record, tuple[Record, int | None]]):
    def process_element(
        self, value: Record, ctx: sw.ProcessFunction.Context
    ) -> Iterable[tuple[Record, int | None]]:
        yield value, ctx.timestamp()


def outcome(
    records: list[Record], size: int, *, stamped: bool, parallelism: int
) -> list[tuple[Record, int | None]]:
    flow = sw.Pipeline("emit", parallelism=parallelism)
    stream = flow.from_collection(records, timestamp=(lambda record: record[2]) if stamped else None)
    seen = stream.key_by(lambda record: record[0]).process(Emit()).process(Seen()).collect()
    flow.run(batch_size=size)
    return list(seen)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 99)), max_size=20),
    st.sampled_from([1, 3, 100]),
    st.booleans(),
    st.sampled_from([1, 2]),
)
def test_each_result_has_the_timestamp_of_its_record(
    records: list[Record], size: int, stamped: bool, parallelism: int
) -> None:
    expected = [
        ((key, index, time if stamped and time else -1), time if stamped else None)
        for key, number, time in records
        for index in range(number - 1)
    ]
    got = outcome(records, size, stamped=stamped, parallelism=parallelism)
    assert got == expected if parallelism == 1 else sorted(got, key=repr) == sorted(expected, key=repr)


def test_a_key_that_cannot_be_had_is_told_of_its_own_record() -> None:
    """Neither key nor timestamp are those of the record before."""
    flow = sw.Pipeline("keys")
    records = flow.from_collection([4, 2, 0, 1], timestamp=lambda value: value + 100)
    keyed = records.key_by(lambda value: 12 // value)

    class Nothing(sw.KeyedProcessFunction[int, int, int]):
        def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> None:
            pass

    keyed.process(Nothing()).for_each(print)
    with pytest.raises(ZeroDivisionError) as raised:
        flow.run()
    said = "\n".join(raised.value.__notes__)
    assert "record: 0\ntimestamp: 100 ms" in said
    assert "key" not in said.partition("record:")[2]


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("size", [1, 100])
def test_keys_without_a_hash_are_refused_where_the_function_has_no_state(parallelism: int, size: int) -> None:
    flow = sw.Pipeline("lists", parallelism=parallelism)
    keyed = flow.from_collection([1, 2, 3]).key_by(lambda n: [n])
    seen = keyed.process(lambda n, ctx: [n]).collect()
    with pytest.raises(UnstableKeyError, match=r"\[\d\] \(list\) cannot be a key: list is not hashable"):
        flow.run(batch_size=size)
    assert list(seen) == []


@pytest.mark.parametrize("parallelism", [1, 2])
def test_records_whose_keys_have_no_hash_are_skipped(parallelism: int) -> None:
    flow = sw.Pipeline("lists", parallelism=parallelism)
    keyed = flow.from_collection(list(range(6))).key_by(lambda n: [n] if n % 2 else n)
    processed = keyed.process(lambda n, ctx: [n]).on_error("skip")
    seen, letters = processed.collect(), processed.dead_letters().collect()
    flow.run()
    assert sorted(seen) == [0, 2, 4]
    assert sorted(letter.value() for letter in letters) == [1, 3, 5]


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("step", ["process", "count", "map"])
def test_records_whose_key_is_nan_are_skipped(step: str, parallelism: int) -> None:
    class Pair(sw.MapFunction[int, Any]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.state = context.get_state(sw.ValueStateDescriptor("state", int))

        def map(self, value: int) -> Any:
            return value, 1

    flow = sw.Pipeline("nan", parallelism=parallelism)
    keyed: Any = flow.from_collection(list(range(6))).key_by(lambda n: math.nan if n % 2 else n)
    if step == "map":
        made = keyed.map(Pair())
    else:
        made = keyed.count() if step == "count" else keyed.process(lambda n, ctx: [(n, 1)])
    seen, letters = made.on_error("skip").collect(), made.dead_letters().collect()
    flow.run()
    assert sorted(seen) == [(0, 1), (2, 1), (4, 1)]
    assert sorted(letter.value() for letter in letters) == [1, 3, 5]


class Reminders(sw.KeyedProcessFunction[str, int, Any]):
    """Its timers yield one row again and again, of which the type hint for records says nothing."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.row = {"at": 0}

    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> Iterator[int]:
        ctx.timer_service().register_event_time_timer(value)
        yield value

    def on_timer(self, timestamp: int, ctx: Any):  # type: ignore[no-untyped-def]
        self.row["at"] = timestamp
        yield self.row


def test_results_of_timers_are_not_trusted_for_the_hint_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where there are tags nothing is trusted in any case.
    monkeypatch.setattr(sw.OutputTag, "_made", False)
    with OperatorHarness(lambda s: s.key_by(lambda n: "all").process(Reminders())) as op:
        assert op.process_batch([1, 2, 3]) == [1, 2, 3]
        assert op.process_watermark(5) == [{"at": 1}, {"at": 2}, {"at": 3}]
