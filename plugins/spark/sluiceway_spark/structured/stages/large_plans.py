"""Plans that are too large for the message in which Spark sends a stateful function, shipped as files."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sluiceway_spark.session.context import context_of

__all__ = ["PlanFile", "bytes_of", "in_message_or_file"]

_BESIDE: Final = 1 << 16
"""Bytes beside the plan in what Spark sends to a stateful step."""

_adding: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class PlanFile:
    """Plan in a file that Spark distributes to the executors.

    Attributes:
        digest: SHA-256 of the content, in hexadecimal, by which the file is named.
    """

    digest: str

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"sluiceway-plan-{self.digest}"


def in_message_or_file(session: Any, shipped: bytes) -> bytes | PlanFile:
    """Return a plan as stateful steps can get it: a large one as a file of the application.

    From a threshold on, PySpark sends functions as broadcasts, which the process that asks a step for its state
    variables cannot read. A session of Spark Connect sends no broadcasts.

    Each executor, also one that starts later, gets the file from the driver with its first task. Spark removes
    it there and here with the application, and not before, as nobody knows when the last task has read it.

    Args:
        session: of Spark.
        shipped: the plan, pickled.
    """
    context = context_of(session)
    if context is None:
        return shipped
    if len(shipped) + _BESIDE <= int(context._jvm.PythonUtils.getBroadcastThreshold(context._jsc)):
        return shipped
    file = PlanFile(hashlib.sha256(shipped).hexdigest())
    with _adding:
        if not any(Path(each).name == file.name for each in context.listFiles):
            # The driver serves it from there. Spark removes its temporary directory also where this process is
            # killed, but other users may read in it, so that the file is in one that they cannot.
            path = Path(tempfile.mkdtemp(dir=context._temp_dir), file.name)
            path.write_bytes(shipped)
            context.addFile(str(path))
    return file


def bytes_of(shipped: bytes | PlanFile) -> bytes:
    """Return the plan, in a Python worker.

    Raises:
        RuntimeError: the file is not the one that the driver has added.
    """
    if isinstance(shipped, bytes):
        return shipped
    from pyspark import SparkFiles

    found = Path(SparkFiles.get(shipped.name)).read_bytes()
    if hashlib.sha256(found).hexdigest() != shipped.digest:  # it is unpickled next
        raise RuntimeError(f"the plan in {SparkFiles.get(shipped.name)} is not the one that the driver has sent")
    return found
