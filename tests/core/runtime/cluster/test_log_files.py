"""Log files of a cluster's processes: bounded, filtered by the level of a job, read together and followed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluiceway.runtime.cluster import log_files
from sluiceway.runtime.cluster.log_files import MOST_FILES, LogFile, LogFollower, PrintedLines, read_logs
from sluiceway.runtime.logging.task_logs import as_text, make_line


def said(directory: Path) -> list[str]:
    return [line.message for line in read_logs(directory)]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.Logger("mine")
    yield made
    for handler in made.handlers:
        handler.close()


def test_lines_of_all_processes_are_ordered_by_time(tmp_path: Path) -> None:
    for name, times in (("a", (1.0, 4.0)), ("b", (2.0, 3.5, 3.0))):
        log = LogFile(tmp_path / "logs", name, "info")
        log.write(make_line(t, "INFO", name, "x", f"{name}{t}", None) for t in times)
        log.close()
        log.close()
    with open(tmp_path / "logs" / "b.jsonl", "ab") as file:
        file.write(b'{"time":"\xff"}\n{"time":' + b"[" * 100_000 + b'\n{"time":"half a li')
    assert said(tmp_path / "logs") == ["a1.0", "b2.0", "b3.0", "b3.5", "a4.0"]
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "logs").iterdir()} == {0o600}
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700


def test_a_file_never_takes_more_than_twice_its_bound_and_keeps_what_is_newest(tmp_path: Path) -> None:
    log = LogFile(tmp_path, "a", "info", most_bytes=2000)
    for number in range(200):
        log.write([make_line(float(number), "INFO", "a", "x", str(number), None)])
    log.close()
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 4000
    kept = [int(text) for text in said(tmp_path)]
    assert kept == list(range(kept[0], 200))
    assert len(kept) > 10


def test_files_of_processes_that_wrote_longest_ago_go(tmp_path: Path) -> None:
    for number in range(MOST_FILES + 3):
        log = LogFile(tmp_path, f"worker-{number}", "info")
        log.close()
        os.utime(tmp_path / f"worker-{number}.jsonl", (number, number))
    left = {int(p.stem.partition("-")[2]) for p in tmp_path.glob("*.jsonl")}
    assert left == set(range(3, MOST_FILES + 3))


def test_the_file_of_a_process_that_is_alive_stays_however_long_ago_it_wrote(tmp_path: Path) -> None:
    logs = [LogFile(tmp_path, f"worker-{number}", "info") for number in range(2)]
    for number in range(2):
        os.utime(tmp_path / f"worker-{number}.jsonl", (number, number))
    logs[1].close()
    for number in range(2, MOST_FILES + 2):
        LogFile(tmp_path, f"worker-{number}", "info").close()
    assert (tmp_path / "worker-0.jsonl").exists()
    assert not (tmp_path / "worker-1.jsonl").exists()
    logs[0].close()


def long_lines(log: LogFile, numbers: range) -> None:
    for number in numbers:
        log.write([make_line(float(number), "INFO", "a", "x", f"{number} {'-' * 100}", None)])


def test_a_file_that_was_removed_is_made_again_when_it_is_full(tmp_path: Path) -> None:
    log = LogFile(tmp_path, "a", "info", most_bytes=1000)
    long_lines(log, range(2))
    (tmp_path / "a.jsonl").unlink()
    long_lines(log, range(2, 20))
    log.close()
    assert said(tmp_path)[-1].startswith("19 ")


def test_while_no_new_file_can_be_opened_nothing_is_written_to_what_others_have_opened(tmp_path: Path) -> None:
    directory, away = tmp_path / "logs", tmp_path / "away"
    log = LogFile(directory, "a", "info", most_bytes=1000)
    long_lines(log, range(2))
    directory.rename(away)
    long_lines(log, range(2, 20))
    # It would be given the number of a descriptor that was closed.
    with open(tmp_path / "other", "wb") as other:
        long_lines(log, range(20, 22))
        assert os.fstat(other.fileno()).st_size == 0
        away.rename(directory)
        long_lines(log, range(22, 24))
        log.close()
        other.write(b"still open")
    assert [text.partition(" ")[0] for text in said(directory)][-2:] == ["22", "23"]
    assert (tmp_path / "other").read_bytes() == b"still open"


def test_each_job_has_a_level_of_its_own(tmp_path: Path, logger: logging.Logger) -> None:
    log = LogFile(tmp_path, "a", "info")
    logger.addHandler(log)
    logger.name = "sluiceway.jobs"  # whose records may name a job
    log.use_level("loud", "debug")
    log.use_level("quiet", "error")
    assert log.lowest == logging.DEBUG
    for job in ("loud", "quiet", "other"):
        for level in (logging.DEBUG, logging.INFO, logging.ERROR):
            logger.log(level, "%s %d", job, level, extra={"job": job})
    assert said(tmp_path) == ["loud 10", "loud 20", "loud 40", "quiet 40", "other 20", "other 40"]
    log.use_level("loud", None)
    assert log.lowest == logging.INFO


def test_what_is_printed_becomes_lines(tmp_path: Path) -> None:
    log = LogFile(tmp_path, "a", "error")
    out = PrintedLines(log, "STDOUT", 1)
    print("one", file=out)
    print("two", "words", sep="\n", end="", file=out)
    assert said(tmp_path) == ["one", "two"]
    print("!", file=out, flush=True)
    print("\udcff", file=out)
    assert said(tmp_path) == ["one", "two", "words!", "\\udcff"]
    assert {line.level for line in read_logs(tmp_path)} == {"STDOUT"}
    assert out.fileno() == 1
    log.close()
    print("too late", file=out)


def test_a_follower_repeats_nothing_when_a_file_is_put_aside_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogFile(tmp_path, "a", "info", most_bytes=1000)
    numbers = iter(range(100))

    def write_until(enough: Callable[[], bool]) -> None:
        while not enough():
            number = next(numbers)
            log.write([make_line(float(number), "INFO", "a", "x", str(number), None)])

    follower = LogFollower(tmp_path)
    write_until((tmp_path / "a.jsonl").exists)
    write_until(lambda: (tmp_path / "a.jsonl").stat().st_size > 500)
    seen = [int(line.message) for line in follower.read()]
    listed = log_files._files(tmp_path)
    write_until((tmp_path / "a.jsonl.1").exists)
    with monkeypatch.context() as patched:
        patched.setattr(log_files, "_files", lambda directory: listed)
        seen += [int(line.message) for line in follower.read()]
    seen += [int(line.message) for line in follower.read()]
    log.close()
    assert sorted(seen) == list(range(next(numbers)))


def test_a_follower_reads_on_when_files_are_put_aside_and_come(tmp_path: Path) -> None:
    follower = LogFollower(tmp_path)
    assert follower.read() == []
    log = LogFile(tmp_path, "a", "info", most_bytes=1000)
    seen = []
    for number in range(50):
        # Less than a file between two looks: what has gone by then cannot be read.
        log.write([make_line(float(number), "INFO", "a", "x", str(number), None)])
        if number % 3 == 0:
            seen += [int(line.message) for line in follower.read()]
        if number == 30:
            other = LogFile(tmp_path, "b", "info")
            other.write([make_line(30.5, "INFO", "b", "x", "1000", None)])
            other.close()
    log.close()
    seen += [int(line.message) for line in follower.read()]
    assert sorted(seen) == [*range(50), 1000]
    with open(tmp_path / "b.jsonl", "ab") as file:
        file.write(b'{"time":"t","level":"INFO","process":"b","logger":"","mess')
        file.flush()
        assert follower.read() == []
        file.write(b'age":"whole"}\n')
    assert [line.message for line in follower.read()] == ["whole"]


def test_lines_for_people_say_where_they_come_from() -> None:
    line = make_line(0.0, "INFO", "worker-1", "lib", "hello", None, trace="Traceback\nValueError")
    assert as_text(line).partition(" INFO")[2] == "    [worker-1] lib: hello\nTraceback\nValueError"


def test_a_record_that_cannot_be_formatted_is_told_of_all_the_same(tmp_path: Path, logger: logging.Logger) -> None:
    logger.addHandler(LogFile(tmp_path, "a", "info"))
    logger.info("%d", "x")
    (text,) = said(tmp_path)
    assert text.startswith("'%d' cannot be formatted with ('x',): TypeError")
