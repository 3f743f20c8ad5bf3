from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest

from sluiceway.clock import SystemClock, VirtualClock
from sluiceway.connector import Wait
from sluiceway.runtime.loop.poller import Poller, SelectorPoller
from sluiceway.runtime.loop.tasklet import Progress, Tasklet, TaskletLoop


class Scripted(Tasklet):
    def __init__(self, *actions: Callable[[], Progress]) -> None:
        super().__init__()
        self.actions = list(actions)

    def step(self) -> Progress:
        return self.actions.pop(0)() if self.actions else Progress.DONE


@pytest.fixture
def worker() -> Iterator[TaskletLoop]:
    poller = SelectorPoller()
    yield TaskletLoop(SystemClock(), poller)
    poller.close()


def test_tasklets_run_in_turn_until_all_are_done(worker: TaskletLoop) -> None:
    seen: list[str] = []

    def say(name: str) -> Callable[[], Progress]:
        def step() -> Progress:
            seen.append(name)
            return Progress.AGAIN

        return step

    worker.add(Scripted(say("a"), say("a"), say("a")))
    worker.add(Scripted(say("b"), say("b")))
    worker.run()
    assert seen == ["a", "b", "a", "b", "a"]
    assert not worker.alive()


@pytest.mark.parametrize(
    ("takes_s", "interrupted", "expected"),
    [
        (0.0, False, ["a", "a", "a", "b", "a", "a", "b", "b"]),
        (0.0006, False, ["a", "a", "b", "a", "a", "b", "a", "b"]),
        (0.001, False, ["a", "b", "a", "b", "a", "b", "a", "a"]),
        (0.0, True, ["a", "b", "a", "b", "a", "b", "a", "a"]),
    ],
    ids=["short steps", "until the turn has been long enough", "a long step", "a mail"],
)
def test_a_tasklet_may_make_several_short_steps_a_turn(
    takes_s: float, interrupted: bool, expected: list[str]
) -> None:
    class Hand(VirtualClock):
        at = 0.0

        def monotonic(self) -> float:
            return self.at

    clock, poller = Hand(), SelectorPoller()
    worker = TaskletLoop(clock, poller)
    seen: list[str] = []

    def say(name: str) -> Callable[[], Progress]:
        def step() -> Progress:
            seen.append(name)
            clock.at += takes_s
            if interrupted:
                worker.soon(lambda: None)
            return Progress.AGAIN

        return step

    eager = Scripted(*[say("a")] * 5)
    eager.steps_a_turn = 3
    worker.add(eager)
    worker.add(Scripted(*[say("b")] * 3))
    worker.run()
    poller.close()
    assert seen == expected


def test_a_turn_is_over_when_nothing_is_left_to_do() -> None:
    poller = SelectorPoller()
    worker = TaskletLoop(VirtualClock(), poller)
    seen: list[str] = []

    def say(name: str) -> Callable[[], Progress]:
        return lambda: seen.append(name) or Progress.AGAIN  # type: ignore[func-returns-value]

    eager = Scripted(*[say("a")] * 2)
    eager.steps_a_turn = 3
    eager.goes_on = lambda: False  # type: ignore[method-assign]
    worker.add(eager)
    worker.add(Scripted(*[say("b")] * 2))
    worker.run()
    poller.close()
    assert seen == ["a", "b", "a", "b"]


def test_mails_and_files_do_not_wait_for_long_steps_of_others() -> None:
    clock, poller = VirtualClock(), SelectorPoller()
    worker = TaskletLoop(clock, poller)
    seen: list[str] = []

    def long(name: str) -> Callable[[], Progress]:
        def step() -> Progress:
            seen.append(name)
            worker.soon(lambda: seen.append(f"{name}'s mail"))
            clock.advance(3)
            return Progress.AGAIN

        return step

    for name in "ab":
        worker.add(Scripted(*[long(name)] * 2))
    assert worker.run_ready(16)
    assert seen == ["a"]
    worker.run()
    poller.close()
    assert seen == [said for name in "abab" for said in (name, f"{name}'s mail")]


def test_a_wake_up_during_a_step_is_not_lost(worker: TaskletLoop) -> None:
    tasklet = Scripted()

    def idle_but_woken() -> Progress:
        worker.wake(tasklet)
        return Progress.IDLE

    tasklet.actions = [idle_but_woken]
    worker.add(tasklet)
    worker.run()
    assert not tasklet.actions


