"""Exports to a collector, in a thread of their own that the job never waits for."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Final, Protocol
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExportResult

from sluiceway.util.redaction import HIDDEN, redact
from sluiceway_otel._options import OtelOptions

__all__ = ["Exporting", "SpanQueue"]

_log: Final = logging.getLogger("sluiceway_otel")
_AT_THE_END_S: Final = 5.0
"""Longest time that the end of the process waits for the last export."""
_BATCH: Final = 512
_REASON: Final = 500
_ATTEMPT: Final = re.compile(r"^Transient error | encountered while exporting .*$", re.DOTALL)
"""Part of the library's message besides the reason."""


class SpanQueue(SpanProcessor):  # type: ignore[misc] # mypy is not shown the library
    """Spans that have ended and wait for their export. Of too many the oldest is dropped.

    Args:
        most: how many may wait.
    """

    def __init__(self, most: int) -> None:
        self._spans: deque[ReadableSpan] = deque(maxlen=most)

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span."""
        if span.context is not None and span.context.trace_flags.sampled:
            self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        """Return the oldest spans, and forget them; empty: there are none."""
        spans: list[ReadableSpan] = []
        while len(spans) < _BATCH:
            try:
                spans.append(self._spans.popleft())
            except IndexError:
                break
        return spans


class _Exporter(Protocol):
    def shutdown(self) -> None: ...


class _Target:
    """One URL: says once that it cannot be reached, and why, without its headers and passwords.

    Args:
        url: the URL.
        headers: values of the headers.
        exporter: sends there.
        told: hosts of which this was said, shared by the targets.
    """

    def __init__(self, url: str, headers: Sequence[str], exporter: _Exporter, told: set[str]) -> None:
        self.reachable = True
        self._url = redact(url)
        self._secrets = [secret for secret in headers if secret]
        self._exporter = exporter
        self._host = urlsplit(url).netloc
        self._told = told
        self._reason = ""
        self._hurry = False

    def export(self, send: Callable[[], bool]) -> None:
        """Send something; what goes wrong is said the first time, and never raised."""
        self._reason = ""
        with _libraries_say(self._library_says):
            try:
                self.reachable = send()
            except Exception as error:
                self.reachable = False
                self._reason = f"{type(error).__name__}: {error}"
        if self.reachable:
            self._reason = ""  # of an attempt that was repeated
        if not self.reachable and self._host not in self._told:
            self._told.add(self._host)
            reason = _ATTEMPT.sub("", self._reason) or "no reason was given"
            for secret in self._secrets:
                reason = reason.replace(secret, HIDDEN)
            _log.warning(
                "metrics reporter 'otel' cannot export to %s: %s. The job continues; this is logged once",
                self._url,
                redact(reason)[:_REASON],
            )

    def hurry(self) -> None:
        """Try each export once from now on, and end the wait for another attempt."""
        self._hurry = True
        if self._reason:  # the last export has failed, or one waits for another attempt now
            self.shutdown()

    def shutdown(self) -> None:
        """Release the connections. Harmless twice."""
        with _libraries_say(lambda text: None):
            self._exporter.shutdown()

    def _library_says(self, text: str) -> None:
        """Note the first reason of an export's failure; those after it are about retries."""
        self._reason = self._reason or text
        if self._hurry and "retrying" in text:
            self._exporter.shutdown()  # it would wait for another attempt


