"""Assigners of the users' own: what is refused, and how that is said."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from sluiceway.errors import FunctionContractError
from sluiceway.operators.windows.checked_assigners import assign_by
from sluiceway.testing import OperatorHarness
from sluiceway.windows import (
    GLOBAL_WINDOW,
    AssignerContext,
    EventTimeTrigger,
    MergingWindowAssigner,
    TimeWindow,
    Trigger,
    TumblingEventTimeWindows,
    Window,
    WindowAssigner,
)


class Given(WindowAssigner):
    """Always the same."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        windows: Sequence[Window] = self._given
        return windows

    def default_trigger(self) -> Trigger:
        return EventTimeTrigger()


class GivenMerging(Given, MergingWindowAssigner):
    """The same, of windows that merge."""


def results(assigner: WindowAssigner) -> list[Any]:
    with OperatorHarness(lambda s: s.key_by(lambda v: v).window(assigner).count()) as op:
        op.process("a", timestamp=3)
        return op.process_watermark(2**63 - 1)


@pytest.mark.parametrize("kind", [Given, GivenMerging])
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, "gave None (NoneType); it must return a list of windows, which may be empty"),
        (TimeWindow(0, 10), "gave TimeWindow(start=0, end=10) (TimeWindow); it must return a list of windows"),
        (iter(()), "(tuple_iterator); it must return a list of windows"),
        ([(0, 10)], "gave (0, 10) (tuple); it must return windows of type TimeWindow"),
        ([TimeWindow(0, 10), 3], "gave 3 (int); it must return windows of type TimeWindow"),
        ([TimeWindow(5, 5)], "end=5) (TimeWindow); it must return windows from one ms, an int, to a later one"),
        ([TimeWindow(0.5, 5)], "it must return windows from one ms, an int, to a later one"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_window_is_refused_with_the_assigner_and_the_record(kind: Any, given: Any, wanted: str) -> None:
    with pytest.raises(FunctionContractError, match=re.escape(wanted)) as caught:
        results(kind(given))
    assert str(caught.value).startswith(f"{kind.__name__}.assign() of step '{kind.__name__}.count' gave ")
    assert "record: 'a'" in caught.value.__notes__


@pytest.mark.parametrize("kind", [Given, GivenMerging])
def test_what_is_right_is_taken(kind: Any) -> None:
    assert results(kind([])) == []
    assert results(kind((TimeWindow(0, 10),))) == [("a", 1)]


def test_the_global_window_does_not_merge() -> None:
    assert results(Given([GLOBAL_WINDOW])) == [("a", 1)]
    with pytest.raises(FunctionContractError, match=r"it must return windows of type TimeWindow(\n|$)"):
        results(GivenMerging([GLOBAL_WINDOW]))


def test_those_of_the_package_are_trusted() -> None:
    tumbling = TumblingEventTimeWindows.of(10)
    assert assign_by(tumbling, "step") == tumbling.assign
