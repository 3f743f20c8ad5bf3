"""Steps by themselves."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.elements import Batch, Watermark
from sluiceway.errors import IncompatibleStateError
from sluiceway.testing import OperatorHarness

LATE = sw.OutputTag[int]("late")


class Recent(sw.KeyedProcessFunction[str, tuple[str, int], str]):
    """The last two numbers of a key; small ones go aside."""

    closed = 0

    def open(self, context: sw.RuntimeContext) -> None:
        self.recent = context.get_list_state(sw.ListStateDescriptor("recent", int))
        self.calls = context.metrics.counter("calls")
        self.subtask = context.index_of_this_subtask

    def process_element(self, value: tuple[str, int], ctx: sw.KeyedProcessFunction.Context) -> Iterator[str]:
        self.calls.inc()
        if value[1] < 0:
            ctx.output(LATE, value[1])
            return
        self.recent.update([*self.recent.get(), value[1]][-2:])
        yield f"{ctx.get_current_key()}{self.recent.get()}@{ctx.current_processing_time()}"

    def close(self) -> None:
        Recent.closed += 1


def recent(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
    return stream.key_by(lambda p: p[0]).process(Recent())


def test_records_in_and_out() -> None:
    with OperatorHarness(lambda s: s.map(lambda n: n + 1).filter(lambda n: n % 2).flat_map(range)) as harness:
        assert harness.process(2) == [0, 1, 2]
        assert harness.process(1) == []
        assert harness.process_batch([0, 2], [10, 20]) == [0, 0, 1, 2]
        assert harness.values == [0, 1, 2, 0, 0, 1, 2]
        assert harness.records[-2:] == [(1, 20), (2, 20)]
        assert harness.elements[0] == Batch([0, 1, 2])


def test_state_side_outputs_and_time() -> None:
    with OperatorHarness(recent, start_ms=100) as harness:
        assert harness.process(("a", 1)) == ["a[1]@100"]
        harness.advance(50)
        assert harness.process(("a", 2)) == ["a[1, 2]@150"]
        assert harness.process_batch([("b", 9), ("a", 3), ("a", -1)], [7, 8, 9]) == ["b[9]@150", "a[2, 3]@150"]
        assert harness.side_output(LATE) == harness.side_output("late") == [-1]
        assert harness.side_records(LATE) == [(-1, 9)]
        assert harness.side_output("other") == []
        assert harness.metrics().counters["calls"].value == 5


def test_watermarks_pass_and_are_seen() -> None:
    def mark(value: int, ctx: sw.ProcessFunction.Context) -> list[int]:
        return [ctx.current_watermark()]

    with OperatorHarness(lambda s: s.process(mark)) as harness:
        harness.process_watermark(5)
        assert harness.process(1) == [5]
        assert harness.process_element(Batch([1])) == [5]
        assert harness.elements == [Watermark(5), Batch([5]), Batch([5])]


def test_closing_closes_functions_once() -> None:
    Recent.closed = 0
    with OperatorHarness(recent, parallelism=3) as harness:
        harness.finish()
    assert Recent.closed == 3
    harness.close()
    assert Recent.closed == 3
    with pytest.raises(AssertionError, match="the harness is closed"):
        harness.process(("a", 1))


def test_what_a_function_raises_has_a_jobs_notes() -> None:
    with OperatorHarness(lambda s: s.map(lambda n: 1 // n).name("inverse")) as harness:
        with pytest.raises(ZeroDivisionError) as caught:
            harness.process(0)
        assert any("inverse" in note for note in caught.value.__notes__)
        with pytest.raises(TypeError):
            harness.process("x")
    with (
        OperatorHarness(lambda s: s.flat_map(lambda n: n)) as harness,
        pytest.raises(sw.FunctionContractError, match="cannot be iterated over"),
    ):
        harness.process(3)


def test_what_was_handled_when_a_function_failed_is_kept() -> None:
    def parse(line: str) -> int:
        try:
            return int(line)
        except ValueError:
            raise KeyError(line)  # noqa: B904

    with OperatorHarness(lambda lines: lines.map(parse)) as harness, pytest.raises(KeyError) as caught:
        harness.process("x")
    assert isinstance(caught.value.__context__, ValueError)
    assert not caught.value.__suppress_context__


def test_an_open_that_fails_closes_the_others() -> None:
    closed = []

    class Opens(sw.MapFunction[Any, Any]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.index = context.index_of_this_subtask
            if self.index == 1:
                raise OSError("no more files")

        def map(self, value: Any) -> Any:
            return value

        def close(self) -> None:
            closed.append(self.index)

    with pytest.raises(OSError, match="no more files"):
        OperatorHarness(lambda s: s.map(Opens()), parallelism=3)
    assert sorted(closed) == [0, 1]


def test_subtasks_share_the_keys() -> None:
    def where(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        class Where(sw.KeyedProcessFunction[int, int, tuple[int, int]]):
            def open(self, context: sw.RuntimeContext) -> None:
                self.index = context.index_of_this_subtask

            def process_element(self, value: int, ctx: Any) -> list[tuple[int, int]]:
                return [(value, self.index)]

        return stream.key_by(lambda n: n).process(Where())

    with OperatorHarness(where, parallelism=4) as harness:
        once = dict(harness.process_batch(list(range(100))))
        again = dict(harness.process_batch(list(range(100))))
    assert once == again
    assert set(once.values()) == {0, 1, 2, 3}


def test_without_keys_subtasks_take_turns() -> None:
    class Index(sw.MapFunction[Any, int]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.index = context.index_of_this_subtask

        def map(self, value: Any) -> int:
            return self.index

    with OperatorHarness(lambda s: s.map(Index()), parallelism=2) as harness:
        assert harness.process_batch("abc", [1, 2, 3]) == [0, 0, 1]
        assert harness.process("d") == [1]
        assert harness.process("e") == [0]
        assert [t for _, t in harness.records] == [1, 3, 2, None, None]


@given(
    pairs=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9))),
    cut=st.integers(0, 20),
    before=st.integers(1, 4),
    after=st.integers(1, 4),
)
def test_restored_state_goes_on_where_it_was(
    pairs: list[tuple[str, int]], cut: int, before: int, after: int
) -> None:
    with OperatorHarness(recent) as harness:
        expected = harness.process_batch(pairs)
    with OperatorHarness(recent, parallelism=before) as harness:
        harness.process_batch(pairs[:cut])
        snapshot = harness.snapshot()
        got = list(harness.values)
        harness.process_batch([(k, 77) for k in "abcdef"])  # not in the snapshot
    with OperatorHarness(recent, parallelism=after, restored=snapshot) as harness:
        got += harness.process_batch(pairs[cut:])
    assert sorted(got) == sorted(expected)


class Counting(sw.KeyedProcessFunction[str, Any, Any]):
    def __init__(self, state: str) -> None:
        self.state = state

    def open(self, context: sw.RuntimeContext) -> None:
        self.count = context.get_state(sw.ValueStateDescriptor(self.state, int))

    def process_element(self, value: Any, ctx: sw.KeyedProcessFunction.Context) -> Iterator[Any]:
        self.count.update(1)
        yield value


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (lambda k: k.count(), lambda k: k.reduce(max), "no step of job 'harness' goes by"),
        (lambda k: k.count().uid("a"), lambda k: k.count().uid("b"), "'a', which no step of job 'harness' goes"),
        (lambda k: k.count().uid("a"), lambda k: k.sum(1).uid("a"), "of step 'a' would be lost"),
        (
            lambda k: k.process(Counting("old")).uid("a"),
            lambda k: k.process(Counting("new")).uid("a"),
            "'old' of step 'a' would be lost",
        ),
    ],
)
def test_a_snapshot_that_a_job_would_refuse_is_refused(before: Any, after: Any, message: str) -> None:
    with OperatorHarness(lambda s: before(s.key_by(lambda p: p[0]))) as harness:
        harness.process(("a", 1))
        snapshot = harness.snapshot()
    with pytest.raises(IncompatibleStateError, match=message):
        OperatorHarness(lambda s: after(s.key_by(lambda p: p[0])), restored=snapshot)
    later = OperatorHarness(lambda s: after(s.key_by(lambda p: p[0])), restored=snapshot, allow_dropped_state=True)
    with later as harness:
        assert harness.process(("a", 1))


def test_a_side_output_may_be_the_result() -> None:
    def program(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        return stream.key_by(lambda p: p[0]).process(Recent()).get_side_output(LATE).map(lambda n: -n)

    with OperatorHarness(program) as harness:
        assert harness.process_batch([("a", 1), ("a", -4)]) == [4]
        assert harness.side_output(LATE) == [-4]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda s: s, "must add a step"),
        (lambda s: s.map(str).key_by(lambda n: n).count(), "records travel by hash to 'count'"),
        (lambda s: s.map(str).rebalance().map(str), "records travel by rebalance"),
        (lambda s: s.map(str).union(s.map(int)).map(str), "streams come together"),
        (lambda s: looped(s), "there is a loop"),
        (lambda s: s.map(str).map(str).set_parallelism(2), "records travel by rebalance"),
    ],
)
def test_what_does_not_run_in_one_task_is_refused(program: Any, message: str) -> None:
    with pytest.raises(sw.GraphError, match=message):
        OperatorHarness(program)


def looped(stream: sw.DataStream[int]) -> sw.DataStream[int]:
    loop = stream.iterate()
    loop.close_with(loop.filter(lambda n: n > 0))
    return loop.map(abs)


def test_a_program_returns_a_stream() -> None:
    with pytest.raises(TypeError, match=r"an OperatorHarness takes a program, .* \(Recent\)"):
        OperatorHarness(Recent())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must return a stream, not DataStreamSink"):
        OperatorHarness(lambda s: s.print())  # type: ignore[arg-type, return-value]


def test_keys_that_cannot_be() -> None:
    for parallelism in (1, 2):
        with (
            OperatorHarness(recent, parallelism=parallelism) as harness,
            pytest.raises(sw.UnstableKeyError),
        ):
            harness.process(([1], 1))


def test_a_closed_harness_answers_nothing() -> None:
    with OperatorHarness(recent) as harness:
        harness.process(("a", 1))
    for call in (
        harness.snapshot,  # an empty one would be restored as if there had been no records
        harness.finish,
        harness.metrics,
        lambda: harness.blocked,
        lambda: harness.advance(1),
        lambda: harness.process_watermark(1),
    ):
        with pytest.raises(AssertionError, match="the harness is closed"):
            call()
    assert harness.values == ["a[1]@0"]


def test_event_times_are_whole_numbers_one_per_record() -> None:
    with OperatorHarness(lambda s: s.map(str)) as harness:
        for call in (
            lambda: harness.process(1, "5"),  # type: ignore[arg-type]
            lambda: harness.process_watermark("5"),  # type: ignore[arg-type]
        ):
            with pytest.raises(
                TypeError, match=r"an event time is a whole number of ms, and '5' \(str\) was given"
            ):
                call()
        with pytest.raises(ValueError, match="2 records were given with 1 timestamps: each needs one"):
            harness.process_batch([1, 2], [5])
        with pytest.raises(TypeError, match=r"7 \(int\) is no element of a stream, .*: give a record to process"):
            harness.process_element(7)  # type: ignore[arg-type]
        assert harness.values == []


def test_arguments_of_another_kind_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"an OperatorHarness is restored from what snapshot\(\) .* 'chk-1' \(str\)"
    ):
        OperatorHarness(recent, restored="chk-1")  # type: ignore[arg-type]
    with OperatorHarness(recent) as harness, pytest.raises(TypeError, match="goes by its OutputTag or the name"):
        harness.side_output(None)  # type: ignore[arg-type]
