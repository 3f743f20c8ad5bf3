"""Whole jobs in one process: results, order, ends, cancellation, metrics."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.connector import Sink, SinkWriter, Wait, WriterContext
from sluiceway.engine import JobStatus
from sluiceway.errors import GraphError

LINES = ["to be or not to be", "that is the question", "", "to sleep perchance to dream"]
WORDS = Counter(" ".join(LINES).split())


def final(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    last: dict[str, int] = {}
    for word, n in counts:
        assert n == last.get(word, 0) + 1, "the counts of a key come in order"
        last[word] = n
    return last


@pytest.mark.parametrize("parallelism", [1, 2, 5])
@pytest.mark.parametrize("batch_size", [1, 3, 1024])
@pytest.mark.parametrize("timeout", [0, 5, -1])
def test_word_count_whatever_the_batches_and_the_parallelism(
    parallelism: int, batch_size: int, timeout: int
) -> None:
    flow = sw.Pipeline("wordcount")
    counts = flow.from_collection(LINES).flat_map(str.split).key_by(lambda w: w).count().collect()
    result = flow.run(parallelism=parallelism, batch_size=batch_size, buffer_timeout=timeout)
    assert result.status is JobStatus.FINISHED
    assert final(counts) == WORDS
    assert result.metrics.records_in == len(LINES)
    assert result.metrics.records_out == sum(WORDS.values())


@pytest.mark.parametrize("scheduler", ["eager", "lazy-from-sources", "pipelined-region"])
@pytest.mark.parametrize("chaining", [True, False])
def test_every_scheduler_chained_or_not(scheduler: str, chaining: bool) -> None:
    flow = sw.Pipeline("wordcount")
    stream = flow.from_collection(LINES).flat_map(str.split).map(str.upper).filter(lambda w: w != "OR")
    counts = stream.key_by(lambda w: w).count().collect()
    flow.run(parallelism=2, scheduler=scheduler, chaining=chaining)
    assert final(counts) == {w.upper(): n for w, n in WORDS.items() if w != "or"}


def test_an_unknown_scheduler_lists_the_known_ones() -> None:
    flow = sw.Pipeline("x")
    flow.from_collection([1]).print()
    with pytest.raises(sw.SluicewayError, match="lazy-from-sources"):
        flow.run(scheduler="lazy-from-source")


@given(
    st.lists(st.integers(-5, 5), max_size=40),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["rebalance", "shuffle", "rescale", "broadcast", "global_"]),
)
@settings(max_examples=40, deadline=None)
def test_no_partitioner_loses_or_repeats(values: list[int], up: int, down: int, how: str) -> None:
    flow = sw.Pipeline("p")
    stream = flow.from_collection(values).map(lambda v: v).set_parallelism(up)
    out = getattr(stream, how)().map(lambda v: v).set_parallelism(down).collect()
    flow.run()
    copies = down if how == "broadcast" else 1
    assert sorted(out) == sorted(values * copies)


def test_order_is_kept_per_key_between_parallel_steps() -> None:
    flow = sw.Pipeline("order")
    values = [(n % 7, n) for n in range(5000)]
    seen = flow.from_collection(values).key_by(lambda v: v[0]).process(lambda v, ctx: [v]).collect()
    flow.run(parallelism=3, batch_size=16)
    # One reader reads the collection in order or several read shares of it; within a share order holds.
    by_key: dict[int, list[int]] = defaultdict(list)
    for key, n in seen:
        by_key[key].append(n)
    assert sum(map(len, by_key.values())) == 5000
    assert all(len(set(ns)) == len(ns) for ns in by_key.values())


def test_side_outputs_and_two_sinks_share_one_step() -> None:
    odd = sw.OutputTag("odd", int)

    def split(value: int, ctx: Any) -> Iterable[int]:
        if value % 2:
            ctx.output(odd, value)
        else:
            yield value

    flow = sw.Pipeline("sides")
    main = flow.from_collection(range(10)).process(split)
    evens, again = main.collect(), main.map(lambda v: -v).collect()
    odds = main.get_side_output(odd).map(lambda v: v * 10).collect()
    flow.run()
    assert sorted(evens) == [0, 2, 4, 6, 8]
    assert sorted(again) == [-8, -6, -4, -2, 0]
    assert sorted(odds) == [10, 30, 50, 70, 90]


def test_union_of_three_and_of_one_with_itself() -> None:
    flow = sw.Pipeline("union")
    a, b = flow.from_collection([1, 2]), flow.from_collection([3])
    out = a.union(b, a).collect()
    flow.run(parallelism=2)
    assert sorted(out) == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 1024])
def test_an_iteration_ends_when_its_loop_is_empty(parallelism: int, batch_size: int) -> None:
    def collatz(pair: tuple[int, int, int]) -> tuple[int, int, int]:
        start, n, steps = pair
        return start, (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1

    flow = sw.Pipeline("collatz")
    loop = flow.from_collection([(n, n, 0) for n in range(2, 60)]).iterate()
    stepped = loop.rebalance().map(collatz)
    loop.close_with(stepped.filter(lambda p: p[1] != 1).key_by(lambda p: p[0]).process(lambda p, ctx: [p]))
    done = stepped.filter(lambda p: p[1] == 1).map(lambda p: (p[0], p[2])).collect()
    flow.run(parallelism=parallelism, batch_size=batch_size)

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert dict(done) == {n: steps(n) for n in range(2, 60)}
    assert len(done) == 58


def test_a_loop_that_multiplies_its_records_does_not_lock_up() -> None:
    flow = sw.Pipeline("tree")
    loop = flow.from_collection([0]).iterate()
    children = loop.flat_map(lambda depth: [depth + 1, depth + 1])
    loop.close_with(children.filter(lambda depth: depth < 14))
    leaves = children.filter(lambda depth: depth == 14).collect()
    flow.run(parallelism=1, batch_size=32)
    assert len(leaves) == 2**14


def test_two_iterations_one_after_the_other() -> None:
    flow = sw.Pipeline("two loops")
    first = flow.from_collection([5, 6]).iterate()
    down = first.map(lambda v: v - 1)
    first.close_with(down.filter(lambda v: v > 0))
    second = down.filter(lambda v: v == 0).map(lambda v: 3).iterate()
    again = second.map(lambda v: v - 1)
    second.close_with(again.filter(lambda v: v > 0))
    out = again.collect()
    flow.run(parallelism=1)
    assert sorted(out) == [0, 0, 1, 1, 2, 2]


def test_nested_iterations_are_refused_by_name() -> None:
    flow = sw.Pipeline("nested")
    outer = flow.from_collection([1]).iterate().name("outer")
    inner = outer.map(lambda v: v).iterate().name("inner")
    body = inner.map(lambda v: v)
    inner.close_with(body.filter(lambda v: False))
    outer.close_with(body.filter(lambda v: False))
    body.print()
    with pytest.raises(GraphError, match="'inner' is inside the loop of iteration 'outer'"):
        flow.run()


def test_state_of_all_five_kinds() -> None:
    class Everything(sw.KeyedProcessFunction[str, tuple[str, int], Any]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.last = context.get_state(sw.ValueStateDescriptor("last", int, default=-1))
            self.all = context.get_list_state(sw.ListStateDescriptor("all", int))
            self.seen = context.get_map_state(sw.MapStateDescriptor("seen", int, key_type=int))
            self.top = context.get_reducing_state(sw.ReducingStateDescriptor("top", int, reduce=max))

        def process_element(
            self, value: tuple[str, int], ctx: sw.KeyedProcessFunction.Context
        ) -> Iterable[tuple[str, int, list[int], dict[int, int], int | None]]:
            before = self.last.value()
            self.last.update(value[1])
            self.all.add(value[1])
            self.seen.put(value[1], (self.seen.get(value[1]) or 0) + 1)
            self.top.add(value[1])
            yield ctx.get_current_key(), before, self.all.get(), dict(self.seen.items()), self.top.get()

    flow = sw.Pipeline("state")
    data = [("a", 3), ("b", 9), ("a", 3), ("a", 1)]
    out = flow.from_collection(data).key_by(lambda v: v[0]).process(Everything()).collect()
    flow.run(parallelism=1)
    assert list(out) == [
        ("a", -1, [3], {3: 1}, 3),
        ("b", -1, [9], {9: 1}, 9),
        ("a", 3, [3, 3], {3: 2}, 3),
        ("a", 3, [3, 3, 1], {3: 2, 1: 1}, 3),
    ]


def test_function_objects_are_opened_and_closed_once_in_order() -> None:
    calls: list[str] = []

    class Noted(sw.MapFunction[int, int]):
        def __init__(self, name: str) -> None:
            self.name = name

        def open(self, context: sw.RuntimeContext) -> None:
            calls.append(f"open {self.name}")

        def map(self, value: int) -> int:
            return value

        def close(self) -> None:
            calls.append(f"close {self.name}")

    flow = sw.Pipeline("life")
    flow.from_collection([1]).map(Noted("first")).disable_chaining().map(Noted("a")).map(Noted("b")).print()
    flow.run(parallelism=1)
    inner = [c for c in calls if "first" not in c]
    assert inner == ["open b", "open a", "close b", "close a"]
    assert sorted(calls) == sorted(["open first", "close first", *inner])


def test_each_subtask_has_a_function_object_of_its_own() -> None:
    class Which(sw.MapFunction[int, tuple[int, int]]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.index = context.index_of_this_subtask
            self.count = 0

        def map(self, value: int) -> tuple[int, int]:
            self.count += 1
            return self.index, self.count

    flow = sw.Pipeline("own")
    out = flow.from_collection(range(30)).rebalance().map(Which()).set_parallelism(3).collect()
    flow.run()
    assert sorted(out) == [(i, n) for i in range(3) for n in range(1, 11)]


# ---- ends ---------------------------------------------------------------------------------------------------


def test_cancel_from_another_thread_ends_an_endless_job() -> None:
    flow = sw.Pipeline("endless")
    started = threading.Event()
    flow.generate().for_each(lambda v: started.set())
    job = flow.prepare()

    def cancel() -> None:
        started.wait(PATIENT_S)
        job.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    result = job.run()
    thread.join()
    assert result.status is JobStatus.CANCELED
    assert all(s.state == "canceled" for s in result.metrics.subtasks)


def test_cancel_wakes_a_job_that_sleeps() -> None:
    flow = sw.Pipeline("asleep")
    got = threading.Event()
    flow.generate(rate=0.001).for_each(lambda v: got.set())
    job = flow.prepare()
    thread = threading.Thread(target=lambda: (got.wait(PATIENT_S), job.cancel()))
    thread.start()
    assert job.run().status is JobStatus.CANCELED
    thread.join()


def test_a_job_cancelled_before_it_runs_never_starts() -> None:
    flow = sw.Pipeline("never")
    seen: list[int] = []
    flow.from_collection([1]).for_each(seen.append)
    job = flow.prepare()
    job.cancel()
    assert job.run().status is JobStatus.CANCELED
    assert seen == []


def test_start_runs_beside_the_event_loop() -> None:
    async def main() -> tuple[JobStatus, list[int]]:
        flow = sw.Pipeline("async")
        out = flow.from_collection([1, 2]).map(lambda v: v + 1).collect()
        handle = await flow.start()
        result = await handle.result()
        return result.status, list(out)

    assert asyncio.run(main()) == (JobStatus.FINISHED, [2, 3])


def test_what_no_task_may_catch_leaves_at_once_and_closes_everything() -> None:
    closed: list[str] = []

    class Noted(sw.MapFunction[int, int]):
        def map(self, value: int) -> int:
            raise KeyboardInterrupt

        def close(self) -> None:
            closed.append("map")

    flow = sw.Pipeline("interrupted")
    flow.from_collection([1]).map(Noted()).print()
    with pytest.raises(KeyboardInterrupt):
        flow.run()
    assert closed == ["map"]


# ---- flow ---------------------------------------------------------------------------------------------------


class SlowSink(Sink[int]):
    """Takes one batch, then waits for a signal from outside before it takes the next."""

    def __init__(self) -> None:
        self.writers: list[SlowWriter] = []
        self.finished = False

    def create_writer(self, context: WriterContext) -> SinkWriter[int]:
        self.writers.append(SlowWriter(self, context))
        return self.writers[-1]


class SlowWriter(SinkWriter[int]):
    def __init__(self, sink: SlowSink, context: WriterContext) -> None:
        self.sink = sink
        self.context = context
        self.full = False
        self.got: list[int] = []
        self.waits = 0

    def write(self, values: Sequence[int], timestamps: Sequence[int] | None) -> None:
        assert not self.full, "written to while blocked"
        self.got.extend(values)
        self.full = True

    def blocked(self) -> Wait | None:
        if not self.full:
            return None
        self.waits += 1
        if self.waits % 3 == 0:
            self.full = False
        return Wait(until=self.context.clock.monotonic() + 0.001)

    def finish(self) -> None:
        assert not self.full
        self.sink.finished = True


def test_a_sink_is_never_written_to_while_it_is_blocked() -> None:
    flow = sw.Pipeline("slow")
    sink = SlowSink()
    flow.from_collection(range(2000)).map(lambda v: v).sink(sink)
    flow.run(batch_size=50)
    (writer,) = sink.writers
    assert writer.got == list(range(2000))
    assert writer.waits > 0
    assert sink.finished


def test_a_blocked_sink_gets_all_batches_that_a_step_makes_of_one() -> None:
    flow = sw.Pipeline("slow")
    sink = SlowSink()
    flow.from_collection(range(500)).flat_map(lambda v: [v, v]).sink(sink)
    flow.run(batch_size=50)
    (writer,) = sink.writers
    assert writer.got == [v for v in range(500) for _ in range(2)]
    assert sink.finished


def test_memory_between_tasks_is_bounded_by_credit() -> None:
    in_flight = 0
    most = 0

    def numbers() -> Iterable[int]:
        nonlocal in_flight, most
        for n in range(3000):
            in_flight += 1
            most = max(most, in_flight)
            yield n

    def take(value: int) -> None:
        nonlocal in_flight
        in_flight -= 1

    flow = sw.Pipeline("bounded")
    # Each batch of 10 blocks the sink for some turns, so the source could run far ahead.
    slow = SlowSink()
    flow.from_function(numbers).map(lambda v: v).rebalance().map(lambda v: (take(v), v)[1]).sink(slow)
    flow.run(batch_size=10)
    assert len(slow.writers[0].got) == 3000
    # 2 exclusive and 8 floating credits, a batch in each task, one more on its way: nothing near 3,000.
    assert most <= 10 * (2 + 8 + 4)


def test_a_step_that_makes_much_of_little_is_fed_in_small_parts() -> None:
    sizes: list[int] = []

    class Sizes(Sink[int]):
        def create_writer(self, context: WriterContext) -> SinkWriter[int]:
            return SizeWriter()

    class SizeWriter(SinkWriter[int]):
        def write(self, values: Sequence[int], timestamps: Sequence[int] | None) -> None:
            sizes.append(len(values))

    flow = sw.Pipeline("blow up")
    flow.from_collection(range(1000)).flat_map(lambda v: range(100)).rebalance().sink(Sizes())
    flow.run(batch_size=100)
    assert sum(sizes) == 100_000
    # The first batch was cut only after it had been seen; from then on parts are near the batch size.
    assert sorted(sizes)[-2] <= 1000


def test_metrics_tell_busy_from_idle_and_user_counters() -> None:
    class Counting(sw.MapFunction[int, int]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.seen = context.metrics.counter("seen")

        def map(self, value: int) -> int:
            self.seen.inc()
            return value

    flow = sw.Pipeline("metrics")
    flow.from_collection(range(100)).map(Counting()).print()
    result = flow.run(latency_interval=1)
    (subtask,) = result.metrics.subtasks
    assert subtask.user["seen"] == 100
    assert subtask.busy_s > 0
    assert subtask.state == "finished"
    assert subtask.watermark == 2**63 - 1
    assert result.metrics.latency_ms


def test_latency_markers_never_reach_a_function_and_arrive_at_the_sink() -> None:
    flow = sw.Pipeline("latency")
    seen: list[int] = []
    flow.generate(count=50, rate=1000).rebalance().map(lambda v: v).for_each(seen.append)
    result = flow.run(latency_interval=1, parallelism=1)
    assert seen == list(range(50))
    ((_, quantiles),) = result.metrics.latency_ms.items()
    assert 0 <= quantiles["p50"] <= quantiles["p99"]


def test_a_pipeline_can_run_again() -> None:
    flow = sw.Pipeline("again")
    out = flow.from_collection([1, 2]).key_by(lambda v: 0).sum().collect()
    flow.run()
    flow.run()
    assert list(out) == [1, 3]


def test_a_job_runs_once() -> None:
    flow = sw.Pipeline("once")
    flow.from_collection([1]).print()
    job = flow.prepare()
    job.run()
    with pytest.raises(RuntimeError, match="a job runs once"):
        job.run()


def test_a_result_is_shown_in_one_line() -> None:
    flow = sw.Pipeline("wordcount")
    flow.from_collection(LINES).flat_map(str.split).collect()
    shown = repr(flow.run())
    assert shown.startswith("<JobResult of 'wordcount': finished after ")
    assert shown.endswith(" s, 4 records in, 15 out>")
