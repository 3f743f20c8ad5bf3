"""What a job keeps of its sources: positions in the readers, what is not handed out in the enumerators."""

import threading
from dataclasses import dataclass

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.clock import VirtualClock
from sluiceway.connector import Boundedness, Enumerator, SimpleEnumerator, SimpleReader, Source, Wait
from sluiceway.connector.lib import CollectionSource
from sluiceway.errors import CheckpointFailedError, ConnectorError, StateError
from sluiceway.runtime.jobmanager.source_coordinator import SourceCoordinator
from sluiceway.runtime.loop.tasklet import Scheduled
from sluiceway.testing import EOF, PAUSE, PipelineHarness, TestSource


@dataclass(frozen=True)
class Part:
    """Numbers of a ten, from one on."""

    ten: int
    position: int = 0

    @property
    def split_id(self):
        return f"part-{self.ten}"


def later(work, done):
    raise AssertionError("nothing blocks")


class PartReader(SimpleReader):
    """Reads three records at a time; ``gate`` has how many parts may be read to their end by all readers."""

    def __init__(self, context, gate):
        super().__init__(context)
        self.gate = gate

    def open_split(self, split):
        self.part = split

    def read(self, limit):
        if self.part.position == 10:
            self.gate["ended"] += 1
            return sw.connector.END_OF_INPUT
        if self.gate["ended"] >= self.gate["parts"] and self.part.position >= 6:
            return Wait()
        at = self.part.position
        self.part = Part(self.part.ten, min(at + 3, 10))
        return [self.part.ten * 10 + i for i in range(at, self.part.position)]

    def position(self):
        return self.part

    def close_split(self):
        pass


class Parts(Source):
    """Seven parts. Where ``pushed``, the enumerator hands them out when a reader comes up, unasked."""

    boundedness = Boundedness.BOUNDED

    def __init__(self, gate, pushed=False, says=None):
        self.gate, self.pushed, self.says = gate, pushed, says
        self.restored = []

    def __getstate__(self):
        raise TypeError("not to be sent")

    def create_enumerator(self, context, restored=None):
        self.restored.append(restored)
        parts = [Part(i) for i in range(7)] if restored is None else restored
        if self.says is not None:
            return Silent(context, parts)
        return (Pushing if self.pushed else SimpleEnumerator)(context, parts)

    def create_reader(self, context):
        return (PushedReader if self.pushed else PartReader)(context, self.gate)


class Silent(SimpleEnumerator):
    def snapshot(self):
        return None


class Pushing(Enumerator):
    def __init__(self, context, parts):
        self.context, self.parts, self.came = context, parts, []

    def add_reader(self, reader):
        assert reader not in self.came
        self.came.append(reader)
        share, self.parts = self.parts[:2], self.parts[2:]
        self.context.assign(reader, share)
        if len(self.came) == self.context.parallelism:
            self.context.assign(reader, self.parts)
            self.parts = []
            for each in self.came:
                self.context.no_more_splits(each)

    def handle_split_request(self, reader):
        raise AssertionError("nobody asks")

    def add_splits_back(self, splits, reader):
        raise AssertionError("no reader is lost")

    def snapshot(self):
        return self.parts


class PushedReader(PartReader):
    def start(self):
        pass

    def poll(self, limit):
        self._no_more, asked = True, self._no_more
        try:
            return super().poll(limit) if self._waiting or self._is_open or asked else Wait()
        finally:
            self._no_more = asked


def flow(source, parallelism):
    pipeline = sw.Pipeline("parts")
    records = pipeline.source(source).uid("in").set_parallelism(parallelism).collect()
    return pipeline, records


@pytest.mark.parametrize("pushed", [False, True])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (2, 1), (3, 2), (2, 4)])
@pytest.mark.parametrize("parts", [0, 3])
def test_every_record_is_read_once_at_any_parallelism(before, after, parts, pushed):
    first, seen = flow(Parts({"ended": 0, "parts": parts}, pushed), before)
    with PipelineHarness(first) as harness:
        harness.run()
        snapshot = harness.snapshot()
        seen = list(seen)
    handed_out = [part for taken in snapshot.operators for part in taken.splits]
    assert len({part.ten for part in handed_out}) == len(handed_out), "a split has one owner"
    assert not {part.ten for part in handed_out} & {part.ten for part in snapshot.enumerators["in"]}
    source = Parts({"ended": 0, "parts": 99}, pushed)
    second, rest = flow(source, after)
    with PipelineHarness(second, restored=snapshot) as harness:
        harness.run_to_end()
    assert source.restored == [snapshot.enumerators["in"]]
    assert sorted(seen + list(rest)) == list(range(70))


