"""Simulation of a job over several runs, each resumed from where the previous one was stopped or lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from sluiceway.api import Pipeline
from sluiceway.clock import SystemClock
from sluiceway.engine import JobStatus
from sluiceway.errors import CheckpointError
from sluiceway.plugins import default_manager
from sluiceway.runtime.jobmanager.newest_checkpoint import find_newest
from sluiceway.testing.simulation.errors import JobManagerLostError
from sluiceway.testing.simulation.faults import CancelJob, Fault, LoseJobManager, TakeSavepoint, step_by_lot
from sluiceway.testing.simulation.run import Simulation, SimulationResult

__all__ = ["simulate_lives"]

_ENDS: Final = ("by itself", "stopped with a savepoint", "lost", "cancelled")
_PAUSE_MS: Final = 1000


def simulate_lives(
    make: Callable[[], Pipeline],
    place: str,
    *,
    seed: int,
    lives: int = 4,
    workers: tuple[int, int] = (1, 3),
    parallelism: Sequence[int] = (1, 2, 3),
    crashes: int = 2,
    unreliable: float = 0.0,
    **arguments: Any,
) -> tuple[SimulationResult, ...]:
    """Simulate a job until it finishes, with stops, losses, cancellations and restarts of the whole job.

    A life ends at a moment that lot decides: by a savepoint to stop with, by the loss of the job manager, or by a
    cancel. The next one goes on from that savepoint, or from the newest checkpoint, with another number of workers
    and another parallelism. Savepoints that nobody goes on from are taken in between. The last life comes to its
    end undisturbed but for crashes.

    Args:
        make: makes the pipeline, the same each time, with a ``uid`` for whatever has state.
        place: an empty directory, or a URL, for checkpoints and savepoints.
        seed: decides everything that is left to chance.
        lives: how many at the most.
        workers: the least and the greatest number.
        parallelism: one of these, in each life.
        crashes: how many workers crash in a life, at the most.
        unreliable: as for :class:`Simulation`; in half of the lives.
        arguments: the others of :class:`Simulation`.

    Returns:
        The result of each life. The last has the status FINISHED.

    Raises:
        BaseException: what a life failed with. A note says how to see it again.
        SimulationError: the runtime broke a promise.
    """
    chance = Random(seed)
    results: list[SimulationResult] = []
    origin: str | None = None
    start_ms = 0
    while True:
        last = len(results) == lives - 1
        end = _ENDS[0] if last else chance.choice(_ENDS)
        savepoints = chance.choice((0, 0, 1, 2))
        faults: list[Fault] = [TakeSavepoint(step_by_lot(chance), place) for _ in range(savepoints)]
        faults += _end(end, step_by_lot(chance), place)
        simulation = Simulation(
            make,
            seed=chance.getrandbits(32),
            workers=chance.randint(*workers),
            crashes=chance.randint(0, crashes),
            faults=faults,
            unreliable=chance.choice((0.0, unreliable)),
            start_ms=start_ms,
            **{
                "checkpoint_interval": "10ms",
                "restart": "fixed-delay:50:100ms",
                **arguments,
                "parallelism": chance.choice(parallelism),
                "checkpoints": place,
                "from_checkpoint": origin,
            },
        )
        result = simulation.run()
        results.append(result)
        if result.failure is not None and not _was_to_end(result):
            simulation.tell_seed(result.failure)
            raise result.failure
        # A job that was stopped with a savepoint has finished, too.
        if result.status is JobStatus.FINISHED and not result.ended_with:
            return tuple(results)
        origin = result.ended_with or _newest(place)
        start_ms += result.virtual_ms + _PAUSE_MS


def _end(end: str, step: int, place: str) -> list[Fault]:
    match end:
        case "stopped with a savepoint":
            return [TakeSavepoint(step, place, stop=True)]
        case "lost":
            return [LoseJobManager(step)]
        case "cancelled":
            return [CancelJob(step)]
        case _:
            return []


def _was_to_end(result: SimulationResult) -> bool:
    """Return whether a failed run was ending on request, and broke no guarantee."""
    if isinstance(result.failure, AssertionError):
        return False
    cancelled = any(isinstance(fault, CancelJob) for fault in result.faults)
    return cancelled or bool(result.ended_with) or isinstance(result.failure, JobManagerLostError)


def _newest(place: str) -> str | None:
    """Return the location from which the next run resumes; None if it has no checkpoint to resume from."""
    storage = default_manager().services(SystemClock()).checkpoint_storage(place)
    try:
        find_newest(storage, "")
    except CheckpointError:
        return None
    return place
