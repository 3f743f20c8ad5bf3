"""Job group: the jobs that Spark runs for one pipeline, their progress, cancellation and errors."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.runtime.messages.pickling import load_error
from sluiceway_spark.session.application import Application
from sluiceway_spark.session.configuration import full_text, other_python, said
from sluiceway_spark.session.context import context_of
from sluiceway_spark.structured.stages.batch_tasks import FAILED

__all__ = ["JobGroup", "users_error"]

_ONLY_WAITED: Final = "thrown in awaitResult"


class JobGroup:
    """Job group of all that a thread runs on Spark inside this context.

    Args:
        session: the session.
        text: what Spark's pages call it.
    """

    def __init__(self, session: Any, text: str) -> None:
        self.name = f"sluiceway-{uuid.uuid4().hex}"
        self._session = session
        self._text = text
        self._context = context_of(session)

    def __enter__(self) -> JobGroup:
        if self._context is None:
            self._session.addTag(self.name)
        else:
            self._context.setJobGroup(self.name, self._text, interruptOnCancel=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._context is None:
            self._session.removeTag(self.name)
        else:
            with self._unless_stopped():
                for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
                    self._context.setLocalProperty(name, None)

    def tasks(self) -> tuple[int, int, int]:
        """Return the number of completed stages, and of running stages the numbers of completed and of all tasks.

        From any thread. All are 0 over Connect, where nothing is known, and once Spark has been stopped.
        """
        if self._context is None:
            return 0, 0, 0
        known: list[Any] = []
        with self._unless_stopped():
            tracker = self._context.statusTracker()
            stages = {id_ for job in tracker.getJobIdsForGroup(self.name) for id_ in _stages(tracker, job)}
            known = [info for info in map(tracker.getStageInfo, stages) if info is not None]
        at_work = [info for info in known if info.numActiveTasks and info.numCompletedTasks < info.numTasks]
        return (
            sum(info.numTasks == info.numCompletedTasks for info in known),
            sum(info.numCompletedTasks for info in at_work),
            sum(info.numTasks for info in at_work),
        )

    def cancel(self) -> None:
        """Cancel the stage. From another thread; what begins later does not hear of it."""
        if self._context is None:
            self._session.interruptTag(self.name)
        else:
            with self._unless_stopped():
                self._context.cancelJobGroup(self.name)

    @contextmanager
    def _unless_stopped(self) -> Iterator[None]:
        """Suppress errors of a context that was stopped meanwhile: the job fails with what Spark says of it."""
        try:
            yield
        except Exception:
            if not Application(self._session).ended:
                raise


def _stages(tracker: Any, job: int) -> list[int]:
    info = tracker.getJobInfo(job)
    return [] if info is None else list(info.stageIds)


def users_error(error: BaseException) -> BaseException:
    """Return the exception of a subtask from an error of Spark; else a short ConnectorError."""
    if not type(error).__module__.startswith(("pyspark", "py4j")):
        return error
    text = full_text(error)
    found = re.search(FAILED, text)
    if found is not None:
        with suppress(Exception):  # cut off on its way: what Spark says is all there is
            return load_error(base64.b64decode(found[1], validate=True))
    if (python := other_python(text)) is not None:
        problem: Exception = ConfigurationError(python)
        problem.__cause__ = error
        return problem
    told = said(error)
    if _ONLY_WAITED in told:
        causes = re.findall(r"^Caused by: [\w.]+: (.+)$", text, re.MULTILINE)
        told = next((cause for cause in causes if _ONLY_WAITED not in cause), told)
    problem = ConnectorError(f"Spark: {told[:1000]}")
    problem.__cause__ = error
    return problem
