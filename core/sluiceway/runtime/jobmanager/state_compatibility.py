"""Compatibility of a pipeline with the state of a checkpoint or of another pipeline, checked before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sluiceway.checkpoint import CheckpointMetadata, StateReader, read_in_flight, split_location
from sluiceway.checkpoint.metadata import OperatorEntry
from sluiceway.checkpoint.native_files import opened_rows
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.config.settings import Settings
from sluiceway.engine import Services
from sluiceway.errors import IncompatibleStateError
from sluiceway.functions.state_discovery import may_ask_for
from sluiceway.graph import JobGraph
from sluiceway.keygroups import KeyGroupRange
from sluiceway.network.channel_state import EdgeName
from sluiceway.operators.keyed_timers import DUE
from sluiceway.operators.state_access import OF_FUNCTIONS, has_rows, unclaimed
from sluiceway.runtime.jobmanager.declared_state import Declared, declared_states
from sluiceway.runtime.jobmanager.key_types import (
    SavedKeyTypes,
    can_be_equal,
    declared_key_types,
    names_of_types,
    saved_key_types,
)
from sluiceway.runtime.jobmanager.metadata_checks import (
    refusals,
    saved_key_groups,
    with_dead_letters,
    wrong_key_groups,
)
from sluiceway.runtime.jobmanager.newest_checkpoint import find_newest
from sluiceway.runtime.task.snapshot import JobSnapshot, edge_names
from sluiceway.serializers import decode_blocks
from sluiceway.state import KeyedSnapshot, StateMeta, TableSchema
from sluiceway.streamgraph import StreamNode

__all__ = [
    "Comparison",
    "Earlier",
    "StateChange",
    "StepChange",
    "check_states",
    "compare",
    "earlier_job",
    "restored_job",
    "saved_job",
    "saved_metadata",
]


@dataclass(frozen=True, slots=True)
class StateChange:
    """Change of one state of a step.

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
    """Change of the state of one step.

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
        """Return the names of the earlier states."""
        return tuple(change.name for change in self.changes if change.what != "new")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a job with earlier state.

    Attributes:
        location: path or URL of the checkpoint; of another pipeline, its name.
        steps: those of the job that have state, or have had, then those that it has no longer.
        unasked: by uid, the steps that were not asked which states they declare; and why that was not possible.
        derived: the uids of steps with state that nobody gave them.
        lost_on: the edges that had records on them, in an unaligned checkpoint, and that the job does not have.
    """

    location: str
    steps: tuple[StepChange, ...]
    unasked: Mapping[str, str] = field(default_factory=dict)
    derived: tuple[str, ...] = ()
    lost_on: tuple[str, ...] = ()

    def refused(self, allow_dropped_state: bool) -> tuple[str, ...]:
        """Return why the job would be refused, or would lose state; empty: neither."""
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
            why += [
                f"the checkpoint was unaligned, and records were in flight {edge}, an edge that the job does not "
                "have: take a savepoint of the pipeline as it was, or leave the records with allow-dropped-state"
                for edge in self.lost_on
            ]
        return tuple(why)


@dataclass(slots=True)
class _EarlierStep:
    # What is known of the state; None: nothing but its name.
    states: dict[str, StateMeta | None] = field(default_factory=dict)
    kind: str = ""


@dataclass(slots=True)
class Earlier:
    """Earlier state.

    Attributes:
        location: path or URL of the checkpoint; of a pipeline, its name.
        steps: by uid.
        key_groups: of the steps with keyed state.
        refusals: by uid, what is wrong with the state by itself.
        has_rows: whether there is anything in a state of a step.
        key_types: types of the keys of a step's states, as far as they are known.
        in_flight: the edges that had records on them, in an unaligned checkpoint.
    """

    location: str
    steps: dict[str, _EarlierStep]
    key_groups: dict[str, int]
    refusals: dict[str, str] = field(default_factory=dict)
    has_rows: Callable[[str, str], bool] = field(default=lambda uid, state: True)
    key_types: SavedKeyTypes = field(default=lambda uid: {})
    in_flight: frozenset[EdgeName] = frozenset()


