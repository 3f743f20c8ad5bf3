"""Configuration of a standalone cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ClusterConfig"]


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Settings with which a cluster is started.

    Attributes:
        workers: largest number of worker processes.
        slots: slots of each worker.
        transport: name of the transport between them.
        directory: the cluster's directory; created by the process that starts it.
        secret: in hexadecimal.
        heartbeat_timeout_s: a worker without a heartbeat for longer is killed.
        idle_s: a worker without tasks for longer is stopped.
        network_buffers: network buffers of each worker.
        logs: directory of the log files of its processes.
        log_level: lowest level that is logged, unless a job sets its own.
        epoch: higher than that of any earlier job manager.
        job_store: directory in which jobs are stored, for recovery by the next job manager; empty: that of this
            user.
        standby: number of standby job managers; they need a job store.
        options: name, value and origin of each option of the start, for display.
    """

    workers: int
    slots: int
    transport: str
    directory: str = ""
    secret: str = field(default="", repr=False)
    heartbeat_timeout_s: float = 50.0
    idle_s: float = 30.0
    network_buffers: int = 512
    logs: str = ""
    log_level: str = "info"
    epoch: int = 1
    job_store: str = ""
    standby: int = 0
    options: tuple[tuple[str, str, str], ...] = ()
