"""Two plain processes at once against one: the speed-up that the machine leaves for two workers.

Cores that share caches, memory and a power budget do not give two processes twice the speed of one. A row
about two workers means little without this one beside it, of the same kind of work in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from types import TracebackType
from typing import Any, Self

from benchmarks.harness import Row

__all__ = ["PlainProcesses"]


class PlainProcesses:
    """Two processes that wait, and do the same work, one of them or both at once, each time they are measured.

    Args:
        name: of the row, before the colon.
        loop: what the work is, for the note.
        work: function of a module; it takes about a second.
        arguments: of the function.
    """

    def __init__(self, name: str, loop: str, work: Callable[..., object], *arguments: Any) -> None:
        self._name = name
        self._loop = loop
        self._work = work
        self._arguments = arguments
        self._speedups: list[float] = []
        # A pool each: one pool of two could give both pieces of work to the same process.
        self._pools = [ProcessPoolExecutor(1, get_context("spawn")) for _ in range(2)]

    def __enter__(self) -> Self:
        self._seconds(self._pools)  # starts them, and makes or reads what the work needs
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in self._pools:
            pool.shutdown()

    def measure(self) -> None:
        """Measure one of them, and then both at once."""
        one = self._seconds(self._pools[:1])
        self._speedups.append(2 * one / self._seconds(self._pools))

    def _seconds(self, pools: Sequence[ProcessPoolExecutor]) -> float:
        begin = time.perf_counter()
        for done in [pool.submit(self._work, *self._arguments) for pool in pools]:
            done.result()
        return time.perf_counter() - begin

    def share(self, speedups: Sequence[float]) -> str:
        """Compare speed-ups by two workers, measured beside these, with those of plain processes."""
        shares = [ours / plain for ours, plain in zip(speedups, self._speedups, strict=True)]
        return f"{median(shares):.0%} of what two plain processes reach"

    def row(self) -> Row:
        return Row(
            f"{self._name}: 2 plain processes at once against one",
            "x speed",
            tuple(self._speedups),
            note=f"what the machine leaves for two workers; {self._loop} in each",
        )