def saved_job(location: str, graph: JobGraph, services: Services) -> Earlier:
    """Return the state of a checkpoint. Only metadata is read.

    Args:
        location: as that of :func:`sluiceway.runtime.jobmanager.restore.restore_from`.
        graph: the job that is to be restored from it.
        services: gives the storage.

    Raises:
        CheckpointError: there is no checkpoint there, or it cannot be read.
    """
    parent, name = split_location(location)
    storage = services.checkpoint_storage(parent)
    directory, metadata = find_newest(storage, name)
    return saved_metadata(storage, directory, with_dead_letters(metadata, graph), services)


def saved_metadata(
    storage: CheckpointStorage, directory: str, metadata: CheckpointMetadata, services: Services
) -> Earlier:
    """Return the state of a checkpoint from its metadata."""
    reader = StateReader(storage, directory)
    kinds = {step.uid: step.kind for vertex in metadata.vertices for step in vertex.steps}
    steps: dict[str, _EarlierStep] = {}
    for _, _, operator in metadata.operators():
        step = steps.setdefault(operator.uid, _EarlierStep(kind=kinds.get(operator.uid, "")))
        if operator.keyed is not None and (operator.keyed.groups or operator.keyed.native):
            step.states.update({m.name: m for m in reader.keyed(operator.uid, operator.keyed).tables})
        step.states.update(dict.fromkeys(_other_states(operator)))
    for uid, section in metadata.enumerators.items():
        if section.size:
            steps.setdefault(uid, _EarlierStep()).states["splits"] = None
    steps = {uid: step for uid, step in steps.items() if step.states}
    shown = storage.shown(directory) if directory else storage.location
    has_rows = partial(_has_rows, reader, metadata, services)
    key_types = partial(saved_key_types, reader, metadata)
    under_way = frozenset(part.edge for part in read_in_flight(storage, directory, metadata))
    wrong = refusals(metadata, services)
    return Earlier(shown, steps, saved_key_groups(metadata), wrong, has_rows, key_types, under_way)


def _has_rows(reader: StateReader, metadata: CheckpointMetadata, services: Services, uid: str, state: str) -> bool:
    for vertex, subtask, operator in metadata.operators(uid):
        tables = () if operator.keyed is None else operator.keyed.tables
        index = next((place for place, table in enumerate(tables) if table.name == state), None)
        if index is None or operator.keyed is None:
            continue
        kept, open_backend = reader.keyed(uid, operator.keyed), services.state_backend
        with opened_rows(kept, open_backend, uid, subtask.index, vertex.max_parallelism) as snapshot:
            for group in snapshot.groups.values():
                rows, blocks = decode_blocks(group)
                if index in {row.table for row in rows} | {block.table for block in blocks}:
                    return True
    return False


def earlier_job(graph: JobGraph, settings: Settings, services: Services, *, open_functions: bool) -> Earlier:
    """Return the state that an earlier version of a pipeline would have saved, as far as can be known."""
    declared = declared_states(graph, settings, services, open_functions=open_functions)
    steps, groups = {}, {}
    keys: dict[str, dict[str, frozenset[Any]]] = {}
    for vertex in graph.vertices:
        for node in vertex.nodes:
            if not node.step.stateful:
                continue
            known = declared.get(node.uid, Declared())
            metas: dict[str, StateMeta | None] = {name: s.meta for name, s in known.schemas.items()}
            steps[node.uid] = _EarlierStep(metas, node.step.kind)
            if node.step.keyed:
                groups[node.uid] = vertex.max_parallelism
                if types := frozenset(declared_key_types(node)):
                    keys[node.uid] = dict.fromkeys(metas, types)
    return Earlier(graph.job_name, steps, groups, key_types=lambda uid: keys.get(uid, {}))


