"""Into which parts files are cut, and that results stay the same."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sluiceway as sw
from sluiceway.testing.drivers import SourceDriver, drive_source
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSource
from sluiceway_files._parquet import _runs_of
from sluiceway_files._sizes import fitting_size, least_size

KIB = 1024
MIB = 1024 * 1024


@pytest.fixture
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of a few KiB, so that small files have several."""
    monkeypatch.setattr("sluiceway_files._sizes._MIN_LOCAL", 4 * KIB)
    monkeypatch.setattr("sluiceway_files._sizes._MIN_REMOTE", 4 * KIB)


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    filesystem.makedirs("/box")
    yield filesystem
    filesystem.rm("/box", recursive=True)


def numbers(path: Path, count: int = 10_000) -> list[str]:
    lines = [str(number) for number in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return lines


def read_by(source: FilesSource[Any], readers: int) -> tuple[list[list[str]], list[str]]:
    """Records by reader, and the names of the splits that they are from."""
    with SourceDriver(source, readers) as driver:
        driver.run()
        return driver.records, sorted(driver.splits)


@pytest.mark.parametrize(
    ("sizes", "readers", "local", "expected"),
    [
        ([40 * MIB], 1, True, 32 * MIB),  # nobody to share with
        ([40 * MIB], 2, True, 2.5 * MIB),
        ([10 * MIB, 30 * MIB], 2, True, 2.5 * MIB),
        ([3 * MIB], 2, True, MIB),
        ([], 2, True, MIB),
        ([3 * MIB], 2, False, 8 * MIB),
        ([4096 * MIB], 2, True, 32 * MIB),
        ([4096 * MIB], 64, False, 8 * MIB),
    ],
)
def test_sizes_follow_what_there_is_to_share(sizes: list[int], readers: int, local: bool, expected: float) -> None:
    assert fitting_size(sizes, readers, least_size(local=local)) == expected


def test_files_of_a_few_mebibytes_are_cut_for_several_readers_only(tmp_path: Path) -> None:
    lines = numbers(tmp_path / "a.txt", 600_000)  # 4 MiB
    source = FilesSource.text(tmp_path / "a.txt")
    records, splits = read_by(source, 1)
    assert (records, len(splits)) == ([lines], 1)
    records, splits = read_by(source, 2)
    assert sorted(records[0] + records[1]) == sorted(lines)
    assert len(splits) == 4
    assert all(len(of_reader) > 200_000 for of_reader in records)
    assert all(of_reader == sorted(of_reader, key=int) for of_reader in records)


@pytest.mark.usefixtures("small_splits")
def test_several_files_share_one_size(tmp_path: Path) -> None:
    """Small files beside a large one stay whole."""
    numbers(tmp_path / "large.txt")
    numbers(tmp_path / "small.txt", 100)
    splits = read_by(FilesSource.text(tmp_path), 2)[1]
    assert sum("small" in split for split in splits) == 1
    assert sum("large" in split for split in splits) > 8


@pytest.mark.usefixtures("small_splits")
@pytest.mark.parametrize("readers", [1, 2, 3])
def test_a_size_that_was_asked_for_is_taken(tmp_path: Path, readers: int) -> None:
    lines = numbers(tmp_path / "a.txt")
    assert len(read_by(FilesSource.text(tmp_path, split_size=12 * KIB), readers)[1]) == 4
    records, splits = read_by(FilesSource.text(tmp_path, split_size=1 << 40), readers)
    assert len(splits) == 1
    assert lines in records


@pytest.mark.usefixtures("small_splits")
def test_json_lines_are_cut_and_compressed_files_and_csv_are_not(tmp_path: Path) -> None:
    lines = numbers(tmp_path / "a.jsonl")
    numbers(tmp_path / "a.csv")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    assert len(read_by(FilesSource.json_lines(tmp_path / "a.jsonl"), 2)[1]) > 8
    assert sorted(drive_source(FilesSource.json_lines(tmp_path / "a.jsonl"), 2)) == list(range(len(lines)))
    assert len(read_by(FilesSource.text(tmp_path / "a.txt.gz"), 2)[1]) == 1
    assert len(read_by(FilesSource.csv(tmp_path / "a.csv", header=False), 2)[1]) == 1


@pytest.mark.usefixtures("small_splits")
def test_files_without_a_size_or_seeking_stay_whole(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [str(number) for number in range(10_000)]
    memory.pipe("/box/a.txt", "\n".join(lines).encode())
    source = FilesSource.text("memory://box/a.txt")
    assert len(read_by(source, 2)[1]) > 8
    info = type(memory).info
    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "info", lambda self, path, **more: info(self, path, **more) | {"size": None})
        assert len(read_by(source, 2)[1]) == 1

    def refuse(self: Any, to: int, whence: int = 0) -> int:
        if to != 0:
            raise ValueError("Cannot seek streaming file")
        return io.BytesIO.seek(self, to, whence)

    monkeypatch.setattr(type(memory.store["/box/a.txt"]), "seek", refuse)
    records, splits = read_by(source, 2)
    assert len(splits) == 1
    assert lines in records


@pytest.mark.usefixtures("small_splits")
@pytest.mark.parametrize("watch", [None, "1s"])
@pytest.mark.parametrize(("before", "after"), [(None, 3 * KIB), (3 * KIB, None), (1 << 40, None)])
def test_splits_of_another_size_are_restored(
    tmp_path: Path, before: int | None, after: int | None, watch: str | None
) -> None:
    """What a checkpoint holds is read as it was cut, whoever goes on from it."""
    lines = numbers(tmp_path / "a.txt")
    os.utime(tmp_path / "a.txt", (0, 0))
    with SourceDriver(FilesSource.text(tmp_path, split_size=before, watch=watch), 2) as driver:
        first = driver.run(most=3_000)
        snapshot = driver.snapshot()
    source = FilesSource.text(tmp_path, split_size=after, watch=watch)
    with SourceDriver(source, 3, restored=snapshot) as driver:
        rest = driver.run(most=len(lines) - len(first))
    assert sorted(first + rest, key=int) == lines


@pytest.mark.usefixtures("small_splits")
def test_files_that_are_found_together_share_the_readers(tmp_path: Path) -> None:
    """Each look of a watching source is divided for itself."""
    lines = numbers(tmp_path / "a.txt")
    os.utime(tmp_path / "a.txt", (0, 0))
    with SourceDriver(FilesSource.text(tmp_path, watch="1s"), 2) as driver:
        got = driver.run(most=len(lines))
        assert len(driver.splits) > 8
    assert sorted(got, key=int) == lines


@pytest.mark.usefixtures("small_splits")
@pytest.mark.parametrize("at_source", [True, False])
def test_windows_over_a_file_in_order_of_time_lose_nothing_at_any_parallelism(
    tmp_path: Path, at_source: bool
) -> None:
    """A reader that is ahead of the others is ahead of the watermark, not the other way round."""
    numbers(tmp_path / "a.txt", 30_000)
    strategy = (
        sw.WatermarkStrategy[Any].for_monotonous_timestamps().with_timestamp_assigner(lambda line: int(line))
    )

    def counts(parallelism: int) -> list[tuple[int, int]]:
        flow = sw.Pipeline("windows", parallelism=parallelism)
        source = FilesSource.text(tmp_path)
        lines = flow.source(source, watermark_strategy=strategy if at_source else None)
        if not at_source:
            lines = lines.assign_timestamps_and_watermarks(strategy)
        windows = lines.key_by(lambda line: int(line) % 3).window(TumblingEventTimeWindows("1s"))
        late: sw.OutputTag[str] = sw.OutputTag("late", str)
        counted = windows.side_output_late_data(late).count()
        tardy = counted.get_side_output(late).collect()
        collected = counted.collect()
        flow.run()
        assert tardy == []
        return sorted(collected)

    assert counts(1) == counts(2) == counts(3)


# ---- Parquet ----------------------------------------------------------------------------------------------------


def row_groups(path: Path, rows: list[int]) -> None:
    """Write a file with a row group of so many rows each; row n has the number n."""
    with pq.ParquetWriter(path, pa.schema({"n": pa.int64()})) as writer:
        for number, count in enumerate(rows):
            first = sum(rows[:number])
            writer.write_table(pa.table({"n": pa.array(range(first, first + count), pa.int64())}))


def parts(source: FilesSource[Any], readers: int) -> list[tuple[int, int | None]]:
    return [(split.start, split.end) for split in source._plan(readers)]


@pytest.mark.parametrize(
    ("groups", "sizes", "expected"),
    [
        ([], [], []),
        ([0], [100], [(0, 1)]),
        ([0, 1, 2], [5, 5, 1], [(0, 2), (2, 3)]),
        ([0, 1, 2, 3], [11, 1, 12, 1], [(0, 1), (1, 2), (2, 3), (3, 4)]),
        ([0, 1, 2, 3], [0, 10, 0, 0], [(0, 4)]),
        ([1, 2, 4, 5], [1, 1, 1, 1], [(1, 3), (4, 6)]),  # others in between are not to be read
    ],
)
def test_runs_of_row_groups_are_adjoining_and_small(
    groups: list[int], sizes: list[int], expected: list[tuple[int, int]]
) -> None:
    assert _runs_of(groups, sizes, 10) == expected


@pytest.mark.parametrize("readers", [1, 2, 3])
def test_small_row_groups_are_shared_by_all_readers(tmp_path: Path, readers: int) -> None:
    row_groups(tmp_path / "a.parquet", [1_000] * 100)
    source = FilesSource.parquet(tmp_path / "a.parquet")
    found = parts(source, readers)
    assert [start for start, _ in found[1:]] == [end for _, end in found[:-1]]
    assert (found[0][0], found[-1][1]) == (0, 100)
    assert len(found) == 1 if readers == 1 else 8 * readers <= len(found) < 100
    rows = drive_source(source, readers)
    assert sorted(row["n"] for row in rows) == list(range(100_000))


def test_row_groups_that_are_large_enough_are_splits_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row_groups(tmp_path / "a.parquet", [2_000, 2_000, 10, 10, 2_000])
    monkeypatch.setattr("sluiceway_files._parquet._LARGE_RUN", 8 * KIB)
    assert parts(FilesSource.parquet(tmp_path), 1) == [(0, 1), (1, 2), (2, 4), (4, 5)]


@pytest.mark.parametrize("read", range(0, 40, 3))
def test_a_position_in_any_row_group_of_a_split_is_resumed_at(tmp_path: Path, read: int) -> None:
    row_groups(tmp_path / "a.parquet", [10, 1, 0, 20, 9])
    source = FilesSource.parquet(tmp_path)
    with SourceDriver(source, limit=1) as driver:
        got = driver.run(read)
        left = driver.snapshot()
    assert len(driver.splits) == min(read, 1)
    with SourceDriver(source, restored=left) as driver:
        assert [row["n"] for row in got + driver.run()] == list(range(40))
