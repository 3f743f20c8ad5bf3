"""Check of the programs that testing tools are given: functions from a stream to streams."""

from __future__ import annotations

from typing import Any

__all__ = ["check_program"]


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
