"""What is added to an exception so that its reader knows which record of which step it was about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from sluiceway.errors import FunctionContractError
from sluiceway.faults import MISSING, Fault, locate, shown

__all__ = ["close_each", "explain_failure", "stand_in"]

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


def stand_in(error: BaseException, step: str) -> Exception:
    """What stands in for an exception of a function that is meant to end a process.

    Args:
        error: it.
        step: name of the step that is at fault if the traceback does not tell.
    """
    fault = locate(error.__traceback__)
    at = (fault.step if fault is not None else None) or step
    instead = FunctionContractError(
        f"the function of step {at!r} raised {type(error).__name__}({error!s}), which is meant to end a"
        " process: raise another exception to fail the job"
    ).with_traceback(error.__traceback__)
    instead.__cause__ = error
    return instead


def close_each(
    closes: Iterable[tuple[str, Callable[[], None]]],
    cause: BaseException | None,
    explained: Callable[[BaseException, str], BaseException],
) -> BaseException | None:
    """Close everything once; an error in closing never hides the first one.

    Args:
        closes: pairs of a step's name and what closes it.
        cause: why the task ends; None: nothing is wrong.
        explained: an exception with notes, for the name of the step.

    Returns:
        the cause, or what closing has raised first if there was none.
    """
    for step, close in closes:
        try:
            close()
        except Exception as error:
            if cause is None:
                cause = explained(error, step)
            else:
                cause.add_note(f"while closing step {step!r} after that: {type(error).__name__}: {error}")
    return cause
