"""The files sink with checkpoints: two-phase commit in every format, and what is its own."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow.parquet as pq
import pytest

import sluiceway as sw
from sluiceway.clock import VirtualClock
from sluiceway.connector import CommittingSinkWriter, Sink
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.testing import InjectedError
from sluiceway.testing.conformance.committing import CommittingSinkConformance
from sluiceway.testing.drivers import SinkDriver
from sluiceway_files import FilesSink, FilesSource

ROWS = [{"id": i, "text": 'with "quotes"' if i % 5 == 0 else f"text {i}"} for i in range(40)]


def seen(directory: Path) -> list[Path]:
    """The files that whoever reads the directory finds, in the order of their numbers."""
    found = [path for path in directory.glob("*") if not path.name.startswith(".")]
    return sorted(
        found, key=lambda path: (int(path.name.split("-")[1]), int(path.name.split("-")[2].split(".")[0]))
    )


def hidden(directory: Path) -> list[str]:
    return sorted(path.name.rsplit(".", 1)[1] for path in directory.glob(".*"))


def lines(directory: Path) -> list[str]:
    return [line for path in seen(directory) for line in path.read_text().splitlines()]


class _Conformance(CommittingSinkConformance):
    visible_after_failure = False
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.place, self.number = tmp_path, 0

    def new_directory(self) -> Path:
        self.number += 1
        self.current = self.place / str(self.number)
        return self.current


class TestText(_Conformance):
    def make_sink(self) -> Sink[Any]:
        return FilesSink.text(self.new_directory(), **self.options)

    def written(self) -> list[Any]:
        return lines(self.current)


class TestRollingText(TestText):
    visible_after_failure = True  # complete files are, without checkpoints
    options: ClassVar[dict[str, Any]] = {"roll_size": 100}


class TestTextThatGoesOnOverCheckpoints(TestText):
    seen_with_checkpoint = False
    options: ClassVar[dict[str, Any]] = {"roll_on_checkpoint": False}


class TestRollingTextThatGoesOnOverCheckpoints(TestText):
    visible_after_failure = True
    options: ClassVar[dict[str, Any]] = {"roll_on_checkpoint": False, "roll_size": 300}


class TestCompressedJson(_Conformance):
    def records(self) -> list[Any]:
        return ROWS

    def make_sink(self) -> Sink[Any]:
        return FilesSink.json_lines(self.new_directory(), compression="gzip")

    def written(self) -> list[Any]:
        return [
            json.loads(line)
            for path in seen(self.current)
            for line in gzip.decompress(path.read_bytes()).splitlines()
        ]


class TestParquet(_Conformance):
    def records(self) -> list[Any]:
        return ROWS

    def make_sink(self) -> Sink[Any]:
        return FilesSink.parquet(self.new_directory(), row_group_size=7)

    def written(self) -> list[Any]:
        return [row for path in seen(self.current) for row in pq.read_table(path).to_pylist()]


class TestElsewhere(_Conformance):
    """On a filesystem that cannot rename."""

    @pytest.fixture(autouse=True)
    def _filesystem(self) -> Any:
        self.filesystem = fsspec.filesystem("memory")
        yield
        if self.filesystem.exists("/exactly-once"):
            self.filesystem.rm("/exactly-once", recursive=True)

    def make_sink(self) -> Sink[Any]:
        self.number += 1
        return FilesSink.text(f"memory://exactly-once/{self.number}", roll_size=200)

    def written(self) -> list[Any]:
        where = f"/exactly-once/{self.number}"
        paths = self.filesystem.find(where) if self.filesystem.exists(where) else []
        named = [path for path in paths if not path.rsplit("/", 1)[1].startswith(".")]
        return [line for path in named for line in self.filesystem.cat(path).decode().splitlines()]

    visible_after_failure = True
    ordered = False


# ---- names -----------------------------------------------------------------------------------------------------


def test_what_a_file_is_called_on_its_way(tmp_path: Path) -> None:
    with SinkDriver(FilesSink.text(tmp_path, roll_size=4), checkpoints=True) as driver:
        driver.write(["abc"])
        driver.write(["d"])
        assert seen(tmp_path) == []
        assert hidden(tmp_path) == ["in-progress", "pending"]
        driver.checkpoint()
        assert hidden(tmp_path) == ["pending", "pending"]
        driver.complete()
        assert hidden(tmp_path) == []
        first, second = seen(tmp_path)
        assert first.name.startswith("part-0-0-")
        assert second.name.startswith("part-0-1-")
        assert first.suffix == ".txt"


def test_each_attempt_has_names_of_its_own_and_goes_on_counting(tmp_path: Path) -> None:
    sink = FilesSink.text(tmp_path)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["a"])
        kept = driver.checkpoint()
        with SinkDriver(sink, checkpoints=True, restored=kept) as second:  # the first has not noticed yet
            second.write(["b"])
            driver.write(["too late"])
            driver.checkpoint()
            second.finish()
    assert [path.name.split("-")[2] for path in seen(tmp_path)] == ["0", "1"]
    assert lines(tmp_path) == ["a", "b"]


def test_files_of_an_earlier_run_are_refused_unless_the_job_goes_on_with_it(tmp_path: Path) -> None:
    sink = FilesSink.text(tmp_path)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["a"])
        driver.checkpoint()
        driver.complete()
        kept = driver.checkpoint()
        assert kept == [[]], "a checkpoint after a quiet time"
    with pytest.raises(ConnectorError, match=r"already holds part-0-0-.* from an earlier run.*with resume"):
        SinkDriver(sink, checkpoints=True)
    with SinkDriver(sink, checkpoints=True, restored=kept) as driver:
        driver.write(["b"])
        driver.finish()
    with SinkDriver(FilesSink.text(tmp_path, append=True), checkpoints=True) as driver:
        driver.write(["c"])
        driver.finish()
    assert lines(tmp_path) == ["a", "b", "c"]


def test_hidden_files_of_other_jobs_are_left_alone(tmp_path: Path) -> None:
    others = [".part-0-0-12345678.txt.87654321.in-progress", ".part-0-0.txt.in-progress", ".gitignore"]
    for name in others:
        (tmp_path / name).touch()
    with SinkDriver(FilesSink.text(tmp_path), checkpoints=True) as driver:
        driver.write(["a"])
        driver.finish()
    assert sorted(path.name for path in tmp_path.glob(".*")) == sorted(others)


def test_what_was_left_of_more_subtasks_is_removed(tmp_path: Path) -> None:
    sink = FilesSink.text(tmp_path, roll_size=4)
    with SinkDriver(sink, 5, checkpoints=True) as driver:
        for subtask in range(5):
            driver.write(["a"], subtask=subtask)
        kept = driver.checkpoint()
        for subtask in range(5):
            driver.write(["lost"], subtask=subtask)
            driver.write(["l"], subtask=subtask)
        driver._writers.clear()  # as if killed
    assert len(hidden(tmp_path)) == 15
    with SinkDriver(sink, 2, checkpoints=True, restored=kept):
        assert lines(tmp_path) == ["a"] * 5
        assert hidden(tmp_path) == []


def test_a_job_that_goes_on_without_checkpoints_commits_what_was_ready(tmp_path: Path) -> None:
    sink = FilesSink.text(tmp_path)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["a"])
        kept = driver.checkpoint()
    with SinkDriver(sink, restored=kept) as driver:
        assert lines(tmp_path) == ["a"]
        driver.write(["b"])
        driver.finish()
    assert lines(tmp_path) == ["a", "b"]
    assert hidden(tmp_path) == []


def test_complete_files_of_a_job_that_goes_on_without_checkpoints_stay_after_a_cancel(tmp_path: Path) -> None:
    with SinkDriver(FilesSink.text(tmp_path, roll_size=4), restored=[]) as driver:
        driver.write(["a", "b"])
        driver.write(["c"])
    assert lines(tmp_path) == ["a", "b"]
    assert hidden(tmp_path) == []


def test_a_savepoint_of_such_a_job_completes_a_file_that_goes_on_over_checkpoints(tmp_path: Path) -> None:
    with SinkDriver(FilesSink.text(tmp_path, roll_on_checkpoint=False), restored=[]) as driver:
        driver.write(["a"])
        writer = driver.writer()
        assert isinstance(writer, CommittingSinkWriter)
        assert writer.prepare_commit(1) == []
        assert lines(tmp_path) == ["a"]


def test_a_savepoint_of_a_job_without_checkpoints_completes_the_file(tmp_path: Path) -> None:
    with SinkDriver(FilesSink.text(tmp_path)) as driver:
        driver.write(["a"])
        writer = driver.writer()
        assert isinstance(writer, CommittingSinkWriter)
        assert writer.prepare_commit(1) == []
    assert (tmp_path / "part-0-0.txt").read_text() == "a\n"


# ---- files that go on over checkpoints -------------------------------------------------------------------------


def test_a_file_that_goes_on_is_seen_when_it_is_large_enough(tmp_path: Path) -> None:
    with SinkDriver(FilesSink.text(tmp_path, roll_on_checkpoint=False, roll_size=6), checkpoints=True) as driver:
        for letter in "abcd":
            driver.write([letter])
            driver.checkpoint()
            driver.complete()
            assert len(seen(tmp_path)) == (letter in "cd")
        driver.finish()
    assert lines(tmp_path) == ["a", "b", "c", "d"]
    assert len(seen(tmp_path)) == 2


@pytest.mark.parametrize("size", [10, 1000])
def test_it_is_cut_back_to_what_the_checkpoint_knows_of(
    tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where it was complete by then, but not in a checkpoint yet."""
    sink = FilesSink.csv(tmp_path, roll_on_checkpoint=False, roll_size=size)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write([{"n": 1}])
        driver.checkpoint()
        driver.complete()
        driver.write([{"n": 2}])
        kept = driver.checkpoint()
        driver.write([{"n": 3333}])
        driver.flush()
        assert hidden(tmp_path) == ["in-progress" if size == 1000 else "pending"]
        driver.checkpoint()
    for _ in range(2):
        with SinkDriver(sink, checkpoints=True, restored=kept):
            assert lines(tmp_path) == ["n", "1", "2"]
            assert hidden(tmp_path) == []
    assert caplog.text == ""


