"""What goes wrong in a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

__all__ = ["CancelJob", "Crash", "Fault", "Hang", "LoseJobManager", "TakeSavepoint", "draw_faults", "step_by_lot"]

_FIRST: Final = 5
_OCTAVES: Final = 9
_SHORTEST_HANG_MS: Final = 100
_LONGEST_HANG_MS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Crash:
    """A worker ends from one moment to the next, as by SIGKILL.

    Attributes:
        step: before this turn of a process, counted over all of them from 1.
        worker: its name, as ``"worker-2"``; None: one of those that live then, by lot.
    """

    step: int
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """A worker stands still for a while, as by SIGSTOP: it is killed if that takes too long.

    Attributes:
        step: before this turn of a process, counted over all of them from 1.
        ms: for how long.
        worker: its name; None: one of those that live then, by lot.
    """

    step: int
    ms: int
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class LoseJobManager:
    """The job manager ends from one moment to the next, and the job with it.

    Attributes:
        step: before this turn of a process, counted over all of them from 1.
    """

    step: int


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Somebody cancels the job.

    Attributes:
        step: before this turn of a process, counted over all of them from 1.
    """

    step: int


@dataclass(frozen=True, slots=True)
class TakeSavepoint:
    """Somebody asks for a savepoint: no failure, but it comes as unexpected.

    Attributes:
        step: before this turn of a process, counted over all of them from 1.
        place: path or URL of the directory in which it gets one of its own.
        stop: whether the job is to end with it.
    """

    step: int
    place: str
    stop: bool = False


Fault: TypeAlias = Crash | Hang | LoseJobManager | CancelJob | TakeSavepoint


def draw_faults(chance: Random, crashes: int, hangs: int) -> list[Fault]:
    """That many of each, early and late in a job alike, whatever its length."""
    faults: list[Fault] = []
    for _ in range(crashes):
        faults.append(Crash(step_by_lot(chance)))
    for _ in range(hangs):
        ms = _SHORTEST_HANG_MS + int((_LONGEST_HANG_MS - _SHORTEST_HANG_MS) * chance.random() ** 2)
        faults.append(Hang(step_by_lot(chance), ms))
    return faults


def step_by_lot(chance: Random) -> int:
    """Early and late in a job alike, whatever its length."""
    return int(_FIRST * 2 ** (_OCTAVES * chance.random()))
