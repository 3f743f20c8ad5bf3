"""The metrics reporter ``otel``: metrics and traces by OpenTelemetry's protocol."""

from __future__ import annotations

from sluiceway.hooks import Offer, hookimpl


@hookimpl
def sluiceway_metrics_reporters() -> list[Offer]:
    """Offer the reporter."""

    def load() -> object:
        from sluiceway_otel._reporter import OtelReporter

        return OtelReporter

    about = "metrics and traces to an OpenTelemetry collector, at SLUICEWAY_OTEL_ENDPOINT"
    libraries = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
    return [Offer("otel", load, about, requires=libraries, extra="otel")]
