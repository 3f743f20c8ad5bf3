"""Plan of a stepped job: subtasks and channels by number, in stages."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import Any, Final

from msgspec.structs import replace as replace_struct

from sluiceway.config.settings import Settings
from sluiceway.elements import Batch, Element
from sluiceway.engine import Services
from sluiceway.errors import GraphError
from sluiceway.graph import JobEdge, JobGraph, JobVertex
from sluiceway.graph.edge_wiring import consumers_of_subtask, producers_of_subtask
from sluiceway.network.element_codec import decode_element, edge_serializer, encode_batch, encode_control
from sluiceway.operators import OperatorSnapshot
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.runtime.task.deployment import InputDescriptor, OutputDescriptor, TaskDeployment
from sluiceway.serializers import Serializer
from sluiceway.serializers.program_classes import ProgramClasses
from sluiceway.steps import SinkStep, SourceStep
from sluiceway.streamgraph import ChainingStrategy, StreamGraph
from sluiceway.transport import ChannelId

__all__ = ["KEY_GROUPS", "Route", "SteppedPlan", "places_of"]

KEY_GROUPS: Final = 32
"""Default number of key groups of a keyed step; each is a subtask."""

_LENGTH: Final = struct.Struct("<I")

_LARGE: Final = 4 << 20
"""Bytes that make a part. Batches of up to twice that are not encoded again to be divided."""


@dataclass(frozen=True, slots=True)
class Route:
    """Route of a channel.

    Attributes:
        sender: number of the sender.
        target: number of the consuming subtask.
        stage: stage of that subtask.
        port: index of its input.
    """

    sender: int
    target: int
    stage: int
    port: int


class SteppedPlan:
    """The subtasks of a job by number, in stages that follow one another. Picklable as the graph is.

    Targets are subtasks, senders are channels from a producing subtask along one edge; both are numbered
    through, in the order of the graph. All vertices that are equally deep run at one stage: sources at 0, sinks at
    the last.

    Args:
        graph: the job graph. Use :meth:`of` for one whose keyed vertices have a subtask for each key group.
        settings: the options of the run.

    Attributes:
        graph: the job graph.
        settings: the options, as subtasks see them: nothing is committed before somebody says so.
        seed: for partitioners that draw lots, the same in every process.
        program: number that no other plan has. State and readers stay open in a process from one micro-batch to
            the next; a later plan for the same state may have other functions.
        last_stage: that of the sinks.
        sources: ids of the vertices that read sources, in the order of the graph.
        sinks: ids of the vertices that are sinks, likewise.
        classes: the program's, set where the plan comes to another process; None: it is in the program's own.
            All else is immutable.

    Raises:
        GraphError: there is a feedback loop.
    """

    def __init__(self, graph: JobGraph, settings: Settings) -> None:
        for edge in graph.edges:
            if edge.feedback:
                head = graph.vertex(edge.target).head
                raise GraphError(
                    f"iteration {head.name!r}: feedback loops cannot run here, where records go through the "
                    "steps in one direction: run the pipeline on engine 'local', or on Spark with --hosted"
                )
        self.graph = graph
        # A sink that is asked to finish waits for its commit; markers of latency mean nothing between clocks.
        self.settings = replace(
            settings, checkpoint_interval_ms=settings.checkpoint_interval_ms or 1, latency_interval_ms=0
        )
        self.seed = SystemRandom().getrandbits(32) if settings.seed is None else settings.seed
        self.program = SystemRandom().getrandbits(64)
        self.sources = tuple(v.id for v in graph.vertices if isinstance(v.head.step, SourceStep))
        self.sinks = tuple(v.id for v in graph.vertices if isinstance(v.head.step, SinkStep))
        self.classes: ProgramClasses | None = None
        self._order = [v.id for v in graph.vertices]
        self._first_target: dict[int, int] = {}
        count = 0
        for vertex in graph.vertices:
            self._first_target[vertex.id] = count
            count += vertex.parallelism
        self.targets = count
        self._starts = list(self._first_target.values())
        self._first_sender: dict[str, int] = {}
        self._edges: list[JobEdge] = []
        self._sender_starts: list[int] = []
        count = 0
        for edge in graph.edges:
            self._first_sender[edge.id] = count
            self._edges.append(edge)
            self._sender_starts.append(count)
            count += graph.vertex(edge.source).parallelism
        self.senders = count
        self._stages = self._deep()
        self.last_stage = max(self._stages.values())

    @classmethod
    def of(
        cls,
        graph: StreamGraph,
        settings: Settings,
        services: Services,
        *,
        key_groups: int = KEY_GROUPS,
        keyed_subtasks: int | None = None,
    ) -> SteppedPlan:
        """Chain a stream graph for this: sinks by themselves, keyed vertices with a subtask for each key group.

        Args:
            graph: what to run.
            settings: the options of the run.
            services: for what partitioners of plugins say of themselves.
            key_groups: how many there are where the program says nothing.
            keyed_subtasks: how many subtasks keyed vertices get at the least, if not one for each key group.

        Raises:
            GraphError: it has a feedback loop.
        """
        nodes = []
        for node in graph.nodes:
            if isinstance(node.step, SinkStep):
                node = replace_struct(node, chaining=ChainingStrategy.NEVER)
            if not node.max_parallelism_given:
                node = replace_struct(node, max_parallelism=max(key_groups, node.parallelism))
            nodes.append(node)
        job = job_graph_of(replace(graph, nodes=tuple(nodes)), services)
        vertices = tuple(_spread(v, keyed_subtasks) if v.head.step.keyed else v for v in job.vertices)
        return cls(JobGraph(job.job_name, vertices, job.edges, job.serializers), settings)

    def _deep(self) -> dict[int, int]:
        # Vertices are in topological order: the stages of all producers are known.
        stages: dict[int, int] = {}
        for vertex in self.graph.vertices:
            stages[vertex.id] = max((stages[e.source] + 1 for e in self.graph.in_edges(vertex.id)), default=0)
        # All sinks together at the end, whatever their depth: an engine commits them in one stage.
        last = max((stage for id_, stage in stages.items() if id_ not in self.sinks), default=-1) + 1
        return {id_: last if id_ in self.sinks else stage for id_, stage in stages.items()}

    # ---- who is who -----------------------------------------------------------------------------------------

    def stage_of(self, vertex: int) -> int:
        """Return the stage of a vertex."""
        return self._stages[vertex]

    def vertices_of(self, stage: int) -> list[JobVertex]:
        """Return the vertices of a stage, in the order of the graph."""
        return [v for v in self.graph.vertices if self._stages[v.id] == stage]

    def targets_of(self, stage: int) -> list[int]:
        """Return the numbers of all subtasks of a stage."""
        return [self.target(v.id, subtask) for v in self.vertices_of(stage) for subtask in range(v.parallelism)]

    def target(self, vertex: int, subtask: int) -> int:
        """Return the number of a subtask."""
        return self._first_target[vertex] + subtask

    def who(self, target: int) -> tuple[int, int]:
        """Return vertex id and subtask of a target."""
        index = bisect_right(self._starts, target) - 1
        return self._order[index], target - self._starts[index]

    def sender(self, edge: str, producer: int) -> int:
        """Return the number of the channels of a producing subtask along an edge (its id)."""
        return self._first_sender[edge] + producer

    def from_whom(self, sender: int) -> tuple[JobEdge, int]:
        """Return the edge of a sender, and the producing subtask."""
        index = bisect_right(self._sender_starts, sender) - 1
        return self._edges[index], sender - self._sender_starts[index]

    def senders_into(self, target: int) -> list[Route]:
        """Return the channels into a subtask, input by input."""
        vertex, subtask = self.who(target)
        stage = self._stages[vertex]
        return [
            Route(self.sender(edge.id, producer), target, stage, edge.edge.port)
            for edge in self.graph.in_edges(vertex)
            for producer in self._producers(edge, subtask)
        ]

    def routes_from(self, vertex: int, subtask: int) -> list[Route]:
        """Return the channels out of a subtask, edge by edge, in the order of the partitioner's indices."""
        return [
            Route(
                self.sender(edge.id, subtask),
                self.target(edge.target, consumer),
                self._stages[edge.target],
                edge.edge.port,
            )
            for edge in self.graph.out_edges(vertex)
            for consumer in self._consumers(edge, subtask)
        ]

    def producers_along(self, route: Route) -> range:
        """Return the producing subtasks of the consumer of a route, along the edge of that route."""
        edge, _ = self.from_whom(route.sender)
        return self._producers(edge, self.who(route.target)[1])

    def _producers(self, edge: JobEdge, consumer: int) -> range:
        return producers_of_subtask(edge.distribution, *self._widths(edge), consumer)

    def _consumers(self, edge: JobEdge, producer: int) -> range:
        return consumers_of_subtask(edge.distribution, *self._widths(edge), producer)

    def _widths(self, edge: JobEdge) -> tuple[int, int]:
        return self.graph.vertex(edge.source).parallelism, self.graph.vertex(edge.target).parallelism

    # ---- what a subtask is told -----------------------------------------------------------------------------

    def deployment(
        self, vertex: int, subtask: int, attempt: int = 0, restored: Sequence[OperatorSnapshot] = ()
    ) -> TaskDeployment:
        """Return the task deployment descriptor of a subtask."""
        job_vertex = self.graph.vertex(vertex)
        inputs = tuple(
            InputDescriptor(
                channels=tuple(
                    ChannelId(edge.id, producer, subtask) for producer in self._producers(edge, subtask)
                ),
                port=edge.edge.port,
                feedback=False,
                record_type=self._record_type(edge),
                partitioner=edge.edge.partitioner,
            )
            for edge in self.graph.in_edges(vertex)
        )
        outputs = tuple(
            OutputDescriptor(
                node=edge.source_node,
                tag=None if edge.edge.tag is None else edge.edge.tag.name,
                partitioner=edge.edge.partitioner,
                channels=tuple(
                    ChannelId(edge.id, subtask, consumer) for consumer in self._consumers(edge, subtask)
                ),
                consumer_max_parallelism=self.graph.vertex(edge.target).max_parallelism,
                record_type=self._record_type(edge),
            )
            for edge in self.graph.out_edges(vertex)
        )
        return TaskDeployment(
            job_name=self.graph.job_name,
            attempt_id=f"{self.graph.job_name}/{vertex}/{subtask}/{attempt}",
            vertex=job_vertex,
            subtask=subtask,
            attempt=attempt,
            inputs=inputs,
            outputs=outputs,
            settings=self.settings,
            seed=self.seed,
            restored=tuple(restored),
            job=self.graph.job_name,
            serializers=self.graph.serializers,
        )

    def _record_type(self, edge: JobEdge) -> Any:
        if edge.edge.tag is not None:
            return edge.edge.tag.type
        return next(n.output_type for n in self.graph.vertex(edge.source).nodes if n.id == edge.source_node)

    # ---- elements as bytes ----------------------------------------------------------------------------------

    def serializer(self, sender: int) -> Serializer:
        """Return the serializer of lists of the records on a sender."""
        return edge_serializer(self._record_type(self.from_whom(sender)[0]), self.graph.serializers)

    def pack(self, sender: int, elements: Iterable[Element]) -> bytes:
        """Encode elements of a sender. Raises SerializationError."""
        return b"".join(payload for _, payload in self.pack_in_parts(sender, elements))

    def pack_in_parts(self, sender: int, elements: Iterable[Element]) -> Iterator[tuple[int, bytes]]:
        """Yield elements of a sender, encoded, in parts of some megabytes, each with its place among them.

        Places are counted as by :func:`places_of`. Batches of large records are divided.

        Raises:
            SerializationError: a record cannot be encoded.
        """
        serializer = self.serializer(sender)
        frames: list[bytes | memoryview] = []
        size = place = first = 0
        for element in elements:
            for piece, frame in _encoded(element, serializer):
                length = sum(map(len, frame))
                if size and size + length > _LARGE:
                    yield first, b"".join(frames)
                    frames, size, first = [], 0, place
                frames.append(_LENGTH.pack(length))
                frames += frame
                size += length
                place += places_of(piece)
        if frames:
            yield first, b"".join(frames)

    def unpack(self, sender: int, payload: bytes | memoryview) -> list[Element]:
        """Decode the bytes of :meth:`pack`. Raises CorruptStreamError."""
        serializer = self.serializer(sender)
        view = memoryview(payload).cast("B")
        elements: list[Element] = []
        at = 0
        while at < len(view):
            (length,) = _LENGTH.unpack_from(view, at)
            at += _LENGTH.size
            elements.append(decode_element(view[at : at + length], serializer, f"sender {sender}"))
            at += length
        return elements


