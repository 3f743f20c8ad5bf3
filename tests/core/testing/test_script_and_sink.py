"""The scripted source and the collecting sink, in jobs of every kind."""

import threading

import pytest

import sluiceway as sw
from sluiceway.elements import Batch
from sluiceway.testing import ABORT, EOF, PAUSE, CollectingSink, PipelineHarness, TestSource, Written, drive_source


def flow_of(source: TestSource, sink: CollectingSink) -> sw.Pipeline:
    flow = sw.Pipeline("test")
    flow.source(source).sink(sink)
    return flow


def test_records_come_up_to_the_mark() -> None:
    source, sink = TestSource([1, 2, PAUSE, 3, PAUSE, EOF, 4]), CollectingSink()
    with PipelineHarness(flow_of(source, sink)) as harness:
        assert not source.paused
        harness.run()
        assert (sink.values, source.paused) == ([1, 2], True)
        harness.run()
        assert sink.values == [1, 2]
        source.resume()
        assert not source.paused
        harness.run()
        assert (sink.values, source.paused, harness.ended) == ([1, 2, 3], True, False)
        source.resume()
        assert harness.run().ended
    assert sink.values == [1, 2, 3]


def test_records_between_marks_come_in_one_batch() -> None:
    sink = CollectingSink()
    source = TestSource([1, 2, PAUSE, 3, 4, 5, EOF])
    with PipelineHarness(flow_of(source, sink), batch_size=2) as harness:
        harness.run()
        source.resume()
        harness.run()
    assert [w.values for w in sink.writes] == [(1, 2), (3, 4), (5,)]


def test_batches_come_as_they_are() -> None:
    batch = Batch([1, 2], [10, 20])
    sink = CollectingSink()
    with PipelineHarness(flow_of(TestSource([0, batch, 3, EOF]), sink)) as harness:
        harness.run()
    assert sink.records == [(0, None), (1, 10), (2, 20), (3, None)]
    assert sink.writes[1] == Written(0, (1, 2), (10, 20))
    assert batch == Batch([1, 2], [10, 20])


def test_abort_raises_what_it_was_given() -> None:
    error = OSError("the disk is gone")
    source, sink = TestSource([1, PAUSE, ABORT(error)]), CollectingSink()
    with PipelineHarness(flow_of(source, sink)) as harness:
        harness.run()
        source.resume()
        with pytest.raises(OSError, match="the disk is gone") as caught:
            harness.run()
        assert caught.value is error
    assert sink.values == [1]
    assert ("finish", 0) not in sink.events
    assert sink.events[-1] == ("close", 0)


def test_a_script_without_an_end_can_be_written_on() -> None:
    source, sink = TestSource([1]), CollectingSink()
    with PipelineHarness(flow_of(source, sink)) as harness:
        assert not harness.run().ended
        source.put(2, 3)
        assert not harness.run().ended
        source.put(EOF)
        assert harness.run().ended
    assert sink.values == [1, 2, 3]


def test_one_reader_per_script() -> None:
    source, sink = TestSource([1, PAUSE, 2, EOF], [10, EOF]), CollectingSink()
    flow = sw.Pipeline("test", parallelism=2)
    flow.source(source).sink(sink).set_parallelism(2)
    with PipelineHarness(flow) as harness:
        harness.run()
        assert sorted(sink.values) == [1, 10]
        source.resume()
        assert harness.run().ended
    assert sorted(sink.values_of(s) for s in (0, 1)) == [[1, 2], [10]]
    assert sorted(drive_source(TestSource([1, EOF], [2, EOF]))) == [1, 2]
    assert source.max_readers == 2


def test_boundedness_is_what_the_scripts_say() -> None:
    assert TestSource([1, EOF], [EOF]).boundedness.value == "bounded"
    assert TestSource([1, ABORT(ValueError())]).boundedness.value == "bounded"
    assert TestSource([1, EOF], [PAUSE]).boundedness.value == "unbounded"
    with pytest.raises(ValueError, match="at least one script"):
        TestSource()


def test_resume_needs_somebody_to_resume() -> None:
    source = TestSource([PAUSE, EOF])
    with pytest.raises(AssertionError, match=r"no reader of TestSource\(\[PAUSE, EOF\]\) waits at a PAUSE"):
        source.resume()
    with PipelineHarness(flow_of(source, CollectingSink())) as harness:
        harness.run()
        source.resume()
        with pytest.raises(AssertionError, match="waits at a PAUSE"):
            source.resume()


def test_a_real_job_in_another_thread_pauses_and_goes_on() -> None:
    source, sink = TestSource([1, PAUSE, 2, EOF]), CollectingSink()
    flow = flow_of(source, sink)
    thread = threading.Thread(target=flow.run)
    thread.start()
    try:
        source.wait_until_paused()
        assert sink.values == [1]
        source.resume()
    finally:
        thread.join()
    assert sink.values == [1, 2]
    with pytest.raises(TimeoutError, match=r"no reader of .* within 0\.001 s"):
        source.wait_until_paused(0.001)


def test_a_blocked_sink_holds_everything_up() -> None:
    sink = CollectingSink(blocked=True)
    source = TestSource([Batch([1]), Batch([2]), Batch([3]), EOF])
    with PipelineHarness(flow_of(source, sink)) as harness:
        harness.run()
        assert sink.values == []
        sink.unblock(2)
        harness.run()
        assert sink.values == [1, 2]
        sink.unblock()
        assert harness.run().ended
    assert sink.values == [1, 2, 3]
    assert sink.events[0] == ("open", 0)
    assert sink.events[-2:] == [("finish", 0), ("close", 0)]
    sink.clear()
    assert (sink.values, sink.events) == ([], [])


def test_a_sink_can_be_blocked_while_it_runs() -> None:
    source, sink = TestSource([1, PAUSE, 2, EOF]), CollectingSink()
    with PipelineHarness(flow_of(source, sink)) as harness:
        harness.run()
        sink.block()
        source.resume()
        assert not harness.run().ended
        assert sink.values == [1]


@pytest.mark.parametrize("error", [None, OSError("full")])
def test_a_sink_fails_at_the_record_it_was_told(error: BaseException | None) -> None:
    sink = CollectingSink(fail_at=3, error=error)
    source = TestSource([Batch([1, 2]), Batch([3, 4]), EOF])
    with (
        PipelineHarness(flow_of(source, sink)) as harness,
        pytest.raises(type(error or RuntimeError()), match="full" if error else "fails at record 3"),
    ):
        harness.run()
    assert sink.values == [1, 2]


def test_arguments_that_cannot_be() -> None:
    with pytest.raises(TypeError, match=r"a script of TestSource is a list .*, not 1: TestSource\(\[1, 2, PAUSE"):
        TestSource(1, 2, EOF)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fail_at is 0: records are counted from 1"):
        CollectingSink(fail_at=0)
