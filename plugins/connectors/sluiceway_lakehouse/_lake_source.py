"""Bases of the sources of tables in a lakehouse, and of their enumerators."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from sluiceway.columns.filters import Condition, Filters, RowFilter, conditions_of
from sluiceway.connector import Alternatives, Boundedness, EnumeratorContext, Source
from sluiceway.connector.discovery import DiscoveringEnumerator, watch_interval_ms
from sluiceway.elements import Columns
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.util.overriding import override
from sluiceway_lakehouse._errors import MisfitError

__all__ = ["LakeEnumerator", "LakeProgress", "LakeSource"]


class LakeSource(Source[Any]):
    """Source of the rows of a table, in columns or as records, which may watch for new versions of the table.

    Args:
        place: place of the table; its text names the table in messages.
        columns: which columns to read; None: all.
        filters: which rows to read; None: all.
        watch: time between looks for new versions; None: no looks.
        record_type: class of the records; None: dicts.

    Raises:
        ConfigurationError: one of them cannot be used.
    """

    def __init__(
        self,
        place: Any,
        columns: Iterable[str] | None,
        filters: Filters | None,
        watch: timedelta | int | str | None,
        record_type: Any,
    ) -> None:
        self._place = place
        if isinstance(columns, str):
            raise ConfigurationError(f"columns={columns!r} must be a list of names")
        self._columns = None if columns is None else tuple(columns)
        if self._columns is not None and not self._columns:
            raise ConfigurationError("columns=[] leaves no column to read")
        self._filters = None if filters is None else conditions_of(filters)
        self._watch_ms = watch_interval_ms(watch)
        self._type = record_type
        self._in_columns = False
        self._wanted_in_columns: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def name(self) -> str:
        """Name with the place of the table."""
        return str(self._place)

    @property
    def boundedness(self) -> Boundedness:
        """Bounded, unless it watches for new versions of the table."""
        return Boundedness.BOUNDED if self._watch_ms is None else Boundedness.UNBOUNDED

    @property
    def output_type(self) -> Any:
        """Columns; of records the declared type, else dict."""
        if self._in_columns:
            return Columns
        return dict[str, Any] if self._type is None else self._type

    @property
    def gives_timestamps(self) -> bool:
        """False."""
        return False

    def in_columns(self) -> tuple[Source[Any], Any] | None:
        """Return a source of the rows in columns, and their schema.

        Raises:
            ConnectorError: the table does not exist, cannot be read, or lacks a column; or ``type`` was given.
        """
        if self._type is not None:
            raise ConnectorError(f"{self!r} has type=, which is for records: leave it out for columns")
        source = copy(self)
        source._in_columns = True
        source._keep_columns(source._open())
        return source, source._wanted_in_columns.schema

    def pushed(
        self, columns: frozenset[str] | None, conditions: Alternatives | None
    ) -> tuple[Source[Any], Any] | None:
        """Return a source that leaves out columns, files and row groups."""
        wanted = self._wanted_in_columns
        if wanted is None:
            return None
        import pyarrow

        # One column is read, if none is needed, for the number of the rows.
        names = [name for name in wanted.schema.names if columns is None or name in columns]
        names = names or wanted.schema.names[:1]
        schema = pyarrow.schema([wanted.schema.field(name) for name in names])
        looked_at = self._filtered_columns().union(names)
        needed = pyarrow.schema([one for one in wanted.needed if one.name in looked_at])
        skipped = None if conditions is None else tuple(tuple(Condition(*c) for c in each) for each in conditions)
        source = copy(self)
        source._wanted_in_columns = replace(wanted, schema=schema, needed=needed, skipped=skipped)
        return source, schema

    @abstractmethod
    def _open(self) -> Any:
        """Return the table. Raises MisfitError: it does not exist or cannot be read."""

    @abstractmethod
    def _arrow_schema(self, table: Any) -> Any:
        """Return the ``pyarrow.Schema`` of the rows of a table."""

    def _keep_columns(self, table: Any) -> None:
        """Keep the columns of a table: the steps that follow are made for them, and the table may get others."""
        self._wanted_in_columns = self._wanted(table)

    def _wanted(self, table: Any) -> Any:
        """Return the rows to read. Raises MisfitError: the table lacks a column, or one cannot be filtered so."""
        import pyarrow

        from sluiceway_lakehouse._reading import Wanted

        schema = self._arrow_schema(table)
        names = schema.names if self._columns is None else self._columns
        for name in names:
            if name not in schema.names:
                raise MisfitError(
                    f"{self._place} has no column {name!r} for columns=; it has "
                    f"{', '.join(map(repr, schema.names))}"
                )
        looked_at = self._filtered_columns().union(names)
        if self._filters is not None:
            RowFilter(self._filters, schema, str(self._place))
        return Wanted(
            pyarrow.schema([schema.field(name) for name in names]),
            pyarrow.schema([one for one in schema if one.name in looked_at]),
            self._filters,
            self._type,
            self._in_columns,
            schema,
        )

    def _filtered_columns(self) -> set[str]:
        return {one.column for each in self._filters or () for one in each}


@dataclass(frozen=True, slots=True)
class LakeProgress:
    """State of an enumerator in checkpoints.

    Attributes:
        pending: splits that nobody has.
    """

    pending: list[Any] = field(default_factory=list)


P = TypeVar("P", bound=LakeProgress)


class LakeEnumerator(DiscoveringEnumerator["P | MisfitError"], Generic[P]):
    """Enumerator of the files of a table, and of those that later versions have added.

    Args:
        context: given by the runtime.
        source: the source.
        progress: what an earlier enumerator kept, or that of none.
        thread: name of the thread that looks for new versions.
        log: logger of transient errors.
        sought: plural noun for messages: ``versions``.
    """

    def __init__(
        self,
        context: EnumeratorContext,
        source: LakeSource,
        progress: P,
        *,
        thread: str,
        log: logging.Logger,
        sought: str,
    ) -> None:
        super().__init__(
            context,
            source._watch_ms,
            create_thread=partial(ThreadPoolExecutor, 1, thread),
            log=log,
            sought=sought,
        )
        self._progress = progress
        self._pending = list(progress.pending)
        self._waiting: dict[int, None] = {}  # readers that have got nothing yet, in that order

    @abstractmethod
    def _has_begun(self) -> bool:
        """Return whether the files of the first version were found."""

    @abstractmethod
    def _found(self) -> P:
        """Return the files since the progress so far, and what they are up to. Changes no field.

        Raises:
            MisfitError: the table cannot be read on; fails the job.
        """

    @override
    def first_search(self) -> Callable[[], Callable[[], None]] | None:
        # The files of the first version may have been found before the restart.
        return super().first_search() if not self._has_begun() or self._interval_ms is not None else None

    @property
    @override
    def assigns_to_any(self) -> bool:
        return True

    def handle_split_request(self, reader: int) -> None:
        """Give the next split, or remember the reader until there is one."""
        self._waiting[reader] = None
        self._hand_out()

    def add_splits_back(self, splits: Any, reader: int) -> None:
        """Put the splits at the head of the list."""
        self._pending[:0] = splits
        self._waiting.pop(reader, None)  # its next attempt asks anew
        self._hand_out()

    def snapshot(self) -> P:
        """Return the splits that nobody has, and the version up to which there are others."""
        return replace(self._progress, pending=list(self._pending))

    @override
    def _search(self) -> P | MisfitError:
        try:
            return self._found()
        except MisfitError as error:
            return error  # other errors of later searches may pass

    @override
    def _take(self, found: P | MisfitError) -> None:
        if isinstance(found, MisfitError):
            raise found
        self._pending += found.pending
        # Splits are in `_pending` alone, from which snapshot() takes them.
        self._progress = replace(found, pending=[])

    @override
    def _hand_out(self) -> None:
        while self._waiting:
            if not self._pending and self._interval_ms is not None:
                return
            reader = next(iter(self._waiting))
            del self._waiting[reader]
            if self._pending:
                self._context.assign(reader, [self._pending.pop(0)])
            else:
                self._context.no_more_splits(reader)
