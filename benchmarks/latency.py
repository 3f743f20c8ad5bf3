"""Latency of a line: from another process, over TCP, through a keyed count, to a callback."""

from __future__ import annotations

import math
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import sluiceway as sw
from benchmarks.harness import Plan, Row
from benchmarks.lineserver import WORDS
from sluiceway.connector.lib import CallbackSink
from sluiceway_socket import SocketSource

__all__ = ["measure", "quantile"]

RATE = 100
_ROOT = Path(__file__).parents[1]

Sent = tuple[str, int, int]
"""A word, the moment it was sent, how often it has come."""
Read = Callable[[int, Callable[[Sent], None]], None]
"""Reads all lines from a port and gives each line's result to a function."""


def measure(plan: Plan) -> Iterator[Row]:
    lines = plan.size(5 * RATE, 20)
    loops, ours = [], []
    _delays(_pipeline, 20)  # what is imported and compiled at the first time
    for _ in range(plan.runs):
        loops.append(_delays(_loop, lines))
        ours.append(_delays(_pipeline, lines))
    for name, share, aim in (("median", 0.5, None), ("99th percentile", 0.99, 5.0)):
        values, plain = ([quantile(run, share) for run in runs] for runs in (ours, loops))
        yield Row(
            f"latency at {RATE} lines/s, {name}",
            "ms",
            tuple(values),
            aim=aim,
            note=f"{lines} lines a run; a blocking loop {statistics.median(plain):.3g} ms",
            details={"loop_ms": plain, "lines": lines},
        )


def _delays(read: Read, lines: int) -> list[float]:
    """Milliseconds from sending to result, per line; checked to be the right results."""
    results: list[Sent] = []
    delays: list[float] = []

    def take(result: Sent) -> None:
        delays.append((time.monotonic_ns() - result[1]) / 1e6)
        results.append(result)

    command = [sys.executable, "-m", "benchmarks.lineserver", str(lines), str(RATE)]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        read(int(server.stdout.readline()), take)
    seen: Counter[str] = Counter()
    for word, _, count in results:
        seen[word] += 1
        if count != seen[word]:
            raise RuntimeError(f"latency: {word!r} was counted {count} times when it had come {seen[word]} times")
    if seen != Counter(WORDS[i % len(WORDS)] for i in range(lines)):
        raise RuntimeError(f"latency: of {lines} lines sent, {seen.total()} were counted")
    return delays


def _parse(line: str) -> Sent:
    moment, word = line.split()
    return (word, int(moment), 1)


def _word(sent: Sent) -> str:
    return sent[0]


def _count(so_far: Sent, sent: Sent) -> Sent:
    return (sent[0], sent[1], so_far[2] + 1)


def _pipeline(port: int, take: Callable[[Sent], None]) -> None:
    flow = sw.Pipeline("latency")
    lines = flow.source(SocketSource("127.0.0.1", port))
    lines.map(_parse).key_by(_word).reduce(_count).sink(CallbackSink(take))
    flow.run()


def _loop(port: int, take: Callable[[Sent], None]) -> None:
    reduced: dict[str, Sent] = {}
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile() as lines:
        for line in lines:
            sent = _parse(line)
            word = _word(sent)
            so_far = reduced.get(word)
            reduced[word] = sent if so_far is None else _count(so_far, sent)
            take(reduced[word])


def quantile(values: list[float], share: float) -> float:
    """The smallest value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
