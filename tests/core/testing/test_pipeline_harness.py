"""Pipelines in virtual time: rest, deadlines, ends, snapshots."""

import pickle
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connector import END_OF_INPUT, Poll, Reader, ReaderContext, SimpleReader, Wait
from sluiceway.connector.lib import DiscardSink
from sluiceway.testing import EOF, PAUSE, CollectingSink, PipelineHarness, TestSource, run_pipeline


def test_a_pipeline_runs_to_its_end_without_waiting() -> None:
    flow = sw.Pipeline("test")
    numbers = flow.generate(count=3600, rate=1).collect()
    result = run_pipeline(flow)
    assert result.status is sw.JobStatus.FINISHED
    assert numbers == list(range(3600))
    assert result.metrics.elapsed_s == pytest.approx(3599, abs=1)


def test_time_goes_on_only_when_told() -> None:
    flow = sw.Pipeline("test")
    numbers = flow.generate(rate=1).collect()
    with PipelineHarness(flow, start_ms=5_000) as harness:
        harness.run()
        assert numbers == [0]
        harness.run()
        assert numbers == [0]
        harness.advance(999)
        assert numbers == [0]
        harness.advance(1)
        assert numbers == [0, 1]
        harness.advance(3_000)
        assert numbers == [0, 1, 2, 3, 4]
        assert harness.clock.now_ms() == 9_000
        assert harness.status is sw.JobStatus.RUNNING
        assert harness.metrics().records_in == 5


def test_functions_see_virtual_time() -> None:
    def now(value: int, ctx: sw.ProcessFunction.Context) -> list[int]:
        return [ctx.current_processing_time()]

    flow = sw.Pipeline("test")
    times = flow.generate(count=3, rate=10).process(now).collect()
    with PipelineHarness(flow, start_ms=1_000) as harness:
        harness.run_to_end()
    assert times == [1_000, 1_100, 1_200]


def test_the_environment_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_PARALLELISM", "7")
    flow = sw.Pipeline("test")
    flow.from_collection([1]).sink(DiscardSink())
    with PipelineHarness(flow) as harness:
        harness.run()
        assert len(harness.metrics().subtasks) == 1
    with PipelineHarness(flow, parallelism=2) as harness:
        harness.run()
        assert len(harness.metrics().subtasks) == 2
    with pytest.raises(sw.UnknownNameError, match="there is no option 'paralelism'"):
        PipelineHarness(flow, paralelism=2)


def test_a_graph_that_cannot_be_is_refused() -> None:
    with pytest.raises(sw.GraphError, match="no sink"):
        PipelineHarness(sw.Pipeline("test"))


def test_leaving_the_harness_closes_the_job() -> None:
    closed = []

    class Closing(sw.MapFunction[int, int]):
        def map(self, value: int) -> int:
            return value

        def close(self) -> None:
            closed.append(True)

    sink = CollectingSink()
    flow = sw.Pipeline("test")
    flow.source(TestSource([1, PAUSE])).map(Closing()).sink(sink)
    with PipelineHarness(flow) as harness:
        harness.run()
        assert not closed
    assert closed == [True]
    assert sink.events[-1] == ("close", 0)
    harness.close()
    assert closed == [True]


def test_cancel() -> None:
    sink = CollectingSink()
    flow = sw.Pipeline("test")
    flow.source(TestSource([1, PAUSE])).sink(sink)
    with PipelineHarness(flow) as harness:
        harness.run()
        assert harness.cancel().status is sw.JobStatus.CANCELED
    assert ("finish", 0) not in sink.events


