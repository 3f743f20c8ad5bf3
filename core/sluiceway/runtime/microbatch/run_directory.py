"""Directory of a run in micro-batches: description of its job, and the check that a job can resume there."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any, Final

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError, StateError
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway.util.file_names import file_name

__all__ = [
    "FINISHED",
    "RUN",
    "Run",
    "RunVertex",
    "check_same",
    "find_runs",
    "is_finished",
    "keyed_subtasks_of",
    "new_run",
]

RUN: Final = "run.json"
"""Name of the file that marks the directory of a run."""

FINISHED: Final = "finished.json"
"""Name of the file written when the run has finished."""

_VERSION: Final = 1
_DEEP: Final = 2


@dataclass(frozen=True, slots=True)
class RunVertex:
    """Vertex (chain of steps) of a run, as its state depends on it.

    Attributes:
        name: display name.
        uids: uids of its steps.
        stage: index of its stage.
        subtasks: number of subtasks.
        key_groups: number of key groups.
        inputs: for each input, the index of its vertex, and the port.
    """

    name: str
    uids: tuple[str, ...]
    stage: int
    subtasks: int
    key_groups: int
    inputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Description of a run.

    Attributes:
        directory: its directory in the storage; empty: the root.
        job: name of the pipeline.
        id: id of the run, also of its transactions at sinks.
        engine: name of the engine.
        begun_ms: start time, in ms since the epoch.
        partitions: number of partitions of the engine's state; fixed for the run.
        vertices: vertices, in the order of the graph.
        spread: whether subtasks are spread evenly over the partitions of state; in runs of earlier versions a hash
            of their numbers decides.
    """

    directory: str
    job: str
    id: str
    engine: str
    begun_ms: int
    partitions: int
    vertices: tuple[RunVertex, ...] = field(default=())
    spread: bool = False

    def write(self, storage: CheckpointStorage) -> None:
        """Write ``run.json``. Raises CheckpointError."""
        content = {"version": _VERSION, **asdict(self)}
        del content["directory"]
        storage.write(_join(self.directory, RUN), [json.dumps(content, indent=1).encode()])

    def finish(self, storage: CheckpointStorage, at_ms: int) -> None:
        """Mark the run as finished. Raises CheckpointError."""
        storage.write(_join(self.directory, FINISHED), [json.dumps({"at_ms": at_ms}).encode()])


def new_run(plan: SteppedPlan, engine: str, now_ms: int, partitions: int, *, spread: bool = False) -> Run:
    """Return a new run, with a directory of its own."""
    job = plan.graph.job_name
    base = file_name(job) or "job"
    id_ = f"{base}-{now_ms}-{secrets.token_hex(2)}"
    return Run(id_, job, id_, engine, now_ms, partitions, _vertices(plan), spread)


def find_runs(storage: CheckpointStorage, under: str = "") -> list[Run]:
    """Return the runs in a directory or its subdirectories, oldest first. Raises CheckpointError."""
    found = []
    for file in storage.files(under):
        directory, _, name = file.name.rpartition("/")
        below = directory[len(under) :].strip("/")
        if name == RUN and below.count("/") + bool(below) < _DEEP:
            found.append(_read(storage, directory))
    return sorted(found, key=lambda run: run.begun_ms)


def is_finished(storage: CheckpointStorage, run: Run) -> bool:
    """Return whether a run has finished."""
    try:
        storage.read(_join(run.directory, FINISHED), 0, 0)
    except CheckpointError:
        return False
    return True


def keyed_subtasks_of(run: Run) -> int | None:
    """Return the ``keyed_subtasks`` with which a plan has the subtasks of a run; None: one for each key group."""
    shared = [vertex.subtasks for vertex in run.vertices if vertex.subtasks < vertex.key_groups]
    # One with more than the least has that parallelism itself.
    return min(shared, default=None)


def check_same(run: Run, plan: SteppedPlan, where: str) -> None:
    """Check that a job can resume from the state that a run has left for each subtask.

    Functions may have changed, and types of state as far as those can be restored.

    Args:
        run: the run.
        plan: the plan of the job.
        where: path or URL of the directory, for messages.

    Raises:
        StateError: the job cannot resume; names the changes.
    """
    if run.job != plan.graph.job_name:
        raise StateError(
            f"{where} is of a run of {run.job!r}, not of {plan.graph.job_name!r}: name a directory of a run of "
            "this job"
        )
    changes = list(_changes(run.vertices, _vertices(plan)))
    if changes:
        raise StateError(
            f"{run.job!r} cannot resume from {where}, where state is kept for each of the subtasks that it had: "
            f"{'; '.join(changes)}. Undo that, or start from the beginning without --from"
        )


def _changes(before: Sequence[RunVertex], now: Sequence[RunVertex]) -> list[str]:
    uids_before = {uid for vertex in before for uid in vertex.uids}
    uids_now = {uid for vertex in now for uid in vertex.uids}
    found = [f"step {uid!r} is gone" for uid in sorted(uids_before - uids_now)]
    found += [f"step {uid!r} is new" for uid in sorted(uids_now - uids_before)]
    if found:
        return found
    for old, new in zip_longest(before, now):
        if old is None or new is None or old.uids != new.uids:
            return ["its steps are chained in another way, or come in another order"]
        if old.key_groups != new.key_groups:
            found.append(f"{new.name!r} had {old.key_groups} key groups and has {new.key_groups}")
        elif old.subtasks != new.subtasks:
            found.append(f"{new.name!r} had parallelism {old.subtasks} and has {new.subtasks}")
        if old.inputs != new.inputs:
            found.append(f"{new.name!r} has other inputs")
    return found


def _vertices(plan: SteppedPlan) -> tuple[RunVertex, ...]:
    graph = plan.graph
    places = {vertex.id: place for place, vertex in enumerate(graph.vertices)}
    return tuple(
        RunVertex(
            vertex.name,
            tuple(node.uid for node in vertex.nodes),
            plan.stage_of(vertex.id),
            vertex.parallelism,
            vertex.max_parallelism if vertex.head.step.keyed else 0,
            tuple((places[edge.source], edge.edge.port) for edge in graph.in_edges(vertex.id)),
        )
        for vertex in graph.vertices
    )


def _read(storage: CheckpointStorage, directory: str) -> Run:
    name = _join(directory, RUN)
    try:
        content: dict[str, Any] = json.loads(storage.read(name))
        version = content.pop("version")
        if version != _VERSION:
            raise CheckpointError(
                f"{storage.shown(name)} is of layout {version}, and this version knows layout {_VERSION}"
            )
        vertices = tuple(
            RunVertex(**{**v, "uids": tuple(v["uids"]), "inputs": tuple(map(tuple, v["inputs"]))})
            for v in content.pop("vertices")
        )
        # Some runs have it; their state is keyed like that of earlier ones all the same.
        content.pop("placed", None)
        return Run(directory=directory, vertices=vertices, **content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{storage.shown(name)} does not describe a run: {error}") from error


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name
