"""Savepoints written from tables, as initial state of jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from importlib.metadata import version
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from sluiceway.checkpoint import (
    METADATA,
    SAVEPOINT,
    CheckpointMetadata,
    StepEntry,
    SubtaskEntry,
    VertexEntry,
    encode_metadata,
    find_checkpoints,
    split_location,
)
from sluiceway.checkpoint.files import join
from sluiceway.checkpoint.metadata import KeyedEntry, OperatorEntry
from sluiceway.checkpoint.state_file import SectionWriter, write_rows
from sluiceway.clock import SystemClock
from sluiceway.errors import CheckpointError, ConfigurationError, StateError
from sluiceway.graph.parallelism import MAX_PARALLELISM_LIMIT, default_max_parallelism
from sluiceway.keygroups import KeyGroupRange
from sluiceway.operators.keyed_timers import TIMERS
from sluiceway.plugins import PluginManager, default_manager
from sluiceway.savepoint.bootstrap import Filling, fill_timers
from sluiceway.savepoint.input_tables import Selector, parts_of
from sluiceway.state import (
    AggregatingStateDescriptor,
    BackendContext,
    KeyedStateBackend,
    MapStateDescriptor,
    StateDescriptor,
)

__all__ = ["SavepointWriter", "write"]

replace: Final = msgspec.structs.replace


class SavepointWriter:
    """Writer of a savepoint from tables. A context manager: the savepoint is complete at the end of the block.

    The savepoint does not exist before that, and an exception in the block leaves nothing behind. State is held in
    a state backend until then.

    Attributes:
        location: path or URL of the savepoint.
    """

    def __init__(
        self, location: str, max_parallelism: int | None, job_name: str, backend: str, manager: PluginManager
    ) -> None:
        if max_parallelism is not None and not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
            raise ConfigurationError(
                f"max_parallelism must be an integer from 1 to {MAX_PARALLELISM_LIMIT}, not {max_parallelism!r}"
            )
        place, self._directory = split_location(location)
        services = manager.services()
        self._storage = services.checkpoint_storage(place)
        self.location = self._storage.shown(self._directory)
        if next(find_checkpoints(self._storage, self._directory), None) is not None:
            raise CheckpointError(f"{self.location} already has a checkpoint: choose another directory")
        self._open_backend = services.state_backend
        self._backend_name = backend
        self._max_parallelism = max_parallelism or default_max_parallelism(1)
        self._job_name = job_name
        self._clock = SystemClock()
        self._began_ms = self._clock.now_ms()
        self._backends: dict[str, KeyedStateBackend] = {}
        self._files: list[str] = []
        self._over = False

    def put(
        self,
        uid: str,
        descriptor: StateDescriptor | str,
        data: Any,
        *,
        key: Selector | None = None,
        value: Selector | None = None,
        map_key: Selector | None = None,
        namespace: Selector | None = None,
        touched_at: Selector | None = None,
        accumulators: bool = False,
    ) -> int:
        """Add state to an operator: one row per key, per element of a list, or per entry of a map.

        Selectors may be omitted for columns named as those of a :class:`~sluiceway.savepoint.SavedTable`. Elements
        of a list keep the order of the rows; values of a reducing state are reduced, and values of an aggregating
        state are added to its accumulator. A second call for the same state adds rows to it.

        Args:
            uid: uid of the operator, as given to ``.uid(...)``.
            descriptor: descriptor of the state as the job declares it: name, kind, type, ``ttl``. For a step in
                columns, the name of its state: see :func:`edit`.
            data: a table of Arrow, pandas or Polars, a query of DuckDB, a :class:`SavedTable`; or an iterable of
                dicts, tuples or objects.
            key: the column of the keys, by name or position; a tuple of columns for a composite key; or a function
                of a row. The result must equal that of the job's key selector.
            value: the column of the values, likewise; omitted: columns named as the fields of the type.
            map_key: the column of the keys of a map.
            namespace: the column of the namespaces, for state of windows.
            touched_at: for state with a time to live, the column of the times of last access: datetimes, or ms
                since the epoch; None: now.
            accumulators: whether the values of an aggregating state are accumulators.

        Returns:
            the number of rows.

        Raises:
            ConfigurationError: a column does not exist, or is not named and cannot be inferred.
            DeclaredTypeError: the result of a reduce or aggregate function is not of the declared type.
            StateError: a value cannot be converted to the declared type, or a key of single-valued state has two
                rows.
            UnstableKeyError: at the end of the block, if a value cannot be a key.
        """
        self._check_open()
        if isinstance(descriptor, str):
            chosen = any(each is not None for each in (key, value, map_key, namespace, touched_at))
            return self._put_columns(uid, descriptor, data, chosen=chosen or accumulators)
        if not isinstance(descriptor, StateDescriptor):
            raise ConfigurationError(
                f"put() takes a descriptor, such as ValueStateDescriptor, not {descriptor!r:.60}"
            )
        if accumulators and not isinstance(descriptor, AggregatingStateDescriptor):
            raise ConfigurationError("accumulators= is for an AggregatingStateDescriptor")
        if map_key is not None and not isinstance(descriptor, MapStateDescriptor):
            raise ConfigurationError("map_key= is for a MapStateDescriptor")
        self._begin(uid, descriptor.name)
        now_ms = self._clock.now_ms()
        filling = Filling(uid, descriptor, self._backend(uid), now_ms, accumulators)
        columns = {"key": key, "value": value, "map_key": map_key}
        return sum(
            filling.add(part, **columns, namespace=namespace, touched_at=touched_at) for part in parts_of(data)
        )

    def put_timers(
        self,
        uid: str,
        data: Any,
        *,
        key: Selector | None = None,
        at: Selector | None = None,
        domain: str | None = None,
        namespace: Selector | None = None,
    ) -> int:
        """Add timers to an operator, and return their number.

        Args:
            uid: uid of the operator.
            data: table or rows, as for :meth:`put`.
            key: the column of the keys, as for :meth:`put`.
            at: the column of the times: datetimes, or ms since the epoch; None: ``fires_at``.
            domain: ``event time`` or ``processing time``; None: the column ``domain``.
            namespace: the column of the namespaces, for timers of windows.

        Raises:
            ConfigurationError: a column or domain does not exist.
        """
        self._check_open()
        self._begin(uid, TIMERS.name)
        backend = self._backend(uid)
        columns: dict[str, Any] = {"key": key, "at": at, "domain": domain, "namespace": namespace}
        return sum(fill_timers(backend, part, **columns) for part in parts_of(data))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._over:
                self._complete()
        finally:
            self._over = True
            for backend in self._backends.values():
                backend.close()

    # ---- inside --------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._over:
            raise StateError(f"the writer of {self.location} is closed: call its methods inside the with block")

    def _put_columns(self, uid: str, state: str, data: Any, *, chosen: bool) -> int:
        """Add rows to a state of a step in columns; ``chosen`` is whether key= or the like were given."""
        raise ConfigurationError(
            f"put() takes a descriptor, such as ValueStateDescriptor, not {state!r}: the name of a state is for "
            "that of a step in columns, in a savepoint that is changed with edit()"
        )

    def _begin(self, uid: str, state: str) -> None:
        """Prepare for rows of a state. Called by each :meth:`put`."""

    def _is_new(self, uid: str) -> bool:
        """Return whether the source savepoint has no state of an operator."""
        return True

    def _new_name(self, uid: str) -> str:
        """Return the uid under which a new operator is written."""
        return uid

    def _groups_of(self, uid: str) -> int:
        """Return the number of key groups of an operator."""
        return self._max_parallelism

    def _backend(self, uid: str) -> KeyedStateBackend:
        """Return the backend that holds an operator's state until it is written."""
        backend = self._backends.get(uid)
        if backend is None:
            backend = self._backends[uid] = self._make_backend(uid)
        return backend

    def _make_backend(self, uid: str) -> KeyedStateBackend:
        groups = self._groups_of(uid)
        context = BackendContext(uid, 0, KeyGroupRange(0, groups), groups)
        return self._open_backend(self._backend_name).create_keyed(context)

    def _complete(self) -> None:
        # The metadata file makes the savepoint visible, so it is written last, when all state files are complete.
        try:
            self._storage.write(join(self._directory, METADATA), (encode_metadata(self._metadata()),))
        except BaseException:
            self._storage.delete(self._files)
            raise

    def _metadata(self) -> CheckpointMetadata:
        """Write all state files, and return the metadata."""
        return CheckpointMetadata(
            job_name=self._job_name,
            job_id="",
            checkpoint_id=1,
            kind=SAVEPOINT,
            triggered_ms=self._began_ms,
            completed_ms=self._clock.now_ms(),
            vertices=tuple(self._new_vertex(uid) for uid in self._backends if self._is_new(uid)),
            written_by=version("sluiceway"),
        )

    def _new_vertex(self, uid: str) -> VertexEntry:
        """Write the state of a new operator, and return its vertex."""

        def content(writer: SectionWriter) -> Generator[None, None, SubtaskEntry]:
            # One subtask has all key groups: a job that starts from the savepoint divides them by its own
            # parallelism.
            keyed = yield from self._write_new(writer, uid)
            return SubtaskEntry(index=0, operators=(OperatorEntry(uid=name, keyed=keyed),))

        name = self._new_name(uid)
        return VertexEntry(
            uid=name,
            name=name,
            parallelism=1,
            max_parallelism=self._groups_of(uid),
            steps=(StepEntry(uid=name, name=name),),
            subtasks=(self._subtask(content),),
        )

    def _write_new(self, writer: SectionWriter, uid: str) -> Generator[None, None, KeyedEntry]:
        """Write the backend of an operator, and return its entry."""
        snapshot = self._backends[uid].snapshot()
        try:
            return (yield from write_rows(writer, snapshot))
        finally:
            snapshot.release()

    def _subtask(self, content: Callable[[SectionWriter], Generator[None, None, SubtaskEntry]]) -> SubtaskEntry:
        """Write the state of a subtask to its own file, and return the subtask's entry."""
        file = f"{len(self._files)}.state"
        # Before it is written, so that a failure also deletes what is there of it.
        self._files.append(join(self._directory, file))
        writer = SectionWriter(self._storage, self._directory, file)
        made: list[SubtaskEntry] = []

        def steps() -> Iterator[None]:
            made.append((yield from content(writer)))

        size = writer.write(steps)
        return replace(made[0], size=size, written=size)


def write(
    location: str | os.PathLike[str],
    *,
    max_parallelism: int | None = None,
    job_name: str = "",
    backend: str = "memory",
) -> SavepointWriter:
    """Write a savepoint from tables, as initial state of a job.

    Example::

        with sluiceway.savepoint.write("savepoints/first") as savepoint:
            savepoint.put("counted", sw.ValueStateDescriptor("count", int), table, key="word", value="n")

    Args:
        location: path or URL of its directory, which must not have a checkpoint.
        max_parallelism: number of key groups, fixed for every job that starts from the savepoint; None: 128.
        job_name: job name in the metadata, for display.
        backend: state backend that holds the state until it is written: ``rocksdb`` if it exceeds memory.

    Raises:
        CheckpointError: the directory has a checkpoint.
        ConfigurationError: max_parallelism is out of range.
        MissingExtraError: the library of the backend is not installed.
    """
    return SavepointWriter(os.fspath(location), max_parallelism, job_name, backend, default_manager())
