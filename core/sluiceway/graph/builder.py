"""Builder of the stream graph from transformations: derives everything, checks all rules, reports all findings."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from sluiceway.config.settings import Settings
from sluiceway.connector.lib import DeadLetterSink
from sluiceway.connector.lib.dead_letter_files import DEAD_LETTER_SINK
from sluiceway.functions import DEAD_LETTERS, FunctionObject, OutputTag
from sluiceway.functions.life import called_by, unopened
from sluiceway.graph.findings import Finding, Level, graph_error
from sluiceway.graph.identity import derive_uids, step_name
from sluiceway.graph.parallelism import MAX_PARALLELISM_LIMIT, default_max_parallelism, subtask_limit
from sluiceway.graph.pushdown import Pushdown, pushed_down
from sluiceway.graph.transformations import InputRef, Transformation, closure, upstream_of
from sluiceway.steps import (
    IterationHeadStep,
    SinkStep,
    SourceStep,
    Step,
)
from sluiceway.streamgraph import PartitionerSpec, StreamEdge, StreamGraph, StreamNode
from sluiceway.types import is_known, union_of

__all__ = ["Assembly", "assemble", "build_stream_graph"]

_DEFAULT_GROUP: Final = "default"


class Assembly(msgspec.Struct, frozen=True):
    """Result of building a program.

    Attributes:
        graph: the stream graph; None where the program is too broken to have one.
        findings: all problems of it, in the order of the program.
    """

    graph: StreamGraph | None
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> list[Finding]:
        """Findings that prevent it from running."""
        return [f for f in self.findings if f.level is Level.ERROR]


def build_stream_graph(
    job_name: str,
    transformations: Iterable[Transformation],
    settings: Settings,
    *,
    max_parallelism: int | None = None,
    partial: bool = False,
) -> StreamGraph:
    """Build the stream graph of a program.

    Args:
        job_name: the pipeline's name.
        transformations: every step of the program in the order it was written; those that only others refer
            to are found through them.
        settings: parallelism, key groups, buffer timeout and chaining where the program sets none.
        max_parallelism: the program's own number of key groups; overrides that of the settings.
        partial: ignore what is missing rather than wrong (sinks), so that a program can be shown while
            it is being written. Such a graph is not to be run.

    Raises:
        GraphError: the program cannot become a job; one message for all problems.
    """
    assembly = assemble(job_name, transformations, settings, max_parallelism=max_parallelism, partial=partial)
    if assembly.graph is None or assembly.errors:
        raise graph_error(job_name, assembly.findings)
    return assembly.graph


def assemble(
    job_name: str,
    transformations: Iterable[Transformation],
    settings: Settings,
    *,
    max_parallelism: int | None = None,
    partial: bool = False,
) -> Assembly:
    """Build the stream graph as far as possible, and collect all findings instead of raising.

    Arguments are those of :func:`build_stream_graph`.
    """
    return _Builder(job_name, list(transformations), settings, max_parallelism, partial).run()


class _Builder:
    def __init__(
        self,
        job_name: str,
        program: list[Transformation],
        settings: Settings,
        max_parallelism: int | None,
        partial: bool,
    ) -> None:
        self._job_name = job_name
        self._program = program
        self._settings = settings
        self._max_parallelism = settings.max_parallelism if max_parallelism is None else max_parallelism
        self._partial = partial
        self._findings: list[Finding] = []
        self._order: list[Transformation] = []
        self._names: dict[Transformation, str] = {}
        self._parallelism: dict[Transformation, int] = {}
        self._groups: dict[Transformation, str] = {}
        self._types: dict[Transformation, Any] = {}
        self._functions: set[int] = set()
        self._pushed = Pushdown()

    def run(self) -> Assembly:
        if not self._visit():
            return Assembly(None, tuple(self._findings))
        for t in self._order:
            self._names[t] = t.name or step_name(t.step)
        # In topological order: the parallelism of a sink may be that of its inputs.
        for t in self._order:
            self._check_shape(t)
            self._parallelism[t] = self._choose_parallelism(t)
        if not self._partial:
            self._check_reaches_sinks()
            self._check_side_outputs()
        # Behind the checks of what the program lacks, and before the uids, of which it gets one, too.
        self._add_dead_letter_sink()
        uids = self._uids()
        if not any(finding.level is Level.ERROR for finding in self._findings):
            # Only for a graph that will run: one with errors is only reported.
            self._pushed = pushed_down(self._order)
        nodes = tuple(self._node(i, t, uids[t]) for i, t in enumerate(self._order))
        self._check_co_location()
        ids = {t: i for i, t in enumerate(self._order)}
        edges = tuple(self._edges(ids, uids))
        graph = StreamGraph(self._job_name, nodes, edges, chaining=self._settings.chaining)
        return Assembly(graph, tuple(self._findings))

    # ---- walking ------------------------------------------------------------------------------------------

    def _visit(self) -> bool:
        """Put everything in topological order, each transformation once; False if that cannot be done."""
        done: set[Transformation] = set()
        roots = list(self._program)
        for root in roots:  # grows: what comes back to an iteration is followed when its head is there
            if root in done:
                continue
            # Depth first without recursion, as chains may be long. Whatever is on the path while it is met again
            # closes a circle.
            path = [(root, iter([ref.upstream for ref in root.inputs]))]
            on_path = {root}
            while path:
                t, upstreams = path[-1]
                upstream = next(upstreams, None)
                if upstream is None:
                    path.pop()
                    on_path.discard(t)
                    done.add(t)
                    self._order.append(t)
                    roots.extend(ref.upstream for ref in t.feedback)
                elif upstream in on_path:
                    self._error(
                        "circle",
                        t,
                        f"{self._label(t)} reads from {self._label(upstream)}, which is made from its output:"
                        " only iterate() can close a loop",
                    )
                    return False
                elif upstream not in done:
                    path.append((upstream, iter([ref.upstream for ref in upstream.inputs])))
                    on_path.add(upstream)
        return True

    def _downstream_of(self, start: Transformation) -> set[Transformation]:
        """Return all steps downstream of ``start``, feedback included, and itself."""
        consumers: dict[Transformation, list[Transformation]] = {t: [] for t in self._order}
        for t in self._order:
            for ref in [*t.inputs, *t.feedback]:
                consumers[ref.upstream].append(t)
        return closure([start], consumers.__getitem__)

    # ---- rules --------------------------------------------------------------------------------------------

    def _label(self, t: Transformation) -> str:
        name = self._names.get(t) or t.name or step_name(t.step)
        return f"{name!r} ({t.location})" if t.location else repr(name)

    def _error(self, code: str, t: Transformation, message: str) -> None:
        self._add(Level.ERROR, code, t, message)

    def _add(self, level: Level, code: str, t: Transformation, message: str) -> None:
        self._findings.append(Finding(level, code, message, self._names.get(t, t.step.kind), t.location))

    def _check_shape(self, t: Transformation) -> None:
        label = self._label(t)
        if isinstance(t.step, SourceStep):
            if t.inputs:
                self._error("source-with-input", t, f"source {label} cannot have an input")
        elif not t.inputs:
            self._error(
                "unreachable", t, f"{label} has no input, so no record can reach it: connect it to a source"
            )
        else:
            for port in sorted(set(range(t.step.ports)) - {ref.port for ref in t.inputs}):
                self._error(
                    "unreachable",
                    t,
                    f"nothing feeds input {port + 1} of {label}, which needs {t.step.ports}: connect two streams"
                    " with connect()",
                )
        if isinstance(t.step, IterationHeadStep):
            self._check_iteration(t, label)
        elif t.feedback:
            self._error("feedback", t, f"{label} cannot take feedback: only iterate() begins a loop")
        for ref in [*t.inputs, *t.feedback]:
            self._check_input(t, ref, label)

    def _check_iteration(self, head: Transformation, label: str) -> None:
        if not head.feedback:
            self._error(
                "iteration-without-feedback",
                head,
                f"iteration {label} gets nothing back: close it with close_with(stream), or leave out iterate()",
            )
            return
        below = self._downstream_of(head)
        for ref in head.feedback:
            if ref.upstream not in below:
                self._error(
                    "foreign-feedback",
                    head,
                    f"what comes back to iteration {label} must be made from its own output;"
                    f" {self._label(ref.upstream)} is not: use union() before iterate() for it",
                )

    def _check_input(self, t: Transformation, ref: InputRef, label: str) -> None:
        up = ref.upstream
        if isinstance(up.step, SinkStep):
            self._error("reads-sink", t, f"{label} cannot read from sink {self._label(up)}: a sink has no output")
        dead = ref.tag is not None and ref.tag.name == DEAD_LETTERS.name and up.step.skips
        if ref.tag is not None and not dead and not up.step.side_outputs:
            self._error(
                "no-side-output",
                t,
                f"{label} reads side output {ref.tag.name!r} of {self._label(up)}, but {up.step.kind} never"
                " produces side outputs: use process() with a ProcessFunction",
            )
        spec = ref.partitioner
        self._check_exchange(t, ref, label)
        if spec is not None and spec.name in ("hash", "custom") and spec.key is None:
            self._error(
                "no-key",
                t,
                f"the {spec.name} partitioner between {self._label(up)} and {label} needs a key:"
                " give a function that computes it from a record",
            )
        if spec is not None and spec.name == "custom" and spec.select is None:
            self._error(
                "no-select",
                t,
                f"the custom partitioner between {self._label(up)} and {label} needs select=, a function of a"
                " key and the number of consumers",
            )

    def _check_exchange(self, t: Transformation, ref: InputRef, label: str) -> None:
        if not 0 <= ref.port < t.step.ports:
            count = "1 input" if t.step.ports == 1 else f"{t.step.ports} inputs"
            self._error(
                "no-such-port",
                t,
                f"{self._label(ref.upstream)} feeds input {ref.port + 1} of {label}, but a {t.step.kind} step has"
                f" {count}: use union() for several streams in one, or connect() for two",
            )
            return
        wanted, have = t.step.exchange(ref.port), ref.partitioner
        if wanted is None or (have is not None and have.name == wanted):
            return
        how = "no partitioner" if have is None else repr(have.name)
        came = f"its input from {self._label(ref.upstream)} has {how}"
        if wanted == "hash":
            self._error(
                "not-keyed",
                t,
                f"{label} keeps state per key, but {came}: put key_by() right before it",
            )
        else:
            self._error("exchange", t, f"{label} needs the partitioner {wanted!r}, but {came}: use {wanted}()")

    def _choose_parallelism(self, t: Transformation) -> int:
        label = self._label(t)
        limit, what = subtask_limit(t.step)
        if t.parallelism is None and t.parallelism_of:
            # A step before it, which has one already, or the only one behind it.
            return max(self._parallelism.get(of) or self._choose_parallelism(of) for of in t.parallelism_of)
        if t.parallelism is None:
            default = max(self._settings.parallelism, 1)
            if isinstance(t.step, SinkStep) and t.step.sink.follows_input:
                # Those before are there already: a sink is in no loop.
                default = max((self._parallelism[ref.upstream] for ref in t.inputs), default=1)
            return default if limit is None else min(default, limit)
        if t.parallelism < 1:
            self._error("parallelism", t, f"{label} has parallelism {t.parallelism}: it must be at least 1")
            return 1
        if limit is not None and t.parallelism > limit:
            self._error(
                "parallelism",
                t,
                f"{label} has parallelism {t.parallelism}, but {what} {limit} subtask{'s' * (limit != 1)} at the"
                f" most: use set_parallelism({limit}) or leave it out",
            )
        return t.parallelism

    def _choose_max_parallelism(self, t: Transformation, parallelism: int) -> int:
        own = t.max_parallelism if t.max_parallelism is not None else self._max_parallelism
        chosen = default_max_parallelism(parallelism) if own is None else own
        if not 1 <= chosen <= MAX_PARALLELISM_LIMIT:
            self._error(
                "max-parallelism",
                t,
                f"{self._label(t)} has max parallelism {chosen}: it must be between 1 and {MAX_PARALLELISM_LIMIT}",
            )
        elif parallelism > chosen:
            self._error(
                "parallelism",
                t,
                f"{self._label(t)} has parallelism {parallelism}, more than its max parallelism {chosen}: lower"
                f" the one with set_parallelism({chosen}) or raise the other with set_max_parallelism()",
            )
        return chosen

    def _check_reaches_sinks(self) -> None:
        sinks = [t for t in self._order if isinstance(t.step, SinkStep)]
        if not sinks:
            self._findings.append(
                Finding(
                    Level.ERROR,
                    "no-sink",
                    f"pipeline {self._job_name!r} has no sink, so its results would go nowhere: end it with"
                    " sink(), print() or collect()",
                )
            )
            return
        useful = upstream_of(sinks)
        for t in self._order:
            if t not in useful:
                self._error(
                    "dangling",
                    t,
                    f"{self._label(t)} leads to no sink: add a sink behind it, or leave it out of the program",
                )

    def _check_side_outputs(self) -> None:
        read = {(ref.upstream, ref.tag.name) for t in self._order for ref in [*t.inputs, *t.feedback] if ref.tag}
        for t in self._order:
            for tag in t.side_output_tags:
                if (t, tag.name) not in read:
                    self._add(
                        Level.WARNING,
                        "dangling-side-output",
                        t,
                        f"side output {tag.name!r} of {self._label(t)} has no consumer: its records are dropped",
                    )

    def _uids(self) -> dict[Transformation, str]:
        uids = derive_uids(self._order)
        first: dict[str, Transformation] = {}
        for t in self._order:
            if t.uid == "":
                self._error("empty-uid", t, f"{self._label(t)} has an empty uid: give it a name of its own")
            other = first.setdefault(uids[t], t)
            if other is not t:
                self._error(
                    "duplicate-uid",
                    t,
                    f"{self._label(other)} and {self._label(t)} both have uid {uids[t]!r}: a uid names one step's"
                    " state, so give each its own",
                )
        return uids

    # ---- making -------------------------------------------------------------------------------------------

    def _node(self, node_id: int, t: Transformation, uid: str) -> StreamNode:
        parallelism = self._parallelism[t]
        timeout = t.buffer_timeout_ms if t.buffer_timeout_ms is not None else self._settings.buffer_timeout_ms
        if timeout < -1:
            self._error(
                "buffer-timeout",
                t,
                f"{self._label(t)} has buffer timeout {timeout} ms: it must be 0 (at once), positive, or -1 (only"
                " when full)",
            )
        return StreamNode(
            id=node_id,
            uid=uid,
            uid_given=t.uid is not None,
            name=self._names[t],
            description=t.description,
            step=self._own(t),
            parallelism=parallelism,
            max_parallelism=self._choose_max_parallelism(t, parallelism),
            buffer_timeout_ms=timeout,
            slot_sharing_group=self._group(t),
            chaining=t.chaining,
            output_type=self._type(t),
            type_declared=t.type_declared,
            location=t.location,
            co_location_group=t.co_location_group,
            skips_errors=self._skips(t),
            max_dead_letters=self._settings.max_dead_letters if t.skips_errors is None else t.max_dead_letters,
            max_parallelism_given=t.max_parallelism is not None or self._max_parallelism is not None,
            parallelism_given=any(each.parallelism is not None for each in (t, *t.parallelism_of)),
        )

    def _skips(self, t: Transformation) -> bool:
        """Return whether a step skips records on which its function raises: its own setting, or the option's."""
        if t.skips_errors is None:
            return self._settings.on_error == "skip" and t.step.skips
        return t.skips_errors

    def _add_dead_letter_sink(self) -> None:
        """Have what all steps skip written to the directory of the option ``dead-letters``."""
        directory = self._settings.dead_letters
        skipping = [t for t in self._order if self._skips(t)]
        if directory is None or not skipping:
            return
        sink = SinkStep(DeadLetterSink(directory))
        # With a uid of its own: one that is made of those of the steps before it would change with the pipeline.
        t = Transformation(
            sink,
            [InputRef(t, DEAD_LETTERS) for t in skipping],
            name=DEAD_LETTER_SINK,
            parallelism=1,
            uid=DEAD_LETTER_SINK,
        )
        self._order.append(t)
        self._names[t] = DEAD_LETTER_SINK
        self._parallelism[t] = 1

    def _check_co_location(self) -> None:
        """Check that co-located steps share a slot-sharing group and a parallelism."""
        first: dict[str, Transformation] = {}
        for t in self._order:
            group = t.co_location_group
            if group is None or (other := first.setdefault(group, t)) is t:
                continue
            together = f"{self._label(other)} and {self._label(t)} are in co-location group {group!r}"
            if self._parallelism[t] != self._parallelism[other]:
                self._error(
                    "co-location",
                    t,
                    f"{together}, but have parallelism {self._parallelism[other]} and {self._parallelism[t]}:"
                    " subtasks of the same index are to share a slot, so give both the same parallelism",
                )
            if self._groups[t] != self._groups[other]:
                self._error(
                    "co-location",
                    t,
                    f"{together}, but in slot-sharing groups {self._groups[other]!r} and {self._groups[t]!r},"
                    " which never share a slot: put both into one slot-sharing group",
                )

    def _own(self, t: Transformation) -> Step:
        """Return the step with function objects of its own: two steps with one would mix up their state."""

        def own(function: FunctionObject) -> FunctionObject:
            called = id(called_by(function))
            if called not in self._functions:
                self._functions.add(called)
                return function
            try:
                return copy.deepcopy(unopened(function))
            except Exception as error:
                self._error(
                    "shared-function",
                    t,
                    f"{self._label(t)} has the same {type(function).__name__} object as another step, and it"
                    f" cannot be copied ({error}): give each step an object of its own",
                )
                return function

        return self._pushed.steps.get(t, t.step).with_own_functions(own)

    def _group(self, t: Transformation) -> str:
        """Return its own group, else the one of all its inputs, else the default one."""
        inherited = {self._groups[ref.upstream] for ref in t.inputs}
        group = t.slot_sharing_group or (inherited.pop() if len(inherited) == 1 else _DEFAULT_GROUP)
        self._groups[t] = group
        return group

    def _type(self, t: Transformation) -> Any:
        """Return the type that the user declared, else the one of type hints."""
        found = t.output_type if t.output_type is not None else t.step.output_type(*self._entering(t))
        self._types[t] = found if is_known(found) else None
        return self._types[t]

    def _entering(self, t: Transformation) -> list[Any]:
        """Return the types of the records that enter a step, by port."""
        by_port: dict[int, list[Any]] = {0: []}
        for ref in t.inputs:
            tag = self._tag(ref)
            by_port.setdefault(ref.port, []).append(tag.type if tag else self._types[ref.upstream])
        return [union_of(by_port[port]) for port in sorted(by_port)]

    def _tag(self, ref: InputRef) -> OutputTag[Any] | None:
        """Return the side output that an input reads, with the type of its records."""
        tag, up = ref.tag, ref.upstream
        if tag is None or tag.type is not None:
            return tag
        found = up.step.side_type(tag.name, *self._entering(up))
        return dataclasses.replace(tag, type=found) if is_known(found) else tag

    def _edges(self, ids: dict[Transformation, int], uids: dict[Transformation, str]) -> Iterator[StreamEdge]:
        for t in self._order:
            refs: Sequence[tuple[InputRef, bool]] = [
                *((ref, False) for ref in t.inputs),
                *((ref, True) for ref in t.feedback),
            ]
            for index, (ref, feedback) in enumerate(refs):
                yield StreamEdge(
                    id=f"{_quoted(uids[ref.upstream])}>{_quoted(uids[t])}#{index}",
                    source=ids[ref.upstream],
                    target=ids[t],
                    partitioner=replace(
                        self._choose_partitioner(t, ref, feedback), columns=self._pushed.sent.get(t)
                    ),
                    tag=self._tag(ref),
                    feedback=feedback,
                    port=ref.port,
                )

    def _choose_partitioner(self, t: Transformation, ref: InputRef, feedback: bool) -> PartitionerSpec:
        up = ref.upstream
        before, after = self._parallelism[up], self._parallelism[t]
        spec = ref.partitioner
        if spec is None and not feedback:
            return PartitionerSpec("forward" if before == after else "rebalance")
        if spec is None and before != after:
            self._error(
                "feedback-parallelism",
                t,
                f"what comes back to iteration {self._label(t)} (parallelism {after}) from {self._label(up)}"
                f" (parallelism {before}) needs the same parallelism: use set_parallelism({after}) there, or say"
                " how to distribute it with rebalance() or rescale()",
            )
        elif spec is not None and spec.name == "forward" and before != after:
            self._error(
                "forward-parallelism",
                t,
                f"forward from {self._label(up)} (parallelism {before}) to {self._label(t)} (parallelism {after})"
                " needs the same parallelism on both sides: use rebalance() or rescale() instead, or make them"
                " equal with set_parallelism()",
            )
        if spec is not None and spec.name == "hash":
            skips = self._skips(t)
            return replace(spec, skips=skips, checks=not skips and t.step.exchange(ref.port) != "hash")
        return spec or PartitionerSpec("forward")


def _quoted(uid: str) -> str:
    # A uid may hold any text; the id of an edge must still say where the one ends and the other begins.
    return uid.replace("%", "%25").replace(">", "%3E")
