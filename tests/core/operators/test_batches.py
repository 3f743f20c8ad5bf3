"""Process functions of batches: the same results as record by record."""

from collections import Counter

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.errors import FunctionContractError, StateError, UnstableKeyError
from sluiceway.testing import OperatorHarness

LATE = sw.OutputTag("late")
COUNT = sw.ValueStateDescriptor("count", int, default=0)


def word_of(pair):
    return pair[0]


class Counting(sw.KeyedProcessFunction):
    """Per record: the running count; large numbers aside; a timer some time later tells the count."""

    def open(self, context):
        self.count = context.get_state(COUNT)

    def process_element(self, value, ctx):
        word, number = value
        self.count.update(self.count.value() + number)
        if number > 2:
            ctx.output(LATE, value)
        if ctx.timestamp() is not None:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() // 10 * 10 + 10)
        yield word, self.count.value()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.count.value()


class CountingInBatches(sw.KeyedBatchProcessFunction):
    """The same."""

    def open(self, context):
        self.count = context.get_state(COUNT)

    def process_batch(self, values, ctx):
        assert len(ctx.keys) == len(values)
        counts = ctx.bulk(self.count)
        large = [i for i, (_, number) in enumerate(values) if number > 2]
        stamps = ctx.timestamps
        ctx.output(LATE, sw.Batch([values[i] for i in large], stamps and [stamps[i] for i in large]))
        results = []
        for key, (word, number) in zip(ctx.keys, values, strict=True):
            count = counts[key] = counts.get(key, 0) + number
            results.append((word, count))
        if stamps is not None:
            for key, due in {(key, at // 10 * 10 + 10) for key, at in zip(ctx.keys, stamps, strict=True)}:
                ctx.set_current_key(key)
                ctx.timer_service().register_event_time_timer(due)
        return results

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.count.value()


_words = st.sampled_from(["a", "b", "c", ("d", 1)])
_batches = st.lists(st.lists(st.tuples(_words, st.integers(1, 4)), min_size=1, max_size=6), max_size=6)


@examples(25, 60)
@given(batches=_batches, parallelism=st.integers(1, 3), stamped=st.booleans(), restart=st.booleans())
def test_the_results_are_those_of_the_function_of_records(batches, parallelism, stamped, restart):
    def run(function):
        program = lambda s: s.key_by(word_of).process(function)  # noqa: E731
        seen, aside, snapshot = [], [], None
        parts = [batches[:3], batches[3:]] if restart else [batches]
        at = 0
        for part in parts:
            with OperatorHarness(program, parallelism=parallelism, restored=snapshot) as harness:
                for batch in part:
                    stamps = [at + 3 * i for i in range(len(batch))] if stamped else None
                    harness.process_batch(batch, stamps)
                    at += 7
                    # Timers of one time and different keys have no order among them.
                    before = len(harness.records)
                    harness.process_watermark(at - 10)
                    seen.append(sorted(harness.records[before:], key=repr))
                seen.append(Counter(harness.records))
                aside += harness.side_records(LATE)
                snapshot = harness.snapshot()
        return seen, aside

    assert run(CountingInBatches()) == run(Counting())


class Each(sw.BatchProcessFunction):
    """Returns what the test says."""

    def __init__(self, make):
        self.make = make
        self.calls = []

    def open(self, context):
        self.calls.append("open")

    def close(self):
        self.calls.append("close")

    def process_batch(self, values, ctx):
        return self.make(values, ctx)


def test_results_have_the_timestamps_of_their_records_or_their_own():
    def run(make, **how):
        function = Each(make)
        with OperatorHarness(lambda s: s.process(function)) as harness:
            harness.process_batch([1, 2], [10, 20])
            harness.process_batch([3])
        assert function.calls == ["open", "close"]
        return harness.records

    assert run(lambda values, ctx: [-v for v in values]) == [(-1, 10), (-2, 20), (-3, None)]
    assert run(lambda values, ctx: (-v for v in values)) == [(-1, 10), (-2, 20), (-3, None)], "a generator"
    assert run(lambda values, ctx: None) == run(lambda values, ctx: []) == []
    double = run(lambda values, ctx: sw.Batch(list(values) * 2, list(ctx.timestamps or ()) * 2 or None))
    assert double == [(1, 10), (2, 20), (1, 10), (2, 20), (3, None), (3, None)]
    assert run(lambda values, ctx: sw.Batch([0])) == [(0, None), (0, None)], "timestamps are taken away"
    assert run(lambda values, ctx: sw.Batch([])) == []


def test_a_list_that_was_returned_stays_the_functions_own():
    kept = []

    def collect(values, ctx):
        kept.extend(values)
        return kept

    with OperatorHarness(lambda s: s.process(Each(collect))) as harness:
        harness.process_batch([1, 2])
        harness.process_batch([3])
        assert [batch.values for batch in harness.elements] == [[1, 2], [1, 2, 3]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda values, ctx: [1, 2, 3], "returned 3 records for 2, .*: return a Batch"),
        (lambda values, ctx: 5, r"returned 5 \(int\); it takes an iterable of records, or a Batch"),
        (lambda values, ctx: "ab", r"returned 'ab' \(str\); it takes an iterable"),
        (
            lambda values, ctx: sw.Batch([1], [1, 2]),
            "returned a Batch of 1 records with 2 timestamps: pass one each",
        ),
        (lambda values, ctx: ctx.output(LATE, [1]), "emitted to side output 'late' 1 records for 2"),
        (lambda values, ctx: ctx.output("late", [1, 2]), r"ctx.output\(tag, values\) needs an OutputTag first"),
    ],
)
def test_what_cannot_be_a_result_is_refused(make, message):
    with OperatorHarness(lambda s: s.process(Each(make))) as harness:
        with pytest.raises(FunctionContractError, match=message) as caught:
            harness.process_batch([7, 8], [1, 2])
        assert any("in step 'process(Each)'" in note for note in caught.value.__notes__)


