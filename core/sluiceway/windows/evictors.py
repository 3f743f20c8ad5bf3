"""Built-in evictors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from sluiceway.errors import ConfigurationError
from sluiceway.windows.base import Evictor, EvictorContext, Timestamped, Window
from sluiceway.windows.durations import Duration, positive_milliseconds, shown

__all__ = ["CountEvictor", "DeltaEvictor", "TimeEvictor"]


class _Evictor(Evictor):
    """Base of evictors that remove records before or after the window's function."""

    def __init__(self, do_evict_after: bool) -> None:
        self.do_evict_after = do_evict_after

    def evict_before(
        self, elements: list[Timestamped[Any]], window: Window, context: EvictorContext
    ) -> list[Timestamped[Any]]:
        """Return the records for the window's function."""
        return elements if self.do_evict_after else self._left(elements)

    def evict_after(
        self, elements: list[Timestamped[Any]], window: Window, context: EvictorContext
    ) -> list[Timestamped[Any]]:
        """Return the records that stay in the window."""
        return self._left(elements) if self.do_evict_after else elements

    @abstractmethod
    def _left(self, elements: list[Timestamped[Any]]) -> list[Timestamped[Any]]: ...

    def _repr(self, argument: object) -> str:
        after = ", do_evict_after=True" if self.do_evict_after else ""
        return f"{type(self).__name__}({argument}{after})"


class CountEvictor(_Evictor):
    """Evictor that keeps the latest records.

    Args:
        max_count: the number of records to keep.
        do_evict_after: True to remove the others after the window's function instead of before it.
    """

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        if type(max_count) is not int or max_count < 1:
            raise ConfigurationError(
                f"CountEvictor({max_count!r}): must leave a whole number of records, at least 1"
            )
        self.max_count = max_count

    @classmethod
    def of(cls, max_count: int, do_evict_after: bool = False) -> CountEvictor:
        """Return a new evictor; Flink's name for the constructor."""
        return cls(max_count, do_evict_after)

    def _left(self, elements: list[Timestamped[Any]]) -> list[Timestamped[Any]]:
        return elements[-self.max_count :]

    def __repr__(self) -> str:
        return self._repr(self.max_count)


class TimeEvictor(_Evictor):
    """Evictor that keeps the records whose timestamps are near the latest one in the window.

    Args:
        window_size: the distance at which a record is removed.
        do_evict_after: True to remove the others after the window's function instead of before it.
    """

    def __init__(self, window_size: Duration, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self.window_size_ms = positive_milliseconds(f"TimeEvictor(window_size={window_size!r})", window_size)

    @classmethod
    def of(cls, window_size: Duration, do_evict_after: bool = False) -> TimeEvictor:
        """Return a new evictor; Flink's name for the constructor."""
        return cls(window_size, do_evict_after)

    def _left(self, elements: list[Timestamped[Any]]) -> list[Timestamped[Any]]:
        if not elements:
            return elements
        cut = max(element.timestamp for element in elements) - self.window_size_ms
        return [element for element in elements if element.timestamp > cut]

    def __repr__(self) -> str:
        return self._repr(shown(self.window_size_ms))


class DeltaEvictor(_Evictor):
    """Evictor that keeps the records nearer than a threshold to the latest one.

    Args:
        threshold: the distance at which a record is removed.
        delta: ``delta(element, last)``, the distance of two records.
        do_evict_after: True to remove the others after the window's function instead of before it.
    """

    def __init__(self, threshold: float, delta: Callable[[Any, Any], float], do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        if not callable(delta):
            raise ConfigurationError(
                f"DeltaEvictor: delta must be a function of two records, not {delta!r:.60}"
                f" ({type(delta).__name__})"
            )
        self.threshold = threshold
        self.delta = delta

    @classmethod
    def of(
        cls, threshold: float, delta: Callable[[Any, Any], float], do_evict_after: bool = False
    ) -> DeltaEvictor:
        """Return a new evictor; Flink's name for the constructor."""
        return cls(threshold, delta, do_evict_after)

    def _left(self, elements: list[Timestamped[Any]]) -> list[Timestamped[Any]]:
        if not elements:
            return elements
        last, delta, threshold = elements[-1].value, self.delta, self.threshold
        return [element for element in elements if delta(element.value, last) < threshold]

    def __repr__(self) -> str:
        return self._repr(self.threshold)
