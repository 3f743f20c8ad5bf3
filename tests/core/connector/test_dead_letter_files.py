"""The files of the sink for dead letters."""

from __future__ import annotations

import os
import stat
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.clock import VirtualClock
from sluiceway.connector import CommittingSinkWriter, WriterContext
from sluiceway.connector.lib import DeadLetterSink, dead_letter_files, read_dead_letters
from sluiceway.metrics import MetricGroup


def context(*, has_checkpoints: bool, at: int = 5) -> WriterContext:
    return WriterContext(
        0, 1, VirtualClock(at), lambda: None, MetricGroup(), job_name="a/b c", has_checkpoints=has_checkpoints
    )


def letter(record: str, data: bytes | None = b"\x80\xff") -> sw.DeadLetter:
    return sw.DeadLetter("job", "step", "uid", 1, 2, "E: x", "Traceback\n", record, data, "'k'", 3, 4)


def records(directory: Path) -> list[str]:
    return [found.record for found in read_dead_letters(dead_letter_files(directory))]


def opened(sink: DeadLetterSink, *, at: int = 5) -> CommittingSinkWriter[Any]:
    writer = sink.create_writer(context(has_checkpoints=True, at=at))
    assert isinstance(writer, CommittingSinkWriter)
    writer.open()
    return writer


def test_letters_come_back_as_they_were(tmp_path: Path) -> None:
    writer = DeadLetterSink(tmp_path).create_writer(context(has_checkpoints=False))
    writer.open()
    letters = [
        letter("\u2028 \n ' \\ \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")),
        letter("b", None),
    ]
    writer.write(letters, None)
    assert dead_letter_files(tmp_path) == []
    writer.flush()
    (file,) = dead_letter_files(tmp_path)
    assert file.name.startswith("a-b-c-0000000000005-")
    assert list(read_dead_letters([file])) == letters
    writer.close()
    assert dead_letter_files(tmp_path) == [file]


def test_letters_of_earlier_versions_are_read() -> None:
    now = letter("a")
    earlier = object.__new__(sw.DeadLetter)
    earlier.__setstate__([getattr(now, field.name) for field in fields(now) if field.name != "undecoded"])
    assert earlier == now


def test_files_are_in_the_order_of_time(tmp_path: Path) -> None:
    for at in (900, 1_000, 20):
        writer = DeadLetterSink(tmp_path).create_writer(context(has_checkpoints=False, at=at))
        writer.open()
        writer.write([letter(str(at))], None)
        writer.close()
    assert records(tmp_path) == ["20", "900", "1000"]


def test_with_checkpoints_a_letter_is_seen_when_one_is_complete(tmp_path: Path) -> None:
    writer = opened(DeadLetterSink(tmp_path))
    writer.recover([])
    writer.write([letter("a")], None)
    ready = writer.prepare_commit(1)
    writer.write([letter("b")], None)
    assert records(tmp_path) == []
    writer.commit(ready)
    writer.commit(ready)
    assert records(tmp_path) == ["a"]
    writer.close()
    assert records(tmp_path) == ["a"]
    assert len(os.listdir(tmp_path)) == 1


def test_names_of_files_survive_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, list[str]]] = []

    def fsync(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append((is_directory, [Path(name).suffix for name in os.listdir(tmp_path)]))

    monkeypatch.setattr(os, "fsync", fsync)
    writer = opened(DeadLetterSink(tmp_path))
    writer.recover([])
    writer.commit(writer.prepare_commit(1))
    assert synced == []
    writer.write([letter("a")], None)
    ready = writer.prepare_commit(2)
    assert synced == [(False, [".open"]), (True, [".open"])]
    writer.commit(ready)
    assert synced[2:] == [(True, [".jsonl"])]
    writer.close()


def test_what_no_checkpoint_knows_of_goes_with_the_next_attempt_but_not_that_of_other_runs(tmp_path: Path) -> None:
    sink, other = DeadLetterSink(tmp_path), DeadLetterSink(tmp_path)
    elsewhere = opened(other)
    elsewhere.recover([])
    elsewhere.write([letter("other")], None)
    killed = opened(sink)
    killed.recover([])
    killed.write([letter("a")], None)
    known = killed.prepare_commit(1)
    killed.write([letter("b")], None)
    killed.prepare_commit(2)
    killed.write([letter("c")], None)

    again = opened(sink)
    again.recover(known)
    assert records(tmp_path) == ["a"]
    elsewhere.commit(elsewhere.prepare_commit(1))
    assert sorted(records(tmp_path)) == ["a", "other"]
    assert len(os.listdir(tmp_path)) == 2, "what came after the checkpoint will come again"


def test_a_run_without_checkpoints_ends_what_the_one_that_it_is_restored_from_had_begun(tmp_path: Path) -> None:
    before = opened(DeadLetterSink(tmp_path))
    before.recover([])
    before.write([letter("a")], None)
    known = before.prepare_commit(1)
    # What is not committed of several checkpoints: the second file was open at the first one.
    before.write([letter("b")], None)
    known += before.prepare_commit(2)
    before.write([letter("c")], None)
    assert [to_be_committed for to_be_committed, _ in known] == [True, False, True, False]

    after = DeadLetterSink(tmp_path).create_writer(context(has_checkpoints=False))
    assert isinstance(after, CommittingSinkWriter)
    after.open()
    after.recover(known)
    assert sorted(records(tmp_path)) == ["a", "b"]
    assert len(os.listdir(tmp_path)) == 2, "the letter after the checkpoint will come again"
    after.write([letter("c")], None)
    after.flush()
    assert sorted(records(tmp_path)) == ["a", "b", "c"]
    assert after.prepare_commit(0) == []
