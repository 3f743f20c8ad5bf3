"""Meter of this process: memory, CPU, files, threads, and the garbage collector."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final

from sluiceway.clock import Clock
from sluiceway.metrics import WorkerMetrics
from sluiceway.monitoring.processes import ProcessFigures
from sluiceway.util.machine import usable_cpus

__all__ = ["ProcessMeter", "figures_of_other", "process_metrics"]

_KIB: Final = 1024


class ProcessMeter:
    """Meter of this process. For one thread.

    Passes of the garbage collector are timed from the first figures on until :meth:`close`, by a callback, which a
    process that is not inspected does not have.

    Args:
        name: name of the process.
        clock: the machine's.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._pauses: _Pauses | None = None
        self._used_s = 0.0
        self._used_at = 0.0

    def begin(self) -> None:
        """Begin an interval: the CPU share of the next figures starts now."""
        if self._pauses is None:
            self._pauses = _Pauses()
        self._used_s, self._used_at = time.process_time(), self._clock.monotonic()

    def take(self) -> ProcessFigures:
        """Return the current figures. Call :meth:`begin` before the first ones."""
        assert self._pauses is not None
        used_s, now = time.process_time(), self._clock.monotonic()
        elapsed = now - self._used_at
        share = (used_s - self._used_s) / elapsed if elapsed > 0 else None
        self._used_s, self._used_at = used_s, now
        status = _status(os.getpid())
        pauses = self._pauses
        return ProcessFigures(
            process=self._name,
            pid=os.getpid(),
            at_ms=self._clock.now_ms(),
            cpu_s=used_s,
            cpu_share=share,
            cpus=usable_cpus(),
            rss=status.get("VmRSS"),
            peak_rss=status.get("VmHWM", _peak_rss()),
            memory=_memory(),
            threads=status.get("Threads", threading.active_count()),
            open_files=_open_files(os.getpid()),
            most_open_files=_most_open_files(),
            collections=_collections(),
            pauses=pauses.count,
            pause_ms=pauses.total_s * 1000,
            longest_pause_ms=pauses.longest_s * 1000,
        )

    def close(self) -> None:
        """Stop timing the garbage collector. Harmless twice."""
        pauses, self._pauses = self._pauses, None
        if pauses is not None:
            pauses.close()


class _Pauses:
    """Durations of the passes of the garbage collector, in any thread."""

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.longest_s = 0.0
        self._began = 0.0
        gc.callbacks.append(self._passed)

    def _passed(self, phase: str, info: dict[str, Any]) -> None:
        # Passes neither nest nor overlap, so one start time is enough.
        if phase == "start":
            self._began = time.perf_counter()
        elif self._began:
            took, self._began = time.perf_counter() - self._began, 0.0
            self.count += 1
            self.total_s += took
            self.longest_s = max(self.longest_s, took)

    def close(self) -> None:
        with suppress(ValueError):  # the program has emptied the list
            gc.callbacks.remove(self._passed)


def process_metrics(worker: str) -> WorkerMetrics:
    """Return the processor time and the memory of this process, a worker. Costs one small file."""
    return WorkerMetrics(worker, time.process_time(), _status(os.getpid()).get("VmRSS"))


def figures_of_other(process: str, pid: int, at_ms: int, problem: str) -> ProcessFigures:
    """Return the operating system's figures of another process of this machine.

    Args:
        process: its name.
        pid: its process id.
        at_ms: the time, ms since the epoch.
        problem: why it does not report them itself.
    """
    status = _status(pid)
    return ProcessFigures(
        process=process,
        pid=pid,
        at_ms=at_ms,
        cpu_s=_used_s(pid),
        cpus=usable_cpus(),
        rss=status.get("VmRSS"),
        peak_rss=status.get("VmHWM"),
        memory=_memory(),
        threads=status.get("Threads"),
        open_files=_open_files(pid),
        problem=problem,
    )


def _status(pid: int) -> dict[str, int]:
    """Return the lines of ``/proc/PID/status`` that are a number; sizes in bytes. Empty where there is none."""
    found: dict[str, int] = {}
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                name, _, value = line.partition(b":")
                if name in (b"VmRSS", b"VmHWM", b"Threads"):
                    number, *unit = value.split()
                    found[name.decode()] = int(number) * (_KIB if unit == [b"kB"] else 1)
    except (OSError, ValueError):
        return {}
    return found


def _used_s(pid: int) -> float | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # Behind the name, which may contain anything: user and system time are fields 11 and 12, in ticks.
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _open_files(pid: int) -> int | None:
    try:
        number = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    return number - (pid == os.getpid())  # one is that of the list itself


def _most_open_files() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _peak_rss() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * _KIB


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _collections() -> list[int] | None:
    stats = getattr(gc, "get_stats", None)  # absent outside CPython
    return None if stats is None else [generation.get("collections", 0) for generation in stats()]
