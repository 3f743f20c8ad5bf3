"""Options of the reporter, from the environment: its own variables before those of OpenTelemetry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from sluiceway.config.options import duration_ms
from sluiceway.errors import ConfigurationError
from sluiceway.util.redaction import redact

__all__ = ["OtelOptions"]

_ENDPOINT: Final = "SLUICEWAY_OTEL_ENDPOINT"
_HEADERS: Final = "SLUICEWAY_OTEL_HEADERS"
_INTERVAL: Final = "SLUICEWAY_OTEL_INTERVAL"
_RESOURCE: Final = "SLUICEWAY_OTEL_RESOURCE"
_DEFAULT_ENDPOINT: Final = "http://localhost:4318"
_PROTOCOL: Final = "http/protobuf"


@dataclass(frozen=True)
class OtelOptions:
    """Options of the export: endpoint, content and interval.

    Attributes:
        metrics_url: for metrics; empty: none are sent.
        traces_url: for traces; empty: none are sent.
        metrics_headers: of each request with metrics. Secret: never shown.
        traces_headers: of each request with traces. Secret: never shown.
        interval_ms: between two exports of metrics.
        delay_ms: longest time that a span waits for its export.
        spans: most spans that wait; beyond, the oldest is dropped.
        resource: attributes of the resource that no variable of OpenTelemetry names.
    """

    metrics_url: str
    traces_url: str
    metrics_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    traces_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    interval_ms: int = 60_000
    delay_ms: int = 5_000
    spans: int = 2_048
    resource: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> OtelOptions:
        """Return what ``SLUICEWAY_OTEL_...`` and ``OTEL_...`` say.

        Raises:
            ConfigurationError: a value is not what it has to be; names the variable, and shows no header.
        """
        env = os.environ if environ is None else environ
        disabled = env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        return cls(
            metrics_url="" if disabled else _url(env, "METRICS"),
            traces_url="" if disabled else _url(env, "TRACES"),
            metrics_headers=_headers(env, "METRICS"),
            traces_headers=_headers(env, "TRACES"),
            interval_ms=_interval_ms(env),
            delay_ms=_number(env, "OTEL_BSP_SCHEDULE_DELAY", cls.delay_ms),
            spans=_number(env, "OTEL_BSP_MAX_QUEUE_SIZE", cls.spans),
            resource=_resource(env),
        )


def _url(env: Mapping[str, str], signal: str) -> str:
    """Return the URL of a signal; empty if its exporter is ``none``."""
    if env.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() == "none":
        return ""
    path = f"/v1/{signal.lower()}"
    own = env.get(_ENDPOINT, "").strip()
    if own:
        return _checked(_ENDPOINT, own).rstrip("/") + path
    _check_protocol(env, signal)
    of_signal = f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"
    if env.get(of_signal, "").strip():
        return _checked(of_signal, env[of_signal].strip())
    base = env.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip() or _DEFAULT_ENDPOINT
    return _checked("OTEL_EXPORTER_OTLP_ENDPOINT", base).rstrip("/") + path


def _checked(name: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigurationError(f"{name}={redact(url)!r} is no URL such as {_DEFAULT_ENDPOINT}")
    return url


def _check_protocol(env: Mapping[str, str], signal: str) -> None:
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = env.get(name, "").strip()
        if protocol and protocol != _PROTOCOL:
            raise ConfigurationError(
                f"{name} is {protocol!r}, and metrics reporter 'otel' speaks {_PROTOCOL} alone: set {_ENDPOINT} "
                f"to the collector's port for HTTP, such as {_DEFAULT_ENDPOINT}"
            )
        if protocol:
            return


def _headers(env: Mapping[str, str], signal: str) -> dict[str, str]:
    names = (_HEADERS, f"OTEL_EXPORTER_OTLP_{signal}_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
    name = next((n for n in names if env.get(n, "").strip()), "")
    return {key.lower(): value for key, value in _pairs(env, name, "authorization=Bearer%20...").items()}


def _resource(env: Mapping[str, str]) -> dict[str, str]:
    own = _pairs(env, _RESOURCE, "deployment.environment.name=staging")
    theirs = _pairs(env, "OTEL_RESOURCE_ATTRIBUTES", "service.namespace=shop")
    if "service.name" not in own | theirs and not env.get("OTEL_SERVICE_NAME"):
        own["service.name"] = "sluiceway"
    return own


def _pairs(env: Mapping[str, str], name: str, example: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, pair in enumerate(env.get(name, "").split(","), 1):
        key, equals, value = pair.partition("=")
        if pair.strip() and not (equals and key.strip() and _printable(unquote(pair))):
            raise ConfigurationError(
                f"part {number} of {name} is no name=value, as in {example}: parts are separated by commas, and "
                "values are URL-encoded"
            )
        if pair.strip():
            found[unquote(key.strip())] = unquote(value.strip())
    return found


def _printable(text: str) -> bool:
    return "\r" not in text and "\n" not in text and "\0" not in text


def _interval_ms(env: Mapping[str, str]) -> int:
    text = env.get(_INTERVAL, "").strip()
    if not text:
        return _number(env, "OTEL_METRIC_EXPORT_INTERVAL", OtelOptions.interval_ms)
    try:
        interval_ms = duration_ms(text)
    except ValueError:
        interval_ms = 0
    if interval_ms < 1:
        raise ConfigurationError(f"{_INTERVAL}={text!r} is no duration such as 10s, at least 1ms")
    return interval_ms


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) < 1 << 31:
        raise ConfigurationError(f"{name}={text!r} is no whole number >= 1")
    return int(text)
