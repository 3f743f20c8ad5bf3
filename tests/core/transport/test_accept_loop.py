"""The accept loop: strangers are few, and have little time; descriptors may run out."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from sluiceway.clock import VirtualClock
from sluiceway.runtime.loop.poller import Poller
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.transport.accept_loop import MOST_STRANGERS, PROOF_S, AcceptLoop


class Stranger:
    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.turned_away: list[str] = []

    def turn_away(self, why: str) -> None:
        self.turned_away.append(why)


class Door:
    """A listening socket that gives what it is told, and its accept loop."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.timers = TaskletLoop(self.clock, Mock(spec=Poller))
        self.waiting: list[Any] = []
        self.problem: OSError | None = None
        self.tries = 0
        self.watched: Callable[[], None] | None = None
        self.warnings: list[str] = []
        self.came: list[Stranger] = []
        self.loop = AcceptLoop(
            self,
            self.take,
            watch=self.watch,
            unwatch=self.unwatch,
            later=lambda action, after_s: self.timers.at(self.clock.monotonic() + after_s, action),
            warn=self.warnings.append,
            what="the door",
        )

    def fileno(self) -> int:
        return 7

    def accept(self) -> tuple[Any, Any]:
        self.tries += 1
        if self.problem is not None:
            raise self.problem
        if not self.waiting:
            raise BlockingIOError
        return self.waiting.pop(0), None

    def take(self, sock: Any) -> Stranger | None:
        if sock == "refused":
            return None
        if isinstance(sock, Mock):
            raise RuntimeError("not this one")
        self.came.append(Stranger(sock))
        return self.came[-1]

    def watch(self, fileno: int, write: bool, ready: Callable[[], None]) -> None:
        assert (fileno, write, self.watched) == (7, False, None)
        self.watched = ready

    def unwatch(self, fileno: int, write: bool) -> None:
        assert (fileno, write) == (7, False)
        assert self.watched is not None
        self.watched = None

    def live(self, seconds: float) -> None:
        """As a poller would: the socket is ready as long as somebody waits there, and is looked at each 10 ms."""
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            if self.watched is not None and (self.waiting or self.problem):
                self.watched()
            self.clock.advance(10)
            self.timers.run_ready()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EBADF])
def test_it_pauses_where_there_are_no_descriptors_and_goes_on_afterwards(number: int) -> None:
    door = Door()
    door.problem = OSError(number, "too many")
    door.waiting = ["first", "second"]
    door.live(10)
    assert door.tries <= 21, "it does not spin"
    assert len(door.warnings) == 1
    assert "the door cannot accept connections for now: " in door.warnings[0]
    assert "too many" in door.warnings[0]
    door.problem = None
    door.live(1)
    assert [stranger.sock for stranger in door.came] == ["first", "second"]
    door.problem = OSError(number, "again")
    door.live(10)
    assert len(door.warnings) == 2, "told again, as it has gone well meanwhile"


def test_a_connection_that_has_gone_again_is_passed_over() -> None:
    door = Door()
    door.waiting = ["next"]
    door.problem = ConnectionAbortedError()
    door.live(0.01)
    door.problem = None
    door.live(0.01)
    assert [stranger.sock for stranger in door.came] == ["next"]
    assert not door.warnings


def test_who_proves_nothing_in_time_is_turned_away() -> None:
    door = Door()
    door.waiting = ["idle", "proved", "refused", "left"]
    door.live(0.01)
    idle, proved, left = door.came
    door.loop.forget(proved)
    door.loop.forget(left)
    door.loop.forget(left)
    door.live(PROOF_S + 1)
    assert idle.turned_away == ["no proof of the cluster's secret came within 30 s"]
    assert not proved.turned_away
    assert not left.turned_away
    assert door.loop.strangers == 0
    assert door.timers.next_deadline() is None


def test_the_oldest_of_too_many_strangers_makes_room() -> None:
    door = Door()
    door.waiting = list(range(MOST_STRANGERS + 3))
    door.live(1)
    assert [stranger.sock for stranger in door.came if stranger.turned_away] == [0, 1, 2]
    assert door.loop.strangers == MOST_STRANGERS


def test_a_turn_takes_on_only_some() -> None:
    """Others have their turn while somebody connects again and again."""
    door = Door()
    door.waiting = list(range(1000))
    assert door.watched is not None
    door.watched()
    assert 0 < len(door.came) < 50


def test_what_goes_wrong_with_one_ends_that_one() -> None:
    door = Door()
    bad = Mock()
    door.waiting = [bad, "good"]
    door.live(0.01)
    bad.close.assert_called_once_with()
    assert [stranger.sock for stranger in door.came] == ["good"]
    assert door.warnings == ["the door closed a connection: it cannot be taken on: RuntimeError: not this one"]


def test_refusals_do_not_fill_the_log() -> None:
    door = Door()
    for number in range(1000):
        door.loop.refused(f"no {number}")
    assert door.warnings == ["the door closed a connection: no 0"]
    door.live(61)
    assert door.warnings[1:] == ["the door closed a connection: no 999; 999 in the last 60 s"]
    door.live(61)
    door.live(61)
    assert len(door.warnings) == 2
    door.loop.refused("another one")
    assert len(door.warnings) == 3


@pytest.mark.parametrize("paused", [False, True])
def test_closed_it_leaves_nothing_behind(paused: bool) -> None:
    door = Door()
    door.waiting = ["idle"]
    door.live(0.01)
    door.loop.refused("somebody")
    if paused:
        door.problem = OSError(errno.EMFILE, "too many")
        door.live(0.01)
    door.loop.close()
    door.loop.close()
    assert door.watched is None
    assert door.timers.next_deadline() is None
    door.loop.refused("late")
