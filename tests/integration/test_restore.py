"""A job goes on from a snapshot, at any parallelism, as if it had never stopped."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.connector import Enumerator, EnumeratorContext
from sluiceway.connector.lib import CollectionSource
from sluiceway.errors import StateError
from sluiceway.plugins import default_manager
from sluiceway.runtime.local.engine import LocalEngine, LocalJob, job_graph_of
from sluiceway.runtime.task.snapshot import JobSnapshot

WORDS = [f"w{n % 7}" for n in range(500)]


def pipeline(seen: list[Any]) -> sw.Pipeline:
    flow = sw.Pipeline("restore")
    words = flow.from_collection(WORDS).uid("words")
    words.key_by(lambda w: w).count().uid("count").for_each(seen.append)
    return flow


def job_of(flow: sw.Pipeline, parallelism: int, restored: JobSnapshot | None = None) -> LocalJob:
    settings = Settings(parallelism=parallelism, batch_size=8)
    services = default_manager().services()
    if restored is None:
        return LocalEngine().prepare(flow.graph(settings), settings, services)
    return LocalJob(job_graph_of(flow.graph(settings), services), settings, services, restored=restored)


def run_a_while(job: LocalJob, rounds: int) -> JobSnapshot:
    job.begin()
    for _ in range(rounds):
        job.worker.run_ready(1)  # one call for all of them ends early on a slow machine, perhaps before any count
    job.pause_sources(True)
    job.worker.run_ready()
    snapshot = job.snapshot()
    job.cancel()
    job.worker.run()
    job.end()
    return snapshot


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("second", [1, 2, 4])
@pytest.mark.parametrize("rounds", [3, 6, 12])
def test_nothing_is_lost_or_counted_twice(first: int, second: int, rounds: int) -> None:
    seen: list[tuple[str, int]] = []
    snapshot = run_a_while(job_of(pipeline(seen), first), rounds)
    assert len(seen) < len(WORDS), "stopped in the middle"
    job_of(pipeline(seen), second, snapshot).run()
    assert len(seen) == len(WORDS)
    assert sorted(set(seen)) == sorted((w, n) for w in set(WORDS) for n in range(1, WORDS.count(w) + 1))


def test_a_snapshot_with_records_under_way_is_refused() -> None:
    job = job_of(pipeline([]), 1)
    job.begin()
    while not any(task.under_way() for task in job.tasks):
        job.worker.run_ready(1)
    with pytest.raises(StateError, match="let the job come to rest"):
        job.snapshot()
    job.cancel()
    job.worker.run()
    job.end()


def test_state_that_no_step_would_get_is_refused_by_name() -> None:
    snapshot = run_a_while(job_of(pipeline([]), 1), 6)
    other = sw.Pipeline("other")
    other.from_collection(WORDS).uid("words").key_by(lambda w: w).count().uid("renamed").print()
    with pytest.raises(StateError, match=r"state of 'count', which no step of job 'other' goes by"):
        job_of(other, 1, snapshot)


def counted(words: sw.DataStream[str]) -> sw.DataStream[tuple[str, int]]:
    counts = words.key_by(lambda word: word).count().uid("count")
    counts.collect()
    return counts


def refused(flow: sw.Pipeline, snapshot: JobSnapshot, kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        job_of(flow, 1, snapshot).run()
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


def test_another_source_under_the_uid_is_named_as_what_may_be_wrong() -> None:
    snapshot = run_a_while(job_of(pipeline([]), 1), 6)
    flow = sw.Pipeline("restore")
    counted(flow.from_function(lambda: iter(WORDS)).uid("words"))
    text = refused(flow, snapshot, AttributeError)
    assert re.search(r"has splits of type \w+ under the uid 'words': give this source another uid if it is", text)


class Found(CollectionSource[str]):
    """Source whose enumerator has a state of its own."""

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        return super().create_enumerator(context, restored.found if restored else None)


def test_another_enumerator_under_the_uid_is_named_as_what_may_be_wrong() -> None:
    snapshot = run_a_while(job_of(pipeline([]), 1), 6)
    flow = sw.Pipeline("restore")
    counted(flow.source(Found(WORDS)).uid("words"))
    text = refused(flow, replace(snapshot, enumerators={"words": 7}), AttributeError)
    assert (
        "has an enumerator's state of type int under the uid of this source: give this source another uid" in text
    )


def test_positions_under_the_uid_of_another_step_are_refused() -> None:
    snapshot = run_a_while(job_of(pipeline([]), 1), 6)
    flow = sw.Pipeline("restore")
    counted(flow.from_collection(WORDS).map(str).uid("words"))
    text = refused(flow, snapshot, StateError)
    assert "has the positions of a source under the uid 'words', which is that of another step" in text
