"""A job with a restart strategy goes on after a failure: the region that failed begins anew, and only that."""

import asyncio
import gc
import re
import threading
import time
import weakref
from bdb import BdbQuit
from collections.abc import AsyncIterator, Callable, Iterator
from traceback import walk_tb
from typing import Any, NoReturn

import pytest
from patience import until

import sluiceway as sw
from sluiceway.clock import SystemClock, VirtualClock
from sluiceway.config.settings import Settings
from sluiceway.connector import Boundedness
from sluiceway.engine import JobStatus
from sluiceway.errors import (
    CheckpointError,
    CheckpointFailedError,
    ConfigurationError,
    ConnectorError,
    FunctionContractError,
    MissingExtraError,
    ProcessExitError,
    RejectedRecordError,
    SerializationError,
    StateError,
    SuppressRestartsError,
)
from sluiceway.graph import ExecutionGraph, build_job_graph
from sluiceway.runtime.jobmanager.failover import KEPT, Failover
from sluiceway.runtime.jobmanager.repeated_failures import RepeatedFailures
from sluiceway.runtime.local.engine import LocalJob
from sluiceway.runtime.loop.tasklet import Scheduled
from sluiceway.scheduler import RestartStrategy
from sluiceway.windows import TumblingEventTimeWindows


class FailsOnce(sw.MapFunction[int, int]):
    """Fails at one record, in its first attempt."""

    def __init__(self, at: int, times: int = 1) -> None:
        self.at = at
        self.times = times

    def open(self, context: sw.RuntimeContext) -> None:
        self.attempt = context.attempt_number

    def map(self, value: int) -> int:
        if value == self.at and self.attempt < self.times:
            raise RuntimeError(f"attempt {self.attempt}")
        return value


def run(flow: sw.Pipeline, **options: Any) -> sw.JobResult:
    return flow.run(restart="fixed-delay:3:0ms", batch_size=10, **options)


def test_the_job_is_run_again_from_its_beginning() -> None:
    flow = sw.Pipeline("again")
    out = flow.from_collection(range(100)).map(FailsOnce(57)).collect()
    assert run(flow).status is JobStatus.FINISHED
    # Without checkpoints a region starts at its beginning, and what it had given out stays given out.
    assert out[-100:] == list(range(100))
    assert set(out) == set(range(100))


def test_a_wall_clock_that_is_set_back_makes_no_failure_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter(range(10**13, 0, -3_600_000))
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: next(readings))
    flow = sw.Pipeline("set back")
    flow.from_collection(range(100)).map(FailsOnce(57, times=3)).collect()
    # The restarts alone put more time between two failures than the interval is long.
    result = flow.run(restart="failure-rate:1:10ms:50ms", batch_size=10)
    assert result.status is JobStatus.FINISHED


def test_each_region_for_itself() -> None:
    flow = sw.Pipeline("two", parallelism=2)
    out = flow.from_collection(range(100)).map(FailsOnce(57)).collect()
    run(flow)
    assert sorted(v for v in out if v < 50) == list(range(50)), "the other half was not read again"
    assert set(out) == set(range(100))


def test_a_strategy_that_is_used_up_fails_the_job_and_says_so() -> None:
    flow = sw.Pipeline("never")
    flow.from_collection(range(10)).map(FailsOnce(5, times=99)).collect()
    with pytest.raises(RuntimeError, match="attempt 3") as caught:
        run(flow)
    assert "the job is not restarted: 3 restarts were not enough" in caught.value.__notes__


