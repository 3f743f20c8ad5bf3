"""Spark context of a session, which only a classic one has: a session of Spark Connect has none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from sluiceway.errors import ConfigurationError

__all__ = ["WAITING", "context_of", "is_local", "need_context", "slots_of", "tasks_at_a_time", "waiting_time_s"]

WAITING: Final = "spark.scheduler.maxRegisteredResourcesWaitingTime"
"""The setting of Spark's that says how long it waits for executors."""

_LOOK_S: Final = 0.25
_LOOKS: Final = 8
"""Looks in a row without a change, after which the executors are taken to be there: they start at one time."""

_log: Final = logging.getLogger("sluiceway.jobs")

# Ids of the applications whose executors were waited for.
_waited_for: Final[set[str]] = set()


def context_of(session: Any) -> Any:
    """Return the Spark context of a session; None: it is a session of Spark Connect."""
    try:
        return session.sparkContext
    except Exception:  # an AttributeError of PySpark's own, whose class is another one in each version
        return None


def tasks_at_a_time(session: Any, otherwise: int, given_up: Callable[[], bool] = lambda: False) -> int:
    """Return how many tasks Spark runs at a time. The first call for a session waits for its executors.

    Args:
        session: the session.
        otherwise: returned over Spark Connect, whose client does not know.
        given_up: asked while executors start whether nobody wants to know any more.
    """
    context = context_of(session)
    if context is None:
        return otherwise
    conf = context.getConf()
    is_known = conf.get("spark.default.parallelism") is not None
    if not (is_known or is_local(context) or conf.get("spark.dynamicAllocation.enabled") == "true"):
        _wait_for_executors(context, given_up)
    return int(context.defaultParallelism)


def slots_of(context: Any) -> int:
    """Return how many tasks the present executors can run at a time, the slots of other jobs included."""
    scala = context._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def waiting_time_s(context: Any) -> float:
    """Return how long Spark itself waits for executors, in seconds."""
    return float(context._jsc.sc().conf().getTimeAsMs(WAITING, "30s") / 1000)


def is_local(context: Any) -> bool:
    """Return whether Spark runs in the process of the driver alone."""
    return context.master.startswith("local") and not context.master.startswith("local-cluster")


def _wait_for_executors(context: Any, given_up: Callable[[], bool]) -> None:
    """Wait until executors have registered, and no more come, for as long as Spark itself waits for them.

    Spark counts the cores of executors that have registered: when the context has just been made there are none.
    """
    if context.applicationId in _waited_for:
        return
    slots, within_s = slots_of(context), waiting_time_s(context)
    until, looks = time.monotonic() + within_s, 0
    while looks < _LOOKS and time.monotonic() < until and not given_up():
        time.sleep(_LOOK_S)
        before, slots = slots, slots_of(context)
        looks = looks + 1 if slots and slots == before else 0
    if given_up():
        return
    _waited_for.add(context.applicationId)
    if not slots:
        _log.warning(
            "no executor of Spark's has registered within %g s (%s): counting on %d tasks at a time. Say how many "
            "with --parallelism, or parallelism= in a program",
            within_s,
            WAITING,
            context.defaultParallelism,
        )


def need_context(session: Any, what: str, instead: str) -> Any:
    """Return the Spark context of a session.

    Args:
        session: the session.
        what: needs it, for the message.
        instead: advice for a program whose session has none.

    Raises:
        ConfigurationError: it is a session of Spark Connect.
    """
    if (context := context_of(session)) is None:
        raise ConfigurationError(
            f"{what} a classic session of Spark, which has a Spark context, and the one of this program is of "
            f"Spark Connect: {instead}"
        )
    return context
