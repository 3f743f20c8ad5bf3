"""Testing tools for pipelines, functions and plugins.

:class:`OperatorHarness` for a step, :class:`TwoInputOperatorHarness` for one that connects two streams,
:class:`PipelineHarness` and :func:`run_pipeline` for a pipeline, in virtual time; :func:`every_way` for whatever
must not depend on how records come; :class:`KeySequence`, :class:`FailOnce`, :class:`NumberFiles` and
:class:`BreakingSink` for what happens when something fails; :class:`SourceDriver` and :class:`SinkDriver` for
connectors. The suites that plugins show their contract with are in :mod:`sluiceway.testing.conformance`.
"""

from sluiceway.clock import VirtualClock
from sluiceway.testing.collecting import CollectingSink, Written
from sluiceway.testing.drivers import SinkDriver, SourceDriver, SourceSnapshot, drive_sink, drive_source
from sluiceway.testing.exactly_once import FailOnce, InjectedError, KeySequence, NumberFiles
from sluiceway.testing.failing_sink import BreakingSink
from sluiceway.testing.input_variations import every_way
from sluiceway.testing.operators import OperatorHarness
from sluiceway.testing.pipelines import PipelineHarness, run_pipeline
from sluiceway.testing.script import ABORT, EOF, PAUSE, TestSource
from sluiceway.testing.two_inputs import TwoInputOperatorHarness

__all__ = [
    "ABORT",
    "EOF",
    "PAUSE",
    "BreakingSink",
    "CollectingSink",
    "FailOnce",
    "InjectedError",
    "KeySequence",
    "NumberFiles",
    "OperatorHarness",
    "PipelineHarness",
    "SinkDriver",
    "SourceDriver",
    "SourceSnapshot",
    "TestSource",
    "TwoInputOperatorHarness",
    "VirtualClock",
    "Written",
    "drive_sink",
    "drive_source",
    "every_way",
    "run_pipeline",
]