def test_an_enumerator_must_not_say_none():
    pipeline, _ = flow(Parts({"ended": 0, "parts": 0}, says="none"), 1)
    with PipelineHarness(pipeline) as harness:
        harness.run()
        with pytest.raises(ConnectorError, match=r"the enumerator of Parts returned None from snapshot\(\)"):
            harness.snapshot()


@pytest.mark.parametrize(
    ("error", "says"),
    [(ValueError("lost"), "lost"), (SystemExit("lost"), r"an enumerator raised SystemExit\(lost\)")],
)
def test_an_enumerator_that_raises_in_a_snapshot_fails_the_job_and_is_named(error, says):
    class Failing(SimpleEnumerator):
        def snapshot(self):
            raise error

    class FailingParts(Parts):
        def create_enumerator(self, context, restored=None):
            return Failing(context, [Part(0)])

    flow = sw.Pipeline("failing")
    flow.source(FailingParts({"ended": 0, "parts": 0})).collect()
    with pytest.raises(CheckpointFailedError, match=f"checkpoint 1 has failed: {says}") as caught:
        flow.run(checkpoint_interval="5ms", restart="none")
    assert caught.value.__notes__ == ["in the enumerator of source 'source(FailingParts)'"]


def test_splits_of_a_source_that_is_gone_are_refused_also_those_that_nobody_had():
    pipeline, _ = flow(Parts({"ended": 0, "parts": 0}), 1)
    with PipelineHarness(pipeline) as harness:
        harness.run()
        snapshot = harness.snapshot()
    other = sw.Pipeline("other")
    other.from_collection([1]).uid("other").print()
    message = "the snapshot has state of 'in', which no step of job 'other' goes by"
    with pytest.raises(StateError, match=message):
        PipelineHarness(other, restored=snapshot)
    nobody_had = type(snapshot)(enumerators=snapshot.enumerators)
    with pytest.raises(StateError, match=message):
        PipelineHarness(other, restored=nobody_had)


def test_a_snapshot_needs_the_state_of_a_step_that_has_finished():
    def job(step):
        pipeline = sw.Pipeline("two")
        step(pipeline.source(TestSource([1, 2, EOF])).uid("ends")).collect()
        pipeline.source(TestSource([1, PAUSE, EOF])).uid("goes on").collect()
        return pipeline

    with PipelineHarness(job(lambda s: s.map(str))) as harness:
        harness.run()
        snapshot = harness.snapshot()
    again = job(lambda s: s.map(str))
    with PipelineHarness(again, restored=snapshot) as harness:
        harness.run()
        assert harness.metrics().records_in == 0, "neither source gives anything again"
    with PipelineHarness(job(lambda s: s.key_by(str).count().name("counts"))) as harness:
        harness.run()
        with pytest.raises(StateError, match="step 'counts' has finished in subtask 1 and its state is gone"):
            harness.snapshot()


def test_what_an_enumerator_gives_to_a_reader_that_is_not_up_comes_when_it_is():
    given, ended = [], []

    class Unasked(SimpleEnumerator):
        """Gives all it has to reader 0 when it is run, whoever is there."""

        def run(self):
            self._context.assign(0, self._pending)
            self._context.no_more_splits(0)
            self._pending = []

    class Given(Parts):
        def create_enumerator(self, context, restored=None):
            return Unasked(context, [Part(0), Part(1)])

    coordinator = SourceCoordinator(
        Given({}),
        1,
        VirtualClock(),
        assign=lambda reader, splits: given.append((reader, list(splits))),
        no_more=ended.append,
        post=lambda action, after_s: action(),
        search=later,
    )
    coordinator.start()
    coordinator.wake()
    assert (given, ended) == ([], [])
    coordinator.reader_ready(0)
    assert (given, ended) == ([(0, [Part(0), Part(1)])], [0])

    # A reader that begins anew is not there either: what it was given is handed out once more, and once.
    given.clear()
    coordinator.reader_failed(0)
    coordinator.wake()
    assert given == []
    coordinator.reader_failed(0)
    coordinator.reader_ready(0)
    assert (given, ended) == ([], [0])
    coordinator.wake()
    assert (given, ended) == ([(0, [Part(0), Part(1)])], [0, 0])
    coordinator.close()


class Listing(SimpleEnumerator):
    """Finds its splits in a search that blocks."""

    def __init__(self, context, restored, closed):
        super().__init__(context, restored or [])
        self.closed = closed

    def start(self):
        raise AssertionError("it blocks")

    def first_search(self):
        return lambda: lambda: self._pending.extend([Part(0), Part(1)])

    def close(self):
        self.closed.append(self)


class Listed(Parts):
    def __init__(self):
        super().__init__({})
        self.closed = []

    def create_enumerator(self, context, restored=None):
        return Listing(context, restored, self.closed)


