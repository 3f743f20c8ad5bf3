"""Programs, splits and exceptions on their way between the processes of a cluster.

What is unpickled here comes from a peer that has proved the cluster's secret.
"""

from __future__ import annotations

import io
import pickle
import platform
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import cloudpickle

from sluiceway.connector.lib.process_local import ProcessLocal
from sluiceway.errors import ConfigurationError, ConnectorError, GraphError, SerializationError
from sluiceway.functions import FunctionObject
from sluiceway.functions.life import unopened
from sluiceway.graph import JobGraph
from sluiceway.graph.check.pipeline import find_unshippable
from sluiceway.record_errors import shown
from sluiceway.runtime.failures.error_texts import (
    LIMIT_S,
    WorkerError,
    cut,
    describe,
    format_error,
    is_too_slow,
    within,
)
from sluiceway.runtime.failures.explanation import add_note
from sluiceway.serializers.byvalue import ValuePickler
from sluiceway.serializers.program_classes import ClassCollector, ProgramClasses
from sluiceway.util.trial_pickling import trial

__all__ = ["RemoteTraceback", "WorkerError", "check_shippable", "dump", "dump_error", "load", "load_error"]

_NOT_SHIPPED: Final = {"__main__", "__mp_main__"}  # cloudpickle knows these
_modules: Final[list[tuple[int, str]]] = []

# Of an exception, what is sent at the most: it passes through the job manager, which keeps the last ones.
_MOST_BYTES: Final = 1 << 20
_MOST_TEXT: Final = 200_000
_MOST_NOTES: Final = 100
_WIDEST: Final = 100
_DEEPEST: Final = 10


class RemoteTraceback(Exception):  # noqa: N818 (it is none, it shows one)
    """The traceback of an exception in a worker, as the text that it would have been there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.remote_traceback = text.rstrip()

    def __str__(self) -> str:
        return f"in a worker process\n{self.remote_traceback}"


class _Pickler(ValuePickler):
    """Pickler that replaces handles of results by their numbers, and takes function objects as before a run."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionObject):
            function = unopened(obj)
            if function is not obj:
                return function.__reduce_ex__(5)
        return super().reducer_override(obj)

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
        self.collector = ClassCollector()

    def find_class(self, module: str, name: str) -> Any:
        return self.collector.find_class(super().find_class(module, name), module, name)

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


def load(data: bytes, handle: Callable[[int], object] | None = None, classes: ProgramClasses | None = None) -> Any:
    """Unpickle.

    Args:
        data: what :func:`dump` made.
        handle: from the number of a handle of the program that runs the job to what takes its place.
        classes: gets the classes of the program that come with it.

    Raises:
        ImportError: a module is missing here; a note names the interpreter.
    """
    unpickler = _Unpickler(data, handle or _no_handle)
    try:
        loaded = unpickler.load()
    except ImportError as error:
        error.add_note(
            f"it was to be imported by {sys.executable}, Python {platform.python_version()}, on "
            f"{platform.node()}: install what is missing there, or ship it with the program"
        )
        raise
    if classes is not None:
        classes.add(unpickler.collector.made)
    return loaded


def check_shippable(graph: JobGraph) -> None:
    """See to it that a job can be sent to workers, before anything is started for it.

    Raises:
        GraphError: it cannot; names the steps and what is in the way.
        SerializationError: it cannot, and no step's function is to blame.
    """
    try:
        with trial():
            dump(graph)
    except SerializationError as error:
        found = find_unshippable(graph)
        if found:
            raise GraphError("\n".join(finding.message for finding in found)) from error
        raise SerializationError(f"job {graph.job_name!r} {error}") from error


def dump_error(error: BaseException) -> bytes:
    """Pickle an exception with its notes, and with its traceback as text.

    Where pickle's own way does not bring it back, as for most exceptions with an ``__init__`` of their own, it is
    made anew without calling that, in the end without what cannot be pickled or is too large; where that fails,
    too, a :class:`WorkerError` takes its place that has its text. Never raises, bounded in size and time.
    """
    said = describe(error)
    notes = _notes_of(error)
    pickled = b"" if is_too_slow(said) else _pickle_error(error)
    # One that has come from another worker, through a channel, has its frames there.
    text = getattr(error.__cause__, "remote_traceback", None) or format_error(error, said)
    return dump((pickled, said, notes, text))


