"""Enumerator of SparkSource: runs the staging job and assigns the files of its partitions."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from sluiceway.connector import Enumerator, EnumeratorContext
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.util.overriding import override
from sluiceway_spark.connector.dataframes import Frame, fingerprint_of, is_repeatable
from sluiceway_spark.connector.staging_job import StagingJob
from sluiceway_spark.conversion.readable_types import check_readable
from sluiceway_spark.persisted import StagedFile, StagingProgress
from sluiceway_spark.session.configuration import full_text, other_python, said

__all__ = ["StagingEnumerator"]

_LOOK_EVERY_S: Final = 0.05
_STOP_S: Final = 10.0
_CANCEL_EVERY_S: Final = 0.5


class StagingEnumerator(Enumerator):
    """Enumerator that runs one Spark job in a thread of its own and assigns files as partitions complete.

    Where reading again could give other rows, or other partitions, nothing is handed out before everything is
    there, so that what a checkpoint knows never has to be computed again.

    Args:
        context: given by the runtime.
        frame: what to read.
        root: directory for the files; None: a temporary one, which goes when this is closed.
        restored: where an earlier one stood.
        as_arrow: whether records are Arrow batches, which have types that no other record has.
    """

    def __init__(
        self,
        context: EnumeratorContext,
        frame: Frame,
        root: str | None,
        restored: StagingProgress | None,
        *,
        as_arrow: bool = False,
    ) -> None:
        self._as_arrow = as_arrow
        self._context = context
        self._frame = frame
        self._root = root
        self._directory = "" if restored is None else restored.directory
        self._pending: deque[StagedFile] = deque(() if restored is None else restored.pending)
        self._known = set(() if restored is None else restored.known)
        self._complete = restored is not None and restored.complete
        self._waiting: deque[int] = deque()
        self._thread: threading.Thread | None = None
        # Written by the thread, read by the job manager's.
        self._early = False
        self._fingerprint = "" if restored is None else restored.fingerprint
        self._ended = False
        self._closed = False
        self._failure: BaseException | None = None
        self._job: StagingJob | None = None

    def start(self) -> None:
        """Begin with Spark's job, where there is something left to compute."""
        self.first_search()()()

    @override
    def first_search(self) -> Callable[[], Callable[[], None]]:
        # Not for the look at the directory alone: it has close(), which waits for Spark, called in another thread.
        def search() -> Callable[[], None]:
            if self._is_new or os.path.isdir(self._directory):
                return self._begin
            raise ConnectorError(
                f"what Spark had computed of {self._frame.what} was in {self._directory}, which is gone: a job "
                "that is to go on after its process has ended needs staging= with a directory that stays"
            )

        return search

    def _begin(self) -> None:
        if self._is_new:
            # What an earlier run left unfinished may be of other rows, and tasks of it may still be at it.
            self._directory = _new_directory(self._root)
        if self._complete:
            return
        self._thread = threading.Thread(target=self._stage, name="sluiceway-spark", daemon=True)
        self._thread.start()
        self._context.wake(_LOOK_EVERY_S)

    @property
    def _is_new(self) -> bool:
        return not self._known and not self._complete

    def handle_split_request(self, reader: int) -> None:
        """Give the next file, once there is one."""
        self._waiting.append(reader)
        self._hand_out()

    @override
    def add_splits_back(self, splits: Sequence[Any], reader: int) -> None:
        self._pending.extendleft(reversed(splits))
        self._hand_out()

    def run(self) -> None:
        """Look for partitions that are there."""
        if self._complete:
            return
        ended = self._ended  # asked before looking: what was there at the end is seen
        if ended and self._failure is not None:
            raise self._failure
        if self._job is not None and (ended or self._early):
            for partition, names in sorted(self._job.staged()):
                if partition not in self._known:
                    self._known.add(partition)
                    files = (StagedFile(self._directory, name, partition, n) for n, name in enumerate(names))
                    self._pending.extend(files)
        self._complete = ended
        self._hand_out()
        if not ended:
            self._context.wake(_LOOK_EVERY_S)

    @override
    def snapshot(self) -> StagingProgress:
        known = frozenset(self._known)
        return StagingProgress(self._directory, tuple(self._pending), known, self._complete, self._fingerprint)

    def close(self) -> None:
        """Cancel the job if it still runs, and remove a temporary directory."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._closed = True
            deadline = time.monotonic() + _STOP_S
            while thread.is_alive() and time.monotonic() < deadline:
                if self._job is not None and not self._ended:
                    self._job.cancel()  # again: what Spark has not begun with, it does not cancel
                thread.join(_CANCEL_EVERY_S)
        if self._root is None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _hand_out(self) -> None:
        while self._waiting and self._pending:
            self._context.assign(self._waiting.popleft(), [self._pending.popleft()])
        while self._waiting and self._complete:
            self._context.no_more_splits(self._waiting.popleft())

    def _stage(self) -> None:
        try:
            frame = self._frame.open()
            check_readable(frame.schema, self._frame.what, as_arrow=self._as_arrow)
            self._job = job = StagingJob(frame, self._frame.what)
            fingerprint = fingerprint_of(frame) if is_repeatable(frame) else ""
            if self._known and fingerprint != self._fingerprint:
                raise ConnectorError(
                    f"{self._frame.what} has changed since the checkpoint, which knows a part of it: only what "
                    "Spark had computed to the end can be gone on with then. Begin anew"
                )
            self._fingerprint = fingerprint
            self._early = bool(fingerprint)
            if not self._closed:
                # Nothing else is known yet than what was restored.
                job.run(self._directory, frozenset(self._known))
        except (ConnectorError, ConfigurationError) as error:
            self._failure = error
        except BaseException as error:
            if (python := other_python(full_text(error))) is not None:
                self._failure = ConfigurationError(f"Spark cannot compute {self._frame.what}: {python}")
                return
            self._failure = ConnectorError(f"Spark cannot compute {self._frame.what}: {said(error)}")
            self._failure.__cause__ = error
        finally:
            # After the failure is set: run() looks at both in another thread.
            self._ended = True
            self._context.wake()


def _new_directory(root: str | None) -> str:
    if root is None:
        return tempfile.mkdtemp(prefix="sluiceway-spark-")
    path = Path(root, f"staged-{uuid.uuid4().hex[:12]}")
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise ConnectorError(f"cannot make {path}, for staging={root!r}: {error}") from error
    return str(path.absolute())
