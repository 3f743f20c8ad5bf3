"""From a program to what runs: stream graph, chaining, job graph, execution graph, and their pictures."""

from sluiceway.graph.builder import Assembly, assemble, build_stream_graph
from sluiceway.graph.check import check
from sluiceway.graph.execution import Execution, ExecutionState, StateListener
from sluiceway.graph.executiongraph import ExecutionGraph, ExecutionJobVertex, ExecutionVertex
from sluiceway.graph.explain import EXPLAIN_FORMATS, explain
from sluiceway.graph.findings import Finding, Level
from sluiceway.graph.jobgraph import JobEdge, JobGraph, JobVertex, build_job_graph, distribution_of
from sluiceway.graph.parallelism import MAX_PARALLELISM_LIMIT, default_max_parallelism
from sluiceway.graph.regions import pipelined_regions
from sluiceway.graph.restarts import RestartStrategy, restart_strategy
from sluiceway.graph.scheduling import SCHEDULERS, SchedulingStrategy, scheduling_strategy
from sluiceway.graph.slots import Slot, SlotPool, SlotSharing, slots_required
from sluiceway.graph.transformations import InputRef, Transformation

__all__ = [
    "EXPLAIN_FORMATS",
    "MAX_PARALLELISM_LIMIT",
    "SCHEDULERS",
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
    "RestartStrategy",
    "SchedulingStrategy",
    "Slot",
    "SlotPool",
    "SlotSharing",
    "StateListener",
    "Transformation",
    "assemble",
    "build_job_graph",
    "build_stream_graph",
    "check",
    "default_max_parallelism",
    "distribution_of",
    "explain",
    "pipelined_regions",
    "restart_strategy",
    "scheduling_strategy",
    "slots_required",
]
