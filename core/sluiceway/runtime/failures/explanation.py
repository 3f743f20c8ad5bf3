"""Notes on exceptions that name the record and the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pickle import PicklingError
from typing import Final

from sluiceway.errors import FunctionContractError, ProcessExitError
from sluiceway.record_errors import MISSING, Fault, locate, shown
from sluiceway.runtime.failures.error_texts import LIMIT_S, describe, within

__all__ = ["NOTED", "add_note", "close_each", "contained", "explain_failure", "place_in", "stand_in"]

NOTED: Final = "_sluiceway_noted"
"""Attribute of exceptions that have notes about step and record."""

_ENDS_LOOPS: Final = (StopIteration, StopAsyncIteration)

# Names of the module of a script: on a worker, and where the command line runs it.
_SCRIPTS: Final = ("__main__", "__sluiceway__")
_POOLS: Final = "concurrent.futures.process"


def explain_failure(
    error: BaseException, *, vertex: str, step: str, subtask: int, parallelism: int
) -> BaseException:
    """Add notes that name step, subtask, record, key and timestamp; return the error to raise.

    That is the error itself, with its own traceback, except where the engine's loop stumbled over what a
    user's function returned, and for a StopIteration, which whoever iterates over results would take for their
    end: then it is a FunctionContractError that says so.

    Args:
        error: what was raised.
        vertex: name of the chain.
        step: name of the step that is at fault if the traceback does not tell.
        subtask: index of the subtask.
        parallelism: how many there are.
    """
    # Noted where it was raised first: outer callers know less.
    if getattr(error, NOTED, False):
        return error
    fault = locate(error.__traceback__)
    if fault is not None and _is_wrong_return(error, fault):
        step_name = fault.step or step
        error = FunctionContractError(
            f"the function of step {step_name!r} returned {shown(fault.returned, 100)} "
            f"({type(fault.returned).__name__}), which cannot be iterated over: flat_map needs a list, "
            "a generator or another iterable; for one record out per record in use map"
        )
    elif isinstance(error, _ENDS_LOOPS):
        error = _ended_loop(error, f"the function of step {(fault.step if fault is not None else None) or step!r}")
    if not isinstance(getattr(error, "__notes__", []), list):
        error.__notes__ = []  # an attribute of the user's, to which nothing can be added
    where = _where(fault, vertex, step, subtask, parallelism)
    # The repr of a record may take long, or for ever.
    about = within(LIMIT_S, lambda: list(_record(fault)), lambda _: ["record: cannot be shown"])
    for note in (where, *about, *_about_processes(error)):
        add_note(error, note)
    with suppress(Exception):
        setattr(error, NOTED, True)
    return error


def _about_processes(error: BaseException) -> Iterable[str]:
    """Return a note where processes that a function has started lack functions or classes of the script."""
    # pickle finds functions by module and name. On a worker those of the script are copies, without a module.
    if isinstance(error, PicklingError):
        text = describe(error)
        if any(name in text for name in _SCRIPTS):
            yield (
                "pickle does not find functions and classes of the script here, on workers for one: define what is"
                " given to other processes, such as those of a pool, in a module that can be imported"
            )
    elif type(error).__name__ == "BrokenProcessPool" and type(error).__module__ == _POOLS:
        yield (
            "a process of the pool has ended; its standard error may say why. Processes that are not forked find"
            " no functions or classes of the script: define what they are to use in a module that can be imported"
        )


def _ended_loop(error: BaseException, what: str) -> FunctionContractError:
    kind = type(error).__name__
    instead = FunctionContractError(
        f"{what} raised {kind}, which Python takes for the end of a loop: next() on an empty iterator does that; "
        "give it a default, as in next(items, None)"
    ).with_traceback(error.__traceback__)
    instead.__cause__ = error
    return instead


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, unless it is one that refuses that."""
    with suppress(Exception):
        error.add_note(note)


def _is_wrong_return(error: BaseException, fault: Fault) -> bool:
    # The type itself, as a subclass is somebody's own: a FunctionContractError says more already.
    if type(error) is not TypeError or not fault.innermost or fault.returned is MISSING:
        return False
    try:
        iter(fault.returned)
    except TypeError:
        return True
    return False


def _where(fault: Fault | None, vertex: str, step: str, subtask: int, parallelism: int) -> str:
    step = (fault.step if fault is not None else None) or step
    return f"{place_in(step, vertex)}, subtask {subtask + 1} of {parallelism}"


def place_in(step: str, vertex: str) -> str:
    """Return the words for a step of a chain; notes of failures begin with them."""
    return f"in step {step!r}" if step == vertex else f"in step {step!r} of {vertex!r}"


def _record(fault: Fault | None) -> Iterable[str]:
    if fault is None:
        return
    if fault.value is not MISSING:
        yield f"record: {shown(fault.value)}"
    if fault.key is not MISSING:
        yield f"key: {shown(fault.key)}"
    if fault.timestamp is not MISSING and fault.timestamp is not None:
        yield f"timestamp: {fault.timestamp} ms"


def stand_in(error: BaseException, step: str) -> Exception:
    """Return an :class:`Exception` itself, and for any other, such as ``SystemExit``, the error to raise instead.

    Args:
        error: it.
        step: name of the step that is at fault if the traceback does not tell.
    """
    if isinstance(error, Exception):
        return error
    fault = locate(error.__traceback__)
    at = (fault.step if fault is not None else None) or step
    return _ended_process(error, f"the function of step {at!r}")


def contained(error: BaseException, what: str) -> Exception:
    """Return the error itself if it is an :class:`Exception`, else one that says what raised it.

    Args:
        error: raised outside of a task.
        what: whose code raised it.
    """
    if isinstance(error, _ENDS_LOOPS):
        return _ended_loop(error, what)
    if isinstance(error, Exception):
        return error
    return _ended_process(error, what)


def _ended_process(error: BaseException, what: str) -> FunctionContractError:
    kind = ProcessExitError if isinstance(error, SystemExit) else FunctionContractError
    instead = kind(
        f"{what} raised {_call_of(error)}, which is meant to end a process: raise another exception to fail the"
        " job"
    ).with_traceback(error.__traceback__)
    instead.__cause__ = error
    return instead


def _call_of(error: BaseException) -> str:
    name, _, text = describe(error, 200).partition(": ")
    return f"{name}({text})"


def close_each(
    closes: Iterable[tuple[str, Callable[[], None]]],
    cause: BaseException | None,
    explained: Callable[[BaseException, str], BaseException],
    passed_on: tuple[type[BaseException], ...] = (KeyboardInterrupt,),
) -> BaseException | None:
    """Close everything once; an error in closing never hides the first one.

    Args:
        closes: pairs of a step's name and what closes it.
        cause: why the task ends; None: nothing is wrong.
        explained: an exception with notes, for the name of the step.
        passed_on: kinds of exceptions that end this at once.

    Returns:
        the cause, or what closing has raised first if there was none.
    """
    for step, close in closes:
        try:
            close()
        except BaseException as error:
            if isinstance(error, passed_on):
                raise
            if cause is None:
                cause = explained(stand_in(error, step), step)
            else:
                add_note(cause, f"while closing step {step!r} after that: {describe(error)}")
    return cause