class Poisoned(sw.MapFunction[int, int]):
    """Fails at one record, always."""

    def __init__(self, error: type[Exception] = ValueError) -> None:
        self.error = error

    def map(self, value: int) -> int:
        if value == 57:
            raise self.error("no good")
        return value


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("checkpoint_interval", ["0", "1ms"])
def test_a_record_that_always_fails_ends_the_job_with_its_traceback(
    workers: int, checkpoint_interval: str, caplog: pytest.LogCaptureFixture
) -> None:
    flow = sw.Pipeline("poisoned")
    flow.from_collection(range(100)).map(Poisoned()).name("parse").collect()
    with pytest.raises(ValueError, match="no good") as caught:
        flow.run(
            restart="exponential:1ms:1ms:3",
            workers=workers,
            checkpoint_interval=checkpoint_interval,
            batch_size=10,
        )
    notes = caught.value.__notes__
    assert "record: 57" in notes
    assert notes[-1].startswith(
        "the job is not restarted: this record has failed 3 times without progress. To go on"
    )
    assert '.on_error("skip")' in notes[-1]
    logged = [record.getMessage() for record in caplog.records if "has failed" in record.getMessage()]
    assert len(logged) >= 2
    assert "ValueError: no good" in logged[0]
    assert "in map\n" in logged[0]
    assert 'raise self.error("no good")' in logged[0]
    assert "record: 57" in logged[0]
    assert ".on_error" in logged[0]
    assert "runtime/task/task.py" not in logged[0]
    assert not any("\n" in line for line in logged[1:]), "the traceback comes with the first of its kind"


def _poisoned(kind: str) -> sw.Pipeline:
    def numbers() -> Iterator[int]:
        yield from range(57)
        raise ValueError("no good")

    async def later() -> AsyncIterator[int]:
        for number in numbers():
            yield number

    flow = sw.Pipeline("poisoned")
    poison = Poisoned().map
    if kind == "generator":
        flow.from_function(numbers).print()
    elif kind == "async generator":
        flow.from_function(later).print()
    elif kind == "sink":
        flow.from_collection(range(100)).for_each(poison)
    else:
        stream = flow.from_function(lambda: range(100)).key_by(lambda value: 0).count_window(2)
        stream.reduce(lambda one, other: poison(other)).print()
    return flow


@pytest.mark.parametrize("kind", ["generator", "async generator", "sink", "window"])
def test_so_does_one_of_a_step_that_cannot_skip_it_which_is_not_advised(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="no good") as caught:
        _poisoned(kind).run(restart="exponential:1ms:1ms:3", checkpoint_interval="1ms", batch_size=10)
    assert (
        caught.value.__notes__[-1] == "the job is not restarted: this record has failed 3 times without progress"
    )
    assert ".on_error" not in caplog.text
    if "generator" in kind:
        assert any(note.startswith("record: number 58 of ") for note in caught.value.__notes__)


