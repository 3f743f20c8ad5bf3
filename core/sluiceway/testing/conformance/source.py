"""Conformance suite for sources.

In a connector's tests::

    from sluiceway.testing.conformance.source import SourceConformance

    class TestMySource(SourceConformance):
        def make_source(self):
            return MySource("somewhere")

        def expected(self):
            return ["first", "second", "third"]
"""

# ruff: noqa: D102 - the names of the tests say it

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import cloudpickle

from sluiceway.clock import SystemClock
from sluiceway.connector import Boundedness, ReaderContext, Source
from sluiceway.metrics import MetricGroup
from sluiceway.testing.conformance._held import nothing_left_behind
from sluiceway.testing.drivers import SourceDriver, SourceSnapshot

__all__ = ["SourceConformance"]


class SourceConformance:
    """Suite of sources.

    Subclass it, give it a name that pytest collects, and implement the two methods that raise.

    Every test makes a source of its own. The source must come to an end, whatever it declares.

    Attributes:
        boundedness: what the source declares.
        restorable: whether its positions can be restored; a source that cannot must say so in its documentation.
        ordered: whether one reader gives the records in the order of :meth:`expected`.
        limit_factor: by how much a poll may exceed its limit.
        max_positions: how many positions are restored, spread over the whole input.
    """

    boundedness: Boundedness = Boundedness.BOUNDED
    restorable: bool = True
    ordered: bool = True
    limit_factor: float = 1.0
    max_positions: int = 25

    def make_source(self) -> Source[Any]:
        """Return a source that gives the expected records; made anew for each run."""
        raise NotImplementedError

    def expected(self) -> list[Any]:
        """Return all its records: at least ten, so that there is something between the beginning and the end."""
        raise NotImplementedError

    def identity(self, record: Any) -> Any:
        """Return a hashable identity of a record, by which records are compared."""
        return repr(record)

    # -- the description -------------------------------------------------------------------------------------

    def test_it_says_whether_it_ends(self) -> None:
        assert self.make_source().boundedness is self.boundedness

    def test_it_says_how_many_readers_can_share_it(self) -> None:
        most = self.make_source().max_readers
        assert most is None or most >= 1

    def test_the_description_can_be_pickled_and_opens_nothing(self) -> None:
        source = self.make_source()
        with nothing_left_behind():
            copy = cloudpickle.loads(cloudpickle.dumps(source))
            assert copy.name == source.name
            assert copy.boundedness is source.boundedness
        with SourceDriver(copy) as driver:
            self.check(driver.run())

    # -- reading ---------------------------------------------------------------------------------------------

    def test_every_record_comes_once(self) -> None:
        for parallelism in self.parallelisms():
            source = self.make_source()
            with nothing_left_behind(), SourceDriver(source, parallelism) as driver:
                driver.run()
                self.check(driver.all_records())
                if parallelism == 1 and self.ordered:
                    self.check_order(driver.all_records())

    def test_a_reader_that_names_its_splits_says_when_they_are_read(self) -> None:
        for parallelism in self.parallelisms():
            with SourceDriver(self.make_source(), parallelism, limit=3) as driver:
                driver.run()
                assert driver.splits <= driver.finished, (
                    f"read, and never finished: {sorted(driver.splits - driver.finished)}; such a split holds the "
                    "watermark back for ever"
                )

    def test_a_poll_keeps_to_its_limit(self) -> None:
        for limit in (1, 3):
            with SourceDriver(self.make_source(), limit=limit) as driver:
                self.check(driver.run())
                assert driver.largest <= limit * self.limit_factor

    # -- positions -------------------------------------------------------------------------------------------

    def test_restored_at_any_position_nothing_is_lost_or_repeated(self) -> None:
        if not self.restorable:
            return
        for parallelism in self.parallelisms()[:2]:
            positions = self._positions(parallelism)
            for before, snapshot in positions[:: max(len(positions) // self.max_positions, 1)]:
                with SourceDriver(self.make_source(), parallelism, limit=3, restored=snapshot) as driver:
                    self.check(before + driver.run())

    def test_restored_at_another_parallelism_nothing_is_lost_or_repeated(self) -> None:
        if not self.restorable or len(self.parallelisms()) == 1:
            return
        for parallelism, other in ((1, 2), (2, 1)):
            positions = self._positions(parallelism)
            for before, snapshot in positions[:: max(len(positions) // 5, 1)]:
                with SourceDriver(self.make_source(), other, limit=3, restored=snapshot) as driver:
                    self.check(before + driver.run())

    def test_a_snapshot_after_the_end_holds_nothing(self) -> None:
        if not self.restorable:
            return
        with SourceDriver(self.make_source()) as driver:
            driver.run()
            end = driver.snapshot()
        assert end.splits() == [[]]
        with SourceDriver(self.make_source(), restored=end) as driver:
            assert driver.run() == []

    def test_what_a_failed_reader_had_goes_to_another_one(self) -> None:
        if not self.restorable:
            return
        for parallelism in self.parallelisms():
            with SourceDriver(self.make_source(), parallelism, limit=3) as driver:
                for _ in range(3):
                    driver.poll()
                    driver.fail_reader(0)
                self.check(driver.run())

    # -- closing ---------------------------------------------------------------------------------------------

    def test_a_reader_can_be_closed_without_being_started(self) -> None:
        source = self.make_source()
        with nothing_left_behind():
            source.create_reader(self._context()).close()

    def test_a_reader_can_be_closed_before_it_has_a_split(self) -> None:
        source = self.make_source()
        with nothing_left_behind():
            reader = source.create_reader(self._context())
            reader.start()
            reader.close()

    def test_a_job_that_fails_leaves_nothing_behind(self) -> None:
        source = self.make_source()
        with nothing_left_behind(), SourceDriver(source, limit=1) as driver:
            driver.poll()

    # -- inside ----------------------------------------------------------------------------------------------

    def parallelisms(self) -> list[int]:
        """Return the numbers of readers to try."""
        most = self.make_source().max_readers
        return [p for p in (1, 2, 3) if most is None or p <= most]

    def check(self, records: Iterable[Any]) -> None:
        """Fail if these are not the expected records, in any order."""
        got, wanted = Counter(map(self.identity, records)), Counter(map(self.identity, self.expected()))
        assert got == wanted, f"lost: {dict(wanted - got)}; too many: {dict(got - wanted)}"

    def check_order(self, records: Iterable[Any]) -> None:
        """Fail if these are not the expected records, in their order."""
        assert [self.identity(r) for r in records] == [self.identity(r) for r in self.expected()]

    def _positions(self, parallelism: int) -> list[tuple[list[Any], SourceSnapshot]]:
        """Each position of a run: what had come by then, and the snapshot."""
        with SourceDriver(self.make_source(), parallelism, limit=2) as driver:
            positions: list[tuple[list[Any], SourceSnapshot]] = [([], driver.snapshot())]
            while driver.poll():
                positions.append((driver.all_records(), driver.snapshot()))
            self.check(driver.all_records())
        return positions

    def _context(self) -> ReaderContext:
        return ReaderContext(
            subtask=0,
            parallelism=1,
            clock=SystemClock(),
            wake=lambda: None,
            request_split=lambda: None,
            metrics=MetricGroup(),
        )
