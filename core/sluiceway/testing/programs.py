"""Checks of what testing tools are given: programs, snapshots, control elements, event times."""

from __future__ import annotations

from operator import index
from typing import Any, Final, get_args

from sluiceway.elements import Element
from sluiceway.runtime.task.snapshot import JobSnapshot

__all__ = ["check_control", "check_program", "check_restored", "event_time"]

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
    try:
        return index(timestamp)
    except TypeError:
        raise TypeError(
            f"an event time is a whole number of ms, and {timestamp!r:.100} ({type(timestamp).__name__}) was given"
        ) from None
