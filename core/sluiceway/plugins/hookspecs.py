"""Every hook that a plugin may implement.

The hooks that offer something take no argument, return a list of offers and must import nothing that
:attr:`Offer.load <sluiceway.hooks.Offer>` could import later. The life-cycle hooks are told of what happened,
in the thread in which it did: they must not block, and what they raise is reported and swallowed. An
implementation may leave out arguments that it does not need.
"""

from __future__ import annotations

from sluiceway.engine import JobStatus
from sluiceway.hooks import Offer, hookspec

__all__ = [
    "sluiceway_checkpoint_completed",
    "sluiceway_checkpoint_failed",
    "sluiceway_checkpoint_storages",
    "sluiceway_cli_commands",
    "sluiceway_connectors",
    "sluiceway_engines",
    "sluiceway_job_status_changed",
    "sluiceway_metrics_reporters",
    "sluiceway_partitioners",
    "sluiceway_serializers",
    "sluiceway_state_backends",
    "sluiceway_task_state_changed",
    "sluiceway_transports",
    "sluiceway_web_servers",
]


@hookspec
def sluiceway_state_backends() -> list[Offer]:  # type: ignore[empty-body]
    """State backends: ``load`` returns a callable without arguments that makes a ``state.StateBackend``."""


@hookspec
def sluiceway_transports() -> list[Offer]:  # type: ignore[empty-body]
    """Transports: ``load`` returns a callable without arguments that makes a ``transport.Transport``."""


@hookspec
def sluiceway_connectors() -> list[Offer]:  # type: ignore[empty-body]
    """Connectors: ``load`` returns a ``connector.Connector``, which names the source and sink classes."""


@hookspec
def sluiceway_serializers() -> list[Offer]:  # type: ignore[empty-body]
    """Serializers: ``load`` returns a ``serializers.Serializer`` of the offer's name, one for all.

    Its ``for_type`` is asked before the built-in formats for what states of a declared type are kept in, and for
    records of a declared type on their way to another process.
    """


@hookspec
def sluiceway_partitioners() -> list[Offer]:  # type: ignore[empty-body]
    """Partitioners: ``load`` returns a callable without arguments that makes a ``partitioner.Partitioner``."""


@hookspec
def sluiceway_metrics_reporters() -> list[Offer]:  # type: ignore[empty-body]
    """Reporters: ``load`` returns a callable without arguments that makes a ``metrics.MetricsReporter``."""


@hookspec
def sluiceway_checkpoint_storages() -> list[Offer]:  # type: ignore[empty-body]
    """Storages: ``load`` returns a callable that makes a ``storage.CheckpointStorage`` of a location.

    The offer's name is the scheme of the URLs that it takes: ``vault`` is given ``vault://...``. Paths, and
    URLs that nobody offers anything for, go to ``filesystem``.
    """


@hookspec
def sluiceway_engines() -> list[Offer]:  # type: ignore[empty-body]
    """Engines: ``load`` returns a callable without arguments that makes an ``engine.Engine``.

    One that does not override ``Engine.capabilities`` says that it has everything: nothing is refused before it
    prepares a job.
    """


@hookspec
def sluiceway_web_servers() -> list[Offer]:  # type: ignore[empty-body]
    """Web servers: ``load`` returns a callable without arguments that makes a ``monitoring.web_server.WebServer``.

    Options name none: ``web`` is taken if it is offered, otherwise the only one.
    """


@hookspec
def sluiceway_cli_commands() -> list[Offer]:  # type: ignore[empty-body]
    """Commands: ``load`` returns a ``click.Command``; the offer's name is what people type."""


@hookspec
def sluiceway_job_status_changed(job_name: str, old: JobStatus, new: JobStatus) -> None:
    """Handle a change of the status of a job."""


@hookspec
def sluiceway_task_state_changed(job_name: str, vertex: str, subtask: int, old: str, new: str) -> None:
    """Handle a change of the state of an execution of a subtask."""


@hookspec
def sluiceway_checkpoint_completed(job_name: str, checkpoint_id: int, duration_ms: int, size_bytes: int) -> None:
    """Handle the completion of a checkpoint, which is stored."""


@hookspec
def sluiceway_checkpoint_failed(job_name: str, checkpoint_id: int, cause: BaseException) -> None:
    """Handle a checkpoint that was given up."""
