"""Spark's application: whether it has ended, and the reasons that Spark gives."""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from sluiceway.errors import ConnectorError, SluicewayError
from sluiceway_spark.session.context import context_of, slots_of

__all__ = ["STOPPED", "Application", "SparkStoppedError", "fails_of_stop", "loss_reason", "unless_stopped"]

STOPPED: Final = "Spark's context was stopped"
"""Reason where Spark gives none."""

_LOOK_S: Final = 0.1
_ENDS_WITHIN_S: Final = 5.0
_REPORT_S: Final = 5.0
_LONGEST: Final = 1000
_CALLERS: Final = ("pyspark.", "py4j.", "sluiceway_spark.session.")

_WRAPPING: Final = re.compile(
    r".*?(?:Most recent failure reason: (?:Stage failed because barrier task .*? finished unsuccessfully\.)?"
    r"|Job aborted due to stage failure: |SparkException: )",
    re.DOTALL,
)
_LOST: Final = re.compile(r"ExecutorLostFailure \((executor \S+).*?\)\s*(?:Reason: )?", re.DOTALL)
_STACK: Final = re.compile(r"\n\s*(?:at |Driver stacktrace|JVM stacktrace|\.\.\.)|Driver stacktrace:")


class SparkStoppedError(ConnectorError):
    """Spark's context was stopped while something called it."""


class Application:
    """One application of Spark's, that of a session.

    Args:
        session: Spark's; its context is looked at when :attr:`ended` is asked.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._id = ""
        self._jvm: Any = None

    @property
    def ended(self) -> bool:
        """True if its context was stopped, or the JVM with it has ended."""
        try:
            context = self._session.sparkContext
            if context._jsc is None:
                return True
            self._id = self._id or str(context.applicationId)
            self._jvm = context._jvm
            return bool(context._jsc.sc().isStopped())
        except Exception:  # of Py4J: no connection
            return True

    def ends_after(self, failure: str, given_up: Callable[[], bool]) -> bool:
        """Return whether the application ends with a failure of a stage; waits where both may be under way.

        The context stops up to seconds after its executors are gone. While other executors are left, the loss of
        one says nothing about the application.

        Args:
            failure: text of the stage's failure.
            given_up: asked meanwhile whether nobody wants to know any more.
        """
        until = time.monotonic() + _ENDS_WITHIN_S
        while not self.ended and not given_up() and time.monotonic() < until:
            with suppress(Exception):  # stopped between two calls
                # Other executors are left, so the application goes on.
                if _LOST.search(failure) and slots_of(self._session.sparkContext):
                    break
            time.sleep(_LOOK_S)
        return self.ended

    def why_ended(self, failure: str = "") -> str:
        """Return how it ended, for messages: what its cluster manager says, else a stage's failure."""
        told = self._yarn_report() or loss_reason(failure)
        return f"ended with Spark's application{self._id and f' {self._id}'}{told and f': {told}'}"

    def _yarn_report(self) -> str:
        if not self._id.startswith("application_"):
            return ""
        found: list[str] = []

        def ask() -> None:
            with suppress(Exception):  # YARN is gone, too
                yarn = self._jvm.org.apache.hadoop.yarn
                client = yarn.client.api.YarnClient.createYarnClient()
                client.init(yarn.conf.YarnConfiguration())
                client.start()
                report = client.getApplicationReport(yarn.api.records.ApplicationId.fromString(self._id))
                state = report.getYarnApplicationState().toString()
                found.append(f"{state}. {_one_line(report.getDiagnostics() or '')}".strip())
                client.stop()

        # YARN's client tries for minutes to reach a resource manager that is gone.
        asking = threading.Thread(target=ask, name="sluiceway-spark-report", daemon=True)
        asking.start()
        asking.join(_REPORT_S)
        return found[0] if found else ""


def fails_of_stop(session: Any, error: BaseException) -> bool:
    """Return whether a call of PySpark has failed because the context of its session was stopped meanwhile.

    PySpark drops the context before it forgets the session, and then calls methods of None.
    """
    if isinstance(error, SluicewayError) or context_of(session) is None:
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = str(frames[-1].f_globals.get("__name__", "")) if frames else ""
    return module.startswith(_CALLERS) and Application(session).ended


@contextmanager
def unless_stopped(session: Any, what: str) -> Iterator[None]:
    """Raise SparkStoppedError in place of what PySpark raises where its session was stopped meanwhile.

    Args:
        session: the session.
        what: was begun, for the message.
    """
    try:
        yield
    except Exception as error:
        if fails_of_stop(session, error):
            raise SparkStoppedError(f"{what} {Application(session).why_ended(STOPPED)}") from error
        raise


def loss_reason(text: str) -> str:
    """Return the reason that Spark gives for the end of a stage, such as a killed container, on one line."""
    text = _STACK.split(text, maxsplit=1)[0]
    if lost := _LOST.search(text):
        return _one_line(f"{lost[1]}: {text[lost.end() :]}")
    return _one_line(_WRAPPING.sub("", text))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]
