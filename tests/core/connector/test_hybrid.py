"""Sources read one after the other."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.clock import VirtualClock
from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    EnumeratorContext,
    Reader,
    ReaderContext,
    Source,
    Wait,
)
from sluiceway.connector.lib import CollectionSource, GeneratorSource, HybridSource, SourceSwitch
from sluiceway.elements import MIN_WATERMARK
from sluiceway.errors import ConfigurationError, ConnectorError, GraphError
from sluiceway.metrics import MetricGroup
from sluiceway.testing.conformance.source import SourceConformance
from sluiceway.testing.drivers import SourceDriver, SourceSnapshot, drive_source
from sluiceway.windows import TumblingEventTimeWindows

BOUNDED = Boundedness.BOUNDED


def collection(*values: int) -> CollectionSource[int]:
    return CollectionSource(values)


class TestOfThree(SourceConformance):
    def make_source(self) -> Source[Any]:
        return HybridSource(
            collection(*range(5)),
            lambda switch: GeneratorSource(lambda n: n + 5, 4),
            collection(*range(9, 14)),
        )

    def expected(self) -> list[Any]:
        return list(range(14))


class TestInEachOther(SourceConformance):
    def make_source(self) -> Source[Any]:
        return HybridSource(
            HybridSource(collection(*range(5)), collection(*range(5, 8))),
            lambda switch: HybridSource(collection(*range(8, 11)), collection(*range(11, 14))),
            boundedness=BOUNDED,
        )

    def expected(self) -> list[Any]:
        return list(range(14))


def test_the_next_source_begins_when_all_readers_have_read_the_one_before() -> None:
    source = HybridSource(collection(*range(100)), collection(*range(100, 200)))
    with SourceDriver(source, 3, limit=7) as driver:
        while driver.poll():
            if any(record >= 100 for record in driver.all_records()):
                assert set(range(100)) <= set(driver.all_records())
        assert sorted(driver.all_records()) == list(range(200))
        assert [metrics.gauges["currentSourceIndex"]() for metrics in driver.metrics] == [1, 1, 1]


def test_a_function_is_given_the_times_of_the_switch_and_again_after_a_restore() -> None:
    switches: list[SourceSwitch] = []

    def make(switch: SourceSwitch) -> Source[int]:
        switches.append(switch)
        return collection(*range(3, 9))

    clock = VirtualClock()
    first = collection(0, 1, 2)
    source = HybridSource(first, make, boundedness=BOUNDED)
    began = clock.now_ms()
    with SourceDriver(source, limit=1, clock=clock) as driver:
        driver.run(2)
        clock.advance(5000)
        before = driver.run(4)
        snapshot = driver.snapshot()
    assert {(s.previous, s.started_ms, s.ended_ms) for s in switches} == {(first, began, began + 5000)}
    with SourceDriver(source, 2, restored=snapshot, clock=VirtualClock()) as driver:
        assert sorted(before + driver.run()) == list(range(9))
    assert len({(s.started_ms, s.ended_ms) for s in switches}) == 1


def test_a_reader_restored_from_before_the_switch_reads_what_it_had_alone() -> None:
    source = HybridSource(collection(*range(20)), collection(*range(20, 40)))
    with SourceDriver(source, 2, limit=3) as driver:
        driver.poll()
        early = driver.snapshot()
        read = driver.all_records()
    with SourceDriver(source, 2) as driver:
        while len(driver.all_records()) < 21:
            driver.poll()
        # As where others have switched: what readers had at the time is not in the state of the enumerator.
        late = SourceSnapshot(driver.snapshot().enumerator, early.readers)
    with SourceDriver(source, 2, restored=late) as driver:
        read += [record for record in driver.run() if record < 20]
    assert sorted(read) == list(range(20))


class Job(EnumeratorContext):
    """One reader of a source and its enumerator, which call each other directly."""

    parallelism = 1
    clock = VirtualClock()

    def __init__(self, source: Source[Any], restored: Any = None) -> None:
        self.source = source
        self.assigned: list[Any] = []
        self.reader: Reader[Any] | None = None
        self.woken = threading.Event()
        self.enumerator = source.create_enumerator(self, restored)
        self.enumerator.start()

    def assign(self, reader: int, splits: Any) -> None:
        self.assigned += splits
        assert self.reader is not None
        self.reader.add_splits(splits)

    def no_more_splits(self, reader: int) -> None:
        assert self.reader is not None
        self.reader.no_more_splits()

    def send_event(self, reader: int, event: Any) -> None:
        assert self.reader is not None
        self.reader.handle_event(event)

    def wake(self, after_s: float = 0.0) -> None:
        self.woken.set()

    def bring_up(self) -> None:
        self.reader = self.source.create_reader(
            ReaderContext(
                0,
                1,
                self.clock,
                lambda: None,
                lambda: self.enumerator.handle_split_request(0),
                MetricGroup(),
                lambda event: self.enumerator.handle_event(0, event),
            )
        )
        self.reader.start()
        self.enumerator.add_reader(0)

    def read(self, most: int | None = None) -> list[Any]:
        assert self.reader is not None
        records: list[Any] = []
        while most is None or len(records) < most:
            polled = self.reader.poll(1)
            if polled is END_OF_INPUT:
                break
            if isinstance(polled, list):
                records += polled
            elif isinstance(polled, Wait):
                assert self.woken.wait(PATIENT_S)
                self.woken.clear()
                self.enumerator.run()
        return records

    def close(self) -> None:
        assert self.reader is not None
        self.reader.close()
        self.enumerator.close()


@pytest.mark.parametrize("restores", [False, True])
def test_splits_of_earlier_sources_that_a_reader_has_lost_come_to_it_again(restores: bool) -> None:
    source = HybridSource(collection(0, 1, 2), collection(3, 4), collection(5, 6))
    job = Job(source)
    job.bring_up()
    assert job.read(6) == [0, 1, 2, 3, 4, 5]
    assert job.reader is not None
    job.reader.close()
    # All were assigned since the last checkpoint.
    job.enumerator.add_splits_back(pickle.loads(pickle.dumps(job.assigned)), 0)
    if restores:
        job.enumerator.close()
        job = Job(source, pickle.loads(pickle.dumps(job.enumerator.snapshot())))
    job.bring_up()
    assert job.read() == [0, 1, 2, 3, 4, 5, 6]
    job.close()


class Unnamed(CollectionSource[int]):
    """Source whose reader does not name the split of its records."""

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        reader = super().create_reader(context)
        poll = reader.poll

        def poll_without_a_name(limit: int) -> Any:
            polled = poll(limit)
            reader.current_split_id = None
            return polled

        reader.poll = poll_without_a_name  # type: ignore[method-assign]
        reader.finished_splits = lambda: ()  # type: ignore[method-assign]
        return reader


@pytest.mark.parametrize("sources", [(Unnamed([0]), collection(9)), (collection(0), Unnamed([9]))])
def test_a_source_that_names_no_splits_leaves_others_their_watermarks(sources: Any) -> None:
    flow = sw.Pipeline("unnamed")
    times = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n: n)
    source = HybridSource(*sources, GeneratorSource(lambda n: 10 + n, 10))
    numbers = flow.source(source, watermark_strategy=times).key_by(lambda n: 0).process(Watermarks()).collect()
    flow.run(batch_size=1, auto_watermark_interval=0)
    assert numbers == [MIN_WATERMARK, -1, *range(8, 18)]


class Watermarks(sw.KeyedProcessFunction[int, int, int]):
    def process_element(self, value: int, context: Any) -> Iterator[int]:
        yield context.timer_service().current_watermark()


@pytest.mark.parametrize("parallelism", [1, 4])
def test_empty_sources_are_passed(parallelism: int) -> None:
    source = HybridSource(collection(), collection(1, 2), lambda switch: collection(), collection(), collection(3))
    assert sorted(drive_source(source, parallelism)) == [1, 2, 3]
    assert drive_source(HybridSource(collection(), collection()), parallelism) == []


def test_windows_go_on_over_the_switch() -> None:
    flow = sw.Pipeline("windows")
    times = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n: n)
    source = HybridSource(collection(*range(0, 1000, 5)), GeneratorSource(lambda n: 1000 + 5 * n, 200))
    sums = (
        flow.source(source, watermark_strategy=times)
        .key_by(lambda n: 0)
        .window(TumblingEventTimeWindows.of(300))
        .aggregate(Count())
        .collect()
    )
    flow.run(batch_size=10, auto_watermark_interval=0)
    assert sums == [60, 60, 60, 60, 60, 60, 40]


class Count(sw.AggregateFunction[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


def test_what_it_says_of_itself_comes_from_its_sources() -> None:
    endless = GeneratorSource(lambda n: n)
    assert HybridSource(collection(1), endless).boundedness is Boundedness.UNBOUNDED
    assert HybridSource(collection(1), lambda switch: endless).boundedness is Boundedness.UNBOUNDED
    assert HybridSource(collection(1), collection(2)).boundedness is BOUNDED
    assert HybridSource(collection(1), collection(2)).output_type is int
    assert HybridSource(collection(1), CollectionSource(["a"])).output_type is None
    assert not HybridSource(collection(1), collection(2)).gives_timestamps
    assert HybridSource(collection(1), CollectionSource([2], timestamp=int)).gives_timestamps
    assert HybridSource(collection(1), lambda switch: endless).gives_timestamps


@pytest.mark.parametrize(
    ("sources", "kind", "message"),
    [
        ((), ConfigurationError, "takes sources"),
        ((GeneratorSource(lambda n: n), collection(1)), ConfigurationError, "source 1 of 2, .* does not end, so"),
        ((lambda switch: collection(1),), ConfigurationError, "the first source is a function"),
        ((collection(1), CollectionSource), TypeError, "2 of 2 is <class"),
        ((collection(1), [2]), TypeError, r"2 of 2 is \[2\] \(list\)"),
    ],
)
def test_sources_that_cannot_be_read_one_after_the_other(sources: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        HybridSource(*sources)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda switch: None, r"source 2 of 2 must return a source, and returned None \(NoneType\)"),
        (lambda switch: GeneratorSource(lambda n: n), r"source 2 of 2 made .*, which does not end"),
        (lambda switch: sw.connector.lib.FunctionSource(lambda: [1]), "by at most 1 readers, and .* step is 2"),
    ],
)
def test_functions_that_make_no_source_to_be_read(function: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        drive_source(HybridSource(collection(1), function, boundedness=BOUNDED), 2)


def test_fewer_sources_than_the_snapshot_has_read() -> None:
    with SourceDriver(HybridSource(collection(1), collection(2, 3)), limit=1) as driver:
        driver.run(2)
        snapshot = driver.snapshot()
    with pytest.raises(ConfigurationError, match="has read source 2 of a HybridSource, and this one has 1"):
        SourceDriver(HybridSource(collection(1)), restored=snapshot)


def test_columns_of_sources_that_have_the_same() -> None:
    pa = pytest.importorskip("pyarrow")
    one, other = pa.table({"n": [1, 2]}), pa.table({"n": [3]})
    differing = pa.table({"n": ["4"]})
    both = HybridSource(InColumns(one), InColumns(other), lambda switch: InColumns(other), boundedness=BOUNDED)
    flow = sw.Pipeline("columns", parallelism=2)
    rows = flow.table(both).to_records().collect()
    flow.run()
    assert sorted(row["n"] for row in rows) == [1, 2, 3, 3]
    with pytest.raises(ConfigurationError, match=r"'n' of int64, and source 2 of 2, .* has column 'n' of string"):
        flow.table(HybridSource(InColumns(one), InColumns(differing)))
    with pytest.raises(TypeError, match="reads records, not columns"):
        flow.table(HybridSource(InColumns(one), collection(1)))
    flow = sw.Pipeline("columns")
    later = HybridSource(InColumns(one), lambda switch: InColumns(differing), boundedness=BOUNDED)
    flow.table(later).to_records().collect()
    with pytest.raises(ConfigurationError, match="made at the switch, has column 'n' of string"):
        flow.run()


class InColumns(CollectionSource[Any]):
    """Rows of a table, in columns alone."""

    def __init__(self, table: Any) -> None:
        from sluiceway.elements import Columns

        self.table = table
        super().__init__(Columns(table.combine_chunks().to_batches()[0]))

    def in_columns(self) -> tuple[Source[Any], Any]:
        return self, self.table.schema


def test_an_engine_without_events_refuses_it() -> None:
    context = ReaderContext(0, 1, VirtualClock(), lambda: None, lambda: None, MetricGroup())
    with pytest.raises(ConnectorError, match="uses_events"):
        context.send_event(1)


def test_more_readers_than_one_of_the_sources_can_have() -> None:
    flow = sw.Pipeline("few")
    source = HybridSource(collection(1), sw.connector.lib.FunctionSource(lambda: [1]))
    flow.source(source).set_parallelism(2).collect()
    with pytest.raises(GraphError, match="can be read by 1"):
        flow.run()
