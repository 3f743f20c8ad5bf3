"""Check that Spark has a task slot for each worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from sluiceway.errors import ConfigurationError, NoResourceAvailableError
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway_spark.session.context import WAITING, is_local, need_context, slots_of, waiting_time_s

__all__ = ["check_session", "wait_for_slots"]

_NO_CONTEXT: Final = (
    "run the program by spark-submit, or stop that session first. Without --hosted, a pipeline whose sources end "
    "runs there, too"
)
_LOOK_S: Final = 0.25
_TELL_S: Final = 5.0


def check_session(session: Any, workers: int, spare: int = 0) -> None:
    """Check that a session can run barrier stages of so many tasks, as far as is known at once.

    Args:
        session: Spark's.
        workers: how many there will be at a time.
        spare: how many slots others need beside them, for what the job has Spark compute.

    Raises:
        ConfigurationError: it cannot run any.
        NoResourceAvailableError: it is on this machine alone, and has not as many slots, and never will.
    """
    context = need_context(session, "--hosted needs", _NO_CONTEXT)
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        raise ConfigurationError(
            "--hosted needs a fixed number of executors, as Spark runs no barrier stages with "
            "spark.dynamicAllocation.enabled=true: set it to false, and spark.executor.instances to what is needed"
        )
    if is_local(context):
        slots = slots_of(context)
        if slots < workers + spare:
            raise NoResourceAvailableError(_too_few(workers, spare, slots, context.master))


def wait_for_slots(context: Any, workers: int, given_up: Callable[[], bool], spare: int = 0) -> None:
    """Wait until there is a slot for each worker, as executors may still start.

    As long as Spark itself waits for them, ``spark.scheduler.maxRegisteredResourcesWaitingTime``.

    Args:
        context: Spark's.
        workers: how many there are to be.
        given_up: asked meanwhile whether nobody wants them any more; then this returns.
        spare: how many slots others need beside them.

    Raises:
        NoResourceAvailableError: there are too few by then.
    """
    within_s = waiting_time_s(context)
    begun = time.monotonic()
    told = False
    while (slots := slots_of(context)) < workers + spare and not given_up():
        waited = time.monotonic() - begun
        if waited > within_s:
            raise NoResourceAvailableError(_too_few(workers, spare, slots, context.master, waited))
        if waited > _TELL_S and not told:
            told = True
            log(
                WARNING,
                "workers",
                f"waiting for {workers + spare} task slots of Spark's, of which there are {slots}",
            )
        time.sleep(_LOOK_S)


def _too_few(workers: int, spare: int, slots: int, master: str, waited_s: float = 0.0) -> str:
    since = f" after {waited_s:.0f} s" if waited_s else ""
    if master.startswith("local["):
        more = "a larger N in local[N]"
    else:
        # Only a standalone master counts cores by application.
        settings = ["spark.executor.instances", "spark.executor.cores"]
        settings += ["spark.cores.max"] if master.startswith("spark://") else []
        more = f"more or larger executors ({', '.join(settings)})"
    if waited_s:
        more += f", or more time to start them ({WAITING})"
    beside = f", and what SparkSource reads takes {spare} beside them" if spare else ""
    return (
        f"{workers} workers take {workers} task slots of Spark's at a time{beside}, and {master} has "
        f"{slots}{since}: ask for fewer with --workers, or give Spark {more}"
    )
