"""Run of a pipeline in a simulated cluster."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any, Final

from sluiceway.api import Pipeline
from sluiceway.config.settings import Settings, resolve
from sluiceway.engine import JobStatus
from sluiceway.errors import ConfigurationError, SerializationError
from sluiceway.graph import JobGraph, slots_required
from sluiceway.graph.check.iterations import check_checkpoints
from sluiceway.metrics import JobMetrics
from sluiceway.plugins import default_manager
from sluiceway.runtime.cluster.job_run import JobRun
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.runtime.messages.pickling import check_shippable
from sluiceway.scheduler import restart_strategy
from sluiceway.steps import AsyncStep
from sluiceway.streamgraph import StreamGraph
from sluiceway.testing.simulation.cluster import SimulatedCluster
from sluiceway.testing.simulation.errors import JobManagerLostError, SimulationError
from sluiceway.testing.simulation.faults import Fault, check_faults, draw_faults
from sluiceway.testing.simulation.trace import Trace
from sluiceway.testing.simulation.world import World

__all__ = ["SEED_VARIABLE", "Simulation", "SimulationResult", "for_seeds", "simulate"]

SEED_VARIABLE: Final = "SLUICEWAY_SIMULATION_SEED"
"""Environment variable with the seed that replaces the seeds of a program or test."""

_TAIL: Final = 20
_MOST_BUFFERS: Final = 64  # few enough to be short of them now and then
_SEGMENT_BYTES: Final = (128, 1024, 32 * 1024)

_in_trial: ContextVar[bool] = ContextVar("sluiceway_in_trial", default=False)


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Result of a simulated job.

    Attributes:
        seed: of the simulation.
        status: FINISHED, CANCELED or FAILED.
        failure: what it failed with; None unless the status is FAILED.
        metrics: the last figures that the job manager had of the job.
        restarts: number of restarts of a part of the job.
        faults: what went wrong; of what was asked for, that which came before the job's end.
        savepoints: path or URL of each savepoint that became complete, in their order.
        ended_with: that of the savepoint that the job ended with; empty: with none.
        steps: turns that the processes had together until the job's end.
        virtual_ms: how long that took, in virtual time.
        trace: what happened, event by event.
    """

    seed: int
    status: JobStatus
    failure: BaseException | None
    metrics: JobMetrics
    restarts: int
    faults: tuple[Fault, ...]
    savepoints: tuple[str, ...]
    ended_with: str
    steps: int
    virtual_ms: int
    trace: Trace


