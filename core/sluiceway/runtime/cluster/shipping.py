"""Programs, splits and exceptions on their way between the processes of a cluster.

What is unpickled here comes from a peer that has proved the cluster's secret.
"""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

import cloudpickle

from sluiceway.connectors.process_local import ProcessLocal
from sluiceway.errors import ConfigurationError, ConnectorError, GraphError, SerializationError, SluicewayError
from sluiceway.graph import JobGraph
from sluiceway.graph.check import find_unshippable
from sluiceway.serializers.byvalue import ValuePickler

__all__ = ["RemoteTraceback", "WorkerError", "check_shippable", "dump", "dump_error", "load", "load_error"]

_NOT_SHIPPED: Final = {"__main__", "__mp_main__"}  # cloudpickle knows these
_modules: Final[list[tuple[int, str]]] = []


class WorkerError(SluicewayError):
    """Stands in for an exception of a worker that could not be sent as it was."""


class RemoteTraceback(Exception):  # noqa: N818 (it is none, it shows one)
    """The traceback of an exception in a worker, as the text that it would have been there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.remote_traceback = text.rstrip()

    def __str__(self) -> str:
        return f"in a worker process\n{self.remote_traceback}"


class _Pickler(ValuePickler):
    """Handles that give results back to the program go by their number."""

    def persistent_id(self, obj: object) -> int | None:
        if not isinstance(obj, ProcessLocal):
            return None
        if not obj.gathers:
            raise SerializationError(
                f"{obj.what} works inside one process: run the job with workers=0 (in this process)"
            )
        return obj.number


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, handle: Callable[[int], object]) -> None:
        super().__init__(io.BytesIO(data))
        self._handle = handle

    def persistent_load(self, pid: Any) -> object:
        return self._handle(pid)


def dump(value: object) -> bytes:
    """Pickle anything, with lambdas, closures and classes of scripts and notebooks in it.

    Raises:
        SerializationError: something in it cannot be pickled.
        ConfigurationError: a connector that looks things up for the workers finds that it cannot be used.
        ConnectorError: it finds something else to be wrong.
    """
    _take_scripts_along()
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=5).dump(value)
    except (ConfigurationError, ConnectorError):
        raise
    except Exception as error:
        raise SerializationError(f"cannot be sent to a worker: {error}") from error
    return buffer.getvalue()


def load(data: bytes, handle: Callable[[int], object] | None = None) -> Any:
    """Unpickle.

    Args:
        data: what :func:`dump` made.
        handle: from the number of a handle of the program that runs the job to what takes its place.
    """
    return _Unpickler(data, handle or _no_handle).load()


def check_shippable(graph: JobGraph) -> None:
    """See to it that a job can be sent to workers, before anything is started for it.

    Raises:
        GraphError: it cannot; names the steps and what is in the way.
        SerializationError: it cannot, and no step's function is to blame.
    """
    try:
        dump(graph)
    except SerializationError as error:
        found = find_unshippable(graph)
        if found:
            raise GraphError("\n".join(finding.message for finding in found)) from error
        raise SerializationError(f"job {graph.job_name!r} {error}") from error


def dump_error(error: BaseException) -> bytes:
    """An exception, its notes, and its traceback as text.

    Where pickle's own way does not bring it back, as for most exceptions with an ``__init__`` of their own, it is
    made anew without calling that; where that fails, too, an error takes its place that says what it said.
    """
    text = "".join(traceback.format_exception(error))
    said = _said(error)
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    pickled = b""
    for way in (error, _Remade(error)):
        try:
            pickled = dump(way)
            load(pickled)  # many exceptions can be pickled and not unpickled
            break
        except Exception:
            pickled = b""
    return dump((pickled, said, notes, text))


def load_error(data: bytes) -> BaseException:
    """The exception, with the traceback of the other process as its cause."""
    pickled, said, notes, text = load(data)
    error: BaseException | None = None
    if pickled:
        with suppress(Exception):  # its class may be nowhere to be found here
            error = load(pickled)
    if error is None:
        error = WorkerError(said)
        for note in notes:
            error.add_note(note)
    if error.__cause__ is None:
        error.__cause__ = RemoteTraceback(text)
    return error


class _Remade:
    """An exception that pickles as its class, its arguments and its attributes."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        error = self._error
        return _remake, (type(error), error.args, dict(error.__dict__))


def _remake(cls: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls, *args)
    error.__dict__.update(attributes)
    return error


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__qualname__}: {error}"
    except Exception as broken:  # its own __str__
        return f"{type(error).__qualname__} (which cannot be shown: {type(broken).__name__})"


def _take_scripts_along() -> None:
    """Have what is defined in modules that nobody can import, such as scripts, pickled by value."""
    # Each batch of results comes by here: look again only where there are others than the last time.
    modules = len(sys.modules), next(reversed(sys.modules))
    if _modules == [modules]:
        return
    _modules[:] = [modules]
    for module in list(sys.modules.values()):
        if type(module) is ModuleType and module.__spec__ is None and module.__name__ not in _NOT_SHIPPED:
            cloudpickle.register_pickle_by_value(module)


def _no_handle(number: int) -> object:
    raise SerializationError(
        "collect() and the like give records to the program that runs the job, and this job runs in a cluster:"
        " write to a sink"
    )
