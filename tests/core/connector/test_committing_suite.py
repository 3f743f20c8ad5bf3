"""The suite for exactly-once sinks notices what it is there to notice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sluiceway.connector import CommittingSinkWriter, DeliveryGuarantee, Sink, SinkWriter, WriterContext
from sluiceway.testing import drive_sink
from sluiceway.testing.conformance.committing import CommittingSinkConformance
from sluiceway.testing.drivers import SinkDriver

SEEN: list[Any] = []
DONE: set[Any] = set()
STAGED: dict[Any, list[Any]] = {}


class Store(Sink[Any]):
    """Keeps transactions by name, and shows those that were committed."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    @property
    def guarantee(self) -> DeliveryGuarantee:
        return DeliveryGuarantee.NONE if self.fault == "promises nothing" else DeliveryGuarantee.EXACTLY_ONCE

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return Writer(self.fault, context)


class Writer(CommittingSinkWriter[Any]):
    attempts = 0

    def __init__(self, fault: str, context: WriterContext) -> None:
        self.fault = fault
        self.subtask = context.subtask
        self.number = 0
        Writer.attempts += 1
        self.attempt = Writer.attempts
        self.rows: list[Any] = []

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        self.rows += values
        if self.fault == "shows what is written":
            SEEN.extend(values)

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        if self.fault == "fails where nothing was written":
            assert self.rows
        self.number += 1
        name = (self.subtask, self.attempt, self.number)
        STAGED[name], self.rows = self.rows, []
        if self.fault == "shows what is ready":
            self.commit([name])
        return [name]

    def commit(self, committables: Sequence[Any]) -> None:
        if self.fault == "commits the last one only":
            committables = committables[-1:]
        for name in committables:
            if name not in DONE or self.fault == "commits again":
                DONE.add(name)
                SEEN.extend(STAGED[name])

    def recover(self, committables: Sequence[Any]) -> None:
        if self.fault == "forgets":
            return
        if self.fault == "takes what it finds":
            committables = [name for name in STAGED if name[0] == self.subtask]
        if self.fault == "knows its own only":
            committables = [name for name in committables if name[0] == self.subtask]
        self.commit(committables)


def failures(fault: str) -> set[str]:
    class Suite(CommittingSinkConformance):
        def make_sink(self) -> Sink[Any]:
            SEEN.clear()
            DONE.clear()
            STAGED.clear()
            return Store(fault)

        def written(self) -> list[Any]:
            return list(SEEN)

    found = set()
    suite = Suite()
    for name in vars(CommittingSinkConformance):  # the others have been looked at
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except AssertionError:
                found.add(name.removeprefix("test_"))
    return found


def test_a_sink_without_faults_passes() -> None:
    assert failures("none") == set()


@pytest.mark.parametrize(
    ("fault", "noticed_by"),
    [
        ("promises nothing", "it_promises_exactly_once"),
        ("shows what is written", "nothing_is_seen_before_its_checkpoint_is_complete"),
        ("shows what is ready", "nothing_is_seen_before_its_checkpoint_is_complete"),
        ("commits the last one only", "what_an_aborted_checkpoint_had_made_ready_goes_with_the_next_one"),
        ("fails where nothing was written", "checkpoints_without_records_do_no_harm"),
        ("takes what it finds", "what_no_checkpoint_knows_of_is_never_seen"),
        ("forgets", "a_commit_that_did_not_come_is_made_up_for"),
        ("commits again", "a_commit_that_comes_again_is_harmless"),
        ("knows its own only", "the_other_writers_of_another_parallelism_commit_everything"),
    ],
)
def test_a_faulty_sink_is_noticed(fault: str, noticed_by: str) -> None:
    assert noticed_by in failures(fault)


def test_without_checkpoints_everything_is_committed_at_the_end() -> None:
    for places in (SEEN, DONE, STAGED):
        places.clear()
    drive_sink(Store("none"), [1, 2, 3], 2, batch_size=1)
    assert sorted(SEEN) == [1, 2, 3]


def test_a_driver_without_checkpoints_takes_none() -> None:
    with SinkDriver(Store("none")) as driver, pytest.raises(AssertionError, match="checkpoints=True"):
        driver.checkpoint()
