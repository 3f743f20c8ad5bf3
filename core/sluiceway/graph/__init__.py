"""Graphs: transformations, stream graph, job graph and execution graph, with checks and drawings of them."""

from sluiceway.graph.builder import Assembly, assemble, build_stream_graph
from sluiceway.graph.check.pipeline import check
from sluiceway.graph.execution import Execution, ExecutionState, StateListener
from sluiceway.graph.execution_graph import ExecutionGraph, ExecutionJobVertex, ExecutionVertex
from sluiceway.graph.findings import Finding, Level
from sluiceway.graph.job_graph import (
    JobEdge,
    JobGraph,
    JobVertex,
    build_job_graph,
    distribution_of,
    slots_required,
)
from sluiceway.graph.parallelism import MAX_PARALLELISM_LIMIT, default_max_parallelism
from sluiceway.graph.plan.explain import EXPLAIN_FORMATS, explain
from sluiceway.graph.transformations import InputRef, Transformation, upstream_of

__all__ = [
    "EXPLAIN_FORMATS",
    "MAX_PARALLELISM_LIMIT",
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
    "StateListener",
    "Transformation",
    "assemble",
    "build_job_graph",
    "build_stream_graph",
    "check",
    "default_max_parallelism",
    "distribution_of",
    "explain",
    "slots_required",
    "upstream_of",
]
