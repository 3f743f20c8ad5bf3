"""What is added to an exception so that its reader knows which record of which step it was about."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from sluiceway.errors import FunctionContractError
from sluiceway.faults import MISSING, Fault, locate, shown

__all__ = ["explain_failure"]

_NOTED = "_sluiceway_noted"


def explain_failure(
    error: BaseException, *, vertex: str, step: str, subtask: int, parallelism: int
) -> BaseException:
    """Add notes that name step, subtask, record, key and timestamp; return the error to raise.

    That is the error itself, with its own traceback, except where the engine's loop stumbled over what a
    user's function returned: then it is a FunctionContractError that says so.

    Args:
        error: what was raised.
        vertex: name of the chain.
        step: name of the step that is at fault if the traceback does not tell.
        subtask: index of the subtask.
        parallelism: how many there are.
    """
    if getattr(error, _NOTED, False):
        return error
    fault = locate(error.__traceback__)
    if fault is not None and _is_wrong_return(error, fault):
        step_name = fault.step or step
        error = FunctionContractError(
            f"the function of step {step_name!r} returned {shown(fault.returned, 100)} "
            f"({type(fault.returned).__name__}), which cannot be iterated over: flat_map needs a list, "
            "a generator or another iterable; for one record out per record in use map"
        )
    for note in _notes(fault, vertex, step, subtask, parallelism):
        error.add_note(note)
    with suppress(AttributeError):
        setattr(error, _NOTED, True)
    return error


def _is_wrong_return(error: BaseException, fault: Fault) -> bool:
    # The type itself, as a subclass is somebody's own: a FunctionContractError says more already.
    if type(error) is not TypeError or not fault.innermost or fault.returned is MISSING:
        return False
    try:
        iter(fault.returned)
    except TypeError:
        return True
    return False


def _notes(fault: Fault | None, vertex: str, step: str, subtask: int, parallelism: int) -> Iterable[str]:
    step = (fault.step if fault is not None else None) or step
    chain = "" if step == vertex else f" of {vertex!r}"
    yield f"in step {step!r}{chain}, subtask {subtask + 1} of {parallelism}"
    if fault is None:
        return
    if fault.value is not MISSING:
        yield f"record: {shown(fault.value)}"
    if fault.key is not MISSING:
        yield f"key: {shown(fault.key)}"
    if fault.timestamp is not MISSING and fault.timestamp is not None:
        yield f"timestamp: {fault.timestamp} ms"
