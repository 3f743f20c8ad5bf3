"""Metrics of functions: counters, gauges and histograms, by name."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate

from sluiceway.util.name_hints import Hinting

__all__ = ["Counter", "Histogram", "MetricGroup", "counters_by_step", "read_by_step"]


class Counter:
    """A number that is added to. Not for use from several threads."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, n: int = 1) -> None:
        """Add ``n``."""
        self.value += n


# 20 bounds a decade from 1 us to 1000 s: quantiles within 12 %.
_BOUNDS = [10 ** (e / 20) for e in range(-120, 61)]


class Histogram:
    """Durations in seconds, in buckets of constant ratio; quantiles are right within 12 %."""

    __slots__ = ("_buckets", "count", "max")

    def __init__(self) -> None:
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self.count = 0
        self.max = 0.0

    def observe(self, seconds: float) -> None:
        """Record one duration."""
        self._buckets[bisect_left(_BOUNDS, seconds)] += 1
        self.count += 1
        self.max = max(self.max, seconds)

    def quantile(self, q: float) -> float:
        """The smallest bucket bound (seconds) that a share ``q`` of the durations does not exceed; 0.0 if none."""
        if not self.count:
            return 0.0
        rank = q * self.count
        for index, reached in enumerate(accumulate(self._buckets)):
            # For q = 0 the first bucket that has any.
            if reached >= rank and reached:
                return min(_BOUNDS[index], self.max) if index < len(_BOUNDS) else self.max
        return self.max


class MetricGroup(Hinting):
    """The metrics of one function in one subtask. Asking twice for a name gives the same metric."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        self.gauges: dict[str, Callable[[], float]] = {}
        self.histograms: dict[str, Histogram] = {}

    def counter(self, name: str) -> Counter:
        """Return the counter called ``name``."""
        return self.counters.setdefault(name, Counter())

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Have ``read()`` called whenever metrics are reported, also from other threads than the task's.

        While it raises, the gauge is left out.
        """
        self.gauges[name] = read

    def remove_gauge(self, name: str) -> None:
        """Remove a gauge of something that has ended, so that its last value is not reported for ever."""
        self.gauges.pop(name, None)

    def histogram(self, name: str) -> Histogram:
        """Return the histogram called ``name``."""
        return self.histograms.setdefault(name, Histogram())

    def read(self) -> dict[str, float]:
        """Return the metrics as of now, by name. From any thread.

        A histogram that has observed something gives ``NAME_count``, and in seconds ``NAME_p50``, ``NAME_p99`` and
        ``NAME_max``.
        """
        # Copies of the dicts: the task may add metrics while another thread reads.
        figures: dict[str, float] = {name: counter.value for name, counter in list(self.counters.items())}
        for name, read in list(self.gauges.items()):
            try:
                figures[name] = read()
            except (Exception, SystemExit):  # a user's gauge must not end whoever reports
                continue
        for name, histogram in list(self.histograms.items()):
            if histogram.count:
                figures[f"{name}_count"] = histogram.count
                figures[f"{name}_p50"] = histogram.quantile(0.5)
                figures[f"{name}_p99"] = histogram.quantile(0.99)
                figures[f"{name}_max"] = histogram.max
        return figures


def read_by_step(groups: Iterable[tuple[str, MetricGroup]]) -> dict[str, dict[str, float]]:
    """Return metrics by step and name; steps without any are left out. From any thread.

    Steps of a chain may have the same name, and a source has a group for its reader, too: counters of one name are
    added, of other metrics the last is taken.
    """
    found: dict[str, dict[str, float]] = {}
    for step, group in groups:
        if own := group.read():
            known = found.setdefault(step, {})
            for name, value in own.items():
                known[name] = known[name] + value if name in known and name in group.counters else value
    return found


def counters_by_step(groups: Iterable[tuple[str, MetricGroup]]) -> dict[str, dict[str, int]]:
    """Return the counters alone, as :func:`read_by_step` does: what can be added up over the lives of a step."""
    found: dict[str, dict[str, int]] = {}
    for step, group in groups:
        for name, counter in list(group.counters.items()):
            known = found.setdefault(step, {})
            known[name] = known.get(name, 0) + counter.value
    return found
