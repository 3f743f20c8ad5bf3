"""Plugins that are told what happens to jobs and tasks."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.clock import SystemClock, VirtualClock
from sluiceway.engine import JobStatus
from sluiceway.hooks import hookimpl


class Watcher:
    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    @hookimpl
    def sluiceway_job_status_changed(self, job_name: str, old: JobStatus, new: JobStatus) -> None:
        self.seen.append((job_name, old, new))

    @hookimpl
    def sluiceway_task_state_changed(self, vertex: str, new: str) -> None:
        self.seen.append((vertex, new))

    @hookimpl
    def sluiceway_checkpoint_completed(self, checkpoint_id: int, size_bytes: int) -> None:
        self.seen.append((checkpoint_id, size_bytes))

    @hookimpl
    def sluiceway_checkpoint_failed(self, job_name: str, cause: BaseException) -> None:
        self.seen.append((job_name, cause))


class Grumbler:
    calls = 0

    @hookimpl
    def sluiceway_task_state_changed(self, subtask: int) -> None:
        self.calls += 1
        raise RuntimeError(f"I do not like subtask {subtask}")


def test_hooks_hear_of_jobs_and_tasks_and_take_the_arguments_they_want(manage: Any) -> None:
    manager, watcher = manage(), Watcher()
    manager.register(watcher, "watcher")
    listener = manager.services().listener
    listener.job_status_changed("wc", JobStatus.CREATED, JobStatus.RUNNING)
    listener.task_state_changed("wc", "source", 0, "CREATED", "SCHEDULED")
    assert watcher.seen == [("wc", JobStatus.CREATED, JobStatus.RUNNING), ("source", "SCHEDULED")]


def test_hooks_hear_of_checkpoints(manage: Any) -> None:
    manager, watcher, cause = manage(), Watcher(), OSError("full")
    manager.register(watcher, "watcher")
    listener = manager.services().listener
    listener.checkpoint_completed("wc", 7, 120, 4096)
    listener.checkpoint_failed("wc", 8, cause)
    assert watcher.seen == [(7, 4096), ("wc", cause)]


def test_one_that_raises_is_reported_once_and_the_others_still_hear(manage: Any) -> None:
    manager, watcher, grumbler = manage(), Watcher(), Grumbler()
    manager.register(watcher, "watcher")
    manager.register(grumbler, "grumbler")
    listener = manager.services().listener
    for subtask in range(3):
        listener.task_state_changed("wc", "source", subtask, "CREATED", "SCHEDULED")
    assert grumbler.calls == 3
    assert len(watcher.seen) == 3
    (message,) = manager.messages
    assert message.startswith(
        "plugin 'grumbler' (registered by the program): its hook sluiceway_task_state_changed failed: "
        "RuntimeError: I do not like subtask 0"
    )


def test_calls_are_traced(manage: Any, capsys: pytest.CaptureFixture[str]) -> None:
    manager = manage(SLUICEWAY_TRACE_PLUGINS="1")
    manager.register(Watcher(), "watcher")
    manager.services().listener.task_state_changed("wc", "source", 2, "CREATED", "SCHEDULED")
    assert (
        "sluiceway_task_state_changed(job_name='wc', vertex='source', subtask=2, old='CREATED', new='SCHEDULED') "
        "of 'watcher' -> None ["
    ) in capsys.readouterr().err


def test_jobs_run_by_the_machines_clock_or_the_one_that_is_given(manage: Any) -> None:
    manager, clock = manage(), VirtualClock()
    assert isinstance(manager.services().clock, SystemClock)
    assert manager.services(clock).clock is clock
