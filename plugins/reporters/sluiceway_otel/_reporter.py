"""Metrics and traces of a job for a collector that speaks OpenTelemetry's protocol."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from importlib.metadata import version
from typing import Final
from uuid import uuid4

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from sluiceway.metrics import CheckpointInfo, JobMetrics, MetricsReporter, RestartInfo
from sluiceway.util.overriding import override
from sluiceway_otel._attributes import Attributes, of_job
from sluiceway_otel._exporting import Exporting, SpanQueue
from sluiceway_otel._instruments import Instruments
from sluiceway_otel._options import OtelOptions
from sluiceway_otel._traces import Traces

__all__ = ["OtelReporter"]

_HELD: Final = 1_000
"""Events that wait for the first report, which says what the job is called."""
_INSTANCE: Final = str(uuid4())


class OtelReporter(MetricsReporter):
    """Reporter that sends metrics at an interval, and a trace for each checkpoint and each restart.

    A collector that cannot be reached is logged once, and costs the job nothing: exports happen in a thread of
    their own, with at most so many spans waiting as ``OTEL_BSP_MAX_QUEUE_SIZE`` says.

    Args:
        options: where to, and how often; None: what the environment says.

    Raises:
        ConfigurationError: a variable of the environment is not what it has to be.
    """

    def __init__(self, options: OtelOptions | None = None) -> None:
        self._options = OtelOptions.from_environment() if options is None else options
        self._exporting: Exporting | None = None
        self._job: Attributes = {}
        self._held: deque[Callable[[], None]] = deque(maxlen=_HELD)

    def open(self, job_name: str) -> None:
        """Begin to export."""
        spans = SpanQueue(self._options.spans)
        exporting = self._exporting = Exporting(self._options, spans)
        resource = Resource.create({"service.instance.id": _INSTANCE, **self._options.resource})
        # They end with the job, not with the process, and are nobody else's: no program finds them by itself.
        self._meters = MeterProvider([exporting.reader], resource, shutdown_on_exit=False)
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracers.add_span_processor(spans)
        ours = version("sluiceway")
        self._instruments = Instruments(self._meters.get_meter("sluiceway", ours))
        self._traces = Traces(self._tracers.get_tracer("sluiceway", ours))
        exporting.start()

    def report(self, metrics: JobMetrics) -> None:
        """Have these figures exported from now on."""
        self._instruments.take(metrics)
        self._job = of_job(metrics)
        # Events before the first report wait for the job's attributes, which come with it.
        while self._held:
            self._held.popleft()()

    @override
    def checkpoint_ended(self, checkpoint: CheckpointInfo) -> None:
        self._when_named(lambda: self._checkpoint_ended(checkpoint))

    def _checkpoint_ended(self, checkpoint: CheckpointInfo) -> None:
        self._instruments.checkpoint_ended(checkpoint, self._job)
        self._traces.checkpoint_ended(checkpoint, self._job)

    @override
    def restart_ended(self, restart: RestartInfo) -> None:
        self._when_named(lambda: self._restart_ended(restart))

    def _restart_ended(self, restart: RestartInfo) -> None:
        self._instruments.restart_ended(restart, self._job)
        self._traces.restart_ended(restart, self._job)

    def _when_named(self, action: Callable[[], None]) -> None:
        if self._job:
            action()
        else:
            self._held.append(action)

    def close(self) -> None:
        """Export what is left, in the background. Harmless twice."""
        if self._exporting is not None:
            self._exporting.close()

    def wait_closed(self) -> None:
        """Return when the last export is over; after :meth:`close`, in any thread."""
        if self._exporting is not None:
            self._exporting.wait_closed()