class Searches:
    """Executor of searches, which begin and end when the test says so."""

    def __init__(self):
        self.waiting = []

    def __call__(self, work, done):
        self.waiting.append((work, done))

    def end(self, error=None):
        work, done = self.waiting.pop(0)
        done(None if error is not None else work(), error)


def listing(source, searches, given, posted):
    def post(action, after_s):
        posted.append(Scheduled(action))
        return posted[-1]

    return SourceCoordinator(
        source,
        2,
        VirtualClock(),
        assign=lambda reader, splits: given.append((reader, *splits)),
        no_more=print,
        post=post,
        search=searches,
        restored=None,
    )


def test_readers_that_come_up_during_the_first_search_are_served_behind_it(caplog):
    source, searches, given, posted = Listed(), Searches(), [], []
    coordinator = listing(source, searches, given, posted)
    coordinator.start()
    for reader in (1, 0):
        coordinator.split_requested(reader)
    coordinator.reader_failed(0)
    assert coordinator.checkpoint(1) is None, "a job that goes on from there searches anew"
    posted[0]._action()
    assert "has looked for its first splits for 30 s" in caplog.text
    searches.end()
    assert given == [(1, Part(0))]
    assert coordinator.checkpoint(2) == [Part(1)]
    assert not posted[0].pending
    coordinator.close()
    assert source.closed == [], "closing may block, too"
    searches.end()
    assert len(source.closed) == 1


def test_a_source_is_closed_behind_a_search_that_is_under_way():
    source, searches, given, posted = Listed(), Searches(), [], []
    coordinator = listing(source, searches, given, posted)
    coordinator.start()
    coordinator.split_requested(0)
    coordinator.close()
    searches.end()
    assert (given, source.closed, posted[0].pending) == ([], [], False)
    searches.end()
    assert len(source.closed) == 1


def test_a_job_goes_on_while_a_source_searches():
    came = threading.Event()

    class Waiting(Listing):
        def first_search(self):
            def search():
                assert came.wait(PATIENT_S)
                return lambda: self._pending.append(Part(3))

            return search

    class Late(Listed):
        def create_enumerator(self, context, restored=None):
            return Waiting(context, restored, self.closed)

        def create_reader(self, context):
            return PartReader(context, {"ended": 0, "parts": 1})

    pipeline, late = sw.Pipeline("late"), Late()
    pipeline.from_collection([1]).map(lambda n: came.set()).print()
    numbers = pipeline.source(late).collect()
    pipeline.run()
    assert list(numbers) == list(range(30, 40))
    assert len(late.closed) == 1


def test_an_error_of_the_first_search_is_raised():
    searches = Searches()
    coordinator = listing(Listed(), searches, [], [])
    coordinator.start()
    with pytest.raises(ConnectorError, match="the store is gone"):
        searches.end(ConnectorError("the store is gone"))


@dataclass
class Moving:
    """A split that its reader moves on."""

    name: str
    at: int = 0

    @property
    def split_id(self):
        return self.name


class Handing(Enumerator):
    """Hands out from a list, and gives that list itself as its snapshot."""

    def __init__(self, context, restored):
        self.context, self.left = context, [Moving("a"), Moving("b")] if restored is None else restored

    def handle_split_request(self, reader):
        self.context.assign(reader, [self.left.pop()])

    def add_splits_back(self, splits, reader):
        self.left += splits

    def snapshot(self):
        return self.left


def test_what_changes_after_the_trigger_is_not_in_the_checkpoint():
    class Source(Parts):
        def create_enumerator(self, context, restored=None):
            return Handing(context, restored)

    given = []
    coordinator = SourceCoordinator(
        Source({}),
        1,
        VirtualClock(),
        assign=lambda reader, splits: given.extend(splits),
        no_more=print,
        post=lambda action, after_s: action(),
        search=later,
    )
    coordinator.start()
    coordinator.split_requested(0)
    taken = coordinator.checkpoint(1)
    coordinator.split_requested(0)
    assert [split.name for split in given] == ["b", "a"]
    for split in given:
        split.at = 7
    assert taken == [Moving("a")]
    coordinator.reader_failed(0)
    assert coordinator.snapshot() == [Moving("b"), Moving("a")], "as they were when they were handed out"
    coordinator.close()


