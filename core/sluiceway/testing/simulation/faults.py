"""Faults of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

from sluiceway.errors import ConfigurationError

__all__ = [
    "CancelJob",
    "Crash",
    "Fault",
    "Hang",
    "LoseJobManager",
    "TakeSavepoint",
    "check_faults",
    "draw_faults",
    "step_by_lot",
]

_FIRST: Final = 5
_OCTAVES: Final = 9
_SHORTEST_HANG_MS: Final = 100
_LONGEST_HANG_MS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Crash:
    """Crash of a worker, as by SIGKILL.

    Attributes:
        step: before this turn of a process, counted over all of them from 1.
        worker: its name, as ``"worker-2"``; None: one of those that live then, by lot.
    """

    step: int
    worker: str | None = None

    def __post_init__(self) -> None:
        _check_step(self)


@dataclass(frozen=True, slots=True)
class Hang:
    """Hang of a worker, as by SIGSTOP; it is killed if that takes too long.

    Attributes:
        step: before this turn of a process, counted over all of them from 1.
        ms: duration.
        worker: its name; None: one of those that live then, by lot.
    """

    step: int
    ms: int
    worker: str | None = None

    def __post_init__(self) -> None:
        _check_step(self)
        if self.ms < 0:
            raise ConfigurationError(f"{self}: a worker cannot hang for a time below 0")


@dataclass(frozen=True, slots=True)
class LoseJobManager:
    """Loss of the job manager, and of the job with it.

    Attributes:
        step: before this turn of a process, counted over all of them from 1.
    """

    step: int

    def __post_init__(self) -> None:
        _check_step(self)


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Cancellation of the job.

    Attributes:
        step: before this turn of a process, counted over all of them from 1.
    """

    step: int

    def __post_init__(self) -> None:
        _check_step(self)


@dataclass(frozen=True, slots=True)
class TakeSavepoint:
    """Request for a savepoint: no failure, but as unexpected as one.

    Attributes:
        step: before this turn of a process, counted over all of them from 1.
        place: path or URL of the directory in which it gets one of its own.
        stop: whether the job is stopped with it.
    """

    step: int
    place: str
    stop: bool = False

    def __post_init__(self) -> None:
        _check_step(self)


Fault: TypeAlias = Crash | Hang | LoseJobManager | CancelJob | TakeSavepoint


def _check_step(fault: Fault) -> None:
    if not isinstance(fault.step, int) or fault.step < 1:
        raise ConfigurationError(f"{fault}: a step is a whole number, counted from 1")


def check_faults(faults: Sequence[Fault], workers: int) -> None:
    """Raise an error for faults that no run can have.

    Args:
        faults: all faults of the run.
        workers: number of workers at its beginning.

    Raises:
        TypeError: one of them is no fault.
        ConfigurationError: it names a worker that is never started.
    """
    for fault in faults:
        if not isinstance(fault, Fault):
            raise TypeError(f"faults are objects such as Crash(step=10), not {fault!r:.100}")
    # A worker that ends is replaced by one with the next number.
    most = workers + sum(isinstance(fault, Crash | Hang) for fault in faults)
    names = [f"worker-{number}" for number in range(1, most + 1)]
    for fault in faults:
        if isinstance(fault, Crash | Hang) and fault.worker not in (None, *names):
            raise ConfigurationError(
                f"{fault}: there is never a worker of that name. With {workers} workers and these faults there "
                f"are at most {', '.join(names)}"
            )


def draw_faults(chance: Random, crashes: int, hangs: int) -> list[Fault]:
    """Return a number of crashes and hangs at random steps, early and late in jobs of any length."""
    faults: list[Fault] = []
    for _ in range(crashes):
        faults.append(Crash(step_by_lot(chance)))
    for _ in range(hangs):
        ms = _SHORTEST_HANG_MS + int((_LONGEST_HANG_MS - _SHORTEST_HANG_MS) * chance.random() ** 2)
        faults.append(Hang(step_by_lot(chance), ms))
    return faults


def step_by_lot(chance: Random) -> int:
    """Return a random step, early and late in jobs of any length alike."""
    return int(_FIRST * 2 ** (_OCTAVES * chance.random()))
