"""Records of jobs that have ended, one file for each in a directory, for those who look at them later."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from sluiceway.errors import SluicewayError
from sluiceway.metrics import JobMetrics, Number, SplitTimes, SubtaskMetrics
from sluiceway.monitoring.infos import CheckpointInfo, JobDescription, JobInfo
from sluiceway.util.durable_files import write_file
from sluiceway.util.file_names import file_name_of_id
from sluiceway.util.private_files import make_private_directory
from sluiceway.util.surrogates import json_bytes

__all__ = ["EndedJob", "JobHistory", "JobHistoryError"]

_VERSION: Final = 1
_SUFFIX: Final = ".job.json"
_LARGEST: Final = 64 * 2**20


class JobHistoryError(SluicewayError):
    """A record cannot be read; names the file."""


class EndedJob(msgspec.Struct, frozen=True):
    """All that is known of a job that has ended.

    Attributes:
        info: its name, times, status and failures.
        description: its graph, attempts, options and last metrics.
        checkpoints: the last ones, oldest first.
        directory: of its checkpoints; empty: it has none, or they are gone.
        version: of this form.
    """

    info: JobInfo
    description: JobDescription
    checkpoints: list[CheckpointInfo] = []
    directory: str = ""
    version: int = _VERSION


class JobHistory:
    """Directory of such records, in JSON. Its methods block; any number of processes may write and read.

    Args:
        directory: made by the first :meth:`add`, for its owner alone.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).absolute()

    def add(self, ended: EndedJob) -> Path:
        """Write the record of a job, whole or not at all. Returns its path. Raises OSError."""
        make_private_directory(self.directory)
        file = self._file(ended.info.job)
        description = ended.description
        if description.metrics is not None:
            description = msgspec.structs.replace(description, metrics=_finite(description.metrics))
        write_file(file, json_bytes(msgspec.structs.replace(ended, description=description)))
        return file

    def has(self, job: str) -> bool:
        """Return True if there is a record of a job."""
        return self._file(job).exists()

    def files(self) -> list[Path]:
        """Return the files of the records, in no order; an empty list if there is no directory. Raises OSError."""
        try:
            return [entry for entry in self.directory.iterdir() if entry.name.endswith(_SUFFIX)]
        except FileNotFoundError:
            return []

    def find(self, job: str) -> EndedJob:
        """Return the record of a job. Raises JobHistoryError."""
        return self.read(self._file(job))

    def read(self, file: Path) -> EndedJob:
        """Return the record in a file. Raises JobHistoryError: it cannot be read; names the file."""
        try:
            with file.open("rb") as stream:
                data = stream.read(_LARGEST + 1)
        except OSError as error:
            raise JobHistoryError(f"{file} cannot be read: {error.strerror or error}") from error
        if len(data) > _LARGEST:
            raise JobHistoryError(f"{file} is larger than {_LARGEST // 2**20} MiB, and no record of a job")
        try:
            ended = msgspec.json.decode(data, type=EndedJob)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise JobHistoryError(f"{file} is no record of a job: {error}") from error
        if ended.version != _VERSION:
            raise JobHistoryError(
                f"{file} is of version {ended.version}, and this Sluiceway knows version {_VERSION}"
            )
        return ended

    def forget(self, job: str) -> None:
        """Remove the record of a job, if there is one. Raises OSError."""
        self._file(job).unlink(missing_ok=True)

    def _file(self, job: str) -> Path:
        return self.directory / (file_name_of_id(job) + _SUFFIX)


def _finite(metrics: JobMetrics) -> JobMetrics:
    """Return metrics without numbers that JSON does not have."""
    latency = {name: _finite_figures(figures) for name, figures in metrics.latency_ms.items()}
    subtasks = tuple(_finite_subtask(task, metrics.elapsed_s) for task in metrics.subtasks)
    return replace(metrics, latency_ms=latency, subtasks=subtasks)


def _finite_subtask(task: SubtaskMetrics, elapsed_s: float) -> SubtaskMetrics:
    operators = {name: _finite_figures(figures) for name, figures in task.operators.items()}
    splits = None if task.splits is None else _finite_splits(task.splits, elapsed_s)
    return replace(task, user=_finite_figures(task.user), operators=operators, splits=splits)


def _finite_splits(splits: SplitTimes, elapsed_s: float) -> SplitTimes:
    """Return the figures with the time that the job took in place of a time without records that has no end."""

    def finite(silent_s: float) -> float:
        return silent_s if math.isfinite(silent_s) else elapsed_s

    shown = tuple(replace(split, silent_s=finite(split.silent_s)) for split in splits.shown)
    return replace(splits, last_record_s=finite(splits.last_record_s), shown=shown)


def _finite_figures(figures: Mapping[str, Number]) -> dict[str, Number]:
    return {name: value for name, value in figures.items() if math.isfinite(value)}
