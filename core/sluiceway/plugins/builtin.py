"""The plugin that is part of the core: what every installation has, offered as any other plugin would."""

from __future__ import annotations

from typing import Any

from sluiceway.hooks import Offer, hookimpl


@hookimpl
def sluiceway_engines() -> list[Offer]:
    """Offer the engine that runs a job in this process."""

    def load() -> Any:
        from sluiceway.runtime.local.engine import LocalEngine

        return LocalEngine

    return [Offer("local", load, "runs the job in this process, in one thread")]


@hookimpl
def sluiceway_transports() -> list[Offer]:
    """Channels within the process."""

    def load() -> Any:
        from sluiceway.network.local_channel import LocalTransport

        return LocalTransport

    return [Offer("local", load, "hands batches over by reference, within one process")]


@hookimpl
def sluiceway_metrics_reporters() -> list[Offer]:
    """Reporters that need nothing but the standard library."""

    def log() -> Any:
        from sluiceway.runtime.reporters.log import LogReporter

        return LogReporter

    def jsonl() -> Any:
        from sluiceway.runtime.reporters.jsonl import JsonLinesReporter

        return JsonLinesReporter

    return [
        Offer("jsonl", jsonl, "JSON lines in the file that SLUICEWAY_METRICS_FILE names"),
        Offer("log", log, "lines of the logger 'sluiceway.metrics'"),
    ]