def test_a_failure_leaves_the_file_that_a_checkpoint_knows_of(tmp_path: Path) -> None:
    sink = FilesSink.text(tmp_path, roll_on_checkpoint=False)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["a"])
    assert hidden(tmp_path) == []
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["a"])
        driver.checkpoint()
    assert hidden(tmp_path) == ["in-progress"]
    sink = FilesSink.text(tmp_path, roll_on_checkpoint=False, roll_size=4)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["a"])
        kept = driver.checkpoint()
        driver.write(["b"])  # that file is complete, and the checkpoint knows of its beginning
        driver.write(["cd\n"])  # that one is, and none knows of it
        driver.write(["e"])
    assert hidden(tmp_path) == ["pending"]
    with SinkDriver(sink, checkpoints=True, restored=kept):
        assert lines(tmp_path) == ["a"]


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_file_that_is_old_enough_is_complete(tmp_path: Path, checkpoints: bool) -> None:
    clock = VirtualClock()
    sink = FilesSink.text(tmp_path, roll_interval="1min", roll_on_checkpoint=False)
    with SinkDriver(sink, clock=clock, checkpoints=checkpoints) as driver:
        driver.write(["a"])
        clock.advance(59_999)
        driver.write(["b"])
        driver.flush()
        assert hidden(tmp_path) == ["in-progress"]
        clock.advance(1)
        driver.flush()
        if checkpoints:
            assert hidden(tmp_path) == ["pending"]
            driver.checkpoint()
            driver.complete()
        assert hidden(tmp_path) == []
        assert lines(tmp_path) == ["a", "b"] if checkpoints else (tmp_path / "part-0-0.txt").exists()


