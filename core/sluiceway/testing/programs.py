"""Checks of what testing tools are given: programs, connectors, snapshots, control elements, times."""

from __future__ import annotations

from operator import index
from typing import Any, Final, get_args

from sluiceway.elements import Element
from sluiceway.runtime.task.snapshot import JobSnapshot

__all__ = [
    "check_connector",
    "check_control",
    "check_program",
    "check_restored",
    "clock_step",
    "event_time",
    "whole_ms",
]

_ELEMENTS: Final = tuple(kind for kind in get_args(Element) if isinstance(kind, type))
"""Classes of the control elements; the batch is a generic alias."""


def check_program(tool: str, program: Any) -> None:
    """Raise TypeError unless a program can be called.

    Args:
        tool: name of the tool, for the message.
        program: what it was given.
    """
    if not callable(program):
        raise TypeError(
            f"{tool} takes a program, a function of a stream that returns one, such as "
            f"lambda stream: stream.map(parse), and was given {program!r:.100} ({type(program).__name__})"
        )


def check_connector(tool: str, kind: type[Any], given: Any) -> None:
    """Raise TypeError unless it is a source or a sink.

    Args:
        tool: name of the tool, for the message.
        kind: :class:`~sluiceway.connector.Source` or :class:`~sluiceway.connector.Sink`.
        given: what the tool was given.
    """
    if isinstance(given, kind):
        return
    if isinstance(given, type):
        raise TypeError(f"{tool} was given the class {given.__name__}; give it an object: {given.__name__}(...)")
    raise TypeError(
        f"{tool} takes an object of a subclass of sluiceway.connector.{kind.__name__}, and was given "
        f"{given!r:.100} ({type(given).__name__})"
    )


def check_restored(tool: str, restored: Any) -> None:
    """Raise TypeError unless it is None or a snapshot that a harness has taken.

    Args:
        tool: name of the tool, for the message.
        restored: what it was given.
    """
    if restored is not None and not isinstance(restored, JobSnapshot):
        raise TypeError(
            f"{tool} is restored from what snapshot() of a harness has returned, and was given {restored!r:.100} "
            f"({type(restored).__name__}). For a checkpoint or savepoint of a run, give a PipelineHarness its "
            "path as from_checkpoint"
        )


def check_control(element: Any) -> None:
    """Raise TypeError unless it is a control element, such as a watermark."""
    if not isinstance(element, _ELEMENTS):
        raise TypeError(
            f"{element!r:.100} ({type(element).__name__}) is no element of a stream, such as a Batch or a "
            "Watermark: give a record to process()"
        )


def event_time(timestamp: Any) -> int:
    """Return a timestamp as an int. Raises TypeError if it is no whole number."""
    return whole_ms("an event time", timestamp)


def whole_ms(what: str, value: Any) -> int:
    """Return a time in ms as an int. Raises TypeError if it is no whole number.

    Args:
        what: name of the time, for the message.
        value: what was given.
    """
    try:
        return index(value)
    except TypeError:
        raise TypeError(
            f"{what} is a whole number of ms, and {value!r:.100} ({type(value).__name__}) was given"
        ) from None


def clock_step(ms: Any) -> int:
    """Return the time by which a clock is to go on. Raises TypeError or ValueError if it is none in ms."""
    step = whole_ms("the time to go on by", ms)
    if step < 0:
        raise ValueError(f"a clock cannot go back ({step} ms)")
    return step
