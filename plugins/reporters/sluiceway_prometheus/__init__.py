"""The metrics reporter ``prometheus``: an endpoint that Prometheus reads."""

from __future__ import annotations

from sluiceway.hooks import Offer, hookimpl


@hookimpl
def sluiceway_metrics_reporters() -> list[Offer]:
    """Offer the reporter."""

    def load() -> object:
        from sluiceway_prometheus._reporter import PrometheusReporter

        return PrometheusReporter

    about = "an endpoint for Prometheus on this machine, at SLUICEWAY_PROMETHEUS_PORT"
    return [Offer("prometheus", load, about, requires=("prometheus_client",), extra="prometheus")]
