"""Record and step of an exception, found in its traceback, at no cost while nothing fails.

Loops that call user functions are marked with :func:`record_loop` (or, for generated code, registered with
:func:`register_loop`). When one of them fails, its frame is found in the traceback and its local variables
say what the record was. A loop names them ``value``, ``key``, ``timestamp``; ``self`` may be the operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dis import Instruction, get_instructions
from functools import lru_cache
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, TypeVar
from weakref import ref

import msgspec

from sluiceway.isolation import extend_isolated

__all__ = ["MISSING", "Fault", "locate", "record_loop", "register_loop", "shown", "step_around", "stored_by"]

F = TypeVar("F", bound=Callable[..., Any])

MISSING: Final[Any] = type("Missing", (), {"__repr__": lambda self: "<missing>"})()
"""Stands for "there is none" where None may be a value."""


class Fault(msgspec.Struct, frozen=True):
    """Position of a loop when it failed.

    Attributes:
        step: name of the step, or None if the frame does not say.
        value: the record, or MISSING.
        key: its key, or MISSING.
        timestamp: its event time in ms, or MISSING.
        returned: what the user's function had returned, or MISSING; for generated loops.
        innermost: whether nothing was called from the loop: the loop's own statement failed.
    """

    step: str | None
    value: Any
    key: Any
    timestamp: Any
    returned: Any
    innermost: bool


Reader = Callable[[FrameType, int, FrameType | None], Fault]

# By identity: code objects are equal where two loops have the same text, whatever their steps are called.
_loops: dict[int, tuple[ref[CodeType], Reader]] = {}


@lru_cache(maxsize=256)  # log lines ask for their step by the same way
def _set_by(code: CodeType, line: int) -> set[str]:
    """Return the local variables that a line of code sets."""
    found: set[str] = set()
    for instruction in get_instructions(code):
        positions = instruction.positions
        if positions is not None and positions.lineno == line:
            found.update(stored_by(instruction))
    return found


def stored_by(instruction: Instruction) -> tuple[str, ...]:
    """Return the variables that an instruction sets."""
    if not instruction.opname.startswith("STORE_"):
        return ()
    names = instruction.argval
    if not isinstance(names, tuple):
        return (str(names),)
    # Since Python 3.13 some instructions are two: this one sets the first and reads the second.
    return names[:1] if instruction.opname == "STORE_FAST_LOAD_FAST" else names


def _read_plain(frame: FrameType, line: int, called: FrameType | None) -> Fault:
    # What the line itself sets is still that of the record before, as the key where the key selector has failed.
    stale = _set_by(frame.f_code, line)
    names = {name: found for name, found in frame.f_locals.items() if name not in stale}
    operator = names.get("self")
    return Fault(
        step=getattr(operator, "step_name", None),
        value=names.get("value", MISSING),
        key=names.get("key", MISSING),
        timestamp=names.get("timestamp", MISSING),
        returned=names.get("returned", MISSING),
        innermost=False,
    )


def record_loop(function: F) -> F:
    """Mark a function whose frame knows the record that is being processed."""
    register_loop(function.__code__, _read_plain)
    return function


def register_loop(code: CodeType, reader: Reader) -> None:
    """Register the code of a loop.

    Args:
        code: the loop's; the registration lasts as long as it.
        reader: ``reader(frame, line, called)`` returns the fault of a frame that runs the code at a line;
            ``called`` is the frame of the function that the line has called, if it has one.
    """
    identity = id(code)
    _loops[identity] = (ref(code, lambda _: _loops.pop(identity, None)), reader)


def _reader_of(code: CodeType) -> Reader | None:
    known = _loops.get(id(code))
    return None if known is None else known[1]


def locate(traceback: TracebackType | None) -> Fault | None:
    """Return the fault of the innermost marked loop in a traceback, or None.

    Where that does not know its step, as one in a sink's writer does not, the next loop around it is asked.
    """
    found: list[tuple[Reader, FrameType, int, FrameType | None]] = []
    innermost = False
    while traceback is not None:
        frame = traceback.tb_frame
        reader = _reader_of(frame.f_code)
        if reader is not None:
            called = None if traceback.tb_next is None else traceback.tb_next.tb_frame
            found.append((reader, frame, traceback.tb_lineno, called))
        innermost = reader is not None or (innermost and frame.f_code is extend_isolated.__code__)
        traceback = traceback.tb_next
    if not found:
        return None
    faults = (reader(frame, line, called) for reader, frame, line, called in reversed(found))
    fault = next(faults)
    step = fault.step or next((around.step for around in faults if around.step), None)
    return Fault(step, fault.value, fault.key, fault.timestamp, fault.returned, innermost)


def step_around(frame: FrameType | None) -> str | None:
    """Name of the step whose marked loop is the innermost around a frame that is running, or None."""
    while frame is not None:
        reader = _reader_of(frame.f_code)
        if reader is not None and (step := reader(frame, frame.f_lineno, None).step):
            return step
        frame = frame.f_back
    return None


def shown(value: Any, limit: int = 200) -> str:
    """Return ``repr(value)``, cut to ``limit`` characters, whatever that repr raises."""
    try:
        text = repr(value)
    except BaseException as error:
        return f"<{type(value).__name__} whose repr failed: {_shown_error(error)}>"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _shown_error(error: BaseException) -> str:
    try:
        return repr(error)[:200]
    except BaseException:
        return type(error).__name__
