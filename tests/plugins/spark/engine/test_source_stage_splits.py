"""Splits that end while their source goes on, in micro-batches: no watermark is lost between them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    SimpleReader,
)
from sluiceway.elements import Batch, Watermark
from sluiceway.plugins import default_manager
from sluiceway.runtime.messages.pickling import dump
from sluiceway.runtime.microbatch.batch_limits import BatchLimits
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway_spark.structured.microbatch import reading
from sluiceway_spark.structured.microbatch.planning import SourcePlanning
from sluiceway_spark.structured.microbatch.reading import read_part
from sluiceway_spark.structured.microbatch.source_spec import SourceStage

TIMES = [[1, 2, 3], [11], [], [14, 15], [21, 22, 23, 24], [35]]


@dataclass(frozen=True)
class _File:
    split_id: str
    times: tuple[int, ...]
    at: int = 0


class Watched(sw.Source[int]):
    """Files that are read one after the other; more may always come.

    Args:
        keeps_ends: whether a reader's snapshot has a file that is read to its end and not left yet.
    """

    def __init__(self, keeps_ends: bool) -> None:
        self.keeps_ends = keeps_ends

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.UNBOUNDED

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        files = [_File(f"file-{number}", tuple(times)) for number, times in enumerate(TIMES)]
        return _Watching(context, files if restored is None else restored)

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return _FileReader(context, self.keeps_ends)


class _Watching(SimpleEnumerator):
    def handle_split_request(self, reader: int) -> None:
        if self._pending:
            super().handle_split_request(reader)


class _FileReader(SimpleReader[int]):
    file: _File

    def __init__(self, context: ReaderContext, keeps_ends: bool) -> None:
        super().__init__(context)
        self._keeps_ends = keeps_ends

    def open_split(self, split: _File) -> None:
        self.file = split

    def read(self, limit: int) -> Poll[int]:
        file = self.file
        part = file.times[file.at : file.at + limit]
        self.file = replace(file, at=file.at + len(part))
        return list(part) or END_OF_INPUT

    def position(self) -> _File | None:
        return self.file if self._keeps_ends or self.file.at < len(self.file.times) else None

    def close_split(self) -> None: ...


@pytest.fixture(autouse=True)
def closed_readers() -> Iterator[None]:
    yield
    reading._readers.close()


def read_all(directory: Path, records: int, keeps_ends: bool, restarts: bool) -> list[Any]:
    """All that the source's subtask sends, in as many micro-batches as it takes."""
    flow = sw.Pipeline("watched")
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v: v)
    strategy = strategy.with_idleness("1h")
    flow.source(Watched(keeps_ends), watermark_strategy=strategy).key_by(lambda v: 0).count().collect()
    options, services = Settings(parallelism=1, max_parallelism=1), default_manager().services()
    plan = SteppedPlan.of(flow.graph(options), options, services)
    limits = BatchLimits(records=records, wait_s=0.01, linger_s=0.01)
    stage: SourceStage = pickle.loads(
        cloudpickle.dumps(SourceStage(dump((plan, services)), str(directory), limits, ()))
    )
    planning = SourcePlanning(stage, "run")
    offset: dict[str, Any] = {"run": "run", "batch": 0}
    elements: list[Any] = []
    dry = 0
    try:
        while dry < 3:
            end = planning.next(offset)
            if end == offset:
                dry += 1
                continue
            rows = [row for part in planning.partitions(end["batch"]) for row in read_part(stage, part)]
            for row in rows:
                if row.stage <= plan.last_stage:
                    elements += plan.unpack(row.sender, bytes(row.payload))
            offset = end
            planning.committed(end["batch"])
            if restarts:
                planning.close()
                reading._readers.close()
                planning = SourcePlanning(stage, "run")
                dry += not rows
                if end["batch"] > 40:
                    break
    finally:
        planning.close()
    return elements


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("keeps_ends", [False, True])
@pytest.mark.parametrize("records", [1, 2, 3, 100])
def test_the_last_watermark_is_that_of_all_files(
    tmp_path: Path, records: int, keeps_ends: bool, restarts: bool
) -> None:
    elements = read_all(tmp_path, records, keeps_ends, restarts)
    assert [v for e in elements if isinstance(e, Batch) for v in e.values] == [t for file in TIMES for t in file]
    marks = [element.timestamp for element in elements if isinstance(element, Watermark)]
    assert marks == sorted(marks)
    assert marks[-1] == 34
    reached = 0
    for element in elements:
        if isinstance(element, Watermark):
            reached = element.timestamp
        elif isinstance(element, Batch):
            assert min(element.values) > reached