def test_what_the_job_fails_with_is_raised() -> None:
    flow = sw.Pipeline("test")
    source = TestSource([1, PAUSE, 0, EOF])
    flow.source(source).map(lambda n: 1 // n).name("inverse").print()
    with PipelineHarness(flow) as harness:
        harness.run()
        source.resume()
        with pytest.raises(ZeroDivisionError) as caught:
            harness.run()
        assert any("inverse" in note for note in caught.value.__notes__)
        assert harness.status is sw.JobStatus.FAILED


def test_a_job_that_nothing_will_wake_is_no_hang() -> None:
    flow = sw.Pipeline("test")
    flow.source(TestSource([1])).sink(DiscardSink())
    message = r"the job is at rest, has not ended.*for an EOF.*Tasks: 'source\(TestSource\).*'\[0\] idle"
    with (
        PipelineHarness(flow, patience_s=0.01) as harness,
        pytest.raises(AssertionError, match=message),
    ):
        harness.run_to_end()


def test_a_job_that_never_rests_is_no_hang() -> None:
    flow = sw.Pipeline("test")
    flow.generate().sink(DiscardSink())
    with (
        PipelineHarness(flow, most_rounds=1_000) as harness,
        pytest.raises(AssertionError, match="does not come to rest within 1000 rounds: does a source never end"),
    ):
        harness.run()


def test_a_round_at_a_time() -> None:
    flow = sw.Pipeline("test")
    sink = CollectingSink()
    flow.generate().sink(sink)
    with PipelineHarness(flow) as harness:
        while not sink.values:
            assert harness.run_once()
        assert sink.values[:3] == [0, 1, 2]


def test_what_comes_from_outside_is_waited_for() -> None:
    class Hello(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"to be\n")

    flow = sw.Pipeline("test")
    with socketserver.TCPServer(("127.0.0.1", 0), Hello) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        host, port = server.server_address[:2]
        lines = flow.source("socket", host=host, port=port, max_retries=2, retry_delay=3600).collect()
        try:
            with PipelineHarness(flow) as harness:
                harness.run_to_end()
                assert harness.clock.now_ms() >= 2 * 3600 * 1000
        finally:
            server.shutdown()
            thread.join()
    assert lines == ["to be"] * 3


def test_a_helper_thread_is_given_time_before_the_clock_goes_on() -> None:
    class Slow(TestSource):
        """Gives its record when a thread has brought it, or fails after a virtual second."""

        def create_reader(self, context: ReaderContext) -> Reader[int]:
            brought = threading.Event()

            class Brought(SimpleReader[int]):
                def open_split(self, split: object) -> None:
                    self.until = context.clock.monotonic() + 1
                    self.done = False

                def read(self, limit: int) -> Poll[int]:
                    if self.done:
                        return END_OF_INPUT
                    if brought.is_set():
                        self.done = True
                        return [1]
                    assert context.clock.monotonic() < self.until, "time went on too soon"
                    return Wait(until=self.until)

                def position(self) -> None:
                    return None

                def close_split(self) -> None:
                    thread.join()

            def bring() -> None:
                rested.wait()
                brought.set()
                context.wake()

            thread = threading.Thread(target=bring)
            thread.start()
            return Brought(context)

    rested = threading.Event()
    flow = sw.Pipeline("test")
    numbers = flow.source(Slow([])).collect()
    with PipelineHarness(flow) as harness:
        harness.run()
        rested.set()
        harness.run_to_end()
        assert harness.clock.now_ms() == 0
    assert numbers == [1]


# ---- snapshots ----------------------------------------------------------------------------------------------


class Total(sw.KeyedProcessFunction[str, tuple[str, int], tuple[str, int]]):
    def open(self, context: sw.RuntimeContext) -> None:
        self.total = context.get_state(sw.ValueStateDescriptor("total", int, default=0))

    def process_element(
        self, value: tuple[str, int], ctx: sw.KeyedProcessFunction.Context
    ) -> Iterator[tuple[str, int]]:
        self.total.update(self.total.value() + value[1])
        yield ctx.get_current_key(), self.total.value()


def totals(source: TestSource) -> tuple[sw.Pipeline, sw.Collected[tuple[str, int]]]:
    flow = sw.Pipeline("totals", max_parallelism=16)
    return flow, flow.source(source).uid("in").key_by(lambda p: p[0]).process(Total()).uid("totals").collect()


PAIRS = [("a", 1), ("b", 2), PAUSE, ("a", 10), ("c", 5), ("b", 20), EOF]


@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_state_and_positions_come_back_at_any_parallelism(before: int, after: int) -> None:
    source = TestSource(PAIRS)
    flow, first = totals(source)
    with PipelineHarness(flow, parallelism=before) as harness:
        harness.run()
        snapshot = harness.snapshot()
        source.resume()  # what comes after the snapshot is not in it
        harness.run_to_end()
    assert sorted(first) == [("a", 1), ("a", 11), ("b", 2), ("b", 22), ("c", 5)]
    again = TestSource(PAIRS)
    flow, second = totals(again)
    with PipelineHarness(flow, restored=pickle.loads(pickle.dumps(snapshot)), parallelism=after) as harness:
        harness.run()
        assert second == []
        again.resume()
        harness.run_to_end()
    assert sorted(second) == [("a", 11), ("b", 22), ("c", 5)]


@pytest.mark.parametrize("option", ["from_checkpoint", "resume"])
def test_a_job_goes_on_from_a_checkpoint_on_disk(tmp_path: Path, option: str) -> None:
    flow, first = totals(TestSource(PAIRS))
    with PipelineHarness(flow, checkpoints=tmp_path, checkpoint_interval="1s") as harness:
        harness.advance(2_000)
    assert sorted(first) == [("a", 1), ("b", 2)]

    again = TestSource(PAIRS)
    flow, second = totals(again)
    where: dict[str, Any] = {"resume": True, "checkpoints": tmp_path}
    if option == "from_checkpoint":
        where = {"from_checkpoint": tmp_path}
    with PipelineHarness(flow, **where) as harness:
        harness.run()
        again.resume()
        harness.run_to_end()
    assert sorted(second) == [("a", 11), ("b", 22), ("c", 5)]


@pytest.mark.parametrize("option", [{"workers": 2}, {"engine": "spark"}, {"hosted": True}])
def test_options_that_the_harness_does_not_have_are_refused(option: Any) -> None:
    flow = sw.Pipeline("test")
    flow.from_collection([1]).sink(DiscardSink())
    with pytest.raises(sw.ConfigurationError, match=r"the harness runs all of the job in this thread"):
        PipelineHarness(flow, **option)


def test_a_place_for_checkpoints_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    flow = sw.Pipeline("test")
    flow.from_collection([1]).sink(DiscardSink())
    with pytest.raises(sw.CheckpointError, match="checkpoints cannot be kept in"):
        PipelineHarness(flow, checkpoints=tmp_path / "file" / "below", checkpoint_interval="1s")


def test_a_job_begins_with_one_snapshot(tmp_path: Path) -> None:
    flow, _ = totals(TestSource(PAIRS))
    with PipelineHarness(flow) as harness:
        snapshot = harness.snapshot()
    with pytest.raises(sw.ConfigurationError, match="give the harness restored or from_checkpoint, not both"):
        PipelineHarness(flow, restored=snapshot, from_checkpoint=tmp_path)


def test_a_snapshot_before_anything_ran() -> None:
    source = TestSource(PAIRS)
    flow, _ = totals(source)
    with PipelineHarness(flow) as harness:
        snapshot = harness.snapshot()
    assert [s.keyed.groups for s in snapshot.operators if s.keyed is not None] == [{}]
    flow, collected = totals(again := TestSource(PAIRS))
    with PipelineHarness(flow, restored=snapshot) as harness:
        harness.run()
        again.resume()
        harness.run_to_end()
    assert len(collected) == 5


def test_no_snapshot_of_what_has_ended_or_cannot_go_through() -> None:
    flow, _ = totals(TestSource([("a", 1), EOF]))
    with PipelineHarness(flow) as harness:
        harness.run()
        with pytest.raises(AssertionError, match="the job has ended"):
            harness.snapshot()
    sink = CollectingSink(blocked=True)
    flow = sw.Pipeline("test")
    flow.source(TestSource([1, PAUSE])).rebalance().sink(sink)
    with PipelineHarness(flow) as harness:
        harness.run()
        with pytest.raises(sw.StateError, match="records are under way"):
            harness.snapshot()
        sink.unblock()
        harness.snapshot()


def test_state_that_no_step_goes_by_is_refused() -> None:
    flow, _ = totals(TestSource(PAIRS))
    with PipelineHarness(flow) as harness:
        harness.run()
        snapshot = harness.snapshot()
    other = sw.Pipeline("other")
    other.source(TestSource(PAIRS)).uid("in").print()
    with pytest.raises(sw.StateError, match="'totals', which no step of job 'other' goes by"):
        PipelineHarness(other, restored=snapshot)


def test_state_of_another_step_under_the_uid_is_refused() -> None:
    def pipeline(finish: Callable[[sw.KeyedStream[Any, Any]], sw.DataStream[Any]]) -> sw.Pipeline:
        flow = sw.Pipeline("test")
        keyed = flow.source(TestSource([*PAIRS, PAUSE])).uid("in").key_by(lambda pair: pair[0])
        finish(keyed).uid("step").sink(CollectingSink())
        return flow

    with PipelineHarness(pipeline(lambda keyed: keyed.count())) as harness:
        snapshot = harness.run().snapshot()
    other = pipeline(lambda keyed: keyed.sum(1))
    with pytest.raises(sw.StateError, match="of step 'step' would be lost: what the step is now knows nothing"):
        PipelineHarness(other, restored=snapshot)
    with PipelineHarness(other, restored=snapshot, allow_dropped_state=True) as harness:
        harness.run()


class Every(sw.KeyedProcessFunction[int, int, int]):
    """Rings every ``ms``."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_processing_time_timer(self.ms)

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> list[int]:
        ctx.timer_service().register_processing_time_timer(timestamp + self.ms)
        return [ctx.current_processing_time()]


@pytest.mark.parametrize("ms", [7, 200, 333])
def test_times_that_are_sums_of_fractions_come_when_the_clock_says_them(ms: int) -> None:
    """0.4 + 0.2 is a little more than 0.6 seconds."""
    flow = sw.Pipeline("test")
    rung = flow.source(TestSource([1, PAUSE])).key_by(lambda n: n).process(Every(ms)).collect()
    with PipelineHarness(flow) as harness:
        for turn in range(1, 40):
            harness.advance(ms)
            assert rung == [ms * n for n in range(1, turn + 1)]


def test_time_gets_past_what_is_due_by_less_than_counts() -> None:
    class Late(Reader[int]):
        def __init__(self, context: ReaderContext) -> None:
            self.clock = context.clock
            self.until = 0.4 + 0.2

        def add_splits(self, splits: object) -> None: ...

        def no_more_splits(self) -> None: ...

        def poll(self, limit: int) -> Poll[int]:
            return END_OF_INPUT if self.clock.monotonic() >= self.until else Wait(until=self.until)

        def snapshot(self) -> list[int]:
            return []

        def close(self) -> None: ...

    class LateSource(TestSource):
        def create_reader(self, context: ReaderContext) -> Reader[int]:
            return Late(context)

    flow = sw.Pipeline("test")
    flow.source(LateSource([])).sink(DiscardSink())
    with PipelineHarness(flow) as harness:
        harness.advance(600)
        assert not harness.ended
        harness.advance(1)
        assert harness.ended


def test_only_a_pipeline_is_run() -> None:
    stream: object = sw.Pipeline().from_collection([1])
    with pytest.raises(TypeError, match="runs a Pipeline, not DataStream: end the stream in a sink"):
        PipelineHarness(stream)  # type: ignore[arg-type]


def test_what_no_harness_took_is_not_restored() -> None:
    flow = sw.Pipeline("test")
    flow.from_collection([1]).collect()
    with pytest.raises(
        TypeError, match=r"a PipelineHarness is restored from .* give .* its path as from_checkpoint"
    ):
        PipelineHarness(flow, restored="chk-1")  # type: ignore[arg-type]


def test_a_closed_harness_has_no_result() -> None:
    flow = sw.Pipeline("test")
    flow.source(TestSource([1, PAUSE, EOF])).collect()
    with PipelineHarness(flow) as harness:
        harness.run()
    with pytest.raises(AssertionError, match="the harness was closed before the job's end"):
        harness.run_to_end()
