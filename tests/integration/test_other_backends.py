"""A job goes on from a checkpoint of another state backend, and of another parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.checkpoint import find_checkpoints, load_metadata
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.errors import MissingExtraError, StateError
from sluiceway.plugins import default_manager
from sluiceway.runtime.jobmanager.restore import restore_from
from sluiceway.runtime.jobmanager.state_compatibility import compare, saved_job
from sluiceway.runtime.local.engine import LocalEngine, job_graph_of
from sluiceway.testing import InjectedError, KeySequence, NumberFiles

COUNT = 60_000
KEYS = 12


class Ends(Exception):
    """The first run is over."""


def flow_of(out: Path, ends_after: Path | None = None) -> tuple[sw.Pipeline, NumberFiles]:
    def check(value: int) -> int:
        if ends_after is not None and value % 20 == 0:
            numbers = [int(file.parent.name[4:]) for file in ends_after.glob("*/*/metadata.json")]
            if max(numbers, default=0) > 3:
                raise Ends
        return value

    flow = sw.Pipeline("numbers")
    sink = NumberFiles(out)
    rate = None if ends_after is None else 1_000  # the numbers last for a minute, should checkpoints take long
    source: sw.DataStream[int] = flow.source(GeneratorSource(count=COUNT, rate=rate)).uid("numbers")
    source.map(check).key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("counted").sink(sink).uid("out")
    return flow, sink


def interrupted(out: Path, kept: Path, **options: Any) -> None:
    """A run that ends by a failure, as soon as it has left a checkpoint with state."""
    flow, _ = flow_of(out, kept)
    with pytest.raises(Ends):
        flow.run(checkpoints=kept, checkpoint_interval="10ms", restart="none", **options)


def natives(kept: Path) -> list[str]:
    """The formats in which the newest checkpoint keeps keyed state."""
    storage = default_manager().checkpoint_storage(str(kept))
    found = max((load_metadata(storage, d) for d in find_checkpoints(storage)), key=lambda m: m.completed_ms)
    keyed = [o.keyed for v in found.vertices for s in v.subtasks for o in s.operators if o.keyed is not None]
    return ["rows" if one.native is None else one.native.format.split()[0] for one in keyed]


@pytest.mark.parametrize(
    ("first", "second", "before", "after", "workers"),
    [
        pytest.param("rocksdb", "memory", 2, 2, 0, marks=pytest.mark.slow),
        ("rocksdb", "memory", 3, 2, 0),
        ("memory", "rocksdb", 2, 3, 0),
        pytest.param("rocksdb", "memory", 1, 4, 2, marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_s_backend_may_change(
    first: str, second: str, before: int, after: int, workers: int, tmp_path: Path
) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    interrupted(out, kept, state_backend=first, parallelism=before, workers=workers)
    assert natives(kept) == ["rows" if first == "memory" else first] * before
    # The next one goes on from the first one's, writes its own, and hands over to the first kind again.
    again = tmp_path / "again"
    interrupted(out, again, from_checkpoint=kept, state_backend=second, parallelism=after, workers=workers)
    assert natives(again) == ["rows" if second == "memory" else second] * after
    flow, sink = flow_of(out)
    flow.run(from_checkpoint=again, checkpoint_interval="1h", state_backend=first, parallelism=before)
    report = sink.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report


def test_it_goes_on_from_the_other_backend_s_checkpoint_after_a_failure(tmp_path: Path) -> None:
    """Also where it fails before it has a checkpoint of its own."""
    out, kept = tmp_path / "out", tmp_path / "kept"
    interrupted(out, kept, state_backend="rocksdb", parallelism=2)
    flow, sink = flow_of(out)
    failed: list[int] = []

    def fails_at_once(value: Any) -> Any:
        if not failed:
            failed.append(1)
            raise InjectedError("once more")
        return value

    flow = sw.Pipeline("numbers")
    source = flow.source(GeneratorSource(count=COUNT)).uid("numbers").map(fails_at_once)
    source.key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("counted").sink(sink).uid("out")
    result = flow.run(from_checkpoint=kept, checkpoint_interval="1h", parallelism=3, restart="fixed-delay:3:0ms")
    assert result.metrics.restarts >= 1
    report = sink.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report


def test_a_backend_that_is_missing_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    interrupted(out, kept, state_backend="rocksdb")
    flow, _ = flow_of(out)
    services = default_manager().services()
    settings = sw.Settings(from_checkpoint=str(kept))
    make = type(services).state_backend

    def missing(self: Any, name: str) -> Any:
        if name == "rocksdb":
            raise MissingExtraError('pip install "sluiceway[rocksdb]"')
        return make(self, name)

    monkeypatch.setattr(type(services), "state_backend", missing)
    with pytest.raises(StateError, match=r"step 'counted' is in files of state backend 'rocksdb'.*\[rocksdb\]"):
        LocalEngine().prepare(flow.graph(settings), settings, services)
    graph = job_graph_of(flow.graph(settings), services)
    (problem,) = compare(saved_job(str(kept), graph, services), graph, settings, services).refused(False)
    assert "only that one reads" in problem


def test_key_groups_that_nobody_chose_are_those_of_the_state(tmp_path: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    interrupted(out, kept, parallelism=1)
    flow, sink = flow_of(out)
    # One hundred subtasks would have 256 key groups by themselves, one has 128.
    settings = sw.Settings(from_checkpoint=str(kept), parallelism=100)
    services = default_manager().services()
    graph = job_graph_of(flow.graph(settings), services)
    assert max(v.max_parallelism for v in graph.vertices) == 256
    restored = restore_from(settings, graph, services)
    assert restored is not None
    fitted = {n.uid: n.max_parallelism for v in restored.fit(graph).vertices for n in v.nodes}
    assert fitted["counted"] == 128
    for options, told in (
        ({"parallelism": 129}, "129 subtasks for it: its parallelism can be 128 at the most, for ever"),
        ({"max_parallelism": 256}, "divides it into 256: set max-parallelism to 128, or leave it out"),
    ):
        with pytest.raises(StateError, match=f"saved in 128 key groups, and the job .*{told}"):
            flow.run(from_checkpoint=kept, **options)
    flow.run(from_checkpoint=kept, checkpoint_interval="1h", parallelism=90)
    report = sink.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report