def test_a_batch_to_a_side_output_goes_as_it_is():
    def split(values, ctx):
        ctx.output(LATE, values)
        ctx.output(LATE, sw.Batch(["own"], [99]))
        assert ctx.current_watermark() < 0
        assert ctx.current_processing_time() == 0

    with OperatorHarness(lambda s: s.process(Each(split))) as harness:
        harness.process_batch([1, 2], [10, 20])
        assert harness.side_records(LATE) == [(1, 10), (2, 20), ("own", 99)]
        assert harness.records == []


def test_what_goes_to_a_side_output_is_not_trusted_for_the_hint_of_the_results():
    class Reuses(sw.BatchProcessFunction[int, int]):
        def process_batch(self, values: list[int], ctx: sw.BatchProcessFunction.Context) -> list[int]:
            row = {}
            for value in values:
                row["n"] = value
                ctx.output(LATE, sw.Batch([row]))
            return values

    with OperatorHarness(lambda s: s.process(Reuses())) as harness:
        assert harness.process_batch([1, 2]) == [1, 2]
        assert harness.side_output(LATE) == [{"n": 1}, {"n": 2}]


class Keyed(sw.KeyedBatchProcessFunction):
    """Declares a state of each kind and does what the test says."""

    def __init__(self, make, ttl=None):
        self.make = make
        self.ttl = ttl

    def open(self, context):
        self.value = context.get_state(sw.ValueStateDescriptor("value", ttl=self.ttl))
        self.list = context.get_list_state(sw.ListStateDescriptor("list", ttl=self.ttl))
        self.map = context.get_map_state(sw.MapStateDescriptor("map", ttl=self.ttl))
        self.sum = context.get_reducing_state(
            sw.ReducingStateDescriptor("sum", reduce=lambda a, b: a + b, ttl=self.ttl)
        )

    def process_batch(self, values, ctx):
        return self.make(self, values, ctx)


def test_every_kind_of_state_can_be_seen_in_bulk():
    def write(f, values, ctx):
        for value in values:
            ctx.set_current_key(value)
            f.value.update(value)
            f.list.add_all([value, value])
            f.map.put("entry", value)
            f.sum.add(value)
            f.sum.add(1)
        assert dict(ctx.bulk(f.value)) == {1: 1, 2: 2}
        assert dict(ctx.bulk(f.list)) == {1: [1, 1], 2: [2, 2]}
        maps = ctx.bulk(f.map)
        assert {key: dict(maps[key]) for key in maps} == {1: {"entry": 1}, 2: {"entry": 2}}
        assert (1 in maps, 3 in maps, len(maps)) == (True, False, 2)
        assert dict(ctx.bulk(f.sum)) == {1: 2, 2: 3}
        ctx.bulk(f.value)[1] = "new"
        maps[2]["more"] = 5
        del ctx.bulk(f.sum)[2]
        ctx.set_current_key(1)
        assert f.value.value() == "new"
        ctx.set_current_key(2)
        assert list(f.map.items()) == [("entry", 2), ("more", 5)]
        assert f.sum.get() is None
        return ["done"] * len(values)

    with OperatorHarness(lambda s: s.key_by(lambda n: n).process(Keyed(write))) as harness:
        assert harness.process_batch([1, 2]) == ["done", "done"]


def test_state_that_expires_can_be_seen_in_bulk_where_a_key_expires_as_a_whole():
    def look(f, values, ctx):
        seen = dict(ctx.bulk(f.value))
        for key in ctx.keys:
            ctx.bulk(f.value)[key] = 1
        return [seen]

    with OperatorHarness(lambda s: s.key_by(str).process(Keyed(look, sw.StateTtlConfig(10)))) as harness:
        assert harness.process_batch(["a"]) == [{}]
        harness.advance(9)
        assert harness.process_batch(["b"]) == [{"a": 1}]
        harness.advance(1)
        assert harness.process_batch(["c"]) == [{"b": 1}]
    for kind in ("list", "map"):
        bad = Keyed(lambda f, values, ctx, kind=kind: ctx.bulk(getattr(f, kind)), sw.StateTtlConfig(10))
        message = f"{kind} state '{kind}' has a time to live for each of its parts"
        with (
            OperatorHarness(lambda s, bad=bad: s.key_by(str).process(bad)) as harness,
            pytest.raises(StateError, match=message),
        ):
            harness.process("a")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda f, v, ctx: ctx.bulk({}),
            FunctionContractError,
            r"ctx.bulk\(state\) in step '.*' needs a state h",
        ),
        (
            lambda f, v, ctx: f.value.value(),
            StateError,
            r"without a current key .*call ctx.set_current_key\(key\)",
        ),
        (
            lambda f, v, ctx: ctx.timer_service(),
            StateError,
            "asks for timers without a current key: call ctx.set_cu",
        ),
        (lambda f, v, ctx: [f.value.value() for _ in map(ctx.set_current_key, [[]])], UnstableKeyError, "list"),
    ],
)
def test_what_a_keyed_function_cannot_do_is_refused(make, error, message):
    with (
        OperatorHarness(lambda s: s.key_by(str).process(Keyed(make))) as harness,
        pytest.raises(error, match=message),
    ):
        harness.process_batch(["a", "b"])


