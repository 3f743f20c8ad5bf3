"""Conformance suite for sinks.

In a connector's tests::

    from sluiceway.testing.conformance.sink import SinkConformance

    class TestMySink(SinkConformance):
        def make_sink(self):
            self.place = ...
            return MySink(self.place)

        def written(self):
            return read_all_of(self.place)
"""

# ruff: noqa: D102 - the names of the tests say it

from __future__ import annotations

from collections import Counter
from typing import Any

import cloudpickle

from sluiceway.clock import SystemClock
from sluiceway.connector import DeliveryGuarantee, Sink, WriterContext
from sluiceway.metrics import MetricGroup
from sluiceway.testing.conformance._held import nothing_left_behind
from sluiceway.testing.drivers import SinkDriver, drive_sink

__all__ = ["SinkConformance"]


class SinkConformance:
    """Suite of sinks.

    Subclass it, give it a name that pytest collects, and implement the two methods that raise.

    Attributes:
        ordered: whether what one writer wrote is found in that order.
        visible_after_failure: whether anything written may be found after a close without finish.
    """

    ordered: bool = True
    visible_after_failure: bool = True

    def make_sink(self) -> Sink[Any]:
        """Return a sink to an empty place; made anew for each run."""
        raise NotImplementedError

    def written(self) -> list[Any]:
        """Return the content of the target of the most recent sink, once its writers are closed."""
        raise NotImplementedError

    def records(self) -> list[Any]:
        """Return the records to write: at least ten different ones."""
        return [f"record {i}" for i in range(250)]

    def identity(self, record: Any) -> Any:
        """Return a hashable identity, equal for a record and for its form in the target. Called for both."""
        return repr(record)

    # -- the description -------------------------------------------------------------------------------------

    def test_it_says_what_it_promises(self) -> None:
        assert isinstance(self.make_sink().guarantee, DeliveryGuarantee)

    def test_it_says_how_many_writers_it_can_have(self) -> None:
        most = self.make_sink().max_writers
        assert most is None or most >= 1

    def test_the_description_can_be_pickled_and_opens_nothing(self) -> None:
        sink = self.make_sink()
        with nothing_left_behind():
            copy = cloudpickle.loads(cloudpickle.dumps(sink))
            assert copy.name == sink.name
        drive_sink(copy, self.records())
        self.check(self.records())

    # -- writing ---------------------------------------------------------------------------------------------

    def test_every_record_arrives_once(self) -> None:
        most = self.make_sink().max_writers
        for parallelism in (1, 2, 3):
            if most is None or parallelism <= most:
                sink = self.make_sink()
                with nothing_left_behind():
                    drive_sink(sink, self.records(), parallelism, batch_size=7)
                self.check(self.records())

    def test_batches_of_any_size_are_taken(self) -> None:
        for size in (1, len(self.records())):
            drive_sink(self.make_sink(), self.records(), batch_size=size)
            self.check(self.records())
            if self.ordered:
                assert [self.identity(r) for r in self.written()] == [self.identity(r) for r in self.records()]

    def test_timestamps_are_taken(self) -> None:
        with SinkDriver(self.make_sink()) as driver:
            # Not from 0, which means no time to some systems, and is refused by a sink that cannot keep it.
            driver.write(self.records(), range(1, 1 + len(self.records())))
            driver.finish()
        self.check(self.records())

    def test_a_flush_may_come_at_any_time(self) -> None:
        with SinkDriver(self.make_sink()) as driver:
            driver.flush()
            for record in self.records():
                driver.write([record])
                driver.flush()
                driver.flush()
            driver.finish()
        self.check(self.records())

    def test_what_was_flushed_is_there_after_a_failure(self) -> None:
        """A checkpoint is complete after a flush: a restored job does not write these records again."""
        promised = self.make_sink().guarantee in (DeliveryGuarantee.AT_LEAST_ONCE, DeliveryGuarantee.IDEMPOTENT)
        if not promised or not self.visible_after_failure:
            return
        records = self.records()
        with SinkDriver(self.make_sink()) as driver:
            driver.write(records)
            driver.flush()
        lost = Counter(map(self.identity, records)) - Counter(map(self.identity, self.written()))
        assert not lost, f"flush() has returned, and these records were lost by the failure after it: {dict(lost)}"

    def test_nothing_at_all_may_be_written(self) -> None:
        sink = self.make_sink()
        with nothing_left_behind(), SinkDriver(sink) as driver:
            driver.finish()
        self.check([])

    # -- closing ---------------------------------------------------------------------------------------------

    def test_a_writer_can_be_closed_without_being_opened(self) -> None:
        sink = self.make_sink()
        with nothing_left_behind():
            sink.create_writer(
                WriterContext(
                    subtask=0, parallelism=1, clock=SystemClock(), wake=lambda: None, metrics=MetricGroup()
                )
            ).close()

    def test_a_job_that_fails_leaves_nothing_behind(self) -> None:
        sink = self.make_sink()
        with nothing_left_behind(), SinkDriver(sink) as driver:
            driver.write(self.records())
        if not self.visible_after_failure:
            self.check([])
        sink = self.make_sink()
        with nothing_left_behind(), SinkDriver(sink) as driver:
            driver.write(self.records())
            driver.flush()
        if not self.visible_after_failure:
            self.check([])

    # -- inside ----------------------------------------------------------------------------------------------

    def check(self, records: list[Any]) -> None:
        """Fail if other records than these have arrived, in whatever order."""
        got, wanted = Counter(map(self.identity, self.written())), Counter(map(self.identity, records))
        assert got == wanted, f"lost: {dict(wanted - got)}; too many: {dict(got - wanted)}"