def restored_job(snapshot: JobSnapshot) -> Earlier:
    """Return the state of a snapshot in memory, which does not say of which kind its steps were."""
    steps: dict[str, _EarlierStep] = {}
    keyed: dict[str, list[KeyedSnapshot]] = {}
    for operator in snapshot.operators:
        if operator.keyed is not None and operator.keyed.groups:
            states = steps.setdefault(operator.uid, _EarlierStep()).states
            states.update({meta.name: meta for meta in operator.keyed.tables})
            keyed.setdefault(operator.uid, []).append(operator.keyed)

    def holds(uid: str, state: str) -> bool:
        return any(has_rows(each, state, KeyGroupRange(0, max(each.groups) + 1)) for each in keyed.get(uid, ()))

    return Earlier("the snapshot", steps, dict(snapshot.key_groups), has_rows=holds)


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
    """Compare a job with earlier state. Nothing runs.

    Args:
        earlier: the earlier state.
        graph: the job.
        settings: of the run.
        services: gives the clock and the memory backend.
        open_functions: call the users' ``open``, on copies, in order to learn which states they declare.
    """
    declared = declared_states(graph, settings, services, open_functions=open_functions)
    fitted = JobSnapshot(key_groups=earlier.key_groups).fit(graph)
    wrong = earlier.refusals | wrong_key_groups(earlier.key_groups, fitted)
    # What the job's steps do not take from here is left at the end: state without a step.
    before = dict(earlier.steps)
    steps = []
    for node in (n for v in graph.vertices for n in v.nodes):
        had = before.pop(node.uid, None)
        known = declared.get(node.uid, Declared())
        if had is not None and node.uid in wrong:
            changes = tuple(StateChange(name, "refused", _type(meta)) for name, meta in had.states.items())
            steps.append(StepChange(node.uid, node.name, "refused", changes, wrong[node.uid]))
        elif had is not None:
            states = _StepStates(node, had, known, earlier)
            steps.append(StepChange(node.uid, node.name, "keeps", tuple(states.changes())))
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
        tuple(sorted(map(str, earlier.in_flight - set(edge_names(graph).values())))),
    )