class Exporting:
    """Export of metrics at an interval and of spans soon after they have ended, in a daemon thread.

    Args:
        options: where to, and how often.
        spans: those that have ended.

    Attributes:
        reader: collects the metrics; to be given to their provider before :meth:`start`.
    """

    def __init__(self, options: OtelOptions, spans: SpanQueue) -> None:
        self._options = options
        self._spans = spans
        self._closing = threading.Event()
        self._closer: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="sluiceway-otel", daemon=True)
        self._metrics: tuple[OTLPMetricExporter, _Target] | None = None
        self._traces: tuple[OTLPSpanExporter, _Target] | None = None
        self.reader = InMemoryMetricReader()
        # The library shows headers that it cannot parse, and the options have refused those already.
        told: set[str] = set()
        with _libraries_say(lambda text: None):
            if options.metrics_url:
                metrics = OTLPMetricExporter(options.metrics_url, headers=dict(options.metrics_headers))
                secrets = tuple(options.metrics_headers.values())
                self._metrics = metrics, _Target(options.metrics_url, secrets, metrics, told)
                self.reader = InMemoryMetricReader(
                    # Those of the exporter, which the OTEL_* variables of the environment may have set.
                    preferred_temporality=metrics._preferred_temporality,
                    preferred_aggregation=metrics._preferred_aggregation,
                )
            if options.traces_url:
                traces = OTLPSpanExporter(options.traces_url, headers=dict(options.traces_headers))
                secrets = tuple(options.traces_headers.values())
                self._traces = traces, _Target(options.traces_url, secrets, traces, told)

    def start(self) -> None:
        """Export from now on."""
        if self._metrics is not None or self._traces is not None:
            self._thread.start()

    def close(self) -> None:
        """Export what is left, in the background. Returns at once; the process waits for it, but not for long."""
        if self._closer is None and self._thread.is_alive():
            # No daemon, so that a program that ends now does not end before the last export.
            self._closer = threading.Thread(target=self._close, name="sluiceway-otel-close", daemon=False)
            self._closing.set()
            for target in self._targets():
                target.hurry()
            self._closer.start()

    def wait_closed(self) -> None:
        """Return when everything was exported, or was given up. In any thread."""
        if self._closer is not None:
            self._closer.join()

    def _close(self) -> None:
        self._thread.join(_AT_THE_END_S)
        for target in self._targets():
            target.shutdown()
        self._thread.join(1.0)

    def _targets(self) -> list[_Target]:
        return [each[1] for each in (self._metrics, self._traces) if each is not None]

    def _run(self) -> None:
        interval_s, delay_s = self._options.interval_ms / 1000, self._options.delay_ms / 1000
        due = monotonic() + interval_s
        while not self._closing.wait(min(delay_s, max(0.0, due - monotonic()))):
            self._export_spans()
            if monotonic() >= due:
                self._export_metrics()
                due = monotonic() + interval_s
        self._export_metrics()
        self._export_spans()

    def _export_metrics(self) -> None:
        if self._metrics is None:
            return
        exporter, target = self._metrics
        with _libraries_say(lambda text: None):
            data = self.reader.get_metrics_data()
        if data is not None:
            target.export(lambda: exporter.export(data) is MetricExportResult.SUCCESS)

    def _export_spans(self) -> None:
        if self._traces is None:
            return
        exporter, target = self._traces
        while batch := self._spans.take():
            target.export(partial(_sends_spans, exporter, batch))
            if not target.reachable:
                break  # those that are left keep their place until the next time


def _sends_spans(exporter: OTLPSpanExporter, batch: Sequence[ReadableSpan]) -> bool:
    return exporter.export(batch) is SpanExportResult.SUCCESS


_hearing = threading.local()


@contextmanager
def _libraries_say(hear: Callable[[str], None]) -> Iterator[None]:
    """Within this context pass on what OpenTelemetry's libraries log in this thread, instead of logging it.

    They log each failed attempt, some with the URL, and its password, or with headers.
    """
    before = getattr(_hearing, "to", None)
    _hearing.to = hear
    try:
        yield
    finally:
        _hearing.to = before


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        hear: Callable[[str], None] | None = getattr(_hearing, "to", None)
        if hear is None:
            return True
        if record.levelno >= logging.WARNING:  # what is below is no reason
            hear(record.getMessage())
        return False


_FILTER: Final = _Filter()
for _name in (
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http._common",
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.sdk.metrics._internal.measurement_consumer",
    "opentelemetry.sdk.metrics._internal.export",
    "opentelemetry.sdk.metrics._internal.instrument",
    "opentelemetry.util.re",
    "urllib3.connectionpool",
):
    logging.getLogger(_name).addFilter(_FILTER)
