"""Log of the engine itself, and set-up of logging for a run; neither imports ``logging`` without need."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from sluiceway.config.settings import Settings
from sluiceway.util.redaction import redact

__all__ = ["DEBUG", "ERROR", "INFO", "WARNING", "job_logging", "log"]

DEBUG: Final = 10
INFO: Final = 20
WARNING: Final = 30
ERROR: Final = 40


def log(level: int, topic: str, message: str, *, job: str = "", error: BaseException | None = None) -> None:
    """Log as ``sluiceway.TOPIC``.

    Args:
        level: one of this module's, which are those of ``logging``.
        topic: ``jobs`` or ``workers``.
        message: text of the line.
        job: id of the job that it is about.
        error: logged with its traceback.
    """
    if level < WARNING and "logging" not in sys.modules:
        return  # nobody can have configured it
    import logging

    logger = logging.getLogger(f"sluiceway.{topic}")
    if logger.isEnabledFor(level):
        logger.log(level, "%s", redact(message), extra={"job": job}, exc_info=error)


def job_logging(settings: Settings) -> AbstractContextManager[None]:
    """Return the logging context of a job that this process runs or leads; see :func:`.logging_to_stderr`."""
    if settings.log_level is None and settings.restart == "none" and "logging" not in sys.modules:
        return nullcontext()  # no line will be logged
    from sluiceway.runtime.logging.task_logs import logging_to_stderr

    return logging_to_stderr(settings.log_level, settings.log_format)