def test_it_sleeps_until_a_file_is_ready(worker: TaskletLoop) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        tasklet = Scripted()

        def wait() -> Progress:
            worker.wait(tasklet, Wait(fileno=ours.fileno()))
            thread.start()
            return Progress.IDLE

        def read() -> Progress:
            assert ours.recv(10) == b"x"
            return Progress.DONE

        tasklet.actions = [wait, read]
        thread = threading.Thread(target=theirs.send, args=(b"x",))
        worker.add(tasklet)
        worker.run()
        thread.join()
        assert tasklet.idle_s > 0


def test_it_sleeps_until_a_deadline(worker: TaskletLoop) -> None:
    clock = SystemClock()
    tasklet = Scripted()
    until = clock.monotonic() + 0.05

    def wait() -> Progress:
        worker.wait(tasklet, Wait(until=until))
        return Progress.IDLE

    def woken() -> Progress:
        assert clock.monotonic() >= until
        return Progress.DONE

    tasklet.actions = [wait, woken]
    worker.add(tasklet)
    worker.run()


def test_a_tasklet_that_waits_again_and_again_keeps_one_deadline(worker: TaskletLoop) -> None:
    clock = SystemClock()
    tasklet = Scripted()

    def wait() -> Progress:
        worker.wait(tasklet, Wait(until=clock.monotonic() + 1000))
        kept.append(len(worker._deadlines))
        return Progress.AGAIN

    kept: list[int] = []
    tasklet.actions = [wait] * 100
    worker.add(tasklet)
    worker.run()
    assert kept == [1] * 100
    assert not worker._deadlines, "nor does it keep one when it is done"


def test_a_mail_from_another_thread_ends_the_sleep(worker: TaskletLoop) -> None:
    tasklet = Scripted()

    def rest() -> Progress:
        thread.start()
        return Progress.IDLE

    tasklet.actions = [rest]
    thread = threading.Thread(target=worker.mail, args=(lambda: worker.wake(tasklet),))
    worker.add(tasklet)
    worker.run()
    thread.join()


def test_mails_are_read_even_when_no_tasklet_is_left(worker: TaskletLoop) -> None:
    seen: list[int] = []

    def last() -> Progress:
        worker.soon(lambda: seen.append(1))
        return Progress.DONE

    worker.add(Scripted(last))
    worker.run()
    assert seen == [1]


def test_time_is_the_given_clocks() -> None:
    class NoPoller(Poller):
        def watch(self, owner: object, wait: Wait, ready: Callable[[], None]) -> None: ...
        def forget(self, owner: object) -> None: ...
        def watching(self) -> bool:
            return False

        def poll(self, timeout_s: float | None) -> None:
            raise AssertionError("nothing to wait for")

        def wake(self) -> None: ...
        def close(self) -> None: ...

    clock = VirtualClock()
    worker = TaskletLoop(clock, NoPoller())
    tasklet = Scripted()

    def blocked() -> Progress:
        clock.advance(300)
        worker.wait(tasklet, Wait(until=2.0))
        return Progress.BLOCKED

    tasklet.actions = [blocked]
    worker.add(tasklet)
    worker.run_ready()
    assert worker.alive()
    assert worker.next_deadline() == 2.0
    clock.advance(2000)
    worker.run_ready()
    assert not worker.alive()
    assert (tasklet.busy_s, tasklet.blocked_s) == pytest.approx((0.3, 2.0))


# ---- the poller ---------------------------------------------------------------------------------------------


def test_two_owners_may_watch_one_file() -> None:
    ours, theirs = socket.socketpair()
    poller = SelectorPoller()
    with ours, theirs:
        told: list[str] = []
        poller.watch("r", Wait(ours.fileno()), lambda: told.append("r"))
        poller.watch("w", Wait(ours.fileno(), write=True), lambda: told.append("w"))
        poller.poll(1)
        assert told == ["w"]
        theirs.send(b"x")
        poller.poll(1)
        assert told == ["w", "r"]
        assert not poller.watching()
        poller.poll(0)
        assert told == ["w", "r"]
    poller.close()


