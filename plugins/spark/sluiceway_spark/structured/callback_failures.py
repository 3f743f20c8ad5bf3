"""Failures of functions that Spark's JVM calls in this process, as texts that the JVM can digest."""

from __future__ import annotations

import traceback
from typing import Final

__all__ = ["CallbackFailedError", "in_short"]

_CALL: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_INTERRUPTS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
_SPARK: Final = "org.apache.spark.SparkException"
_CANCELLED: Final = "cancelled"
_MOST: Final = 300


class CallbackFailedError(RuntimeError):
    """A function that Spark called failed. The message is short; the exception itself stays in this process."""


def in_short(error: BaseException) -> CallbackFailedError:
    """Return an exception for Spark in place of one that a function for ``foreachBatch`` has raised.

    py4j sends the JVM the text of the exception, with that of its causes: of a failed call of Spark, its Java
    stack. To know whether a query ended because it was stopped, Spark looks for an interrupt in the text, with a
    regular expression that recurses for each character: the thread of the query dies of a StackOverflowError. A
    short text avoids that. It has to keep what Spark looks for, else a query that was stopped counts as failed.

    Args:
        error: what was raised.
    """
    text = "".join(traceback.format_exception(error))
    if _CALL in text:
        interrupt = next((name for name in _INTERRUPTS if name in text), None)
        if interrupt is not None:
            return CallbackFailedError(f"{_CALL} Spark: {interrupt}")
    if _SPARK in text:
        cancelled = next((line for line in text.splitlines() if _CANCELLED in line), None)
        if cancelled is not None:
            at = max(0, cancelled.index(_CANCELLED) - _MOST // 2)
            return CallbackFailedError(f"{_SPARK}: {cancelled[at : at + _MOST]}")
    # Its notes are behind the first line.
    return CallbackFailedError(traceback.format_exception_only(error)[0].strip()[:_MOST])
