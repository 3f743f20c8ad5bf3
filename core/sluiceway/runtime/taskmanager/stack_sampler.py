"""Sampler of the Python stacks of this process, for flame graphs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Final

from sluiceway.clock import Clock
from sluiceway.errors import ConfigurationError
from sluiceway.monitoring.stack_samples import NO_TASK, StackCount, StackSamples
from sluiceway.runtime.loop.short_turns import short_turns
from sluiceway.runtime.loop.tasklet import Tasklet, TaskletLoop

__all__ = ["MOST_RATE", "MOST_SECONDS", "check_sampling", "sample_stacks"]

MOST_SECONDS: Final = 60.0
MOST_RATE: Final = 250.0
# Limits of what sampling costs: requests at a time, frames of a stack, and stacks that are told apart.
_AT_ONCE: Final = 4
_TURN_S: Final = 0.000_1
_DEEPEST: Final = 128
_MOST_STACKS: Final = 10_000

_GENERATED: Final = "<sluiceway"
"""Prefix of the file names of generated loops."""
_PROGRAM: Final = ("__main__", "__sluiceway__")

_RESTS: Final = frozenset({"concurrent.futures.thread", "queue", "selectors", "threading"})
"""Modules whose functions wait."""

_TURN: Final = TaskletLoop._step.__code__

_Key = tuple[int, int, bool, tuple[CodeType | str, ...]]


def check_sampling(seconds: float, rate: float) -> None:
    """Raise ConfigurationError for a duration or a rate of samples beyond the limits."""
    if not 0 < seconds <= MOST_SECONDS:
        raise ConfigurationError(f"stacks are sampled for up to {MOST_SECONDS:g} s, not for {seconds:g} s")
    if not 1 <= rate <= MOST_RATE:
        raise ConfigurationError(f"stacks are sampled 1 to {MOST_RATE:g} times per second, not {rate:g} times")


def sample_stacks(
    loop: TaskletLoop,
    task_of: Callable[[Tasklet], tuple[int, int] | None],
    seconds: float,
    rate: float,
    worker: str,
    clock: Clock,
    done: Callable[[StackSamples | None, str], None],
) -> None:
    """Take samples of all threads of this process, in a separate thread.

    A sample costs 0.1 ms or so, in which no other thread runs Python code.

    Args:
        loop: runs the tasks.
        task_of: returns vertex and subtask of a tasklet of the loop; None: it belongs to another job.
        seconds: time to take them; checked by :func:`check_sampling`.
        rate: samples per second.
        worker: name of the worker, for the result.
        clock: for the times in the result.
        done: called once, in any thread, with the samples, or with None and the reason.
    """
    if not _running.acquire(blocking=False):
        done(None, f"{_AT_ONCE} others take samples of this process already: try again when they are done")
        return

    def work() -> None:
        samples, problem = None, ""
        try:
            # Otherwise the sampler would mostly run when a function waits, and never while it computes.
            with short_turns(_TURN_S):
                samples = _Sampling(loop.thread, task_of, worker, clock).take(seconds, rate)
        except Exception as error:
            problem = f"stacks cannot be sampled: {type(error).__name__}: {error}"
        finally:
            _running.release()
        done(samples, problem)

    threading.Thread(target=work, name="sluiceway-stack-sampler", daemon=True).start()


_running = threading.BoundedSemaphore(_AT_ONCE)


class _Sampling:
    """Counts of stacks, while they are taken."""

    def __init__(
        self, loop_thread: int, task_of: Callable[[Tasklet], tuple[int, int] | None], worker: str, clock: Clock
    ) -> None:
        self._loop_thread = loop_thread
        self._task_of = task_of
        self._worker = worker
        self._clock = clock
        self._counts: dict[_Key, int] = {}
        self._modules: dict[CodeType, str] = {}
        self._cpu: dict[int, float] = {}

    def take(self, seconds: float, rate: float) -> StackSamples:
        interval = 1 / rate
        began_ms = self._clock.now_ms()
        last = time.monotonic()
        until = last + seconds
        moments = 0
        self._read(None)
        while last < until:
            time.sleep(interval)
            now = time.monotonic()
            self._read(now - last)
            last = now
            moments += 1
        return self._result(began_ms, moments)

    def _read(self, elapsed: float | None) -> None:
        """Take one sample of each thread, ``elapsed`` seconds after the last; None: note their CPU times only."""
        own = threading.get_ident()
        threads = {thread.ident: thread for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident == own:
                continue
            thread = threads.get(ident)
            used = self._used(ident, None if thread is None else thread.native_id)
            if elapsed is None:
                continue
            # A sample is of one moment; the time since the last one tells whether the thread mostly ran.
            on_cpu = used is None or used >= elapsed / 2
            if ident == self._loop_thread:
                self._count_loop(frame, on_cpu)
            elif not self._rests(frame):
                name = "another thread" if thread is None else f"thread {thread.name}"
                self._add((NO_TASK, 0, on_cpu, (name, *reversed(self._codes(frame)[0]))))

    def _count_loop(self, frame: FrameType, on_cpu: bool) -> None:
        codes, turn = self._codes(frame)
        if turn is None:
            # Off the CPU, the loop sleeps in its poller.
            if on_cpu:
                self._add((NO_TASK, 0, True, ("the worker's loop", *reversed(codes))))
            return
        tasklet = turn.f_locals.get("tasklet")
        where = self._task_of(tasklet) if isinstance(tasklet, Tasklet) else None
        if where is not None:
            self._add((*where, on_cpu, tuple(reversed(codes))))

    def _rests(self, frame: FrameType) -> bool:
        """Return True for a thread that waits for work, such as those of pools and event loops."""
        module = str(frame.f_globals.get("__name__", ""))
        return module in _RESTS or module.startswith("sluiceway.")

    def _codes(self, frame: FrameType) -> tuple[list[CodeType], FrameType | None]:
        """Return the functions of a stack, innermost first, up to the turn of a tasklet, and the frame of that."""
        codes: list[CodeType] = []
        at: FrameType | None = frame
        while at is not None:
            code = at.f_code
            if code is _TURN:
                return codes[-_DEEPEST:], at
            codes.append(code)
            if code not in self._modules:
                self._modules[code] = str(at.f_globals.get("__name__", "?"))
            at = at.f_back
        return codes[-_DEEPEST:], None

    def _add(self, key: _Key) -> None:
        if key in self._counts:
            self._counts[key] += 1
        elif len(self._counts) < _MOST_STACKS:
            self._counts[key] = 1
        else:
            # Bounded: a recursive function may have a different stack in each sample.
            rest: _Key = (key[0], key[1], key[2], ("(more stacks)",))
            self._counts[rest] = self._counts.get(rest, 0) + 1

    def _used(self, ident: int, native_id: int | None) -> float | None:
        """Return the CPU seconds that a thread has used since it was asked last; None: the system does not say."""
        if native_id is None or not sys.platform.startswith("linux"):
            return None
        try:
            # The clock of a thread by its id, as the kernel numbers them (MAKE_THREAD_CPUCLOCK). Unlike
            # time.pthread_getcpuclockid this is safe for a thread that has ended.
            now = time.clock_gettime(~native_id << 3 | 6)
        except OSError:
            return 0.0
        before = self._cpu.get(ident, now)
        self._cpu[ident] = now
        return now - before

    def _result(self, began_ms: int, moments: int) -> StackSamples:
        names: dict[str, int] = {}
        texts: dict[CodeType | str, int] = {}
        stacks = []
        for (vertex, subtask, on_cpu, codes), count in self._counts.items():
            frames = []
            for code in codes:
                if code not in texts:
                    text = code if isinstance(code, str) else self._name(code)
                    texts[code] = names.setdefault(text, len(names))
                frames.append(texts[code])
            stacks.append(StackCount(vertex, subtask, on_cpu, frames, count))
        return StackSamples(self._worker, began_ms, self._clock.now_ms(), moments, list(names), stacks)

    def _name(self, code: CodeType) -> str:
        file = code.co_filename
        if file.startswith(_GENERATED):
            return f"sluiceway.{file.removeprefix(_GENERATED).strip(' :<>')}"
        module = self._modules[code]
        name = code.co_qualname if module in _PROGRAM else f"{module}.{code.co_qualname}"
        return f"{name} ({PurePath(file).name}:{code.co_firstlineno})"
