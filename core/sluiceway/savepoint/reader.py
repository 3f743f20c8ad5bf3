"""Checkpoints and savepoints as tables: their operators, the states of each, and each state as Arrow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from sluiceway.checkpoint import StateReader, load_metadata, split_location
from sluiceway.checkpoint.metadata import CheckpointMetadata, ListEntry, OperatorEntry, Section, VertexEntry
from sluiceway.checkpoint.offline_reader import Decoder, kind_in_columns
from sluiceway.errors import MissingExtraError, StateError, choose
from sluiceway.operators.keyed_timers import TIMERS
from sluiceway.plugins import PluginManager, default_manager
from sluiceway.savepoint.arrow_reader import BroadcastSource, KeyedSource, ListSource, Place, Source, TimerSource
from sluiceway.savepoint.arrow_schema import MisfitError, Shape, arrow
from sluiceway.savepoint.column_names import DOUBT, unique_names
from sluiceway.savepoint.column_source import ColumnSource, DefinitionSource, ProgressSource
from sluiceway.savepoint.export import write_table
from sluiceway.util.install_hints import install_command

__all__ = ["TIMERS_NAME", "SavedOperator", "SavedState", "SavedTable", "read"]

TIMERS_NAME = "timers"
ROWS = 1 << 16

_ENDLESS: Final = "a value contains itself, or is nested too deeply"


class SavedTable:
    """State of an operator as a table. Each access reads the files.

    The table is an Arrow stream: ``polars.DataFrame(table)``, ``pyarrow.table(table)``; in DuckDB,
    ``SELECT ... FROM table`` where ``table`` is a variable.

    Attributes:
        uid: uid of the operator.
        name: name of the state.
        kind: ``value``, ``list``, ``map``, ``reducing``, ``aggregating``; ``timers``; ``aggregates``, ``rows``,
            ``progress`` and ``definition`` of steps in columns; ``operator list``, ``union list``, ``broadcast``,
            ``splits``, ``in flight``.
        type: the declared type as text; empty: none.
        ttl_ms: time to live in ms; None: none.
        serializer: name of the serializer of the values.
    """

    def __init__(
        self,
        uid: str,
        name: str,
        kind: str,
        source: Source,
        *,
        type_: str = "",
        ttl_ms: int | None = None,
        serializer: str = "msgspec",
        nested: Source | None = None,
    ) -> None:
        self.uid, self.name, self.kind = uid, name, kind
        self.type, self.ttl_ms, self.serializer = type_, ttl_ms, serializer
        self._source = source
        self._nested = nested
        self._plan: tuple[dict[str, Shape], Any] | None = None

    @property
    def nested(self) -> SavedTable:
        """The table with one row per key: lists and maps as nested values."""
        if self._nested is None:
            return self
        more = {"type_": self.type, "ttl_ms": self.ttl_ms, "serializer": self.serializer}
        return SavedTable(self.uid, self.name, self.kind, self._nested, **more)  # type: ignore[arg-type]

    @property
    def schema(self) -> Any:
        """The ``pyarrow.Schema``. Types that are not declared are inferred by reading the state once.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        with self._source.opened():
            return self._planned()[1]

    def batches(self, rows: int = ROWS) -> Iterator[Any]:
        """Yield the table as ``pyarrow.RecordBatch`` objects. At most one key group is in memory at a time.

        Args:
            rows: maximum number of rows of a batch.

        Raises:
            CheckpointError: a file is missing or damaged; names it.
            MissingExtraError: pyarrow, or the library of the state backend, is not installed.
            StateError: a value does not fit the type of its column.
        """
        pa = arrow()
        with self._source.opened():
            shapes, schema = self._planned()
            for part in self._source.parts(rows):
                arrays: list[Any] = []
                try:
                    for role, shape in shapes.items():
                        arrays += shape.arrays(role, part[role])
                except MisfitError as error:
                    raise self._no_table(error) from error
                except RecursionError as error:
                    raise self._no_table(_ENDLESS) from error
                yield pa.record_batch(arrays, schema)

    def reader(self, rows: int = ROWS) -> Any:
        """Return a ``pyarrow.RecordBatchReader`` of :meth:`batches`."""
        return arrow().RecordBatchReader.from_batches(self.schema, self.batches(rows))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows as dicts by column name."""
        for batch in self.batches():
            yield from batch.to_pylist()

    def to_arrow(self) -> Any:
        """Return the table as a ``pyarrow.Table``."""
        return self.reader().read_all()

    def to_pandas(self) -> Any:
        """Return the table as a ``pandas.DataFrame``. Raises MissingExtraError if pandas is not installed."""
        _needed("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return the table as a ``polars.DataFrame``. Raises MissingExtraError if Polars is not installed."""
        return _needed("polars").from_arrow(self.to_arrow())

    def write(self, path: str | os.PathLike[str]) -> int:
        """Write the table to a file, batch by batch, and return the number of rows.

        Args:
            path: path, or URL of a file system of fsspec, that ends in ``.parquet``, ``.csv``, ``.jsonl`` or
                ``.arrow`` (Arrow IPC file). A local file appears when it is complete.

        Raises:
            ConfigurationError: the path has another ending.
        """
        return write_table(os.fspath(path), self.schema, self.batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        of = f" of {self.type}" if self.type else ""
        return f"<{self.kind} {self.name!r}{of} of operator {self.uid!r}>"

    def _planned(self) -> tuple[dict[str, Shape], Any]:
        if self._plan is None:
            shapes = self._source.shapes()
            # Only shapes that are inferred need a look at the values. If one is found that does not fit its
            # declared type, the source gives that type up, and all is inferred from the beginning.
            while True:
                only = frozenset(role for role, shape in shapes.items() if shape.infers)
                try:
                    for part in self._source.parts(ROWS, only=only):
                        for role in only:
                            shapes[role].see(part[role])
                except RecursionError as error:
                    raise self._no_table(_ENDLESS) from error
                if not self._source.unfit():
                    break
                shapes = self._source.shapes()
            self._plan = shapes, _schema(shapes)
        return self._plan

    def _no_table(self, why: object) -> StateError:
        return StateError(
            f"state {self.name!r} of operator {self.uid!r} cannot be a table: {why}. "
            "Read its rows with sluiceway.read_state() instead"
        )


def _schema(shapes: Mapping[str, Shape]) -> Any:
    pa = arrow()
    columns = {role: shape.columns(role) for role, shape in shapes.items()}
    names = unique_names({role: [name for name, _ in own] for role, own in columns.items()})
    return pa.schema(
        [
            pa.field(name, kind, metadata={DOUBT: doubt} if doubt else None)
            for role, shape in shapes.items()
            for name, (_, kind), doubt in zip(names[role], columns[role], shape.doubts(), strict=True)
        ]
    )


class SavedOperator:
    """State of an operator in a checkpoint.

    Attributes:
        uid: uid of the operator.
        name: display name.
        kind: kind of its step, such as ``process``; empty if unknown.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        states: states by name. ``timers`` are the timers, ``splits`` the splits of a source, ``in flight`` records
            that the operator had received and not yet emitted.
    """

    def __init__(self, uid: str, name: str, kind: str, vertex: VertexEntry, states: dict[str, SavedTable]) -> None:
        self.uid, self.name, self.kind = uid, name, kind
        self.parallelism, self.max_parallelism = vertex.parallelism, vertex.max_parallelism
        self.states: Mapping[str, SavedTable] = MappingProxyType(states)

    def __getitem__(self, name: str) -> SavedTable:
        """Return a state by name. Raises UnknownNameError."""
        if name not in self.states:
            raise choose("state", name, self.states, f"of step {self.uid!r}")
        return self.states[name]

    @property
    def timers(self) -> SavedTable | None:
        """Timers as a table of key, namespace, domain and time; None if the operator has none."""
        return self.states.get(TIMERS_NAME)

    def __repr__(self) -> str:
        return f"<operator {self.uid!r} with {', '.join(self.states) or 'no state'}>"


class SavedState:
    """Checkpoint or savepoint as tables. The constructor reads its metadata only.

    Attributes:
        metadata: metadata of the checkpoint.
        operators: operators with state, by uid.
        in_flight: size in bytes of the in-flight records of an unaligned checkpoint, by uid of the job vertex that
            stored them.
    """

    def __init__(self, location: str, allow_pickle: bool, manager: PluginManager) -> None:
        place, directory = split_location(location)
        storage = manager.checkpoint_storage(place)
        self.location = location
        self.metadata: CheckpointMetadata = load_metadata(storage, directory)
        self._place = Place(
            StateReader(storage, directory), Decoder(allow_pickle), manager.services().state_backend
        )
        found: dict[str, SavedOperator] = {}
        for vertex in self.metadata.vertices:
            names = {step.uid: (step.name, step.kind) for step in vertex.steps}
            of: dict[str, list[tuple[int, OperatorEntry]]] = {}
            for subtask in sorted(vertex.subtasks, key=lambda subtask: subtask.index):
                for operator in subtask.operators:
                    of.setdefault(operator.uid, []).append((subtask.index, operator))
            for uid, parts in of.items():
                states = _states(self._place, vertex, uid, parts)
                name, kind = names.get(uid, (vertex.name, ""))
                if states:
                    found[uid] = SavedOperator(uid, name, kind, vertex, states)
        self.operators: Mapping[str, SavedOperator] = MappingProxyType(found)
        self.in_flight: Mapping[str, int] = MappingProxyType(
            {
                vertex.uid: size
                for vertex in self.metadata.vertices
                if (size := sum(subtask.in_flight_size for subtask in vertex.subtasks))
            }
        )

    def __getitem__(self, uid: str) -> SavedOperator:
        """Return an operator by uid. Raises UnknownNameError."""
        if uid not in self.operators:
            raise choose("step with the uid", uid, self.operators, "in the checkpoint")
        return self.operators[uid]

    def __iter__(self) -> Iterator[SavedOperator]:
        return iter(self.operators.values())

    def tables(self, uid: str | None = None, state: str | None = None) -> list[SavedTable]:
        """Return all states, restricted to an operator, to a state name, or to both.

        Raises:
            UnknownNameError: no state matches; lists the existing ones.
        """
        operators = self.operators.values() if uid is None else [self[uid]]
        found = [table for operator in operators for table in operator.states.values()]
        if state is None:
            return found
        named = [table for table in found if table.name == state]
        if not named:
            raise choose("state", state, {table.name for table in found}, "in the checkpoint")
        return named

    def __repr__(self) -> str:
        m = self.metadata
        return f"<{m.kind} {m.checkpoint_id} of job {m.job_name!r} with {', '.join(self.operators) or 'no state'}>"


def read(location: str | os.PathLike[str], *, allow_pickle: bool = False) -> SavedState:
    """Read a checkpoint or savepoint as tables, without its job.

    Args:
        location: path or URL of its directory.
        allow_pickle: whether to unpickle values of classes, which must be importable; that can run any code.
            Otherwise such a value is a binary column, beside the name of its class.

    Raises:
        CheckpointError: the directory has no complete checkpoint, or it is damaged; names the file.
    """
    return SavedState(os.fspath(location), allow_pickle, default_manager())


def _states(
    place: Place, vertex: VertexEntry, uid: str, parts: Sequence[tuple[int, OperatorEntry]]
) -> dict[str, SavedTable]:
    found: dict[str, SavedTable] = {}

    def add(table: SavedTable) -> None:
        name = table.name
        # Names are unique among keyed state, lists and broadcast state, but one may be in two of these.
        while name in found:
            name += "'"
        table.name = name
        found[name] = table

    have = [o.keyed for _, o in parts if o.keyed is not None and (o.keyed.groups or o.keyed.native)]
    keyed = [(vertex, uid, entry) for entry in have]
    tables = {table.name: table for _, _, entry in keyed for table in entry.tables}
    for name, table in tables.items():
        having = [part for part in keyed if any(t.name == name for t in part[2].tables)]
        if in_columns := kind_in_columns(vertex, uid, name):
            of_columns: Source
            if in_columns == "progress":
                of_columns = ProgressSource(place, name, having)
            elif in_columns == "definition":
                of_columns = DefinitionSource(place, name, having)
            else:
                of_columns = ColumnSource(place, name, having, in_columns)
            add(SavedTable(uid, name, in_columns, of_columns, serializer="arrow"))
            continue
        source = KeyedSource(place, name, having)
        if name == TIMERS.name:
            add(SavedTable(uid, TIMERS_NAME, "timers", TimerSource(source)))
            continue
        nested = KeyedSource(place, name, having, nested=True) if table.kind in ("list", "map") else None
        more = {"type_": table.type, "ttl_ms": table.ttl_ms, "serializer": table.serializer}
        add(SavedTable(uid, name, table.kind or table.table, source, nested=nested, **more))  # type: ignore[arg-type]
    lists: dict[str, tuple[ListEntry, list[tuple[int, Section]]]] = {}
    for subtask, kept in ((i, kept) for i, o in parts for kept in o.lists):
        if kept.elements is not None:
            lists.setdefault(kept.name, (kept, []))[1].append((subtask, kept.elements))
    for name, (first, sections) in lists.items():
        kind = "operator list" if first.mode == "list" else first.mode
        source_ = ListSource(place, sections, first)
        add(SavedTable(uid, name, kind, source_, type_=first.type, serializer=first.serializer))
    with_broadcast = next((o for _, o in parts if o.broadcast is not None), None)
    if with_broadcast is not None:
        for name in BroadcastSource.names(place, with_broadcast):
            add(SavedTable(uid, name, "broadcast", BroadcastSource(place, name, with_broadcast)))
    if splits := [(i, o.splits) for i, o in parts if o.splits is not None]:
        add(SavedTable(uid, "splits", "splits", ListSource(place, splits)))
    if pending := [(i, o.pending) for i, o in parts if o.pending is not None]:
        add(SavedTable(uid, "in flight", "in flight", ListSource(place, pending, with_times=True)))
    return found


def _needed(library: str) -> Any:
    from importlib import import_module

    try:
        return import_module(library)
    except ImportError as error:
        raise MissingExtraError(f"converting a table needs {library}: {install_command(library)}") from error
