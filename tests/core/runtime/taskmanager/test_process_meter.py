"""Figures and thread dumps of this process, against what it does."""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path

import pytest

from sluiceway.clock import SystemClock
from sluiceway.runtime.taskmanager.process_meter import ProcessMeter, figures_of_other
from sluiceway.runtime.taskmanager.thread_dump import dump_threads

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="these figures come from /proc")


@linux
def test_figures_follow_what_the_process_does(tmp_path: Path) -> None:
    meter = ProcessMeter("jobmanager", SystemClock())
    meter.begin()
    before = meter.take()
    held = bytearray(64 << 20)
    held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])
    for _ in range(3):
        gc.collect()
    with open(tmp_path / "one", "w"), open(tmp_path / "two", "w"):
        now = meter.take()
    del held
    assert before.rss is not None
    assert now.rss is not None
    assert now.rss - before.rss > 48 << 20
    assert (now.peak_rss or 0) >= now.rss
    assert (now.open_files or 0) - (before.open_files or 0) == 2
    assert now.collections is not None
    assert before.collections is not None
    assert now.collections[2] - before.collections[2] == 3
    assert (now.pauses or 0) - (before.pauses or 0) >= 3
    assert (now.pause_ms or 0.0) >= (now.longest_pause_ms or 0.0) > 0
    assert (now.cpu_s or 0.0) > (before.cpu_s or 0.0)
    callbacks = len(gc.callbacks)
    meter.close()
    meter.close()
    assert len(gc.callbacks) == callbacks - 1


@linux
def test_figures_of_another_process() -> None:
    told = figures_of_other("worker-1", os.getpid(), 7, "it is stopped")
    assert (told.process, told.problem, told.collections) == ("worker-1", "it is stopped", None)
    assert (told.rss or 0) > 1 << 20
    assert (told.cpu_s or 0.0) > 0
    gone = figures_of_other("worker-1", 2**22 + 1, 7, "it is gone")
    assert (gone.rss, gone.cpu_s, gone.threads, gone.open_files) == (None, None, None, None)


def test_where_the_system_tells_nothing_nothing_is_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.open", _no_file)
    monkeypatch.setattr(os, "listdir", _no_file)
    meter = ProcessMeter("jobmanager", SystemClock())
    meter.begin()
    told = meter.take()
    meter.close()
    assert (told.rss, told.open_files) == (None, None)
    assert told.threads == threading.active_count()


def _no_file(*_: object) -> None:
    raise FileNotFoundError("there is no /proc")


def test_a_thread_dump_names_threads_and_lines() -> None:
    release, waits = threading.Event(), threading.Event()

    def waiting() -> None:
        waits.set()
        release.wait()

    thread = threading.Thread(target=waiting, name="patient")
    thread.start()
    waits.wait()
    dump = dump_threads("jobmanager", SystemClock())
    release.set()
    thread.join()
    assert dump.threads[0].name == "MainThread"
    [found] = [each for each in dump.threads if each.name == "patient"]
    assert any("waiting (test_process_meter.py:" in frame for frame in found.frames)
    assert found.headline == f'"patient" native id {found.native_id}'
