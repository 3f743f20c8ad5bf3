"""Services of plugins for an engine, and the listener that notifies plugins of an engine's jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.clock import Clock, SystemClock
from sluiceway.engine import JobStatus, LifecycleListener, Services
from sluiceway.errors import ConfigurationError
from sluiceway.metrics import MetricsReporter
from sluiceway.partitioner import Partitioner
from sluiceway.plugins.kinds import METRICS_REPORTER, PARTITIONER, STATE_BACKEND, TRANSPORT, Kind
from sluiceway.state import StateBackend
from sluiceway.transport import Transport
from sluiceway.transport.carrier import Carrier
from sluiceway.util.overriding import override

__all__ = ["HookListener", "PluginServices"]

T = TypeVar("T")


class Plugins(Protocol):
    """The part of a plugin manager that services use; see :class:`sluiceway.plugins.manager.PluginManager`."""

    def implementations(self, hook: str) -> Sequence[tuple[Any, Any]]:
        """Return the plugins that implement a hook, each with its implementation."""

    def call(self, plugin: Any, impl: Any, arguments: Mapping[str, Any]) -> tuple[bool, Any]:
        """Call an implementation and report what it raises."""

    def factory(self, kind: Kind, name: str) -> Any:
        """Return the factory of a name."""

    def make(self, kind: Kind, name: str, promised: type[T]) -> T:
        """Return a new object of a name."""

    def checkpoint_storage(self, location: str) -> CheckpointStorage:
        """Return a new checkpoint storage at a path or URL."""

    def register_serializers(self) -> None:
        """Register the serializers of the plugins."""


_LIFECYCLE = (
    "sluiceway_job_status_changed",
    "sluiceway_task_state_changed",
    "sluiceway_checkpoint_completed",
    "sluiceway_checkpoint_failed",
)


class HookListener(LifecycleListener):
    """Forwards to the life-cycle hooks; what a plugin raises is reported and goes no further.

    Args:
        manager: whose plugins are told. Who implements what is looked up here, once.
    """

    def __init__(self, manager: Plugins) -> None:
        self._manager = manager
        self._impls = {hook: manager.implementations(hook) for hook in _LIFECYCLE}

    @override
    def job_status_changed(self, job_name: str, old: JobStatus, new: JobStatus) -> None:
        self._tell("sluiceway_job_status_changed", {"job_name": job_name, "old": old, "new": new})

    @override
    def task_state_changed(self, job_name: str, vertex: str, subtask: int, old: str, new: str) -> None:
        what = {"job_name": job_name, "vertex": vertex, "subtask": subtask, "old": old, "new": new}
        self._tell("sluiceway_task_state_changed", what)

    @override
    def checkpoint_completed(self, job_name: str, checkpoint_id: int, duration_ms: int, size_bytes: int) -> None:
        what = {
            "job_name": job_name,
            "checkpoint_id": checkpoint_id,
            "duration_ms": duration_ms,
            "size_bytes": size_bytes,
        }
        self._tell("sluiceway_checkpoint_completed", what)

    @override
    def checkpoint_failed(self, job_name: str, checkpoint_id: int, cause: BaseException) -> None:
        what = {"job_name": job_name, "checkpoint_id": checkpoint_id, "cause": cause}
        self._tell("sluiceway_checkpoint_failed", what)

    def _tell(self, hook: str, what: dict[str, Any]) -> None:
        for plugin, impl in self._impls[hook]:
            self._manager.call(plugin, impl, what)


class PluginServices(Services):
    """Services that are looked up in a plugin manager.

    Pickled, it becomes that of the process in which it is unpickled, with the clock of that machine.

    Args:
        manager: the plugin manager.
        clock: what jobs are to run by; None: the machine's.
    """

    def __init__(self, manager: Plugins, clock: Clock | None = None) -> None:
        self._manager = manager
        self._clock = clock or SystemClock()
        self._listener = HookListener(manager)

    def __reduce__(self) -> tuple[Any, ...]:
        return _services_of, (self._manager,)

    @property
    @override
    def clock(self) -> Clock:
        return self._clock

    @property
    def listener(self) -> LifecycleListener:
        """Forwards to the life-cycle hooks."""
        return self._listener

    @override
    def state_backend(self, name: str) -> StateBackend:
        return self._manager.make(STATE_BACKEND, name, StateBackend)  # type: ignore[type-abstract]

    @override
    def transport(self, name: str) -> Transport:
        if self._is(name, Carrier):
            raise ConfigurationError(
                f"transport {name!r} is between worker processes, and this job has none: leave transport at "
                "'auto', or run it with workers"
            )
        return self._manager.make(TRANSPORT, name, Transport)  # type: ignore[type-abstract]

    @override
    def carrier(self, name: str) -> Carrier:
        if self._is(name, Transport):
            raise ConfigurationError(
                f"transport {name!r} works inside one process only: with workers, leave transport at 'auto'"
            )
        return self._manager.make(TRANSPORT, name, Carrier)  # type: ignore[type-abstract]

    def _is(self, name: str, contract: type[object]) -> bool:
        factory = self._manager.factory(TRANSPORT, name)
        return isinstance(factory, type) and issubclass(factory, contract)

    @override
    def partitioner(self, name: str) -> Partitioner:
        return self._manager.make(PARTITIONER, name, Partitioner)  # type: ignore[type-abstract]

    @override
    def checkpoint_storage(self, location: str) -> CheckpointStorage:
        return self._manager.checkpoint_storage(location)

    @override
    def metrics_reporters(self, names: Sequence[str]) -> list[MetricsReporter]:
        return [self._manager.make(METRICS_REPORTER, n, MetricsReporter) for n in names]  # type: ignore[type-abstract]


def _services_of(manager: Plugins) -> Services:
    manager.register_serializers()
    return PluginServices(manager)
