"""Going on from a checkpoint of an earlier run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sluiceway.checkpoints import (
    CheckpointMetadata,
    find_checkpoints,
    load_metadata,
    read_enumerators,
    read_operators,
    split_location,
)
from sluiceway.checkpoints.metadata import OperatorEntry
from sluiceway.config import Settings
from sluiceway.engine import Services
from sluiceway.errors import CheckpointError, SluicewayError, StateError
from sluiceway.graph import JobGraph
from sluiceway.runtime.snapshots import JobSnapshot
from sluiceway.storage import CheckpointStorage

__all__ = ["Comparison", "StepChange", "compare", "restore_from"]


@dataclass(frozen=True, slots=True)
class StepChange:
    """What becomes of the state of one step.

    Attributes:
        uid: of the step.
        step: its name; empty: the job has none.
        what: ``keeps``: it goes on with its state; ``new``: it begins without any; ``dropped``: the job has no
            step for that state; ``refused``: the state does not fit.
        states: the names of the states in the checkpoint.
        reason: why it does not fit.
    """

    uid: str
    step: str
    what: str
    states: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a job would make of a checkpoint.

    Attributes:
        location: path or URL of the checkpoint.
        steps: those of the job that have state, or have had, then those that only the checkpoint has.
    """

    location: str
    steps: tuple[StepChange, ...]

    def refused(self, allow_dropped_state: bool) -> tuple[str, ...]:
        """Why the job would be refused; empty: it would not."""
        dropped = [step.uid for step in self.steps if step.what == "dropped"]
        why = [step.reason for step in self.steps if step.what == "refused"]
        if dropped and not allow_dropped_state:
            names = ", ".join(map(repr, dropped))
            why.append(
                f"no step goes by {names}: give its step that uid, or leave the state with allow-dropped-state"
            )
        return tuple(why)


def compare(location: str, graph: JobGraph, services: Services) -> Comparison:
    """What a job would make of a checkpoint. Nothing runs, and no state is read.

    Args:
        location: as that of :func:`restore_from`.
        graph: the job.
        services: gives the storage.

    Raises:
        CheckpointError: there is no checkpoint there, or it cannot be read.
    """
    parent, name = split_location(location)
    storage = services.checkpoint_storage(parent)
    directory, metadata = _find(storage, name)
    kept: dict[str, dict[str, None]] = {}
    for operator in (o for v in metadata.vertices for s in v.subtasks for o in s.operators):
        kept.setdefault(operator.uid, {}).update(dict.fromkeys(_states(operator)))
    for uid, section in metadata.enumerators.items():
        kept.setdefault(uid, {}).update({"splits": None} if section.size else {})
    saved = _saved_key_groups(metadata)
    wrong = _refusals(metadata, saved, JobSnapshot(key_groups=saved).fit(graph), services)
    steps = []
    for node in (n for v in graph.vertices for n in v.nodes):
        states = tuple(kept.pop(node.uid, ()))
        if node.uid in wrong:
            steps.append(StepChange(node.uid, node.name, "refused", states, wrong[node.uid]))
        elif states:
            steps.append(StepChange(node.uid, node.name, "keeps", states))
        elif node.step.stateful:
            steps.append(StepChange(node.uid, node.name, "new", ()))
    steps += [StepChange(uid, "", "dropped", tuple(states)) for uid, states in kept.items() if states]
    return Comparison(storage.shown(directory) if directory else storage.location, tuple(steps))


def _states(operator: OperatorEntry) -> Iterator[str]:
    if operator.keyed is not None and (operator.keyed.groups or operator.keyed.native):
        yield from (table.name for table in operator.keyed.tables)
    yield from (kept.name for kept in operator.lists if kept.elements is not None)
    parts = {
        "broadcast state": operator.broadcast,
        "splits": operator.splits,
        "pending records": operator.pending,
        "output to commit": operator.committables,
    }
    yield from (name for name, section in parts.items() if section is not None)


