"""Metrics: those of functions, figures and events of jobs, and the contract of the reporters that send them."""

from sluiceway.metrics.events import CheckpointInfo, FailureInfo, RestartInfo, SubtaskInfo
from sluiceway.metrics.figures import (
    CheckpointFigures,
    JobMetrics,
    Number,
    SplitTime,
    SplitTimes,
    SubtaskMetrics,
    WorkerMetrics,
)
from sluiceway.metrics.registry import Counter, Histogram, MetricGroup
from sluiceway.metrics.reporter import MetricsReporter

__all__ = [
    "CheckpointFigures",
    "CheckpointInfo",
    "Counter",
    "FailureInfo",
    "Histogram",
    "JobMetrics",
    "MetricGroup",
    "MetricsReporter",
    "Number",
    "RestartInfo",
    "SplitTime",
    "SplitTimes",
    "SubtaskInfo",
    "SubtaskMetrics",
    "WorkerMetrics",
]