class KeepsLocks(sw.KeyedProcessFunction[int, int, int]):
    """Has state that cannot be written."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.kept = context.get_state(sw.ValueStateDescriptor("kept", object))

    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> list[int]:
        self.kept.update(threading.Lock())
        return []


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_state_that_no_checkpoint_can_hold_ends_the_job(workers: int) -> None:
    flow = sw.Pipeline("locked")
    flow.generate(lambda number: number).key_by(lambda value: value % 3).process(KeepsLocks()).print()
    with pytest.raises(CheckpointFailedError, match=r"state 'kept' .* cannot be pickled") as caught:
        flow.run(restart="exponential:1ms:1ms:3", checkpoint_interval="5ms", workers=workers)
    assert "the job is not restarted: this has happened 3 times without progress" in caught.value.__notes__


@pytest.mark.slow
def test_records_that_cannot_be_sent_end_the_job_and_are_named() -> None:
    flow = sw.Pipeline("locked")
    # Two in a row of each reader, one of which goes to the other worker: wherever tasks are, it has to be sent.
    numbers = flow.generate(lambda number: threading.Lock() if 4 <= number < 8 else number, count=100_000)
    numbers.rebalance().map(lambda value: value).print()
    kinds = SerializationError, FunctionContractError
    with pytest.raises(kinds, match="of type lock cannot be") as caught:
        flow.run(restart="exponential:1ms:1ms:3", checkpoint_interval="1h", workers=2)
    assert "the job is not restarted: this has happened 3 times without progress" in caught.value.__notes__


class OutForAWhile(FailsOnce):
    def map(self, value: int) -> int:
        if value == self.at and self.attempt < self.times:
            raise ConnectionRefusedError("not now")
        return value


def test_what_comes_from_outside_is_tried_for_ever() -> None:
    flow = sw.Pipeline("outside")
    flow.from_collection(range(100)).map(OutForAWhile(57, times=10)).collect()
    result = flow.run(restart="exponential:1ms:1ms:3", batch_size=10)
    assert result.status is JobStatus.FINISHED
    assert len(result.failures) == 10


def noted(error: Exception, *notes: str) -> Exception:
    for note in notes:
        error.add_note(note)
    return error


def test_failures_of_the_same_record_are_counted_until_there_is_progress() -> None:
    repeated = RepeatedFailures()

    def fails(value: str, completed: int, subtask: int = 1, error: type[Exception] = ValueError) -> int:
        where = f"in step 'parse' of 'chain', subtask {subtask} of 2"
        return repeated.count(noted(error("no"), where, f"record: {value}"), completed)

    assert [fails("a", 0), fails("b", 0), fails("a", 0), fails("b", 0)] == [1, 1, 2, 2], "each for itself"
    assert fails("a", 1, subtask=2) == 3, "in another subtask, with a checkpoint before it came again"
    assert fails("a", 1, error=KeyError) == 1
    assert fails("a", 3) == 4, "two complete before it comes again, if records come slowly"
    assert fails("a", 12) == 1, "so many are progress"

    def timer(at: int) -> int:
        return repeated.count(noted(ValueError("no"), "in step 'parse'", "key: k", f"timestamp: {at} ms"), 12)

    assert [timer(5), timer(6)] == [1, 2], "in processing time it has another timestamp after each restart"
    assert fails("<Order at 0x7fab>", 12) + fails("<Order at 0x7fac>", 12) == 3
    assert fails("a", 12, error=TimeoutError) == 0
    assert fails("a", 12, error=ConnectorError) == 0
    assert fails("a", 12, error=RejectedRecordError) == 1
    rejected = noted(RejectedRecordError("no table takes it"), "in step 'sink(table)' of 'chain', subtask 1 of 1")
    assert [repeated.count(rejected, 12) for _ in range(2)] == [1, 2], "of which the connector knows"
    assert repeated.count(noted(ValueError(), "in step 'parse', subtask 1 of 2"), 3) == 0, "as in open()"
    for number in range(1_000):
        fails(str(number), 12)
    assert fails("a", 12) == 1, "only so many are remembered"


class Refuses(sw.MapFunction[int, int]):
    """Fails for good, in one place or the other."""

    def __init__(self, error: BaseException, at: str) -> None:
        self.error = error
        self.at = at

    def open(self, context: sw.RuntimeContext) -> None:
        if self.at == "open":
            raise self.error

    def map(self, value: int) -> int:
        raise self.error


@pytest.mark.parametrize("at", ["open", "map"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [SuppressRestartsError, ConfigurationError, MissingExtraError, BdbQuit])
def test_what_no_restart_helps_ends_the_job_at_once(kind: type[Exception], workers: int, at: str) -> None:
    flow = sw.Pipeline("hopeless")
    flow.from_collection(range(10)).map(Refuses(kind("do something else"), at)).collect()
    with pytest.raises(kind, match="do something else") as caught:
        run(flow, workers=workers)
    assert not any("is not restarted" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("at", ["open", "map"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_function_that_exits_ends_the_job_at_once(workers: int, at: str) -> None:
    flow = sw.Pipeline("exits")
    flow.from_collection(range(10)).map(Refuses(SystemExit("no more"), at)).collect()
    with pytest.raises(ProcessExitError, match=r"raised SystemExit\(no more\), which is meant to end") as caught:
        run(flow, workers=workers)
    assert not any("is not restarted" in note for note in caught.value.__notes__)


class Unkeyed(sw.MapFunction[int, int]):
    def open(self, context: sw.RuntimeContext) -> None:
        context.get_state(sw.ValueStateDescriptor("count", int))

    def map(self, value: int) -> int:
        return value


def in_windows(numbers: Any) -> Any:
    # Behind a step that might assign timestamps, so that no check before the run finds that it does not.
    keyed = numbers.process(lambda n, ctx: [n]).key_by(lambda n: n % 3)
    return keyed.window(TumblingEventTimeWindows.of(5)).count()


def joined(numbers: Any) -> Any:
    keyed = numbers.key_by(lambda n: n % 3)
    return keyed.interval_join(keyed).between(0, 1).apply(lambda left, right: left)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (lambda numbers: numbers.map(Unkeyed()), r"asks for keyed state 'count' but .*put key_by\(\.\.\.\)"),
        (in_windows, "its records have no timestamps"),
        (joined, "input have no timestamps"),
    ],
    ids=["state", "windows", "join"],
)
def test_what_a_step_asks_for_in_vain_ends_the_job_at_once(steps: Any, message: str) -> None:
    flow = sw.Pipeline("misused")
    steps(flow.from_collection(range(10))).collect()
    with pytest.raises(StateError, match=message) as caught:
        run(flow)
    assert not any("is not restarted" in note for note in caught.value.__notes__)


def test_keyed_state_begins_anew() -> None:
    flow = sw.Pipeline("keyed", parallelism=2)
    counts = flow.from_collection(range(100)).map(FailsOnce(57)).key_by(lambda v: v % 3).count()
    out = counts.collect()
    run(flow)
    assert max(n for _, n in out) == 34


def test_a_region_that_waits_for_its_restart_is_not_forgotten_when_the_others_have_ended() -> None:
    flow = sw.Pipeline("later", parallelism=2)
    out = flow.from_collection(range(100)).map(FailsOnce(57)).collect()
    assert flow.run(restart="fixed-delay:3:50ms").status is JobStatus.FINISHED
    assert set(out) == set(range(100))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_job_is_restarting_until_its_subtasks_have_new_attempts(
    workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    flow = sw.Pipeline("twice")
    flow.from_collection(range(100)).map(FailsOnce(57)).collect()
    with caplog.at_level("INFO", "sluiceway"):
        assert run(flow, workers=workers).status is JobStatus.FINISHED
    told = [found[1] for r in caplog.records if (found := re.search(r"\bis (\w+), was", r.getMessage()))]
    assert told == ["running", "restarting", "running", "finished"]


def test_a_job_that_waits_for_its_restart_says_so_and_can_be_cancelled() -> None:
    flow = sw.Pipeline("waits", parallelism=2)
    flow.from_collection(range(100)).map(FailsOnce(57)).collect()

    async def watch() -> JobStatus:
        job = await flow.start(restart="fixed-delay:3:1h", batch_size=10)
        await asyncio.to_thread(until, lambda: job.status is JobStatus.RESTARTING)
        assert job.metrics().status == "restarting"
        assert [finding.kind for finding in (await job.diagnose(over="1ms")).findings] == ["restarting"]
        job.cancel()
        return (await job.result()).status

    assert asyncio.run(watch()) is JobStatus.CANCELED


def test_a_job_remembers_what_it_got_over_and_what_was_done_about_it() -> None:
    flow = sw.Pipeline("history", parallelism=2)
    flow.from_collection(range(100)).map(FailsOnce(57, times=2)).name("shaky").collect()
    before_ms = time.time_ns() // 1_000_000
    first, second = flow.run(restart="fixed-delay:3:5ms", batch_size=10).failures
    assert "shaky" in first.task
    assert (first.subtask, first.attempt, second.attempt) == (1, 0, 1)
    assert (first.worker, first.restarted, first.delay_ms) == ("local", 1, 5)
    assert before_ms <= first.at_ms <= second.at_ms
    assert isinstance(first.cause, RuntimeError)
    assert 'raise RuntimeError(f"attempt {self.attempt}")' in first.traceback
    assert "RuntimeError: attempt 0" in first.traceback
    assert "RuntimeError: attempt 1" in second.traceback


def test_of_many_failures_the_last_are_kept_and_all_restarts_are_counted() -> None:
    flow = sw.Pipeline("many")
    flow.from_collection(range(10)).map(FailsOnce(5, times=20)).collect()
    result = flow.run(restart="fixed-delay:30:0ms")
    assert [f.attempt for f in result.failures] == list(range(20))[-KEPT:]
    assert result.metrics.restarts == 20


class Held:
    """Held by a local variable."""


@pytest.mark.parametrize("lazy", [False, True])
def test_the_history_keeps_nothing_alive_of_attempts_that_were_restarted(lazy: bool) -> None:
    held: list[weakref.ref[Held]] = []
    alive: list[int] = []

    def count_and_fail() -> None:
        gc.collect()
        alive.append(sum(each() is not None for each in held))
        mine = Held()
        held.append(weakref.ref(mine))
        raise OSError("the backend is away")

    def step_by_step(number: int) -> Iterator[int]:
        yield number
        mine = Held()
        held.append(weakref.ref(mine))
        count_and_fail()

    def at_once(number: int) -> list[int]:
        mine = Held()
        held.append(weakref.ref(mine))
        count_and_fail()
        return [number]

    flow = sw.Pipeline("fails")
    flow.from_collection(range(10)).flat_map(step_by_step if lazy else at_once).collect()
    with pytest.raises(OSError, match="the backend is away") as caught:
        flow.run(restart="fixed-delay:3:0ms")
    assert alive == [1, 1, 1, 1], "only that of the attempt that runs"
    held_last = [frame.f_locals["mine"] for frame, _ in walk_tb(caught.tb) if "mine" in frame.f_locals]
    assert len(held_last) == 2, "the failure that ends the job can be looked into"


def test_a_failure_that_no_subtask_has_caused_is_remembered_too() -> None:
    class Broken(sw.Source[int]):
        def create_enumerator(self, context: object, restored: object) -> NoReturn:
            raise OSError("no such place")

        def create_reader(self, context: object) -> NoReturn:
            raise AssertionError

        @property
        def boundedness(self) -> Boundedness:
            return Boundedness.BOUNDED

    flow = sw.Pipeline("broken")
    flow.source(Broken()).collect()
    job = flow.prepare()
    with pytest.raises(OSError, match="no such place"):
        job.run()
    (failure,) = job.failures()
    assert (failure.task, failure.subtask, failure.attempt, failure.delay_ms) == ("", None, None, None)
    assert "no such place" in failure.traceback


def test_what_ends_a_job_stands_once_in_its_history() -> None:
    async def main() -> tuple[sw.JobFailure, ...]:
        flow = sw.Pipeline("ends")
        flow.from_collection(range(10)).map(FailsOnce(5, times=99)).collect()
        handle = await flow.start(restart="fixed-delay:1:0ms")
        with pytest.raises(RuntimeError, match="attempt 1"):
            await handle.result()
        return handle.failures

    assert [(f.attempt, f.restarted) for f in asyncio.run(main())] == [(0, 1), (1, 0)]


def test_ended_attempts_are_dropped_and_their_records_stay_in_the_totals() -> None:
    flow = sw.Pipeline("dropped")
    flow.from_collection(range(10)).map(FailsOnce(5, times=4)).collect()
    job = flow.prepare(Settings(restart="fixed-delay:9:0ms", batch_size=2))
    assert isinstance(job, LocalJob)
    job.run()
    (task,) = job.tasks
    assert task.deployment.attempt == 4
    assert job.metrics().records_in == 4 * 6 + 10
    assert job.metrics().records_in == 4 * 6 + 10, "however often it is asked"


class Counted(RestartStrategy):
    def __init__(self) -> None:
        self.asked = 0

    def delay_ms(self, now_ms: int) -> int:
        self.asked += 1
        return 10

    reason = ""


def failover_of_two_regions(strategy: RestartStrategy) -> Failover:
    flow = sw.Pipeline("two", parallelism=2)
    flow.from_collection(range(10)).map(FailsOnce(5)).collect()
    return Failover(
        ExecutionGraph(build_job_graph(flow.graph(Settings()))),
        strategy,
        VirtualClock(),
        cancel=lambda vertex: None,
        restart=lambda region: None,
        later=lambda action, delay_s: Scheduled(action),
        worker_of=lambda vertex: "",
        job="two",
    )


def test_one_checkpoint_that_cannot_be_read_is_one_failure_for_all_regions() -> None:
    failover = failover_of_two_regions(strategy := Counted())
    assert len(failover.regions) == 2
    for expected in (1, 2):
        unreadable = CheckpointError("the storage is away")
        assert all(failover.not_begun(region, unreadable) for region in failover.regions)
        assert strategy.asked == expected


def test_a_failure_of_the_job_uses_up_no_restart_where_nothing_is_left_to_restart() -> None:
    failover = failover_of_two_regions(strategy := Counted())
    for _ in range(2):
        assert failover.failed_everywhere(CheckpointError("too many have failed"))
        assert (strategy.asked, failover.restarts, len(failover.history)) == (1, 1, 1)
        assert [(f.restarted, f.delay_ms) for f in failover.history] == [(2, 10)]


def test_a_failure_of_the_job_that_no_restart_follows_restarts_nothing() -> None:
    failover = failover_of_two_regions(Counted())
    assert not failover.failed_everywhere(ConfigurationError("no good"))
    assert (failover.restarts, failover.restarting) == (0, ())
    assert [(f.restarted, f.delay_ms) for f in failover.history] == [(0, None)]


def test_failures_of_a_region_that_is_restarted_already_belong_to_the_first() -> None:
    """Subtasks on a broken link fail one after the other: the strategy is asked once, and all restart once."""
    flow = sw.Pipeline("one region", parallelism=2)
    flow.from_collection(range(10)).rebalance().map(FailsOnce(5)).collect()
    executions = ExecutionGraph(build_job_graph(flow.graph(Settings())))
    cancelled: list[Any] = []
    restarted: list[Any] = []
    scheduled: list[Scheduled] = []

    def later(action: Callable[[], None], delay_s: float) -> Scheduled:
        assert delay_s == 0.01
        scheduled.append(Scheduled(action))
        return scheduled[-1]

    def cancel(vertex: Any) -> None:
        assert failover.restarts_region_of(vertex), "what ends in a cancellation ends in a region that restarts"
        assert not vertex.state.ended
        cancelled.append(vertex)

    strategy = Counted()
    failover = Failover(
        executions,
        strategy,
        VirtualClock(),
        cancel=cancel,
        restart=restarted.append,
        later=later,
        worker_of=lambda vertex: "",
        job="one region",
    )
    (region,) = failover.regions
    first, second, *others = region
    assert len(others) == 2
    assert not failover.restarts_region_of(first)
    for failing in (first, second):
        failing.current.fail(cause := RuntimeError("broken"), 0)
        assert failover.failed(failing, cause)
    assert cancelled == [second, *others]
    assert (strategy.asked, failover.restarts, len(failover.history)) == (1, 1, 1)
    assert not scheduled, "it waits for those that have not ended"
    for ending in others:
        ending.current.cancel(0)
        failover.ended(ending)
    assert [each.pending for each in scheduled] == [True]
    # The last to be reported may have ended before: the delay begins anew, and there is one restart.
    failover.ended(first)
    assert [each.pending for each in scheduled] == [False, True]
    assert failover.restarts_region_of(first)
    scheduled[-1].call()
    assert (restarted, failover.restarting) == ([region], ())
    assert not failover.restarts_region_of(first)