def restore_from(settings: Settings, graph: JobGraph, services: Services) -> JobSnapshot | None:
    """What a job begins with.

    Args:
        settings: ``from_checkpoint`` is the path or URL of a checkpoint; or of a directory with checkpoints in
            it or below it: then it is the newest of them. None: the job begins at its beginning.
        graph: the job.
        services: gives the storage.

    Raises:
        CheckpointError: there is no checkpoint there, or it cannot be read.
        StateError: it has state that no step of the job goes by, unless that is allowed; or keyed state of
            another number of key groups than was chosen, or in files of a state backend that is missing.
    """
    location = settings.from_checkpoint
    if location is None:
        return None
    parent, name = split_location(location)
    storage = services.checkpoint_storage(parent)
    directory, metadata = _find(storage, name)
    restored = JobSnapshot(
        read_operators(storage, directory, metadata),
        read_enumerators(storage, directory, metadata),
        _saved_key_groups(metadata),
    )
    for problem in _refusals(metadata, restored.key_groups, restored.fit(graph), services).values():
        raise StateError(problem)
    if not settings.allow_dropped_state:
        restored.check_known(graph)
    return restored


def _find(storage: CheckpointStorage, name: str) -> tuple[str, CheckpointMetadata]:
    found = [(directory, load_metadata(storage, directory)) for directory in find_checkpoints(storage, name)]
    if not found:
        raise CheckpointError(f"there is no complete checkpoint in {storage.shown(name)}")
    return max(found, key=lambda one: (one[1].completed_ms, one[1].checkpoint_id))


def _refusals(
    metadata: CheckpointMetadata, saved: Mapping[str, int], graph: JobGraph, services: Services
) -> dict[str, str]:
    return _unreadable(metadata, services) | _wrong_key_groups(saved, graph)


def _saved_key_groups(metadata: CheckpointMetadata) -> dict[str, int]:
    """By uid of a step with keyed state, the number of its key groups."""
    return {
        operator.uid: vertex.max_parallelism
        for vertex in metadata.vertices
        for subtask in vertex.subtasks
        for operator in subtask.operators
        if operator.keyed is not None
    }


def _wrong_key_groups(saved: Mapping[str, int], graph: JobGraph) -> dict[str, str]:
    """By uid, what is wrong with the number of key groups."""
    now = {node.uid: vertex for vertex in graph.vertices for node in vertex.nodes}
    wrong = {}
    for uid in sorted(saved.keys() & now.keys()):
        groups, vertex = saved[uid], now[uid]
        told = f"the state of step {uid!r} was saved in {groups} key groups, and the job "
        if vertex.parallelism > groups:
            wrong[uid] = (
                f"{told}has {vertex.parallelism} subtasks for it: its parallelism can be {groups} at the most, "
                "for ever"
            )
        elif vertex.max_parallelism != groups:
            wrong[uid] = (
                f"{told}divides it into {vertex.max_parallelism}: set max-parallelism to {groups}, or leave it out"
            )
    return wrong


def _unreadable(metadata: CheckpointMetadata, services: Services) -> dict[str, str]:
    """By uid, why keyed state cannot be read that is in the files of a state backend."""
    formats: dict[str, str] = {}
    for operator in (o for v in metadata.vertices for s in v.subtasks for o in s.operators):
        if operator.keyed is not None and operator.keyed.native is not None:
            formats[operator.uid] = operator.keyed.native.format.partition(" ")[0]
    problems: dict[str, SluicewayError] = {}
    for name in set(formats.values()):
        try:
            services.state_backend(name)
        except SluicewayError as error:
            problems[name] = error
    return {
        uid: f"the state of step {uid!r} is in files of state backend {name!r}, which any other backend goes on "
        f"from, but only that one reads: {problems[name]}"
        for uid, name in formats.items()
        if name in problems
    }