# ---- what can go wrong -----------------------------------------------------------------------------------------


def test_a_ready_file_that_somebody_has_removed_fails_the_job(tmp_path: Path) -> None:
    with SinkDriver(FilesSink.text(tmp_path), checkpoints=True) as driver:
        driver.write(["a"])
        driver.checkpoint()
        for path in tmp_path.glob(".*"):
            path.unlink()
        with pytest.raises(
            ConnectorError, match=r"cannot commit .*part-0-0-.*\.txt: neither it nor .*\.pending is"
        ):
            driver.complete()


def test_a_commit_may_come_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = FilesSink.text(tmp_path)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["a"])
        kept = driver.checkpoint()
        writer = driver.writer()
        assert isinstance(writer, CommittingSinkWriter)
        for _ in range(2):
            writer.commit(kept[0])
        driver.complete()
    with SinkDriver(sink, checkpoints=True, restored=kept):
        assert lines(tmp_path) == ["a"]
    assert caplog.text == ""


def test_after_a_restart_it_may_have_been_consumed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = FilesSink.text(tmp_path)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["a"])
        kept = driver.checkpoint()
        driver.complete()
    for path in seen(tmp_path):
        path.unlink()
    with SinkDriver(sink, checkpoints=True, restored=kept):
        pass
    assert seen(tmp_path) == []
    assert "is not there any more" in caplog.text


