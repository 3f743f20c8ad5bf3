"""A subtask that is taken apart between two batches, and made again elsewhere, goes on as if nothing had been."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from sluiceway import (
    AsyncDataStream,
    KeyedProcessFunction,
    OutputTag,
    Pipeline,
    WatermarkStrategy,
)
from sluiceway.clock import SystemClock, VirtualClock
from sluiceway.connector import SinkWriter, Wait
from sluiceway.connector.lib import CallbackSink
from sluiceway.elements import MAX_WATERMARK, Batch, EndOfData, EndOfPartition, Watermark, WatermarkStatus
from sluiceway.errors import JobCancelledError, StateError
from sluiceway.runtime.microbatch.driven_enumerator import plan_splits
from sluiceway.runtime.stepped import SteppedTask
from sluiceway.windows import TumblingEventTimeWindows

LATE: Any = OutputTag("late", tuple)
STAMPED: Any = WatermarkStrategy.for_bounded_out_of_orderness(5).with_timestamp_assigner(lambda e: e[1])


def out(chain: SteppedTask) -> list[Any]:
    """What came out of a chain, to whomever."""
    return [element for *_, elements in chain.take() for element in elements]


def records(elements: list[Any]) -> list[Any]:
    return [value for element in elements if type(element) is Batch for value in element.values]


def moved(stages: Any, chain: SteppedTask, checkpoint_id: int = 1) -> SteppedTask:
    """Another chain in its place, by way of bytes."""
    kept = pickle.loads(pickle.dumps((chain.snapshot(checkpoint_id), chain.position())))
    chain.close()
    again: SteppedTask = stages.chain(stages.plan.target(chain.vertex.id, chain.subtask))
    again.open(*kept)
    return again


def only(stages: Any, stage: int) -> SteppedTask:
    """The one subtask of a stage, open."""
    (target,) = stages.plan.targets_of(stage)
    chain: SteppedTask = stages.chain(target)
    chain.open()
    return chain


def counting(parallelism: int = 1) -> Pipeline:
    flow = Pipeline("counts", parallelism=parallelism)
    flow.from_collection([("a", 1)]).key_by(lambda e: e[0]).sum(1).collect()
    return flow


def test_keyed_state_goes_on(stages: Any) -> None:
    run = stages(counting(), keyed_subtasks=1)
    chain = only(run, 1)
    (route,) = run.plan.senders_into(run.plan.targets_of(1)[0])
    chain.feed(route.sender, [Batch([("a", 1), ("b", 2)])])
    assert records(out(chain)) == [("a", 1), ("b", 2)]
    chain = moved(run, chain)
    chain.feed(route.sender, [Batch([("a", 10)])])
    assert records(out(chain)) == [("a", 11)]


def windows(parallelism: int) -> Pipeline:
    flow = Pipeline("windows", parallelism=parallelism)
    windowed = (
        flow.from_collection([("a", 1)] * 2, watermark_strategy=STAMPED)
        .key_by(lambda e: e[0])
        .window(TumblingEventTimeWindows.of(100))
        .side_output_late_data(LATE)
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    windowed.collect()
    windowed.get_side_output(LATE).collect()
    return flow


@pytest.mark.parametrize("moves", [False, True])
def test_event_time_goes_on_over_all_senders(stages: Any, moves: bool) -> None:
    run = stages(windows(2), keyed_subtasks=1)
    plan = run.plan
    target = plan.targets_of(1)[1]  # which has the key
    one, two = (route.sender for route in plan.senders_into(target))
    chain = run.chain(target)
    chain.open()

    def go_on() -> None:
        nonlocal chain
        if moves:
            chain = moved(run, chain)

    chain.feed(one, [Batch([("a", 10)], [10]), Watermark(150)])
    assert records(out(chain)) == []
    go_on()
    chain.feed(two, [Watermark(120)])
    assert records(out(chain)) == [("a", 10)]
    assert chain.watermark == 120
    go_on()
    chain.feed(two, [Batch([("a", 20)], [20]), Batch([("a", 130)], [130])])
    assert records(out(chain)) == [("a", 20)]  # by the side output: it is late
    go_on()
    chain.feed(two, [WatermarkStatus(False)])
    assert chain.watermark == 150
    go_on()
    chain.feed(one, [Watermark(MAX_WATERMARK), EndOfData(), EndOfPartition()])
    assert records(out(chain)) == []  # the other one is idle, and may go on
    go_on()
    assert not chain.ended
    chain.feed(two, [WatermarkStatus(True), Watermark(MAX_WATERMARK), EndOfData(), EndOfPartition()])
    assert chain.ended
    assert records(out(chain)) == [("a", 130)]
    go_on()
    assert chain.ended


def read(stages: Any, flow: Pipeline, *, moves: bool) -> list[Any]:
    """All that comes out of a source that is read ten records at a time."""
    run = stages(flow)
    chain = only(run, 0)
    (splits,) = plan_splits(chain.vertex.head.step.source, 1, SystemClock())  # type: ignore[attr-defined]
    chain.add_splits(splits)
    chain.no_more_splits()
    given: list[Any] = []
    while not chain.read(10):
        given += out(chain)
        if moves:
            chain = moved(run, chain)
            chain.no_more_splits()
    return given + out(chain)


def in_middle(flow: Pipeline, events: list[Any]) -> None:
    flow.from_collection(events).assign_timestamps_and_watermarks(STAMPED).key_by(lambda e: e[0]).sum(1).collect()


def at_source(flow: Pipeline, events: list[Any]) -> None:
    flow.from_collection(events, watermark_strategy=STAMPED).key_by(lambda e: e[0]).sum(1).collect()


@pytest.mark.parametrize("stamp", [at_source, in_middle])
def test_generators_of_watermarks_go_on(stages: Any, stamp: Any) -> None:
    from sluiceway.config.settings import Settings

    settings = Settings(batch_size=10)
    events = [("a", at) for at in (*range(100), *range(40, 80), *range(100, 150))]
    results = []
    for moves in (False, True):
        flow = Pipeline("reads")
        stamp(flow, events)
        run = lambda flow: stages(flow, settings, keyed_subtasks=1)  # noqa: E731
        results.append(read(run, flow, moves=moves))
    marks = [[e.timestamp for e in each if type(e) is Watermark] for each in results]
    assert records(results[0]) == records(results[1]) == events
    # Said again after each move, and never less than before.
    assert sorted(set(marks[1])) == marks[0]
    assert marks[1] == sorted(marks[1])


def test_a_generator_that_cannot_be_kept_is_told_of(stages: Any) -> None:
    import threading

    from sluiceway import WatermarkGenerator

    class Locked(WatermarkGenerator):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def on_event(self, value: Any, timestamp: int, output: Any) -> None: ...

        def on_periodic_emit(self, output: Any) -> None: ...

    flow = Pipeline("locked")
    flow.from_collection([1], watermark_strategy=WatermarkStrategy.for_generator(Locked)).collect()
    chain = only(stages(flow), 0)
    chain.add_splits(plan_splits(chain.vertex.head.step.source, 1, SystemClock())[0])  # type: ignore[attr-defined]
    with pytest.raises(StateError, match=r"watermark generator of .* cannot be kept .*pickle"):
        chain.position()


def test_timers_in_processing_time_fire_when_it_settles(stages: Any) -> None:
    class Later(KeyedProcessFunction):  # type: ignore[type-arg]
        def process_element(self, value: int, ctx: Any) -> Any:
            ctx.timer_service().register_processing_time_timer(1000 + value)
            return ()

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            yield timestamp

    flow = Pipeline("later")
    flow.from_collection([1]).key_by(lambda n: n).process(Later()).collect()
    run = stages(flow, keyed_subtasks=1)
    target = run.plan.targets_of(1)[0]
    vertex, _ = run.plan.who(target)
    chain = SteppedTask(
        run.plan, vertex, 0, state_backend=run.services.state_backend("memory"), clock=VirtualClock(5)
    )
    run.chains.append(chain)
    chain.open()
    chain.feed(run.plan.senders_into(target)[0].sender, [Batch([1, 2, 3])])
    chain.settle()
    assert records(out(chain)) == []
    chain.settle(1002)
    assert records(out(chain)) == [1001, 1002]


def test_settling_waits_for_coroutines(stages: Any) -> None:
    async def double(value: int) -> int:
        await asyncio.sleep(0.01)
        return 2 * value

    flow = Pipeline("async")
    numbers = flow.from_collection([1]).rebalance()
    AsyncDataStream.unordered_wait(numbers, double, timeout=10_000, capacity=3).collect()
    run = stages(flow)
    chain = only(run, 1)
    chain.feed(run.plan.senders_into(run.plan.targets_of(1)[0])[0].sender, [Batch([1, 2, 3, 4, 5])])
    chain.settle()
    assert sorted(records(out(chain))) == [2, 4, 6, 8, 10]


def test_what_a_function_raises_has_notes(stages: Any) -> None:
    flow = Pipeline("fails")
    flow.from_collection([1]).rebalance().map(lambda n: 1 // n).name("divide").collect()
    run = stages(flow)
    chain = only(run, 1)
    with pytest.raises(ZeroDivisionError) as caught:
        chain.feed(run.plan.senders_into(run.plan.targets_of(1)[0])[0].sender, [Batch([1, 0])])
    assert caught.value.__notes__ == ["in step 'divide', subtask 1 of 1", "record: 0"]


def test_a_stranger_is_not_listened_to(stages: Any) -> None:
    chain = only(stages(counting(), keyed_subtasks=1), 1)
    with pytest.raises(ValueError, match=r"sender 99 does not send to 'sum.1.', subtask 1: its senders are 0"):
        chain.feed(99, [])


class Full(SinkWriter[Any]):
    """Takes nothing."""

    def write(self, values: Any, timestamps: Any) -> None: ...

    def blocked(self) -> Wait | None:
        return Wait()


def test_what_waits_can_be_cancelled(stages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CallbackSink, "create_writer", lambda sink, context: Full())
    flow = Pipeline("full")
    flow.from_collection([1]).sink(CallbackSink(print))
    run = stages(flow)
    (target,) = run.plan.targets_of(1)
    chain = run.chain(target)
    chain.cancel()
    with pytest.raises(JobCancelledError, match="job 'full' was cancelled"):
        chain.open()
