"""From a program to what runs: stream graph, chaining, job graph, execution graph, and their pictures."""

from sluiceway.graph.builder import Assembly, assemble, build_stream_graph
from sluiceway.graph.execution import Execution, ExecutionState
from sluiceway.graph.executiongraph import ExecutionGraph, ExecutionJobVertex, ExecutionVertex
from sluiceway.graph.findings import Finding, Level
from sluiceway.graph.jobgraph import JobEdge, JobGraph, JobVertex, build_job_graph
from sluiceway.graph.transformations import InputRef, Transformation

__all__ = [
    "Assembly",
    "Execution",
    "ExecutionGraph",
    "ExecutionJobVertex",
    "ExecutionState",
    "ExecutionVertex",
    "Finding",
    "InputRef",
    "JobEdge",
    "JobGraph",
    "JobVertex",
    "Level",
    "Transformation",
    "assemble",
    "build_job_graph",
    "build_stream_graph",
]
