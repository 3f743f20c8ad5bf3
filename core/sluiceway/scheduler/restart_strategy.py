"""Restart strategies: whether and when a failed job restarts. Pure arithmetic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from random import Random
from typing import Final

from sluiceway.config.settings import duration_ms
from sluiceway.errors import ConfigurationError, choose
from sluiceway.util.overriding import override

__all__ = [
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "NoRestart",
    "RestartStrategy",
    "restart_strategy",
]


class RestartStrategy(ABC):
    """Decision after each failure of a job. One object per job."""

    @abstractmethod
    def delay_ms(self, now_ms: int) -> int | None:
        """Return the time in ms from a failure to the restart; None: do not restart.

        Args:
            now_ms: time of the failure, in ms of a clock that no step of the wall clock moves.
        """

    @property
    def same_record_limit(self) -> int | None:
        """Number of failures of the same record without progress that end the job; None: no limit."""
        return None

    @property
    @abstractmethod
    def reason(self) -> str:
        """Reason why it does not restart, for messages; empty where that is obvious."""


class NoRestart(RestartStrategy):
    """Strategy without restarts."""

    @override
    def delay_ms(self, now_ms: int) -> int | None:
        return None

    @property
    def reason(self) -> str:
        """Empty: nobody has asked for restarts."""
        return ""


class FixedDelay(RestartStrategy):
    """Strategy of a number of restarts in all, each after the same delay.

    Args:
        attempts: number of restarts, 1 or more.
        delay_ms: time between a failure and the restart.
    """

    def __init__(self, attempts: int, delay_ms: int) -> None:
        self._attempts = attempts
        self._delay_ms = delay_ms
        self._used = 0

    def delay_ms(self, now_ms: int) -> int | None:
        """Return the delay, until the attempts are used up."""
        if self._used >= self._attempts:
            return None
        self._used += 1
        return self._delay_ms

    @property
    def reason(self) -> str:
        """Number of attempts."""
        return "1 restart was not enough" if self._attempts == 1 else f"{self._attempts} restarts were not enough"


class ExponentialDelay(RestartStrategy):
    """Strategy of any number of restarts, each after a longer delay than the one before it, up to a limit.

    Args:
        initial_ms: the first delay.
        max_ms: the longest one.
        multiplier: from one delay to the next, more than 1.
        jitter: random part of each delay, as a share of it from 0 to 1, so that jobs that failed together do not
            restart together.
        same_record_limit: number of failures of the same record without progress that ends the job; None: no
            limit.
        reset_ms: time without a failure after which the delay is the first one again.
        random: draws the jitter.
    """

    def __init__(
        self,
        initial_ms: int,
        max_ms: int,
        multiplier: float = 2.0,
        jitter: float = 0.1,
        same_record_limit: int | None = None,
        reset_ms: int = 3_600_000,
        random: Random | None = None,
    ) -> None:
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._multiplier = multiplier
        self._jitter = jitter
        self._same_record_limit = same_record_limit
        self._reset_ms = reset_ms
        self._random = random or Random()
        self._next_ms = float(initial_ms)
        self._running_since_ms: int | None = None

    def delay_ms(self, now_ms: int) -> int | None:
        """Return the next delay, with jitter."""
        if self._running_since_ms is not None and now_ms - self._running_since_ms >= self._reset_ms:
            self._next_ms = float(self._initial_ms)
        delay = self._next_ms
        self._next_ms = min(delay * self._multiplier, float(self._max_ms))
        spread = delay * self._jitter
        drawn = max(0, min(round(delay + self._random.uniform(-spread, spread)), self._max_ms))
        # The time without a failure begins with the restart, not with the failure before it.
        self._running_since_ms = now_ms + drawn
        return drawn

    @property
    def same_record_limit(self) -> int | None:
        """Limit as given."""
        return self._same_record_limit

    @property
    def reason(self) -> str:
        """Empty: it always restarts."""
        return "it never gives up"


class FailureRate(RestartStrategy):
    """Strategy that restarts unless failures come too fast.

    Args:
        failures: more than this many within the interval end the job; 1 or more.
        interval_ms: the interval.
        delay_ms: time between a failure and the restart.
    """

    def __init__(self, failures: int, interval_ms: int, delay_ms: int) -> None:
        self._failures = failures
        self._interval_ms = interval_ms
        self._delay_ms = delay_ms
        self._recent: deque[int] = deque()

    def delay_ms(self, now_ms: int) -> int | None:
        """Return the delay, unless there were too many failures recently."""
        recent = self._recent
        while recent and now_ms - recent[0] > self._interval_ms:
            recent.popleft()
        recent.append(now_ms)
        return None if len(recent) > self._failures else self._delay_ms

    @property
    def reason(self) -> str:
        """Rate of failures."""
        return f"there were more than {self._failures} failures within {self._interval_ms} ms"


_FORMS: Final = {
    "none": "none",
    "fixed-delay": "fixed-delay:ATTEMPTS:DELAY, such as fixed-delay:3:1s",
    "exponential": "exponential:FIRST:LONGEST or exponential:FIRST:LONGEST:SAME, such as exponential:1s:1min:6",
    "failure-rate": "failure-rate:FAILURES:INTERVAL:DELAY, such as failure-rate:3:5min:1s",
}


def restart_strategy(text: str, random: Random | None = None) -> RestartStrategy:
    """Return the strategy of an option's text.

    Args:
        text: value of the option.
        random: source of jitter; None: a new one.

    Raises:
        UnknownNameError: there is no strategy of that name; lists the names.
        ConfigurationError: its numbers are invalid; says what it should look like.
    """
    name, *figures = text.split(":")
    if name not in _FORMS:
        raise choose("restart strategy", name, _FORMS)
    try:
        match name, figures:
            case "none", []:
                return NoRestart()
            case "fixed-delay", [attempts, delay]:
                return FixedDelay(_count(attempts), duration_ms(delay))
            case "exponential", [first, longest, *same] if len(same) <= 1:
                if not 0 < duration_ms(first) <= duration_ms(longest):
                    raise ValueError("the first delay must be more than 0 and no longer than the longest")
                limit = _count(same[0]) if same else None
                return ExponentialDelay(
                    duration_ms(first), duration_ms(longest), same_record_limit=limit, random=random
                )
            case "failure-rate", [failures, interval, delay]:
                return FailureRate(_count(failures), duration_ms(interval), duration_ms(delay))
            case _:
                raise ValueError(f"it has {len(figures)} figures")
    except ValueError as error:
        raise ConfigurationError(f"restart strategy {text!r}: {error}. Write {_FORMS[name]}") from None


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number from 1 up")
    return int(text)
