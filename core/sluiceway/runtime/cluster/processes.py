"""Worker processes: started with their configuration on standard input, and never left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Final

__all__ = ["WorkerConfig", "WorkerHandle", "start_worker"]

MODULE: Final = "sluiceway.processes.worker"


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker process is told when it is started, on its standard input.

    Attributes:
        name: unique in the cluster.
        manager: path of the job manager's socket.
        directory: the cluster's own directory.
        secret: the cluster's, in hexadecimal.
        slots: how many it offers.
        transport: name of the transport between workers.
        segments: number of network buffers.
        segment_bytes: size of each.
        path: what to put on ``sys.path``.
    """

    name: str
    manager: str
    directory: str
    secret: str
    slots: int
    transport: str
    segments: int
    segment_bytes: int
    path: list[str]


class WorkerHandle:
    """A worker process, from the side of whoever started it.

    Args:
        process: the process.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended, or does within that time."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it at once, and wait for that."""
        self._process.kill()
        self._process.wait()

    def how_it_ended(self) -> str:
        """For messages: by which signal, or with which exit code."""
        code = self._process.poll()
        if code is None:
            return "is still running"
        if code < 0:
            try:
                return f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"was killed by signal {-code}"
        return f"ended with exit code {code}"


def start_worker(config: WorkerConfig) -> WorkerHandle:
    """Start a worker in a new interpreter. What it prints goes where this process prints."""
    process = subprocess.Popen([sys.executable, "-m", MODULE], stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(asdict(config)).encode() + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        pass  # It has ended already; whoever waits for it to register finds out.
    return WorkerHandle(process)
