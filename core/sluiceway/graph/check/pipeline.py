"""All checks of a program before it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, get_args, get_origin

import msgspec

from sluiceway.config.settings import Settings
from sluiceway.engine.capabilities import Capabilities, Feature
from sluiceway.errors import ConfigurationError
from sluiceway.functions import DEAD_LETTERS, KeySelector
from sluiceway.graph.builder import assemble
from sluiceway.graph.check.engine import check_engine
from sluiceway.graph.check.features import is_bounded
from sluiceway.graph.check.serializers import check_serializers
from sluiceway.graph.check.watermarks import check_order_of_watermarks, check_timestamps, check_watermarks
from sluiceway.graph.findings import Finding, Level, graph_error
from sluiceway.graph.identity import function_name
from sluiceway.graph.transformations import Transformation
from sluiceway.isolation import unchangeable_type
from sluiceway.keygroups import unstable_type
from sluiceway.operators.escape_analysis import changes_nothing
from sluiceway.steps import (
    AsyncStep,
    CoFlatMapStep,
    FlatMapStep,
    KeyedCountStep,
    KeyedReduceStep,
    SinkStep,
    SourceStep,
    TimestampsStep,
    key_type,
)
from sluiceway.streamgraph import StreamEdge, StreamGraph, StreamNode
from sluiceway.types import is_assignable, members, parameter_type, type_name

if TYPE_CHECKING:
    from sluiceway.graph.job_graph import JobGraph

__all__ = ["check", "find_one_process", "find_unshippable", "refuse"]


def check(
    program: StreamGraph | Iterable[Transformation],
    settings: Settings | None = None,
    *,
    job_name: str = "pipeline",
    max_parallelism: int | None = None,
    capabilities: Callable[[bool], Capabilities] | None = None,
    cpus: int | None = None,
) -> list[Finding]:
    """Return all problems, and possible ones, of a program, without running any of it.

    Args:
        program: its transformations, or a stream graph that was made of them; of a graph, only problems
            of its functions and types are left to find.
        settings: the options that it would run with; the defaults if None.
        job_name: the pipeline's name, for messages.
        max_parallelism: the program's own number of key groups.
        capabilities: returns the engine's capabilities, for whether all sources are bounded; None: all. What
            cannot be sent to a worker is an error, but a warning where the engine works inside
            this process.
        cpus: CPUs that workers could use; None: it is not known.

    Returns:
        all findings: first those about the shape of the program, then those about each step in order, then those
        about the engine.
    """
    settings = settings or Settings()
    if isinstance(program, StreamGraph):
        return [*_check_graph(program), *_check_object_reuse(program, settings)]
    assembly = assemble(job_name, program, settings, max_parallelism=max_parallelism)
    findings = list(assembly.findings)
    if assembly.graph is not None:
        has = None if capabilities is None else capabilities(is_bounded(assembly.graph))
        sends = has is None or Feature.PROCESS_OBJECTS in has.lacks
        findings += _check_graph(assembly.graph, Level.ERROR if sends else Level.WARNING)
        findings += _check_object_reuse(assembly.graph, settings)
        findings += find_one_process(assembly.graph, settings, cpus)
        findings += _check_sinks(assembly.graph, settings)
        if has is not None:
            findings += check_engine(assembly.graph, settings, has)
    return findings


def refuse(graph: StreamGraph, settings: Settings, capabilities: Capabilities) -> None:
    """Refuse to run a graph with errors of :func:`check`, in the same words.

    What cannot be sent to workers is left to the sender.

    Args:
        graph: the job.
        settings: the options of the run.
        capabilities: the engine's capabilities in a run with these options.

    Raises:
        GraphError: names all problems.
        ConfigurationError: only options are wrong.
    """
    entering = _entering(graph)
    findings = [finding for node in graph.nodes for finding in _check_step(graph, node, entering)]
    findings += _check_sinks(graph, settings)
    findings += check_engine(graph, settings, capabilities)
    wrong = [finding for finding in findings if finding.level is Level.ERROR]
    if any(finding.node for finding in wrong):
        raise graph_error(graph.job_name, wrong)
    if wrong:
        raise ConfigurationError(str(graph_error(graph.job_name, wrong)))


def find_one_process(graph: StreamGraph, settings: Settings, cpus: int | None = None) -> list[Finding]:
    """Return a warning about the first step whose subtasks exchange records by key but share one core.

    Args:
        graph: the job.
        settings: the options of the run.
        cpus: CPUs that workers could use; None: it is not known.
    """
    if settings.engine != "local" or settings.workers:
        return []
    for node in graph.nodes:
        if node.parallelism > 1 and any(edge.partitioner.name == "hash" for edge in _into(graph, node)):
            workers = node.parallelism if cpus is None else min(node.parallelism, cpus)
            instead = f"with workers, which use a core each (--workers {workers}), or " if workers > 1 else ""
            message = (
                f"{_label(node)} has {node.parallelism} subtasks, which take turns in one process and are sent "
                f"records by key, which takes longer than one subtask: run it {instead}with parallelism 1"
            )
            return [_finding(Level.WARNING, "one-process", node, message)]
    return []


def find_unshippable(graph: JobGraph) -> list[Finding]:
    """Return what in a job cannot be sent to a worker process, with the steps that it belongs to."""
    return [
        finding
        for vertex in graph.vertices
        for place, node in enumerate(vertex.nodes)
        for finding in _check_pickling(node, [] if place else [e.edge for e in graph.in_edges(vertex.id)])
    ]


def _entering(graph: StreamGraph) -> dict[int, list[StreamEdge]]:
    entering: dict[int, list[StreamEdge]] = {n.id: [] for n in graph.nodes}
    for edge in graph.edges:
        entering[edge.target].append(edge)
    return entering


def _check_graph(graph: StreamGraph, unsent: Level = Level.ERROR) -> Iterator[Finding]:
    entering = _entering(graph)
    for node in graph.nodes:
        for finding in _check_pickling(node, entering[node.id]):
            yield msgspec.structs.replace(finding, level=unsent)
        yield from _check_uid(node)
        yield from _check_step(graph, node, entering)
        yield from check_watermarks(graph, node, entering)
        yield from check_order_of_watermarks(graph, node, entering)
        yield from _check_dead_letters(graph, node)
    yield from check_serializers(graph)


def _check_step(
    graph: StreamGraph, node: StreamNode, entering: Mapping[int, Sequence[StreamEdge]]
) -> Iterator[Finding]:
    """Yield problems that make a run fail whatever its records are."""
    yield from _check_function(node)
    for edge in entering[node.id]:
        yield from _check_types(graph, edge)
    yield from _check_key_type(node, entering[node.id])
    yield from _check_same_key_type(node)
    yield from check_timestamps(graph, node, entering)


def _finding(level: Level, code: str, node: StreamNode, message: str) -> Finding:
    return Finding(level, code, message, node.name, node.location)


def _check_object_reuse(graph: StreamGraph, settings: Settings) -> Iterator[Finding]:
    """Yield steps that may change, with the option object-reuse, what they have emitted before."""
    if not settings.object_reuse:
        return
    for node in graph.nodes:
        step = node.step
        if not step.stateful or isinstance(step, SourceStep | SinkStep | KeyedCountStep):
            continue
        if unchangeable_type(node.output_type):
            continue
        if isinstance(step, KeyedReduceStep) and changes_nothing(getattr(step.function, "reduce", step.function)):
            continue
        yield _finding(
            Level.WARNING,
            "shared-records",
            node,
            f"{_label(node)} keeps state and may emit objects of it, and the option object-reuse hands them on "
            "without copies: have its function emit objects that it does not change afterwards, declare a type of "
            "its results that cannot be changed, or run without object-reuse. every_way(..., object_reuse=True) "
            "tries whether results depend on it",
        )


def _check_sinks(graph: StreamGraph, settings: Settings) -> Iterator[Finding]:
    """Options of the run with which a sink could not keep its guarantee."""
    for node in graph.nodes:
        if isinstance(node.step, SinkStep):
            for problem in node.step.sink.problems(checkpoint_interval_ms=settings.checkpoint_interval_ms):
                yield _finding(Level.ERROR, "sink-options", node, f"{_label(node)}: {problem}")


def _into(graph: StreamGraph, node: StreamNode) -> list[StreamEdge]:
    return [edge for edge in graph.edges if edge.target == node.id]


def _label(node: StreamNode) -> str:
    return f"{node.name!r} ({node.location})" if node.location else repr(node.name)


def _check_dead_letters(graph: StreamGraph, node: StreamNode) -> Iterator[Finding]:
    taken = any(edge.tag is not None and edge.tag.name == DEAD_LETTERS.name for edge in graph.out_edges(node.id))
    if node.skips_errors and not taken:
        yield _finding(
            Level.WARNING,
            "dropped-records",
            node,
            f"{_label(node)} skips records on which its function raises, and nobody takes them: keep them with the"
            " option dead-letters, or take them with dead_letters()",
        )


# ---- functions ---------------------------------------------------------------------------------------------


def _check_function(node: StreamNode) -> Iterator[Finding]:
    if any(map(inspect.iscoroutinefunction, node.step.functions)) and not isinstance(node.step, AsyncStep):
        yield _finding(
            Level.ERROR,
            "async-function",
            node,
            f"{_label(node)} has an async function, which would return a coroutine for every record: give it a"
            " plain function, or use async_map()",
        )
        return
    hinted = node.step.output_type(None)
    if not is_assignable(hinted, node.output_type):
        have, said = _names(hinted, node.output_type)
        yield _finding(
            Level.ERROR,
            "type-clash",
            node,
            f"{_label(node)} is said to produce {said}, but its hints say {have}: correct one of the two",
        )
    returned = node.step.returned_type()
    if isinstance(node.step, FlatMapStep):
        yield from _check_flat_map(node, returned)
    if isinstance(node.step, CoFlatMapStep):
        for returned in node.step.returned_types():
            yield from _check_flat_map(node, returned)
    if isinstance(node.step, KeyedReduceStep):
        for wanted in node.step.wanted_types():
            if not is_assignable(returned, wanted):
                yield _finding(
                    Level.ERROR,
                    "type-clash",
                    node,
                    f"{_label(node)} reduces to {_names(returned, wanted)[0]}, which its function does not take"
                    f" again as {_names(returned, wanted)[1]}: return the type that goes in, or use aggregate()",
                )
                break


def _check_flat_map(node: StreamNode, returned: Any) -> Iterator[Finding]:
    nothing = type(None)
    alternatives = [m for m in members(returned) if m is not nothing]
    if str in alternatives:
        yield _finding(
            Level.WARNING,
            "flat-map-str",
            node,
            f"{_label(node)} returns str, and flat_map() makes a record of each character of it: return a list,"
            " or use map()",
        )
    elif returned is nothing or not all(is_assignable(m, Iterable[Any]) for m in alternatives):
        yield _finding(
            Level.ERROR,
            "not-iterable",
            node,
            f"{_label(node)} returns {type_name(returned)}, but flat_map() needs an iterable: return a list, yield"
            " the records, or use map()",
        )


def _check_pickling(node: StreamNode, entering: Iterable[StreamEdge]) -> Iterator[Finding]:
    from sluiceway.graph.check.pickling import find_obstacle  # the pickler takes long to import

    step = node.step
    if isinstance(step, SourceStep):
        parts: list[tuple[str, object]] = [(f"source {step.source.name}", step.source)]
        parts += [("watermark strategy", step.strategy)]
    elif isinstance(step, TimestampsStep):
        parts = [("watermark strategy", step.strategy)]
    elif isinstance(step, SinkStep):
        parts = [(f"sink {step.sink.name}", step.sink)]
    else:
        parts = [("function", function) for function in step.functions]
    parts += [("key selector", key) for key in step.keys]
    for edge in entering:
        parts += [("key selector", edge.partitioner.key), ("partitioner", edge.partitioner.select)]
    seen: set[int] = set()
    for what, part in parts:
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        obstacle = find_obstacle(part)
        if obstacle is not None:
            yield _finding(
                Level.ERROR,
                "unserialisable",
                node,
                f"the {what} of {_label(node)} cannot be sent to a worker: {obstacle}. Make such an object where"
                " it is used: in open() of a function object, or inside the function",
            )


def _check_uid(node: StreamNode) -> Iterator[Finding]:
    if node.step.stateful and not node.uid_given:
        yield _finding(
            Level.WARNING,
            "unstable-uid",
            node,
            f"{_label(node)} keeps state but has no uid: a uid derived from the program changes with it, and state"
            f" saved under the old one is not found again. Give it one with uid({_suggested_uid(node)!r})",
        )


def _suggested_uid(node: StreamNode) -> str:
    word = "".join(c if c.isalnum() else "-" for c in node.name.lower()).strip("-")
    return word or node.step.kind


# ---- types -------------------------------------------------------------------------------------------------


def _names(one: Any, other: Any) -> tuple[str, str]:
    """Return names of two types that differ: with their modules if their names are equal."""
    short = type_name(one), type_name(other)
    if short[0] != short[1]:
        return short
    return type_name(one, qualified=True), type_name(other, qualified=True)


def _check_types(graph: StreamGraph, edge: StreamEdge) -> Iterator[Finding]:
    up, down = graph.node(edge.source), graph.node(edge.target)
    produced = edge.tag.type if edge.tag else up.output_type
    if edge.tag:
        source = f"side output {edge.tag.name!r} of {_label(up)}"
    else:
        source = _label(up)
    wanted = [down.output_type] if edge.feedback else down.step.wanted_types(edge.port)
    for want in wanted:
        if not is_assignable(produced, want):
            have, need = _names(produced, want)
            taker = f"iteration {_label(down)}" if edge.feedback else _label(down)
            on_input = f" on input {edge.port + 1}" if down.step.ports > 1 else ""
            yield _finding(
                Level.ERROR,
                "type-clash",
                down,
                f"{source} produces {have}, but {taker} takes {need}{on_input}: convert in between, or correct the"
                " type hints",
            )
            break
    key = edge.partitioner.key
    if key is not None:
        want = parameter_type(key, 0, "get_key" if isinstance(key, KeySelector) else None)
        if not is_assignable(produced, want):
            have, need = _names(produced, want)
            yield _finding(
                Level.ERROR,
                "type-clash",
                down,
                f"{source} produces {have}, but the key selector {function_name(key)} before {_label(down)} takes"
                f" {need}: convert in between, or correct the type hints",
            )


def _check_key_type(node: StreamNode, entering: Iterable[StreamEdge]) -> Iterator[Finding]:
    for edge in entering:
        key = edge.partitioner.key
        if key is None or edge.partitioner.name != "hash":
            continue
        why = _unstable(key_type(key))
        if why is not None:
            yield _finding(
                Level.ERROR,
                "unstable-key",
                node,
                f"the key selector {function_name(key)} before {_label(node)} returns {type_name(key_type(key))},"
                f" which cannot be a key: {why}",
            )
            return


def _check_same_key_type(node: StreamNode) -> Iterator[Finding]:
    """Check that keys of two inputs can be equal."""
    keyed = [key for key in node.step.keys if key is not None]
    if len(keyed) < 2:
        return
    first, second = (key_type(key) for key in keyed)
    if all(isinstance(of, type) and issubclass(of, Number) for of in (first, second)):
        return  # 1 and Decimal(1) are equal
    if not is_assignable(first, second) and not is_assignable(second, first):
        one, other = _names(first, second)
        yield _finding(
            Level.ERROR,
            "key-type-clash",
            node,
            f"{_label(node)} keys its first input by {function_name(keyed[0])}, which returns {one}, and its"
            f" second by {function_name(keyed[1])}, which returns {other}: records meet only under equal keys, so"
            " have both return the same type",
        )


def _unstable(key: Any) -> str | None:
    """Return why a type cannot be a key; None if it can, or if it is not known."""
    alternatives = members(key)
    if len(alternatives) != 1:
        return None  # of a union, one may do
    only = alternatives[0]
    cls = get_origin(only) or only
    if not isinstance(cls, type) or inspect.isabstract(cls) or getattr(cls, "_is_protocol", False):
        return None
    if cls is tuple:
        return next((why for why in map(_unstable, get_args(only)) if why is not None), None)
    if cls.__hash__ is not None and type.__subclasses__(cls):
        return None  # a subclass may have a hash of its own
    return unstable_type(cls)