def test_a_reader_that_fails_gives_back_what_no_complete_checkpoint_holds():
    came = []

    class Four(Handing):
        def add_reader(self, reader):
            came.append(reader)

    class Source(Parts):
        def create_enumerator(self, context, restored=None):
            return Four(context, [Moving(name) for name in "abcd"])

    coordinator = SourceCoordinator(
        Source({}),
        1,
        VirtualClock(),
        assign=lambda reader, splits: None,
        no_more=print,
        post=lambda action, after_s: action(),
        search=later,
    )
    coordinator.start()
    for checkpoint in (1, 2):
        coordinator.split_requested(0)
        coordinator.checkpoint(checkpoint)
    coordinator.split_requested(0)
    coordinator.checkpoint_completed(1)
    coordinator.reader_failed(0)
    assert [split.name for split in coordinator.snapshot()] == ["a", "c", "b"], "the reader's snapshot has d"
    assert came == [0], "it had come up once"
    coordinator.split_requested(0)
    coordinator.checkpoint(3)
    coordinator.checkpoint_completed(3)
    coordinator.reader_failed(0)
    assert [split.name for split in coordinator.snapshot()] == ["a", "c"]
    coordinator.close()


def test_a_reader_that_moves_its_split_on_begins_it_anew_after_a_failure(tmp_path):
    class Reading(SimpleReader):
        def open_split(self, split):
            self.split = split

        def read(self, limit):
            if self.split.at == 10:
                return sw.connector.END_OF_INPUT
            self.split.at += 1
            return [self.split.at - 1]

        def position(self):
            return self.split

        def close_split(self):
            pass

    class Source(Parts):
        def __getstate__(self):
            return vars(self)

        def create_enumerator(self, context, restored=None):
            return SimpleEnumerator(context, [Moving("a")] if restored is None else restored)

        def create_reader(self, context):
            return Reading(context)

    failed = []

    def once(number):
        if number == 5 and not failed:
            failed.append(number)
            raise OSError("once")
        return number

    pipeline = sw.Pipeline("moving")
    totals = pipeline.source(Source({})).map(once).key_by(lambda n: 0).count().collect()
    pipeline.run(checkpoint_interval="1h", checkpoints=tmp_path, restart="fixed-delay:1:0ms", batch_size=1)
    assert (failed, totals[-1]) == ([5], (0, 10))


def test_an_enumerator_that_cannot_take_splits_back_ends_the_job():
    """Also where another part of the job runs on: attempts that nobody deploys must not be waited for."""

    class Refusing(SimpleEnumerator):
        def add_splits_back(self, splits, reader):
            raise ConnectorError("they are gone")

    class Source(Parts):
        def __getstate__(self):
            return vars(self)

        def create_enumerator(self, context, restored=None):
            return Refusing(context, [Part(0)] if restored is None else restored)

    def fail(number):
        raise OSError("once")

    pipeline = sw.Pipeline("two parts")
    pipeline.source(Source({"ended": 0, "parts": 0})).map(fail).key_by(lambda n: 0).count().collect()
    pipeline.generate(rate=100).map(lambda n: n).collect()
    with pytest.raises(ConnectorError, match="they are gone"):
        pipeline.run(restart="fixed-delay:3:0ms")


def test_events_come_to_readers_that_run_and_others_are_dropped() -> None:
    class Echo(SimpleEnumerator):
        def handle_event(self, reader, event):
            for each in (0, 1):
                self._context.send_event(each, (event, reader))

    class Echoed(CollectionSource):
        def create_enumerator(self, context, restored=None):
            return Echo(context, [])

    sent = []
    coordinator = SourceCoordinator(
        Echoed([]),
        2,
        VirtualClock(),
        assign=lambda reader, splits: None,
        no_more=print,
        post=lambda action, after_s: action(),
        search=lambda work, done: done(work(), None),
        send_event=lambda reader, event: sent.append((reader, event)),
    )
    coordinator.start()
    coordinator.reader_ready(1)
    coordinator.event_received(1, "one")
    coordinator.reader_ready(0)
    coordinator.reader_failed(1)
    coordinator.event_received(0, "two")
    assert sent == [(1, ("one", 1)), (0, ("two", 0))]


def test_what_a_call_returns_is_called_behind_it_unless_the_source_was_closed() -> None:
    calls, called = [], []

    def search(work, done):
        calls.append((work, done))

    coordinator = SourceCoordinator(
        CollectionSource([]),
        1,
        VirtualClock(),
        assign=lambda reader, splits: None,
        no_more=lambda reader: None,
        post=lambda action, after_s: Scheduled(lambda: None),
        search=search,
    )
    coordinator.start()
    for name in ("first", "second"):
        coordinator.call_async(lambda name=name: lambda: called.append(name))
    (work, done), (late, late_done) = calls
    assert called == []
    done(work(), None)
    assert called == ["first"]
    with pytest.raises(OSError, match="no store"):
        done(None, OSError("no store"))
    coordinator.close()
    late_done(late(), None)
    assert called == ["first"]