def test_a_key_is_forgotten_with_its_batch():
    def use(f, values, ctx):
        if values == ["first"]:
            ctx.set_current_key("first")
        return [f.value.value()]

    with OperatorHarness(lambda s: s.key_by(str).process(Keyed(use))) as harness:
        assert harness.process("first") == [None]
        with pytest.raises(StateError, match="without a current key"):
            harness.process("second")


def test_a_failure_names_its_step_and_no_neighbour():
    class Fails(sw.BatchProcessFunction[int, int]):
        def process_batch(self, values, ctx):
            raise ValueError("no")

    with OperatorHarness(lambda s: s.map(abs).process(Fails()).map(abs)) as op:
        with pytest.raises(ValueError, match="no") as caught:
            op.process(1)
        assert "in step 'process(Fails)'" in caught.value.__notes__[0]


def test_the_record_whose_key_fails_is_named():
    with OperatorHarness(lambda s: s.key_by(lambda n: 10 // n).process(Keyed(lambda f, v, c: v))) as harness:
        with pytest.raises(ZeroDivisionError) as caught:
            harness.process_batch([1, 0, 2])
        assert "record: 0" in caught.value.__notes__
    with OperatorHarness(lambda s: s.key_by(lambda n: [n]).process(Keyed(lambda f, v, c: v))) as harness:
        with pytest.raises(UnstableKeyError, match="list") as caught:
            harness.process_batch([1])
        assert "record: 1" in caught.value.__notes__


def test_nan_is_no_key_in_bulk_either():
    class Bulk(sw.KeyedBatchProcessFunction):
        def open(self, context):
            self.count = context.get_state(COUNT)

        def process_batch(self, values, ctx):
            counts = ctx.bulk(self.count)
            for key in ctx.keys:
                counts[key] = counts.get(key, 0) + 1
            return list(ctx.keys)

    with OperatorHarness(lambda s: s.key_by(lambda number: number).process(Bulk())) as op:
        assert op.process_batch([1.5, 2.0]) == [1.5, 2.0]
        with pytest.raises(UnstableKeyError, match="NaN is not equal to itself"):
            op.process_batch([1.5, float("nan")])


def test_processing_time_timers_fire_for_any_key():
    def ask(f, values, ctx):
        for key in ctx.keys:
            ctx.set_current_key(key)
            ctx.timer_service().register_processing_time_timer(5)

    class Asking(Keyed):
        def on_timer(self, timestamp, ctx):
            return [(ctx.get_current_key(), timestamp)]

    with OperatorHarness(lambda s: s.key_by(str).process(Asking(ask)), parallelism=2) as harness:
        harness.process_batch(["a", "b", "c"])
        assert sorted(harness.advance(10)) == [("a", 5), ("b", 5), ("c", 5)]


def test_a_function_without_keys_may_stand_after_key_by():
    with OperatorHarness(lambda s: s.key_by(str).process(Each(lambda values, ctx: list(values)))) as harness:
        assert harness.process_batch([1, 2]) == [1, 2]


def test_a_keyed_function_needs_a_keyed_stream():
    with pytest.raises(
        TypeError, match=r"Keyed is a KeyedBatchProcessFunction, for key_by\(\.\.\.\)\.process\(\)"
    ):
        sw.Pipeline("p").from_collection([1]).process(Keyed(None))


def test_hints_are_followed_through_a_batch():
    class Lengths(sw.BatchProcessFunction[str, int]):
        def process_batch(self, values: list[str], ctx: sw.BatchProcessFunction.Context) -> list[int] | None:
            return [len(value) for value in values]

    class Stamped(sw.BatchProcessFunction[int, int]):
        def process_batch(self, values: list[int], ctx: sw.BatchProcessFunction.Context) -> sw.Batch[str]:
            return sw.Batch([str(v) for v in values])

    flow = sw.Pipeline("p")
    flow.from_collection(["a"]).uid("in").process(Lengths()).process(Stamped()).process(Lengths()).print()
    assert flow.check() == []
    flow = sw.Pipeline("p")
    flow.from_collection(["a"]).uid("in").process(Lengths()).name("first").process(Lengths()).print()
    assert any("'first'" in f.message and "produces int" in f.message for f in flow.check())
