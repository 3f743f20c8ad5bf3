"""An enumerator driven by hand, and all splits of a bounded source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from sluiceway.clock import VirtualClock
from sluiceway.connector import (
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    Source,
)
from sluiceway.connector.lib.collection import CollectionSource
from sluiceway.errors import ConnectorError
from sluiceway.runtime.microbatch.driven_enumerator import (
    Dealt,
    DrivenEnumerator,
    SplitsInTurn,
    check_all_received,
    deal_splits,
    plan_splits,
)


class _Source(Source[Any]):
    """One with an enumerator of the test's."""

    boundedness = Boundedness.BOUNDED

    def __init__(self, make: Callable[[EnumeratorContext, Any], Enumerator]) -> None:
        self._make = make

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        return self._make(context, restored)

    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        raise AssertionError("nobody reads here")


class _Letter(str):
    """A split by name alone."""

    __slots__ = ()

    @property
    def split_id(self) -> str:
        return str(self)


def _letters(text: str) -> list[_Letter]:
    return list(map(_Letter, text))


class _Late(SimpleEnumerator):
    """Finds its splits in a thread, after which it answers."""

    def __init__(self, context: EnumeratorContext, restored: Any = None) -> None:
        super().__init__(context, [])
        self._asked: list[int] = []
        self._found = False
        self.closed = 0

    def start(self) -> None:
        threading.Thread(target=self._context.wake, args=(0.01,)).start()

    def handle_split_request(self, reader: int) -> None:
        if self._found:
            super().handle_split_request(reader)
        else:
            self._asked.append(reader)

    def run(self) -> None:
        self._found = True
        self._pending = _letters("abcde")
        for reader in self._asked:
            super().handle_split_request(reader)

    def close(self) -> None:
        self.closed += 1


def test_all_splits_are_handed_out_in_turn() -> None:
    source = _Source(lambda context, restored: SimpleEnumerator(context, _letters("abcde")))
    assert plan_splits(source, 2) == [["a", "c", "e"], ["b", "d"]]


def test_an_enumerator_stays_open_for_who_needs_what_it_has_made() -> None:
    made: list[_Late] = []

    def make(context: EnumeratorContext, restored: Any) -> Enumerator:
        made.append(_Late(context))
        return made[-1]

    with ExitStack() as kept:
        assert plan_splits(_Source(make), 2, kept=kept) == [["a", "c", "e"], ["b", "d"]]
        assert made[0].closed == 0
    assert made[0].closed == 1


def test_what_a_reader_is_given_is_known_by_request() -> None:
    class Threes(SimpleEnumerator):
        def add_reader(self, reader: int) -> None:
            self._context.assign(reader, [_Letter(f"first-{reader}")])

        def handle_split_request(self, reader: int) -> None:
            if self._pending:
                self._context.assign(reader, self._pending[:3])
                del self._pending[:3]
            else:
                self._context.no_more_splits(reader)

    source = _Source(lambda context, restored: Threes(context, _letters("abcdefg")))
    assert deal_splits(source, 2) == [
        Dealt(["first-0"], [["a", "b", "c"], ["g"]]),
        Dealt(["first-1"], [["d", "e", "f"]]),
    ]
    assert plan_splits(source, 2) == [["first-0", "a", "b", "c", "g"], ["first-1", "d", "e", "f"]]


class _Chain:
    """A subtask whose reader asks when it begins, and when it is given what is told."""

    def __init__(self, begins: int, *asks_for: str) -> None:
        self.splits_wanted = begins
        self.records_in = 0
        self.given: list[str] = []
        self._asks_for = asks_for

    def add_splits(self, splits: Sequence[Any]) -> None:
        self.splits_wanted = sum(split in self._asks_for for split in splits)
        self.given += splits

    def no_more_splits(self) -> None:
        self.splits_wanted = 0
        self.given.append("no more")


def test_each_request_has_its_answer_also_one_made_while_there_is_another() -> None:
    chain = _Chain(2, "a")
    splits = SplitsInTurn(chain, Dealt(["now"], [["a"], ["b"], ["c"], ["d"], ["e"]]), lambda: ["d"])
    assert chain.given == ["now", "a", "b", "c"]
    assert not splits.wanted()
    chain.splits_wanted = 1
    assert splits.wanted()
    splits.give()
    assert chain.given[4:] == ["d"]
    chain.splits_wanted = 1
    splits.give()
    assert chain.given[5:] == ["e", "no more"]
    assert not splits.wanted()


def test_who_has_splits_is_not_given_others_unasked() -> None:
    chain, held = _Chain(0), ["now"]
    splits = SplitsInTurn(chain, Dealt(["now"], [["a"]]), lambda: held)
    assert not splits.wanted()  # it was not polled yet
    assert not splits.wanted()
    held.clear()
    chain.records_in = 7  # its last ones: it may ask now
    assert not splits.wanted()
    assert splits.wanted()
    splits.give()
    assert chain.given == ["now", "a", "no more"]


