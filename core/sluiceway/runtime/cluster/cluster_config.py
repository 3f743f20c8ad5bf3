"""Configuration of a cluster that stays."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ClusterConfig"]


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Settings with which a cluster is started.

    Attributes:
        directory: its own; made by whoever starts it.
        secret: in hexadecimal.
        workers: how many worker processes there may be.
        slots: how many each of them offers.
        transport: name of the transport between them.
        heartbeat_timeout_s: a worker that gives no sign of life for longer is killed.
        idle_s: a worker without tasks is ended after so long.
        network_buffers: how many each worker has.
        logs: directory of the log files of its processes.
        log_level: the lowest level that is logged, where a job does not say.
        epoch: higher than that of any job manager before.
        job_store: directory in which jobs are written down, so that the next job manager goes on with them.
        standby: how many job managers stand by, to lead when this one is gone; needs a job store.
        options: name, value and origin of each option of the start, for people.
    """

    directory: str
    secret: str = field(repr=False)
    workers: int
    slots: int
    transport: str
    heartbeat_timeout_s: float = 50.0
    idle_s: float = 30.0
    network_buffers: int = 512
    logs: str = ""
    log_level: str = "info"
    epoch: int = 1
    job_store: str = ""
    standby: int = 0
    options: tuple[tuple[str, str, str], ...] = ()
