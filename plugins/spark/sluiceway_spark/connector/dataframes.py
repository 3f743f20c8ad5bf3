"""DataFrames to read: those of the user, and functions that make one where the job runs."""

from __future__ import annotations

import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from sluiceway.errors import ConnectorError
from sluiceway.util.overriding import override
from sluiceway_spark.session.configuration import SessionConf, said

__all__ = ["Frame", "GivenFrame", "MadeFrame", "fingerprint_of", "is_repeatable", "package_advice"]

# For the copies of a GivenFrame in its process: those who hold one keep the DataFrame alive, and this does not.
_given: Final[WeakValueDictionary[str, Any]] = WeakValueDictionary()


class Frame(ABC):
    """Maker of a DataFrame in the process of the job manager; picklable."""

    what: str

    @abstractmethod
    def open(self) -> Any:
        """Return the DataFrame. Takes seconds where a session has to be made.

        Raises:
            ConnectorError: Spark refuses.
        """


class GivenFrame(Frame):
    """A DataFrame made by the user. Copies of this find it in the process in which it was made."""

    def __init__(self, frame: Any) -> None:
        self.what = "the DataFrame"
        self._id = uuid.uuid4().hex
        self._frame = _given[self._id] = frame

    def __getstate__(self) -> tuple[str, str]:
        return self.what, self._id

    def __setstate__(self, state: tuple[str, str]) -> None:
        self.what, self._id = state
        self._frame = _given.get(self._id)

    @override
    def open(self) -> Any:
        if self._frame is None:
            raise ConnectorError(
                "a DataFrame cannot be read in another process than the one that made it: give SparkSource.query "
                "a function that makes it of a session"
            )
        return self._frame


@dataclass(frozen=True)
class MadeFrame(Frame):
    """A DataFrame that a function makes from a session."""

    session: SessionConf
    make: Callable[[Any], Any]
    what: str

    @override
    def open(self) -> Any:
        session = self.session.session()
        try:
            frame = self.make(session)
            columns = frame.columns  # where a Connect server would complain only later
        except Exception as error:
            raise ConnectorError(f"cannot read {self.what}: {said(error)}{package_advice(str(error))}") from error
        if not columns:
            raise ConnectorError(f"cannot read {self.what}: it has no columns")
        return frame


def package_advice(said_: str) -> str:
    """Return advice for a session that lacks a format, such as Delta or Iceberg, which packages add."""
    if "DATA_SOURCE_NOT_FOUND" not in said_:
        return ""
    return (
        " The session has to have the package of this format from its start, by spark.jars.packages or "
        "spark.jars, in conf= or where the session is made, in the version that is made for this one of Spark"
    )


def is_repeatable(frame: Any) -> bool:
    """Return whether a second read would give the same rows in the same partitions, as far as the plan shows.

    That of a DataFrame over Spark Connect is not shown.
    """
    try:
        execution = frame._jdf.queryExecution()
        return bool(execution.analyzed().deterministic()) and _only_scans(str(execution.sparkPlan().toString()))
    except Exception:  # no such thing over Connect
        return False


def fingerprint_of(frame: Any) -> str:
    """Return a hash of the files, the columns and the partitions of a DataFrame. Not available over Connect."""
    parts = [frame.schema.json(), str(frame.rdd.getNumPartitions()), *sorted(frame.inputFiles())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


_PLAIN: Final = ("FileScan", "Project", "Filter", "Range", "LocalTableScan", "ColumnarToRow", "Generate")


def _only_scans(plan: str) -> bool:
    steps = [line.lstrip(" :+-*").split("(")[0].split(" ")[0] for line in plan.splitlines() if line.strip()]
    return bool(steps) and all(step in _PLAIN for step in steps)
