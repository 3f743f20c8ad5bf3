"""Local variables of frames that have ended are released; frames that go on keep theirs."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from traceback import format_tb, walk_tb

import pytest

from sluiceway.runtime.failures.frames import clear_frames


class Held:
    """Held by a local variable."""


def fail(held: list[weakref.ref[Held]]) -> None:
    mine = Held()
    held.append(weakref.ref(mine))
    raise ValueError("no good")


def caught(held: list[weakref.ref[Held]]) -> ValueError:
    try:
        fail(held)
    except ValueError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("read", [False, True])
def test_variables_are_released_and_lines_stay(read: bool) -> None:
    held: list[weakref.ref[Held]] = []
    error = caught(held)
    if read:
        # Whoever looks for the record that was at work leaves a copy of the variables.
        assert all(frame.f_locals for frame, _ in walk_tb(error.__traceback__))
    lines = format_tb(error.__traceback__)
    assert held[0]() is not None
    clear_frames(error)
    assert held[0]() is None
    assert format_tb(error.__traceback__) == lines


def test_so_are_those_of_what_led_to_it() -> None:
    held: list[weakref.ref[Held]] = []
    first, second, third = (caught(held) for _ in range(3))
    first.__cause__ = ExceptionGroup("both", [second])
    second.__context__ = third
    third.__context__ = first
    clear_frames(first)
    assert [each() for each in held] == [None, None, None]


def test_a_generator_that_has_caught_the_exception_itself_goes_on() -> None:
    held: list[weakref.ref[Held]] = []

    def goes_on() -> Iterator[ValueError]:
        mine = "mine"
        try:
            fail(held)
        except ValueError as error:
            yield error
        yield ValueError(mine)

    numbers = goes_on()
    clear_frames(next(numbers))
    assert held[0]() is None
    assert str(next(numbers)) == "mine"