def test_what_a_reader_leaves_that_ends_by_itself_is_refused_where_others_cannot_have_it() -> None:
    splits = SplitsInTurn(_Chain(1), Dealt([], [_letters("a"), _letters("bc"), _letters("de")]), lambda: ["a"])
    with pytest.raises(ConnectorError, match=r"reader 1 of parts .* assigned to it ahead: 'b', 'c', 'd', \.\.\."):
        splits.check_all_received("parts", 1, 2)
    splits.check_all_received("parts", 0, 1)  # alone, it decides where to end
    check_all_received("parts", 1, 2, [])


def test_each_reader_has_its_share_of_a_collection() -> None:
    planned = plan_splits(CollectionSource(range(10)), 3)
    assert [[split.split_id for split in splits] for splits in planned] == [["slice-0"], ["slice-1"], ["slice-2"]]


def test_splits_found_in_a_thread_are_waited_for_and_the_enumerator_is_closed() -> None:
    made: list[_Late] = []

    def make(context: EnumeratorContext, restored: Any) -> Enumerator:
        made.append(_Late(context))
        return made[0]

    assert plan_splits(_Source(make), 2) == [["a", "c", "e"], ["b", "d"]]
    assert made[0].closed == 1


def test_an_enumerator_that_cannot_start_is_closed() -> None:
    class Broken(_Late):
        def start(self) -> None:
            raise ConnectorError("nothing there")

    made: list[Broken] = []

    def make(context: EnumeratorContext, restored: Any) -> Enumerator:
        made.append(Broken(context))
        return made[0]

    with pytest.raises(ConnectorError, match="nothing there"):
        plan_splits(_Source(make), 1)
    assert made[0].closed == 1


def test_it_can_be_cancelled_while_nothing_is_found() -> None:
    looks: list[int] = []

    def cancelled() -> bool:
        looks.append(1)
        return len(looks) > 2

    class Silent(SimpleEnumerator):
        def handle_split_request(self, reader: int) -> None:
            pass

    assert plan_splits(_Source(lambda context, restored: Silent(context, [])), 2, None, cancelled) == [[], []]


def test_splits_for_a_reader_that_is_not_there_are_refused() -> None:
    class Wrong(SimpleEnumerator):
        def handle_split_request(self, reader: int) -> None:
            self._context.assign(7, ["a"])

    with pytest.raises(ConnectorError, match=r"has something for reader 7; readers are numbered from 0 to 1"):
        plan_splits(_Source(lambda context, restored: Wrong(context, [])), 2)


def test_splits_after_the_last_are_refused() -> None:
    class Wrong(SimpleEnumerator):
        def handle_split_request(self, reader: int) -> None:
            self._context.no_more_splits(reader)
            self._context.assign(reader, ["a"])

    with pytest.raises(ConnectorError, match="told that there are no more splits"):
        plan_splits(_Source(lambda context, restored: Wrong(context, [])), 1)


def test_it_runs_when_it_has_asked_to_and_not_before() -> None:
    clock = VirtualClock()
    runs: list[int] = []

    class Watching(SimpleEnumerator):
        def start(self) -> None:
            self._context.wake(5.0)

        def run(self) -> None:
            runs.append(clock.now_ms())
            self._context.wake(5.0)

    source = _Source(lambda context, restored: Watching(context, []))
    with DrivenEnumerator(source, 1, clock) as enumerator:
        assert not enumerator.step()
        clock.advance(4999)
        assert not enumerator.step()
        clock.advance(1)
        assert enumerator.step()
        assert not enumerator.step()
        assert runs == [5000]


def test_a_request_that_is_not_answered_is_not_made_again() -> None:
    asked: list[int] = []

    class Silent(SimpleEnumerator):
        def handle_split_request(self, reader: int) -> None:
            asked.append(reader)

    with DrivenEnumerator(_Source(lambda context, restored: Silent(context, [])), 1) as enumerator:
        enumerator.request(0)
        enumerator.request(0)
        assert asked == [0]
        assert enumerator.unanswered == {0}


def test_it_goes_on_from_a_snapshot() -> None:
    source = _Source(
        lambda context, restored: SimpleEnumerator(context, _letters("abc") if restored is None else restored)
    )
    with DrivenEnumerator(source, 2) as enumerator:
        enumerator.request(0)
        assert enumerator.take() == {0: ["a"]}
        state = enumerator.snapshot()
    with DrivenEnumerator(source, 2, restored=state, no_more=[0]) as enumerator:
        enumerator.request(0)
        enumerator.request(1)
        assert enumerator.take() == {1: ["b"]}