def load_error(data: bytes) -> BaseException:
    """Unpickle an exception; its cause is the traceback of the other process, unless it has one of its own."""
    pickled, said, notes, text = load(data)
    error: BaseException | None = None
    if pickled:
        # Its class may be nowhere to be found here, or be another one.
        error = within(LIMIT_S, lambda: _loaded(pickled), lambda _: None)
    if error is None:
        error = WorkerError(said)
    # A __reduce__ of its own, as that of json.JSONDecodeError, leaves them out.
    if not getattr(error, "__notes__", None):
        for note in notes:
            add_note(error, note)
    if error.__cause__ is None:
        error.__cause__ = RemoteTraceback(text)
    return error


def _pickle_error(error: BaseException) -> bytes:
    """Pickle an exception in the first way that brings it back; empty: there is none."""
    # As it is; made anew from class, arguments and attributes; the same with texts for what cannot be sent.
    for way in (lambda: error, lambda: _Remade(error), lambda: _reduced(error)):
        pickled = within(LIMIT_S, lambda made=way: _pickled(made()), lambda _: b"")  # type: ignore[misc]
        if pickled:
            break
    return pickled


def _pickled(way: BaseException | _Remade) -> bytes:
    """Return a pickled exception that is small enough and can be loaded; empty if not. May raise anything."""
    pickled = dump(way)
    # Many exceptions can be pickled and not unpickled; and whoever has it will show it.
    fits = len(pickled) <= _MOST_BYTES and len(str(_loaded(pickled))) <= _MOST_TEXT
    return pickled if fits else b""


def _loaded(pickled: bytes) -> BaseException:
    error = load(pickled)
    if not isinstance(error, BaseException):
        raise TypeError(f"a {type(error).__name__} came out of a pickled exception")
    return error


def _notes_of(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", ())
    if not isinstance(notes, list | tuple):
        return []
    few = notes if len(notes) <= _MOST_NOTES else [*notes[: _MOST_NOTES // 2], *notes[-_MOST_NOTES // 2 :]]
    return [cut(str(note).splitlines()) if isinstance(note, str) else shown(note) for note in few]


class _Remade:
    """An exception that pickles as its class, its arguments and its attributes."""

    def __init__(self, error: BaseException, args: tuple[Any, ...] | None = None, attributes: Any = None) -> None:
        self._error = error
        self._args = error.args if args is None else args
        self._attributes = dict(error.__dict__) if attributes is None else attributes

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self._error), self._args, self._attributes)


def _remake(cls: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    # Keeps the arguments without __init__, which may want others than those in `args`.
    error = cls.__new__(cls, *args)
    error.__dict__.update(attributes)
    return error


def _reduced(error: BaseException, depth: int = 0) -> _Remade:
    """Return an exception with texts for those of its arguments and attributes that cannot be sent."""
    attributes = {name: _sendable(value) for name, value in list(error.__dict__.items())[:_MOST_NOTES]}
    if "__notes__" in attributes:
        attributes["__notes__"] = _notes_of(error)
    if isinstance(error, BaseExceptionGroup):
        within_it = [
            _reduced(each, depth + 1) if depth < _DEEPEST else WorkerError(describe(each))
            for each in error.exceptions[:_WIDEST]
        ]
        if len(error.exceptions) > _WIDEST:
            within_it.append(WorkerError(f"and {len(error.exceptions) - _WIDEST:,} more exceptions"))
        return _Remade(error, (_sendable(error.message), within_it), attributes)
    return _Remade(error, tuple(_sendable(value) for value in error.args[:_WIDEST]), attributes)


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return cut(value.splitlines()) if len(value) > _MOST_TEXT // 8 else value
    try:
        pickled = dump(value)
        if len(pickled) <= _MOST_BYTES // 64:
            load(pickled)
            return value
    # Whatever a user's __reduce__ or __setstate__ raises, such as SystemExit.
    except BaseException:
        return shown(value)
    return f"{shown(value)} ({len(pickled):,} bytes, not sent)"


def _take_scripts_along() -> None:
    """Pickle by value what is defined in modules that no other process can import: scripts, wheels in sys.path."""
    # Each batch of results comes by here: look again only where there are others than the last time.
    modules = len(sys.modules), next(reversed(sys.modules))
    if _modules == [modules]:
        return
    _modules[:] = [modules]
    for module in list(sys.modules.values()):
        if type(module) is not ModuleType or module.__name__ in _NOT_SHIPPED:
            continue
        if module.__spec__ is None or str(getattr(module.__spec__.loader, "archive", "")).endswith(".whl"):
            cloudpickle.register_pickle_by_value(module)


def _no_handle(number: int) -> object:
    raise SerializationError(
        "collect() and the like give records to the program that runs the job, and this job runs in a cluster:"
        " write to a sink"
    )
