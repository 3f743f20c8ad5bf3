"""Settings of the workers that a job manager starts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WorkerLogging", "WorkerSettings"]


@dataclass(frozen=True, slots=True)
class WorkerLogging:
    """Logging configuration of workers.

    Attributes:
        directory: directory of their log files; empty: they log to standard error.
        level: lowest level that is logged, unless a job sets its own.
        style: format of lines on standard error, ``text`` or ``json``.
        told: whether they are sent here and written to standard output and standard error of this process, as
            those of workers on other machines do.
    """

    directory: str = ""
    level: str = "warning"
    style: str = "text"
    told: bool = False


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of all workers of a job manager.

    Attributes:
        transport: name of the transport between them.
        most: largest number of them at a time.
        slots: slots of each.
        heartbeat_timeout_s: one without a heartbeat for longer is killed.
        slots_grow: whether they add slots for a rescale, as all of them serve one job.
        idle_s: one without tasks for longer is stopped; None: never.
        network_buffers: network buffers of each.
        logs: their logging configuration.
    """

    transport: str
    most: int
    slots: int
    heartbeat_timeout_s: float
    slots_grow: bool = False
    idle_s: float | None = None
    network_buffers: int = 512
    logs: WorkerLogging = WorkerLogging()
