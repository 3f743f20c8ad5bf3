"""A receiver of OpenTelemetry's protocol over HTTP, for tests: decodes what it is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from patience import until


class Receiver:
    """What has arrived: requests, resources, metrics and spans."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.resources: list[dict[str, Any]] = []
        self.exports: list[dict[str, Any]] = []  # of metrics, by name
        self.spans: list[dict[str, Any]] = []
        self.answer = 200, "OK"
        self.hold: threading.Event | None = None
        self.port = 0

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        if path.endswith("/v1/metrics"):
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.resources.append(_attributes(resource.resource))
                found = {m.name: m for scope in resource.scope_metrics for m in scope.metrics}
                assert len(found) == sum(len(scope.metrics) for scope in resource.scope_metrics)
                self.exports.append(found)
        else:
            for spans in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(_attributes(spans.resource))
                self.spans += [_span(span) for scope in spans.scope_spans for span in scope.spans]
        self.requests.append((path, headers))

    def points(self, name: str, export: int = -1) -> list[tuple[dict[str, Any], float]]:
        """Attributes and value of each point of a metric."""
        metric = self.exports[export].get(name)
        if metric is None:
            return []
        data = getattr(metric, metric.WhichOneof("data"))
        return [
            (_attributes(p), p.as_int if p.WhichOneof("value") == "as_int" else p.as_double)
            for p in data.data_points
        ]

    def children(self, span: dict[str, Any]) -> list[dict[str, Any]]:
        return [s for s in self.spans if s["trace"] == span["trace"] and s["parent"] == span["id"]]

    def roots(self, name: str) -> list[dict[str, Any]]:
        return [s for s in self.spans if s["name"] == name and not s["parent"]]


def _attributes(holder: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in holder.attributes}


def _span(span: Any) -> dict[str, Any]:
    return {
        "name": span.name,
        "trace": span.trace_id,
        "id": span.span_id,
        "parent": span.parent_span_id,
        "begin_ms": span.start_time_unix_nano / 1e6,
        "end_ms": span.end_time_unix_nano / 1e6,
        "attributes": _attributes(span),
        "status": MessageToDict(span.status),
        "events": [(e.name, _attributes(e)) for e in span.events],
    }


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that listens on a free port of 127.0.0.1."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if receiver.hold is not None:
                receiver.hold.wait()
            receiver.take(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            self.send_response(*receiver.answer)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = False

    with Server(("127.0.0.1", 0), Handler) as server:
        receiver.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield receiver
        finally:
            if receiver.hold is not None:
                receiver.hold.set()
            server.shutdown()
            thread.join()


def wait_closed() -> None:
    """Wait for the last exports of reporters whose jobs have ended."""
    until(lambda: not any(t.name.startswith("sluiceway-otel") for t in threading.enumerate()))
