"""Options of a run: their names, types, defaults, and where each value came from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one run, after flags, environment, files and defaults were put together.

    Attributes:
        parallelism: subtasks per step where the pipeline does not say.
        max_parallelism: key groups where the pipeline does not say; None: derived from the parallelism.
        workers: worker processes; 0: this process.
        engine: name of the engine.
        state_backend: name of the state backend.
        transport: name of the transport.
        chaining: whether neighbouring steps may share a task.
        scheduler: name of the scheduling strategy.
        buffer_timeout_ms: how long a record may wait for company on its way to another task.
        batch_size: records per batch under load.
        latency_interval_ms: time between latency markers; 0: none.
        metrics: names of metrics reporters.
        metrics_interval_ms: time between reports.
        seed: for partitioners that draw lots; None: a new one for each run.
    """

    parallelism: int = 1
    max_parallelism: int | None = None
    workers: int = 0
    engine: str = "local"
    state_backend: str = "memory"
    transport: str = "local"
    chaining: bool = True
    scheduler: str = "pipelined-region"
    buffer_timeout_ms: int = 0
    batch_size: int = 1024
    latency_interval_ms: int = 0
    metrics: tuple[str, ...] = ()
    metrics_interval_ms: int = 10_000
    seed: int | None = None
