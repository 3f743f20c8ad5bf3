"""Conformance suite for exactly-once sinks: that of sinks, and two-phase commit.

In a connector's tests::

    from sluiceway.testing.conformance.committing import CommittingSinkConformance

    class TestMySink(CommittingSinkConformance):
        def make_sink(self):
            self.place = ...
            return MySink(self.place)

        def written(self):
            return read_all_of(self.place)
"""

# ruff: noqa: D102 - the names of the tests say it

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluiceway.connector import DeliveryGuarantee, Sink
from sluiceway.testing.conformance._held import nothing_left_behind
from sluiceway.testing.conformance.sink import SinkConformance
from sluiceway.testing.drivers import SinkDriver

__all__ = ["CommittingSinkConformance"]


class CommittingSinkConformance(SinkConformance):
    """Suite of sinks with commits.

    Subclass it, give it a name that pytest collects, and implement the two methods that raise.

    What was written must be found at any time, also while writers are at work.

    Attributes:
        parallelism: of the job before it is restarted, where the sink takes as many writers.
        seen_with_checkpoint: whether output is seen as soon as its checkpoint is complete, and not when more has
            come, at the latest at the end.
    """

    parallelism: int = 3
    seen_with_checkpoint: bool = True

    # -- when it is seen -------------------------------------------------------------------------------------

    def test_it_promises_exactly_once(self) -> None:
        assert self.make_sink().guarantee is DeliveryGuarantee.EXACTLY_ONCE

    def test_nothing_is_seen_before_its_checkpoint_is_complete(self) -> None:
        records = self.records()
        half = len(records) // 2
        with SinkDriver(self.make_sink(), checkpoints=True) as driver:
            driver.write(records[:half])
            driver.flush()
            self.check([])
            driver.checkpoint()
            self.check([])
            driver.complete()
            self._check_if_seen(records[:half])
            driver.write(records[half:])
            driver.flush()
            self._check_if_seen(records[:half])
            driver.finish()
            self.check(records)

    def test_what_an_aborted_checkpoint_had_made_ready_goes_with_the_next_one(self) -> None:
        records = self.records()
        half = len(records) // 2
        with SinkDriver(self.make_sink(), checkpoints=True) as driver:
            driver.write(records[:half])
            driver.checkpoint()
            driver.write(records[half:])
            driver.checkpoint()
            self.check([])
            driver.complete()
            self._check_if_seen(records)
            driver.finish()
            self.check(records)

    def test_checkpoints_without_records_do_no_harm(self) -> None:
        sink = self.make_sink()
        with nothing_left_behind(), SinkDriver(sink, checkpoints=True) as driver:
            for _ in range(3):
                driver.checkpoint()
                driver.complete()
            driver.write(self.records())
            for _ in range(3):
                driver.checkpoint()
                driver.complete()
            driver.finish()
        self.check(self.records())

    # -- restarts --------------------------------------------------------------------------------------------

    def test_what_no_checkpoint_knows_of_is_never_seen(self) -> None:
        sink, records = self.make_sink(), self.records()
        with self._drive(sink) as driver:
            self._write(driver, records)
            driver.checkpoint()
        with self._drive(sink) as driver:
            self.check([])
            self._write(driver, records)
            driver.finish()
        self.check(records)

    def test_a_commit_that_did_not_come_is_made_up_for(self) -> None:
        sink, records = self.make_sink(), self.records()
        half = len(records) // 2
        with nothing_left_behind():
            with self._drive(sink) as driver:
                self._write(driver, records[:half])
                kept = driver.checkpoint()
                self._write(driver, records[half:])
                driver.checkpoint()
            for _ in range(2):  # it may fail again before the next checkpoint
                with self._drive(sink, kept) as driver:
                    self.check(records[:half])
                    self._write(driver, records[half:])
            with self._drive(sink, kept) as driver:
                self._write(driver, records[half:])
                driver.finish()
        self.check(records)

    def test_a_commit_that_comes_again_is_harmless(self) -> None:
        sink, records = self.make_sink(), self.records()
        half = len(records) // 2
        with self._drive(sink) as driver:
            self._write(driver, records[:half])
            driver.checkpoint()
            driver.complete()
            self._write(driver, records[half:])
            kept = driver.checkpoint()
            driver.complete()
            self._check_if_seen(records)
        with self._drive(sink, kept) as driver:
            self.check(records)
            driver.finish()
        self.check(records)

    def test_the_other_writers_of_another_parallelism_commit_everything(self) -> None:
        most = self.make_sink().max_writers
        for others in (1, 2, self.parallelism + 2):
            if most is not None and others > most:
                continue
            sink, records = self.make_sink(), self.records()
            half = len(records) // 2
            with self._drive(sink) as driver:
                self._write(driver, records[:half])
                kept = driver.checkpoint()
                self._write(driver, records[half:])
                driver.flush()
            with SinkDriver(sink, others, checkpoints=True, restored=kept) as driver:
                self.check(records[:half])
                self._write(driver, records[half:])
                driver.finish()
            self.check(records)

    # -- inside ----------------------------------------------------------------------------------------------

    def _check_if_seen(self, records: list[Any]) -> None:
        if self.seen_with_checkpoint:
            self.check(records)

    def _drive(self, sink: Sink[Any], restored: Sequence[Sequence[Any]] | None = None) -> SinkDriver:
        most = sink.max_writers
        parallelism = self.parallelism if most is None else min(most, self.parallelism)
        return SinkDriver(sink, parallelism, checkpoints=True, restored=restored)

    def _write(self, driver: SinkDriver, records: list[Any]) -> None:
        for subtask in range(driver.parallelism):
            share = records[subtask :: driver.parallelism]
            driver.write(share[: len(share) // 2], subtask=subtask)
            driver.flush(subtask)
            driver.write(share[len(share) // 2 :], subtask=subtask)