def places_of(element: Element) -> int:
    """Return the number of places of an element in its channel: one for each record, and for a control element."""
    return max(1, len(element.values)) if type(element) is Batch else 1


def _encoded(element: Element, serializer: Serializer) -> Iterator[tuple[Element, list[bytes | memoryview]]]:
    """Yield an element with its frame; of a batch with a large one, its parts."""
    if type(element) is not Batch:
        yield element, [encode_control(element)]
        return
    frame = encode_batch(element, serializer)
    size, records = sum(map(len, frame)), len(element)
    if size <= 2 * _LARGE or records < 2 or element.columns is not None:  # columns are divided when they are taken
        yield element, frame
        return
    step = max(1, records * _LARGE // size)
    for start in range(0, records, step):
        yield from _encoded(element.part(start, start + step), serializer)


def _spread(vertex: JobVertex, keyed_subtasks: int | None) -> JobVertex:
    """Return the vertex with a subtask for each of its key groups, or with ``keyed_subtasks``."""
    most = vertex.max_parallelism
    wide = most if keyed_subtasks is None else min(most, max(keyed_subtasks, vertex.parallelism))
    if wide == vertex.parallelism:
        return vertex
    return replace_struct(
        vertex, parallelism=wide, nodes=tuple(replace_struct(n, parallelism=wide) for n in vertex.nodes)
    )
