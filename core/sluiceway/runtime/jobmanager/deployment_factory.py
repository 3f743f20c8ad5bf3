"""Factory of task deployment descriptors: all that a worker needs of the job's graphs to run one attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluiceway.config.settings import Settings
from sluiceway.graph import ExecutionGraph, ExecutionVertex, JobEdge
from sluiceway.network.channel_state import EdgeName, may_overtake
from sluiceway.runtime.task.deployment import InputDescriptor, OutputDescriptor, TaskDeployment
from sluiceway.runtime.task.snapshot import JobSnapshot
from sluiceway.steps import WindowStep
from sluiceway.steps.columns import ColumnWindowStep
from sluiceway.transport import ChannelId

__all__ = ["TaskDeploymentFactory"]


class TaskDeploymentFactory:
    """Factory of the descriptors of one job. From the job master's thread.

    Args:
        settings: the options of the run.
        edge_names: name of each edge in channel state, by its id; the same at another parallelism.
        places: worker of each subtask, by vertex id and index; the job master changes it as slots are allocated.
        seed: seed of random partitioners.
        job: prefix of the names of channels, unique among jobs; may be empty.
        name: name by which tasks address the job.
        epoch: epoch of the job's master.
    """

    def __init__(
        self,
        settings: Settings,
        edge_names: Mapping[str, EdgeName],
        places: Mapping[tuple[int, int], str],
        *,
        seed: int,
        job: str,
        name: str,
        epoch: int,
    ) -> None:
        self._settings = settings
        self._edge_names = edge_names
        self._places = places
        self._seed = seed
        self._job = job
        self._name = name
        self._epoch = epoch

    def make(
        self, executions: ExecutionGraph, vertex: ExecutionVertex, snapshot: JobSnapshot | None, path: str
    ) -> TaskDeployment:
        """Return the descriptor of the current attempt of a subtask; its peers have their slots already.

        Args:
            executions: the job.
            vertex: the subtask.
            snapshot: snapshot that the job is restored from; None: it starts empty.
            path: directory for the task's files, relative to the location of the checkpoints.
        """
        job_vertex, graph = vertex.job_vertex, executions.job_graph
        inputs = [self._input(executions, vertex, edge, snapshot) for edge in graph.in_edges(job_vertex.id)]
        outputs = [self._output(executions, vertex, edge) for edge in graph.out_edges(job_vertex.id)]
        return TaskDeployment(
            job_name=graph.job_name,
            attempt_id=vertex.current.attempt_id,
            vertex=job_vertex,
            subtask=vertex.subtask,
            attempt=vertex.current.attempt,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            settings=self._settings,
            seed=self._seed,
            job=self._name,
            restored=() if snapshot is None else snapshot.share(job_vertex, vertex.subtask),
            checkpoint_path=path,
            drained=snapshot is not None and snapshot.drained(job_vertex, vertex.subtask),
            serializers=graph.serializers,
            epoch=self._epoch,
        )

    def _input(
        self, executions: ExecutionGraph, vertex: ExecutionVertex, edge: JobEdge, snapshot: JobSnapshot | None
    ) -> InputDescriptor:
        name, job_vertex, subtask = self._edge_names[edge.id], vertex.job_vertex, vertex.subtask
        in_flight, dealt = (
            ((), False) if snapshot is None else snapshot.in_flight_on(name, edge, job_vertex, subtask)
        )
        producers = executions.producers_of(edge, subtask)
        return InputDescriptor(
            channels=tuple(self._channel(executions, edge, producer, subtask) for producer in producers),
            port=edge.edge.port,
            feedback=edge.feedback,
            record_type=_record_type(executions, edge),
            edge=name,
            partitioner=edge.edge.partitioner,
            overtakes=may_overtake(edge.edge.partitioner.name) and not edge.feedback,
            in_flight=in_flight,
            dealt=dealt,
        )

    def _output(self, executions: ExecutionGraph, vertex: ExecutionVertex, edge: JobEdge) -> OutputDescriptor:
        consumers = executions.consumers_of(edge, vertex.subtask)
        return OutputDescriptor(
            node=edge.source_node,
            tag=None if edge.edge.tag is None else edge.edge.tag.name,
            partitioner=edge.edge.partitioner,
            channels=tuple(self._channel(executions, edge, vertex.subtask, consumer) for consumer in consumers),
            consumer_max_parallelism=executions.job_graph.vertex(edge.target).max_parallelism,
            record_type=_record_type(executions, edge),
            edge=self._edge_names[edge.id],
            overtakes=may_overtake(edge.edge.partitioner.name) and not edge.feedback,
            combined=self._combined(executions, edge),
        )

    def _channel(self, executions: ExecutionGraph, edge: JobEdge, producer: int, consumer: int) -> ChannelId:
        return ChannelId(
            f"{self._job}/{edge.id}" if self._job else edge.id,
            producer,
            consumer,
            # Part of the channel's identity: data of earlier attempts stays in their channels.
            attempt=executions.subtask(edge.target, consumer).current.attempt,
            producer_at=self._places[edge.source, producer],
            consumer_at=self._places[edge.target, consumer],
        )

    def _combined(self, executions: ExecutionGraph, edge: JobEdge) -> WindowStep | ColumnWindowStep | None:
        # Imported here: it needs the window operators, and many jobs have neither these nor edges.
        from sluiceway.operators.local_aggregation import combined_step

        head = executions.job_graph.vertex(edge.target).head
        return combined_step(edge.edge.partitioner, head, self._settings)


def _record_type(executions: ExecutionGraph, edge: JobEdge) -> Any:
    if edge.edge.tag is not None:
        return edge.edge.tag.type
    return next(n.output_type for n in executions.job_graph.vertex(edge.source).nodes if n.id == edge.source_node)
