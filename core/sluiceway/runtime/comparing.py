"""What a pipeline would make of the state of a checkpoint, or of another pipeline, found out before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sluiceway.checkpoints import StateReader, split_location
from sluiceway.checkpoints.metadata import OperatorEntry
from sluiceway.config import Settings
from sluiceway.engine import Services
from sluiceway.errors import IncompatibleStateError
from sluiceway.graph import JobGraph
from sluiceway.runtime.declaring import Declared, declared_states
from sluiceway.runtime.restoring import find_newest, refusals, saved_key_groups, wrong_key_groups
from sluiceway.runtime.snapshots import JobSnapshot
from sluiceway.state import StateMeta

__all__ = ["Comparison", "Earlier", "StateChange", "StepChange", "compare", "earlier_job", "saved_job"]


@dataclass(frozen=True, slots=True)
class StateChange:
    """What becomes of one state of a step.

    Attributes:
        name: of the state.
        what: ``keeps``; ``migrates``: its values are changed to the new type as they are read; ``new``;
            ``unused``: nothing asks for it when the step is opened; ``dropped``: nothing can; ``refused``.
        old: the type that was saved, as text; empty: none, or it is not known.
        new: the type that the job declares, likewise.
        reason: why it is refused or dropped.
    """

    name: str
    what: str
    old: str = ""
    new: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StepChange:
    """What becomes of the state of one step.

    Attributes:
        uid: of the step.
        step: its name; empty: the job has none.
        what: ``keeps``: it goes on with its state; ``new``: it begins without any; ``dropped``: the job has no
            step for that state; ``refused``: the state does not fit.
        changes: state by state.
        reason: why it does not fit.
    """

    uid: str
    step: str
    what: str
    changes: tuple[StateChange, ...] = ()
    reason: str = ""

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states that were there before."""
        return tuple(change.name for change in self.changes if change.what != "new")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a job would make of what was there before.

    Attributes:
        location: path or URL of the checkpoint; of another pipeline, its name.
        steps: those of the job that have state, or have had, then those that it has no longer.
        unasked: by uid, the steps that were not asked which states they declare; and why that was not possible.
        derived: the uids of steps with state that nobody gave them.
    """

    location: str
    steps: tuple[StepChange, ...]
    unasked: Mapping[str, str] = field(default_factory=dict)
    derived: tuple[str, ...] = ()

    def refused(self, allow_dropped_state: bool) -> tuple[str, ...]:
        """Why the job would be refused, or would lose state; empty: neither."""
        dropped = [step.uid for step in self.steps if step.what == "dropped"]
        why = [step.reason for step in self.steps if step.what == "refused"]
        changes = [change for step in self.steps for change in step.changes]
        why += [change.reason for change in changes if change.what == "refused" and change.reason]
        if not allow_dropped_state:
            if dropped:
                names = ", ".join(map(repr, dropped))
                why.append(
                    f"no step goes by {names}: give its step that uid, or leave the state with allow-dropped-state"
                )
            why += [change.reason for change in changes if change.what == "dropped" and change.reason]
        return tuple(why)


@dataclass(slots=True)
class _EarlierStep:
    # What is known of the state; None: nothing but its name.
    states: dict[str, StateMeta | None] = field(default_factory=dict)


@dataclass(slots=True)
class Earlier:
    """What was there before.

    Attributes:
        location: path or URL of the checkpoint; of a pipeline, its name.
        steps: by uid.
        key_groups: of the steps with keyed state.
        refusals: by uid, what is wrong with the state by itself.
    """

    location: str
    steps: dict[str, _EarlierStep]
    key_groups: dict[str, int]
    refusals: dict[str, str] = field(default_factory=dict)


def saved_job(location: str, services: Services) -> Earlier:
    """What a checkpoint has. No state is read.

    Args:
        location: as that of :func:`sluiceway.runtime.restoring.restore_from`.
        services: gives the storage.

    Raises:
        CheckpointError: there is no checkpoint there, or it cannot be read.
    """
    parent, name = split_location(location)
    storage = services.checkpoint_storage(parent)
    directory, metadata = find_newest(storage, name)
    reader = StateReader(storage, directory)
    steps: dict[str, _EarlierStep] = {}
    for operator in (o for v in metadata.vertices for s in v.subtasks for o in s.operators):
        step = steps.setdefault(operator.uid, _EarlierStep())
        if operator.keyed is not None and (operator.keyed.groups or operator.keyed.native):
            step.states.update({m.name: m for m in reader.keyed(operator.uid, operator.keyed).tables})
        step.states.update(dict.fromkeys(_other_states(operator)))
    for uid, section in metadata.enumerators.items():
        if section.size:
            steps.setdefault(uid, _EarlierStep()).states["splits"] = None
    steps = {uid: step for uid, step in steps.items() if step.states}
    shown = storage.shown(directory) if directory else storage.location
    return Earlier(shown, steps, saved_key_groups(metadata), refusals(metadata, services))


def earlier_job(graph: JobGraph, settings: Settings, services: Services, *, open_functions: bool) -> Earlier:
    """What an earlier version of a pipeline would have saved, as far as that can be known."""
    declared = declared_states(graph, settings, services, open_functions=open_functions)
    steps, groups = {}, {}
    for vertex in graph.vertices:
        for node in vertex.nodes:
            if not node.step.stateful:
                continue
            known = declared.get(node.uid, Declared())
            steps[node.uid] = _EarlierStep({name: schema.meta for name, schema in known.schemas.items()})
            if node.step.keyed:
                groups[node.uid] = vertex.max_parallelism
    return Earlier(graph.job_name, steps, groups)


def _other_states(operator: OperatorEntry) -> Iterator[str]:
    yield from (kept.name for kept in operator.lists if kept.elements is not None)
    parts = {
        "broadcast state": operator.broadcast,
        "splits": operator.splits,
        "pending records": operator.pending,
        "output to commit": operator.committables,
    }
    yield from (name for name, section in parts.items() if section is not None)


def compare(
    earlier: Earlier, graph: JobGraph, settings: Settings, services: Services, *, open_functions: bool = False
) -> Comparison:
    """What a job would make of what was there before. Nothing runs.

    Args:
        earlier: what was there.
        graph: the job.
        settings: of the run.
        services: gives the clock and the memory backend.
        open_functions: call the users' ``open``, on copies, in order to learn which states they declare.
    """
    declared = declared_states(graph, settings, services, open_functions=open_functions)
    fitted = JobSnapshot(key_groups=earlier.key_groups).fit(graph)
    wrong = earlier.refusals | wrong_key_groups(earlier.key_groups, fitted)
    before = dict(earlier.steps)
    steps = []
    for node in (n for v in graph.vertices for n in v.nodes):
        had = before.pop(node.uid, None)
        known = declared.get(node.uid, Declared())
        if had is not None and node.uid in wrong:
            changes = tuple(StateChange(name, "refused", _type(meta)) for name, meta in had.states.items())
            steps.append(StepChange(node.uid, node.name, "refused", changes, wrong[node.uid]))
        elif had is not None:
            steps.append(StepChange(node.uid, node.name, "keeps", tuple(_changes(node.uid, had, known))))
        elif node.step.stateful:
            new = tuple(StateChange(name, "new", new=_type(s.meta)) for name, s in known.schemas.items())
            steps.append(StepChange(node.uid, node.name, "new", new))
    for uid, had in before.items():
        gone = tuple(StateChange(name, "dropped", _type(meta)) for name, meta in had.states.items())
        steps.append(StepChange(uid, "", "dropped", gone))
    return Comparison(
        earlier.location,
        tuple(steps),
        {uid: known.problem for uid, known in declared.items() if not known.complete},
        tuple(n.uid for v in graph.vertices for n in v.nodes if n.step.stateful and not n.uid_given),
    )


def _changes(uid: str, had: _EarlierStep, known: Declared) -> Iterator[StateChange]:
    for name, meta in had.states.items():
        schema = known.schemas.get(name)
        if meta is not None and schema is not None:
            try:
                same = schema.reader_for(meta, uid) is schema.serializer
            except IncompatibleStateError as error:
                yield StateChange(name, "refused", _type(meta), _type(schema.meta), str(error))
            else:
                yield StateChange(name, "keeps" if same else "migrates", _type(meta), _type(schema.meta))
        elif meta is None or not known.complete:
            yield StateChange(name, "keeps", _type(meta))
        elif known.own:
            yield StateChange(name, "unused", _type(meta))
        else:
            why = f"state {name!r} of step {uid!r} would be lost: what the step is now knows nothing of it"
            yield StateChange(name, "dropped", _type(meta), reason=why)
    if known.complete:
        for name, schema in known.schemas.items():
            if name not in had.states:
                yield StateChange(name, "new", new=_type(schema.meta))


def _type(meta: StateMeta | None) -> str:
    if meta is None:
        return ""
    kind = meta.declared or meta.kind.value
    return f"{kind} of {meta.type_name}" if meta.type_name else kind