class Simulation:
    """Simulation of a pipeline on a job manager and workers: in one thread, in virtual time, from a seed.

    Job manager, workers, tasks and the channels between them are the ones that run in processes. Simulated are
    time, the connections (each with random delays, in order), the order in which processes and the tasks in them
    have their turn, and what goes wrong. The same seed gives the same run, event by event.

    Args:
        flow: the pipeline, or a function that makes it. It must be fit for worker processes.
        seed: decides everything that is left to chance; None: ``SLUICEWAY_SIMULATION_SEED``, or any.
        workers: how many worker processes.
        crashes: workers that end from one moment to the next, at random moments; moments after the job's end
            do not count.
        hangs: workers that stand still for up to 20 s, likewise.
        faults: what goes wrong at given steps, besides.
        unreliable: the chance with which a message about a checkpoint between the job manager and a worker gets
            lost, comes twice, or comes late, after others that were sent later (but for the one that begins it);
            and that with which a task that would acknowledge a checkpoint declines it. The option
            ``checkpoint_timeout`` has to be shorter than ``most_s``.
        shares_files: whether workers write the files of checkpoints themselves, as on one machine. Otherwise they
            send their state to the job manager, unless ``checkpoints`` names a place.
        delay_ms: the shortest and the longest time that a message or a piece of data is on its way.
        start_ms: the first reading of the clock, ms since the epoch.
        most_steps: turns of all processes together after which the job counts as endless.
        most_s: the same in virtual seconds.
        options: those of ``Pipeline.run``. Neither the environment nor a file is looked at.

    Raises:
        ConfigurationError: an argument that cannot be.
        GraphError: the pipeline cannot become a job, or cannot be sent to workers.
        SerializationError: a source or sink works inside one process.
    """

    def __init__(
        self,
        flow: Pipeline | Callable[[], Pipeline],
        *,
        seed: int | None = None,
        workers: int = 2,
        crashes: int = 0,
        hangs: int = 0,
        faults: Sequence[Fault] = (),
        unreliable: float = 0.0,
        shares_files: bool = True,
        delay_ms: tuple[float, float] = (0.05, 5.0),
        start_ms: int = 0,
        most_steps: int = 200_000,
        most_s: float = 600.0,
        **options: Any,
    ) -> None:
        if workers < 1:
            raise ConfigurationError(f"workers is {workers}: a simulation needs at least 1")
        if not 0 <= delay_ms[0] <= delay_ms[1]:
            raise ConfigurationError(f"delay_ms is {delay_ms}: give the shortest and the longest, as (0.05, 5)")
        if crashes < 0 or hangs < 0:
            raise ConfigurationError(f"crashes is {crashes} and hangs is {hangs}: neither can be below 0")
        if not 0 <= unreliable <= 1:
            raise ConfigurationError(f"unreliable is {unreliable}: a chance is from 0 to 1")
        self._unreliable = unreliable
        self._shares_files = shares_files
        self._by_environment = seed is None
        if seed is None:
            seed = _seed_of_environment()
        self.seed = SystemRandom().getrandbits(32) if seed is None else seed
        self._workers = workers
        # A seed stands for its run only as long as these draws keep their order.
        chance = Random(self.seed)
        self._faults = [*faults, *draw_faults(chance, crashes, hangs)]
        check_faults(self._faults, workers)
        self._segment_bytes = chance.choice(_SEGMENT_BYTES)
        self._world = World(
            chance.getrandbits(64),
            start_ms=start_ms,
            delay_us=(round(delay_ms[0] * 1000), round(delay_ms[1] * 1000)),
            most_steps=most_steps,
            most_s=most_s,
        )
        self._services = default_manager().services(self._world.clock)
        settings = resolve(
            {"seed": chance.getrandbits(32), **options, "workers": workers}, environ={}, directory="/"
        ).settings
        # What cannot be fails here, as the state backend does below, and not in the middle of the run.
        restart_strategy(settings.restart)
        if unreliable and settings.checkpoint_interval_ms and settings.checkpoint_timeout_ms >= most_s * 1000:
            raise ConfigurationError(
                f"unreliable is {unreliable}, and a checkpoint whose message is lost is waited for until "
                f"checkpoint_timeout, {settings.checkpoint_timeout_ms / 1000:g} s, but the simulation ends after "
                f"most_s, {most_s:g} s: give it checkpoint_timeout='1s' and checkpoint_tolerated_failures=1000"
            )
        self._services.state_backend(settings.state_backend)
        pipeline = flow if isinstance(flow, Pipeline) else flow()
        if not isinstance(pipeline, Pipeline):
            raise TypeError(
                f"a simulation runs a Pipeline, or that which a function returns, not {pipeline!r:.100}"
            )
        self._graph, self._settings = pipeline._make_job(self._make, settings)
        try:
            check_shippable(self._graph)
        except SerializationError as error:
            error.add_note(
                "a simulation has workers in any case: let it read from_collection(), and write to collect() or "
                "to the sink of an Outside, in place of what works inside one process"
            )
            raise
        self._begun = False

    def _make(self, graph: StreamGraph, settings: Settings) -> tuple[JobGraph, Settings]:
        made = job_graph_of(graph, self._services)
        check_checkpoints(made, settings)
        for node in graph.nodes:
            if isinstance(node.step, AsyncStep):
                raise SimulationError(
                    f"step {node.name!r} calls coroutines, which cannot be simulated: put a map() in its place"
                )
        return made, settings

    @property
    def trace(self) -> Trace:
        """Trace of the events so far."""
        return self._world.trace

    def run(self) -> SimulationResult:
        """Run the job until it ends in any state. May be called once.

        Raises:
            SimulationError: the runtime broke a promise: the job comes to no end, or has left something behind
                in a worker. The message ends with the last events and with how to see it again.
        """
        if self._begun:
            raise RuntimeError("a simulation runs once: make another one")
        self._begun = True
        try:
            with _quiet():
                return self._run()
        except BaseException as error:
            if isinstance(error, SimulationError):
                error.add_note(f"the last events:\n{self.trace.tail(_TAIL)}")
            self.tell_seed(error)
            raise

    def tell_seed(self, error: BaseException) -> None:
        """Add a note with the line that repeats an error, unless the caller that tries seeds adds it."""
        if not _in_trial.get():
            _tell_seed(error, self.seed, self._by_environment)

    def _run(self) -> SimulationResult:
        world = self._world
        cluster = SimulatedCluster(
            world,
            self._services,
            workers=self._workers,
            slots=-(-sum(slots_required(self._graph).values()) // self._workers),
            heartbeat_timeout_s=self._settings.heartbeat_timeout_ms / 1000,
            segments=min(_MOST_BUFFERS, self._settings.network_buffers),
            segment_bytes=self._segment_bytes,
            faults=self._faults,
            unreliable=self._unreliable,
            shares_files=self._shares_files,
        )
        manager = cluster.manager
        # Workers add the program's search path to that of their process, which is this one.
        path = list(sys.path)
        try:
            run = manager.submit(manager.prepare(self._graph.job_name, self._graph, self._settings))
            world.run(lambda: run.status.ended or not cluster.node.alive)
            if not cluster.node.alive:
                cluster.end_without_manager()
                lost = JobManagerLostError("the job manager was lost, and the job with it")
                return self._result(cluster, run, lost, world.clock.us, world.step)
            # Before settle(), which lets time go on.
            ended_us, steps = world.clock.us, world.step
            manager.ended(run)
            cluster.settle()
            cluster.check_nothing_is_held()
            cluster.close()
        finally:
            cluster.let_go()
            sys.path[:] = path
        return self._result(cluster, run, run.failure, ended_us, steps)

    def _result(
        self, cluster: SimulatedCluster, run: JobRun, failure: BaseException | None, ended_us: int, steps: int
    ) -> SimulationResult:
        return SimulationResult(
            seed=self.seed,
            status=JobStatus.FAILED if failure is not None else run.status,
            failure=failure,
            metrics=run.metrics(),
            restarts=run.master.restarts,
            faults=tuple(cluster.happened),
            savepoints=tuple(cluster.savepoints),
            ended_with=run.master.checkpoints.ended_with,
            steps=steps,
            virtual_ms=ended_us // 1000,
            trace=self.trace,
        )


def simulate(flow: Pipeline | Callable[[], Pipeline], **arguments: Any) -> SimulationResult:
    """Run a pipeline in a simulated cluster, to its end. Arguments are those of :class:`Simulation`.

    Raises:
        SimulationError: the runtime broke a promise.
        JobManagerLostError: the job manager was lost, as the simulation was told.
        BaseException: what the job failed with. A note says how to see it again.
    """
    simulation = Simulation(flow, **arguments)
    result = simulation.run()
    if result.failure is not None:
        simulation.tell_seed(result.failure)
        raise result.failure
    return result


def for_seeds(trial: Callable[[int], object], seeds: int | Iterable[int] = 20) -> None:
    """Call ``trial(seed)`` for each seed. Its errors get a note with the line that repeats that seed.

    Args:
        trial: simulates something with that seed, and checks what came of it.
        seeds: the seeds, or how many, from 0. Where ``SLUICEWAY_SIMULATION_SEED`` is set, that one alone.

    Raises:
        ConfigurationError: the number of seeds is less than 1, or that variable is no number.
    """
    # A test without a trial would pass whatever it tests.
    if isinstance(seeds, int) and seeds < 1:
        raise ConfigurationError(f"seeds is {seeds}: at least 1 has to be tried")
    only = _seed_of_environment()
    chosen = [only] if only is not None else range(seeds) if isinstance(seeds, int) else seeds
    for seed in chosen:
        try:
            with _trial():
                trial(seed)
        except BaseException as error:
            _tell_seed(error, seed)
            raise


@contextmanager
def _trial() -> Iterator[None]:
    token = _in_trial.set(True)
    try:
        yield
    finally:
        _in_trial.reset(token)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log for the duration: simulated failures are in the trace."""
    logger = logging.getLogger("sluiceway")
    before, logger.propagate = logger.propagate, False
    nowhere = logging.NullHandler()
    logger.addHandler(nowhere)
    try:
        yield
    finally:
        logger.propagate = before
        logger.removeHandler(nowhere)


def _seed_of_environment() -> int | None:
    text = os.environ.get(SEED_VARIABLE)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{SEED_VARIABLE} is {text!r}: it must be a whole number") from None


def _tell_seed(error: BaseException, seed: int, by_environment: bool = True) -> None:
    """Add the line that repeats the run to an error, as a note."""
    test, _, _ = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
    if not by_environment:
        line = f"simulate(..., seed={seed})"
    elif test:
        line = f"{SEED_VARIABLE}={seed} python -m pytest '{test}'"
    else:
        line = f"{SEED_VARIABLE}={seed} {' '.join(['python', *sys.argv])}"
    note = f"to see it again: {line}"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