def test_what_is_forgotten_may_be_closed_and_its_number_used_again() -> None:
    poller = SelectorPoller()
    out, into = os.pipe()
    poller.watch("a", Wait(out), lambda: None)
    poller.forget("a")
    os.close(out)
    out2, into2 = os.pipe()
    told: list[int] = []
    poller.watch("b", Wait(out2), lambda: told.append(1))
    os.write(into2, b"x")
    poller.poll(1)
    assert told == [1]
    for fd in (into, out2, into2):
        os.close(fd)
    poller.close()


def test_waking_a_closed_poller_is_harmless() -> None:
    poller = SelectorPoller()
    poller.close()
    poller.wake()
    poller.close()


def test_a_deadline_may_be_centuries_away() -> None:
    poller = SelectorPoller()
    poller.wake()
    poller.poll(10.0**10)  # the system itself takes 24 days at the most
    poller.close()


def test_many_wakes_are_one() -> None:
    poller = SelectorPoller()
    for _ in range(200_000):
        poller.wake()
    poller.poll(1)
    told: list[int] = []
    out, into = os.pipe()
    poller.watch("a", Wait(out), lambda: told.append(1))
    poller.poll(0)
    assert told == []
    os.close(out)
    os.close(into)
    poller.close()


def test_a_mail_that_a_deadline_has_posted_is_read_in_the_same_go() -> None:
    clock, poller = VirtualClock(), SelectorPoller()
    worker = TaskletLoop(clock, poller)
    seen: list[str] = []
    worker.at(0.0, lambda: worker.mail(lambda: seen.append("posted")))
    worker.run_ready()
    poller.close()
    assert seen == ["posted"]


def test_a_cancelled_call_is_not_made_and_holds_nothing() -> None:
    class Held:
        pass

    clock = VirtualClock()
    worker = TaskletLoop(clock, Mock(spec=Poller))
    made: list[int] = []
    held = Held()
    gone = weakref.ref(held)
    late = worker.at(600.0, lambda held=held: made.append(id(held)))  # type: ignore[misc]
    del held
    worker.at(601.0, lambda: made.append(601))
    late.cancel()
    late.cancel()
    assert gone() is None
    assert not late.pending
    assert worker.next_deadline() == 601.0, "nobody wakes for a call that is not made"
    clock.advance(700_000)
    worker.run_ready()
    assert made == [601]
    late.cancel()


def test_cancelled_calls_do_not_fill_the_heap() -> None:
    clock = VirtualClock()
    worker = TaskletLoop(clock, Mock(spec=Poller))
    made: list[int] = []
    worker.at(1.0, lambda: made.append(0))
    kept = [worker.at(1000.0 + n, lambda n=n: made.append(n)) for n in range(1, 11)]  # type: ignore[misc]
    for n in range(100_000):
        worker.at(600.0 + n / 1000, lambda: made.append(-1)).cancel()
    assert len(worker._deadlines) < 150
    kept[4].cancel()
    clock.advance(2_000_000)
    worker.run_ready()
    assert made == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert not worker._deadlines


def test_a_call_that_is_posted_may_be_cancelled_before_the_loop_has_read_of_it() -> None:
    clock = VirtualClock()
    worker = TaskletLoop(clock, Mock(spec=Poller))
    made: list[str] = []
    soon, later = worker.post(lambda: made.append("soon"), 0), worker.post(lambda: made.append("later"), 1.0)
    kept = worker.post(lambda: made.append("kept"), 1.0)
    soon.cancel()
    later.cancel()
    worker.run_ready()
    clock.advance(1000)
    worker.run_ready()
    assert made == ["kept"]
    assert not kept.pending


def test_a_tasklet_that_waits_shortly_and_long_in_turn_leaves_no_deadlines_behind() -> None:
    clock = VirtualClock()
    worker = TaskletLoop(clock, Mock(spec=Poller))

    class InTurn(Tasklet):
        steps = 0

        def step(self) -> Progress:
            self.steps += 1
            now = clock.monotonic()
            worker.wait(self, Wait(until=now + 600))
            worker.wait(self, Wait(until=now + 0.01))
            return Progress.IDLE if self.steps < 1000 else Progress.DONE

    tasklet = InTurn()
    worker.add(tasklet)
    while worker.alive():
        worker.run_ready()
        clock.advance(10)
        assert len(worker._deadlines) < 140
    assert tasklet.steps == 1000
    assert worker.next_deadline() is None
