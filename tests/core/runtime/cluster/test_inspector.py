"""Inspectors of workers that cannot be called on a line, as those on other machines."""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.monitoring.processes import ProcessReadings
from sluiceway.runtime.cluster import worker_launcher


def test_a_worker_without_a_line_is_asked_by_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(worker_launcher._ChildProcess, "call_inspector", lambda self: called.append(self))

    async def ask(handle: sw.JobHandle, worker: str, threads: bool) -> ProcessReadings:
        answers: SimpleQueue[ProcessReadings] = SimpleQueue()
        handle._job.inspect_workers(worker, threads, answers.put)
        return await asyncio.to_thread(answers.get, True, PATIENT_S)

    async def go() -> None:
        flow = sw.Pipeline("endless")
        # Between two steps the worker lets its other threads run: a task that does not would hardly ever be seen.
        flow.generate().map(abs).for_each(lambda n: threading.Event().wait(0.005))
        async with await flow.start(workers=1) as handle:
            while not handle.metrics().records_in:
                await asyncio.sleep(0.01)  # polls
            while (found := await ask(handle, "", False)).problems:  # a busy machine takes its time
                pass
            assert [figures.process for figures in found.figures] == ["worker-1"]
            tasks: list[str] = []
            while not any(task.endswith("of endless") for task in tasks):  # it may be between two steps
                found = await ask(handle, "worker-1", True)
                tasks = [thread.task for dump in found.dumps for thread in dump.threads]
            assert (await ask(handle, "worker-2", True)).problems == ["there is no worker 'worker-2'"]

    asyncio.run(go())
    assert called


def test_a_job_in_one_process_has_no_workers() -> None:
    async def go() -> ProcessReadings:
        flow = sw.Pipeline("endless")
        flow.generate().for_each(lambda n: None)
        async with await flow.start() as handle:
            answers: SimpleQueue[ProcessReadings] = SimpleQueue()
            handle._job.inspect_workers("worker-1", False, answers.put)
            return answers.get()

    assert asyncio.run(go()).problems == ["there is no worker 'worker-1': the job runs in one process"]