class _StepStates:
    """Comparison of the states of a step with those that it had.

    Args:
        node: the step.
        had: what it had.
        known: what it declares.
        earlier: the state of the whole job.
    """

    def __init__(self, node: StreamNode, had: _EarlierStep, known: Declared, earlier: Earlier) -> None:
        self._node = node
        self._had = had
        self._known = known
        self._earlier = earlier
        now = node.step.kind
        # Steps of users' functions may replace one another: their states go by name alone.
        self._is_another = bool(had.kind) and had.kind != now and not OF_FUNCTIONS.issuperset((had.kind, now))
        self._lazy = None if self._is_another else known.lazy
        self._orphaned = _with_other_keys(node, earlier)

    def changes(self) -> Iterator[StateChange]:
        """Yield the change of each saved state, then the new states."""
        for name, meta in self._had.states.items():
            yield self._change(name, meta)
        if self._known.complete:
            for name, schema in self._known.schemas.items():
                if name not in self._had.states:
                    yield StateChange(name, "new", new=_type(schema.meta))

    def _change(self, name: str, meta: StateMeta | None) -> StateChange:
        uid, schema = self._node.uid, self._known.schemas.get(name)
        if name in self._orphaned:
            return StateChange(name, "dropped", _type(meta), reason=self._orphaned[name])
        if meta is not None and schema is not None:
            return self._with_both_types(meta, schema)
        # Nothing in a step without keys can read a keyed state, whatever its functions are.
        if meta is not None and not self._node.step.keyed:
            why = (
                f"state {name!r} of step {uid!r} would be lost: it is kept by key, and the step has no key "
                "any more. Put key_by() before the step, give it another uid if it is another one, or leave "
                "the state behind with allow-dropped-state"
            )
            return self._unused_or(StateChange(name, "dropped", _type(meta), reason=why))
        if meta is None or self._is_undecided(name):
            return StateChange(name, "keeps", _type(meta))
        if name == DUE.name and not self._is_another:
            return StateChange(name, "unused", _type(meta))
        return self._unused_or(self._unclaimed(name, meta))

    def _with_both_types(self, meta: StateMeta, schema: TableSchema) -> StateChange:
        """Return the change of a state whose reading decides whether the types fit, and whether it is migrated."""
        types = _type(meta), _type(schema.meta)
        try:
            same = schema.reader_for(meta, self._node.uid) is schema.serializer
        except IncompatibleStateError as error:
            return StateChange(meta.name, "refused", *types, str(error))
        return StateChange(meta.name, "keeps" if same else "migrates", *types)

    def _is_undecided(self, name: str) -> bool:
        """Return whether the step may ask for a state later, or could not be asked."""
        if self._is_another:
            return False
        known = self._known
        return name in known.later or (self._lazy is not None and self._lazy(name)) or not known.complete

    def _unused_or(self, loss: StateChange) -> StateChange:
        """Return a loss, or no loss if the table is empty. That reads state: what metadata answers comes first."""
        if self._earlier.has_rows(self._node.uid, loss.name):
            return loss
        return StateChange(loss.name, "unused", loss.old)

    def _unclaimed(self, name: str, meta: StateMeta) -> StateChange:
        """Return the change of a state that the step does not declare."""
        uid = self._node.uid
        if self._known.own and not self._is_another:
            # A function may ask for a state at any time, so its code is searched for the name.
            if any(may_ask_for(function, name) for function in self._node.step.functions):
                return StateChange(name, "unused", _type(meta))
            return StateChange(name, "dropped", _type(meta), reason=unclaimed(name, uid))
        if self._lazy is not None:
            # A window step keeps its windows in another layout than the saved one.
            why = (
                f"step {uid!r} cannot go on with what it has in {name!r}: its windows keep something else now. "
                "Undo what was changed in the step until these windows have ended, or give it another uid"
            )
            return StateChange(name, "refused", _type(meta), reason=why)
        what = f", as the {self._had.kind} step that it was did" if self._is_another else ""
        why = (
            f"state {name!r} of step {uid!r} would be lost: what the step is now knows nothing of it{what}. "
            "Give the step another uid if it is another one, or leave the state behind with "
            "allow-dropped-state"
        )
        return StateChange(name, "dropped", _type(meta), reason=why)


def _with_other_keys(node: StreamNode, earlier: Earlier) -> dict[str, str]:
    """Return, by state, why no record can have a saved key: the key functions return another type now."""
    now = declared_key_types(node)
    # Only where there is something to compare them with: this reads state.
    if not now:
        return {}
    return {
        name: (
            f"state {name!r} of step {node.uid!r} would be lost: it is kept by keys of type "
            f"{names_of_types(types)}, and the keys of the step are of type {names_of_types(now)} now, which are "
            "never equal. Have the key function return what it did, give the step another uid if it is to begin "
            "afresh, or run it with allow-dropped-state, which keeps that state where no record reaches it"
        )
        for name, types in earlier.key_types(node.uid).items()
        if not any(can_be_equal(saved, kind) for saved in types for kind in now)
    }


def check_states(earlier: Earlier, graph: JobGraph, settings: Settings, services: Services) -> None:
    """Refuse states that the steps of a job cannot go on with, as far as that can be known before it runs.

    Raises:
        IncompatibleStateError: a state is of another type, or what its step is now knows nothing of it.
    """
    steps = compare(earlier, graph, settings, services).steps
    unwanted = ("refused",) if settings.allow_dropped_state else ("refused", "dropped")
    changes = [change for step in steps if step.what == "keeps" for change in step.changes]
    why = [change.reason for change in changes if change.what in unwanted]
    if why:
        raise IncompatibleStateError("; ".join(why))


def _type(meta: StateMeta | None) -> str:
    if meta is None:
        return ""
    kind = meta.declared or meta.kind.value
    return f"{kind} of {meta.type_name}" if meta.type_name else kind
