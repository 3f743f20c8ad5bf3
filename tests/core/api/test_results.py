"""execute_and_collect() and take(): the records of a stream come back to the program."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.errors import ConfigurationError, GraphError, JobCancelledError
from sluiceway.graph import Level


def endless(**options: Any) -> sw.DataStream[int]:
    return sw.Pipeline("endless", **options).generate()


def test_all_records_of_a_stream_that_ends() -> None:
    numbers = sw.Pipeline("numbers").from_sequence(1, 10_000)
    records = numbers.map(lambda n: -n).execute_and_collect()
    assert list(records) == [-n for n in range(1, 10_001)]
    assert records.job.status is sw.JobStatus.FINISHED
    assert next(records, "none") == "none"
    records.close()
    assert list(records) == []


def test_each_time_is_a_run_of_its_own() -> None:
    squares = endless().map(lambda n: n * n)
    assert squares.take(3) == [0, 1, 4]
    assert squares.take(2) == [0, 1]
    assert squares._pipeline.graph is not None
    with pytest.raises(GraphError, match="has no sink"):
        squares._pipeline.graph()


def test_steps_that_lead_only_to_a_look_do_not_run() -> None:
    def program(look: bool) -> sw.Pipeline:
        flow = sw.Pipeline("looked at")
        numbers = flow.from_collection([1, 2, 3])
        if look:
            assert numbers.map(lambda n: 2 * n).name("doubled").take(1) == [2]
        numbers.filter(lambda n: n > 1).collect()
        return flow

    flow = program(look=True)
    flow.run()
    assert flow.explain() == program(look=False).explain()
    assert not [finding for finding in flow.check() if finding.level is Level.ERROR]


def test_a_look_leaves_no_checkpoint_that_the_job_resumes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_CHECKPOINTS", str(tmp_path / "kept"))
    monkeypatch.setenv("SLUICEWAY_CHECKPOINT_INTERVAL", "1h")
    out: list[tuple[int, int]] = []
    flow = sw.Pipeline("sums")
    sums = flow.from_collection([1, 2, 3]).uid("in").key_by(lambda n: 0).sum(lambda n: n).uid("sum")
    sums.for_each(out.append)
    assert list(sums.execute_and_collect()) == [(0, 1), (0, 3), (0, 6)]
    flow.run(resume=True)
    assert out == [(0, 1), (0, 3), (0, 6)]


def test_a_step_behind_a_look_still_needs_a_sink() -> None:
    numbers = sw.Pipeline().from_collection([1, 2, 3])
    numbers.print()
    doubled = numbers.map(lambda n: 2 * n)
    doubled.take(1)
    doubled.filter(lambda n: n > 2)
    with pytest.raises(GraphError, match=r"'filter' .* leads to no sink"):
        doubled._pipeline.graph()


def test_take_of_a_shorter_stream_gives_all_of_it() -> None:
    assert sw.Pipeline().from_collection(["a", "b"]).take(5) == ["a", "b"]


@pytest.mark.parametrize(("n", "error"), [(0, ValueError), (-1, ValueError), ("3", TypeError), (True, TypeError)])
def test_take_takes_a_number(n: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"take\(\) at .*test_results.py"):
        endless().take(n)


def test_other_branches_and_their_sinks_do_not_run() -> None:
    flow = sw.Pipeline("branches")
    numbers = flow.from_sequence(1, 3)
    doubled = numbers.map(lambda n: 2 * n)
    kept = doubled.collect()
    numbers.map(lambda n: n // 0).print()
    assert doubled.take(9) == [2, 4, 6]
    assert list(kept) == []


def test_side_outputs_unions_and_loops_belong_to_what_a_stream_is_made_of() -> None:
    flow = sw.Pipeline("made of")
    odd = sw.OutputTag[int]("odd")

    def split(n: int, ctx: sw.ProcessFunction.Context) -> Iterator[int]:
        if n % 2:
            ctx.output(odd, n)
        else:
            yield n

    even = flow.from_sequence(1, 6).process(split)
    loop = even.iterate()
    halved = loop.map(lambda n: n // 2)
    loop.close_with(halved.filter(lambda n: n % 2 == 0))
    assert sorted(even.get_side_output(odd).union(halved).execute_and_collect()) == [1, 1, 1, 2, 3, 3, 5]


def test_options_are_those_of_run() -> None:
    flow = sw.Pipeline("options")
    seen: set[int] = set()

    class Where(sw.MapFunction[int, int]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.subtask = context.index_of_this_subtask

        def map(self, value: int) -> int:
            seen.add(self.subtask)
            return value

    stream = flow.from_sequence(1, 100).rebalance().map(Where())
    assert sorted(stream.execute_and_collect(parallelism=2)) == list(range(1, 101))
    assert seen == {0, 1}
    with pytest.raises(ConfigurationError, match="paralelism"):
        stream.execute_and_collect(paralelism=2)
    with pytest.raises(ValueError, match="job_name"):
        stream.execute_and_collect(" ")


def test_a_failure_is_raised_where_the_records_are_read() -> None:
    stream = sw.Pipeline("fails").from_collection([1, 2, 0]).map(lambda n: 2 // n)
    records = stream.execute_and_collect("its name", batch_size=1)
    assert "its name" in repr(records)
    got = []
    with pytest.raises(ZeroDivisionError) as caught:
        got += records
    assert "record: 0" in "\n".join(caught.value.__notes__)
    with pytest.raises(ZeroDivisionError):
        next(records)
    assert stream.take(2, batch_size=1) == [2, 1]


def test_a_program_that_cannot_be_a_job_is_refused_at_once() -> None:
    stream = sw.Pipeline("twins").from_collection([1]).map(str).uid("same").map(int).uid("same")
    with pytest.raises(GraphError, match="both have uid 'same'"):
        stream.execute_and_collect()


def test_the_job_waits_for_its_consumer() -> None:
    made: list[int] = []
    with endless().map(lambda n: made.append(n) or n).execute_and_collect() as records:
        assert next(records) == 0
        # The sink is blocked, then the channels fill: the source comes to rest.
        pause, last = threading.Event(), -1
        while last < len(made) < 100_000:
            last = len(made)
            pause.wait(0.05)
        assert len(made) < 100_000
        first = list(islice(records, 20_000))
        assert first == list(range(1, 20_001))


def test_reading_on_after_close_says_that_records_are_missing() -> None:
    records = endless().execute_and_collect("cut")
    assert list(islice(records, 3)) == [0, 1, 2]
    records.close()
    records.close()
    assert records.job.status is sw.JobStatus.CANCELED
    with pytest.raises(
        JobCancelledError, match="'cut' was cancelled after it had given 3 records: its results are"
    ):
        next(records)


def test_a_finished_job_of_which_records_were_left_is_not_complete_either() -> None:
    records = sw.Pipeline("short").from_collection([1, 2]).execute_and_collect()
    assert next(records) == 1
    records._thread.join()
    records.close()
    with pytest.raises(JobCancelledError, match="had given 1 record:"):
        next(records)


def test_closing_in_another_thread_ends_the_wait() -> None:
    never = sw.Pipeline("quiet").generate(rate=1).filter(lambda n: n < 0)
    records = never.execute_and_collect()
    closer = threading.Thread(target=records.close)
    closer.start()
    with pytest.raises(JobCancelledError, match="had given 0 records"):
        next(records)
    closer.join()


def test_a_cancelled_job_is_told_apart_from_one_that_ended() -> None:
    with endless().execute_and_collect() as records:
        next(records)
        records.job.cancel()
        with pytest.raises(JobCancelledError):
            list(records)


def test_one_that_is_forgotten_cancels_its_job() -> None:
    records = endless().execute_and_collect()
    next(records)
    job, thread = records.job, records._thread
    gone = weakref.ref(records)
    del records
    gc.collect()
    assert gone() is None
    thread.join(PATIENT_S)
    assert job.status is sw.JobStatus.CANCELED


def test_what_fails_while_closing_hides_nothing() -> None:
    class Bad(sw.MapFunction[int, int]):
        def map(self, value: int) -> int:
            return value

        def close(self) -> None:
            raise RuntimeError("in close")

    assert endless().map(Bad()).take(2) == [0, 1]


def test_asynchronous_steps_too() -> None:
    async def double(n: int) -> int:
        return 2 * n

    assert endless().async_map(double, timeout="5s").take(3) == [0, 2, 4]


# ---- order -------------------------------------------------------------------------------------------------


def in_one_subtask(parallelism: int) -> sw.DataStream[int]:
    flow = sw.Pipeline("order", parallelism=parallelism)
    return flow.generate(count=2_000).set_parallelism(1).map(lambda n: -n).set_parallelism(1)


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"chaining": False}, {"workers": 2}], ids=str)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_stream_of_one_subtask_keeps_its_order(parallelism: int, options: dict[str, Any]) -> None:
    expected = [-n for n in range(2_000)]
    stream = in_one_subtask(parallelism)
    assert stream.take(1_500, **options) == expected[:1_500]
    with stream.execute_and_collect(**options) as records:
        assert list(records) == expected
    collected = stream.collect()
    stream._pipeline.run(**options)
    assert list(collected) == expected


def test_a_stream_of_several_subtasks_keeps_the_order_of_each() -> None:
    flow = sw.Pipeline("order", parallelism=3)
    stream = flow.generate(count=2_000).set_parallelism(2).map(lambda n: n).set_parallelism(2)
    for records in (stream.take(2_000), stream.take(2_000, batch_size=1)):
        assert [n for n in records if n % 2 == 0] == list(range(0, 2_000, 2))
        assert [n for n in records if n % 2 == 1] == list(range(1, 2_000, 2))