def test_files_are_durable_before_the_checkpoint_relies_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    with SinkDriver(FilesSink.text(tmp_path), checkpoints=True) as driver:
        driver.write(["a"])
        driver.checkpoint()
        assert [name.rsplit(".", 1)[1] for name in synced] == ["in-progress"]
        driver.complete()
        assert synced[1:] == [str(tmp_path)]
        synced.clear()
    with SinkDriver(FilesSink.text(tmp_path, roll_on_checkpoint=False, append=True), checkpoints=True) as driver:
        driver.write(["a"])
        kept = driver.checkpoint()
        assert [name.rsplit(".", 1)[1] for name in synced] == ["in-progress"]
    synced.clear()
    with SinkDriver(FilesSink.text(tmp_path, append=True), checkpoints=True, restored=kept):
        assert [name.rsplit(".", 1)[-1] for name in synced] == ["cut", str(tmp_path)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"roll_interval": "soon"}, "roll_interval='soon': 'soon' is not a duration"),
        ({"roll_interval": 0}, "roll_interval=0 must be at least 1 ms, or None"),
        (
            {"roll_on_checkpoint": False, "compression": "gzip"},
            "roll_on_checkpoint=False: compression='gzip' cannot be cut back to where a checkpoint was",
        ),
        (
            {"roll_on_checkpoint": False, "directory": "memory://x"},
            "roll_on_checkpoint=False: only local files can be cut back to where a checkpoint was, not those of "
            "memory://x",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FilesSink.of(**{"directory": "a", **options})
    assert str(caught.value) == message


def test_relative_paths_stay_what_they_were_when_a_function_changes_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "words.txt").write_text("".join(f"{n}\n" for n in range(100)))
    failed: list[str] = []

    def leaving(line: str) -> str:
        os.chdir(tmp_path / "elsewhere")
        if line == "50" and not failed:
            failed.append(line)
            raise InjectedError
        return line

    flow = sw.Pipeline("words")
    flow.source(FilesSource.text("words.txt")).map(leaving).sink(FilesSink.text("out"))
    flow.run(checkpoint_interval="1h", restart="fixed-delay:1:1ms")
    assert lines(tmp_path / "out") == [str(n) for n in range(100)]
    assert list((tmp_path / "elsewhere").iterdir()) == []
