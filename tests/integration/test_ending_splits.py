"""Windows over a source whose splits end while the source itself does not: what its splits say is not lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sluiceway as sw
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
from sluiceway.testing import PipelineHarness


@dataclass(frozen=True)
class _File:
    split_id: str
    times: tuple[int, ...]
    at: int = 0


class Watched(sw.Source[int]):
    """Files that are found one after the other, or all at once; more may always come."""

    def __init__(self, files: Sequence[Sequence[int]], at_once: bool = False) -> None:
        self.files = [_File(f"file-{number}", tuple(times)) for number, times in enumerate(files)]
        self.at_once = at_once

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.UNBOUNDED

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        return _Watching(context, self.files if restored is None else restored, self.at_once)

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return _FileReader(context)


class _Watching(SimpleEnumerator):
    def __init__(self, context: EnumeratorContext, files: Sequence[_File], at_once: bool) -> None:
        super().__init__(context, files)
        self._at_once = at_once

    def handle_split_request(self, reader: int) -> None:
        count = len(self._pending) if self._at_once else 1
        if self._pending:
            self._context.assign(reader, self._pending[:count])
            del self._pending[:count]


class _FileReader(SimpleReader[int]):
    file: _File

    def open_split(self, split: _File) -> None:
        self.file = split

    def read(self, limit: int) -> Poll[int]:
        file = self.file
        part = file.times[file.at : file.at + limit]
        self.file = replace(file, at=file.at + len(part))
        return list(part) or END_OF_INPUT

    def position(self) -> _File | None:
        return self.file

    def close_split(self) -> None: ...


class _Count(sw.ProcessWindowFunction[int, tuple[int, int], int]):
    def process(self, key: int, ctx: Any, elements: Any) -> Any:
        yield ctx.window().start, len(list(elements))


def windows_of(source: Watched, *, after_ms: int = 0, idleness_ms: int = 0, **options: Any) -> list[Any]:
    """The windows of 10 ms that have fired when all files were read."""
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v: v)
    if idleness_ms:
        strategy = strategy.with_idleness(idleness_ms)
    flow = sw.Pipeline()
    stream = flow.source(source, watermark_strategy=strategy)
    windowed = stream.key_by(lambda v: 0).window(sw.windows.TumblingEventTimeWindows.of(10))
    results = windowed.process(_Count()).collect()
    with PipelineHarness(flow, **options) as harness:
        harness.run()
        if after_ms:
            harness.advance(after_ms)
        return sorted(results)


@pytest.mark.parametrize("interval", ["0", "200ms", "1h"])
@pytest.mark.parametrize("batch_size", [1, 3, 1000])
@pytest.mark.parametrize("at_once", [False, True])
def test_windows_fire_when_small_files_have_been_read(at_once: bool, batch_size: int, interval: str) -> None:
    source = Watched([[1, 2, 3], [11, 12], [], [25], [30]], at_once)
    fired = windows_of(source, batch_size=batch_size, auto_watermark_interval=interval)
    assert fired == [(0, 3), (10, 2), (20, 1)]


@given(
    files=st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=6),
    at_once=st.booleans(),
    batch_size=st.sampled_from([1, 2, 3, 1000]),
    interval=st.sampled_from(["0", "200ms", "1h"]),
)
def test_what_fires_depends_on_the_records_alone(
    files: list[list[int]], at_once: bool, batch_size: int, interval: str
) -> None:
    # Each file goes on where the one before it has stopped: none is late.
    files = [sorted(10 * number + time for time in times) for number, times in enumerate(files)]
    times = [time for file in files for time in file]
    last = max(times, default=0) - 1
    starts = {time // 10 * 10 for time in times}
    expected = [(s, sum(s <= time < s + 10 for time in times)) for s in sorted(starts) if s + 9 <= last]
    source = Watched(files, at_once)
    assert windows_of(source, batch_size=batch_size, auto_watermark_interval=interval) == expected


def test_a_reader_without_a_file_is_idle_after_a_while() -> None:
    source = Watched([[1, 2, 3], [11]])
    options = {"batch_size": 10, "parallelism": 3, "auto_watermark_interval": "1h"}
    assert windows_of(source, idleness_ms=50, after_ms=100, **options) == [(0, 3)]


class Listed(Watched):
    """Files that are all there are."""

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        return SimpleEnumerator(context, self.files if restored is None else restored)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_small_files_that_overlap_do_not_make_each_other_late(parallelism: int) -> None:
    fired = windows_of(Listed([[1, 21], [2, 22], [11, 23]]), parallelism=parallelism, batch_size=1000)
    assert fired == [(0, 2), (10, 1), (20, 3)]


def test_a_source_without_a_file_does_not_hold_its_alignment_group_back() -> None:
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v: v)
    strategy = strategy.with_watermark_alignment("g", 100)
    flow = sw.Pipeline()
    flow.source(Watched([[10]]), watermark_strategy=strategy).collect()
    others = flow.source(Watched([list(range(10, 1000, 10))]), watermark_strategy=strategy).collect()
    with PipelineHarness(flow, batch_size=1, auto_watermark_interval=0) as harness:
        harness.advance(5_000)
        assert len(others) == 99
