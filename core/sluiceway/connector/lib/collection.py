"""Source over a collection in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleReader,
    Source,
)
from sluiceway.connector.lib.static_enumerator import StaticSplitEnumerator
from sluiceway.connector.lib.timestamps import stamped
from sluiceway.elements import ROWS_PER_RECORD, Batch, Columns
from sluiceway.errors import ConfigurationError
from sluiceway.isolation import ATOMS, all_unchangeable, copied
from sluiceway.persisted import persisted
from sluiceway.util.instants import Instant
from sluiceway.util.overriding import override

__all__ = ["CollectionSource"]

T = TypeVar("T")

_LOOKED_INTO: Final = 10_000
"""In a collection of more elements, tuples and objects are looked into one by one at equal distances."""


@persisted("CollectionSplit")
@dataclass(frozen=True, slots=True)
class _Slice:
    """The elements from ``start`` (moves on as they are read) up to ``stop``."""

    index: int
    start: int
    stop: int

    @property
    def split_id(self) -> str:
        return f"slice-{self.index}"


class CollectionSource(Source[T]):
    """The elements of a list, tuple, range or other sequence, once each; then it ends.

    Parallel readers get consecutive parts of about equal size: with one reader the order is that of the
    collection. Positions can be snapshotted and restored as long as the collection is the same.

    Args:
        values: the elements. A list is copied, so later changes to it do not show.
        timestamp: gives the event time of an element in ms since the epoch, or as an aware datetime; None:
                elements have none.
        output_type: type of the elements; None: their common type, where all have the same.

    Raises:
        ConfigurationError: ``values`` has no length and order, or is a single string.
    """

    def __init__(
        self, values: Sequence[T], *, timestamp: Callable[[T], Instant] | None = None, output_type: Any = None
    ) -> None:
        if isinstance(values, (str, bytes, bytearray)):
            raise ConfigurationError(
                f"a collection of records is expected, not one {type(values).__name__}: [{values[:20]!r}] for a "
                f"single record, list({values[:20]!r}) for one per character"
            )
        if not isinstance(values, Sequence):
            raise ConfigurationError(
                f"a collection of records must be a list, a tuple, a range or another sequence, not "
                f"{type(values).__name__}. {_how_to_list(values)}"
            )
        self._values: Sequence[T] = values if type(values) in (tuple, range, Columns) else list(values)
        self._timestamp = timestamp
        self._type = output_type
        self._found_types: frozenset[type] | None = None

    def __repr__(self) -> str:
        return f"CollectionSource({len(self._values)} elements)"

    @property
    @override
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    @property
    def output_type(self) -> Any:
        """Type as given, else the one type that all elements have, else None."""
        if self._type is not None:
            return self._type
        if isinstance(self._values, range):
            return int
        types = self._types()
        return next(iter(types)) if len(types) == 1 else None

    def _types(self) -> frozenset[type]:
        if self._found_types is None:
            of_rows = type(self._values) is Columns
            self._found_types = frozenset({Columns} if of_rows else map(type, self._values))
        return self._found_types

    def _changeable(self) -> bool:
        """Return whether elements may be mutable, by all their types and by a sample of them."""
        if isinstance(self._values, (range, Columns)) or self._types() <= ATOMS:
            return False
        return not all_unchangeable(self._values[:: max(1, len(self._values) // _LOOKED_INTO)])

    @property
    def gives_timestamps(self) -> bool:
        """True if a function for them was given."""
        return self._timestamp is not None

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Return an enumerator of one part of the collection per reader."""
        if restored is None:
            count, parts = len(self._values), context.parallelism
            bounds = [count * i // parts for i in range(parts + 1)]
            restored = [_Slice(i, bounds[i], bounds[i + 1]) for i in range(parts) if bounds[i] < bounds[i + 1]]
        return StaticSplitEnumerator(context, restored)

    @override
    def create_reader(self, context: ReaderContext) -> Reader[T]:
        return _CollectionReader(context, self._values, self._timestamp, copies=self._changeable())


class _CollectionReader(SimpleReader[T]):
    def __init__(
        self,
        context: ReaderContext,
        values: Sequence[T],
        timestamp: Callable[[T], Instant] | None,
        *,
        copies: bool = False,
    ) -> None:
        super().__init__(context)
        self._values = values
        self._timestamp = timestamp
        self._split = _Slice(0, 0, 0)
        # The collection is the user's, and is read again after a restart: nobody may change it.
        self._copies = copies

    def open_split(self, split: _Slice) -> None:
        self._split = split

    def read(self, limit: int) -> Poll[T]:
        split = self._split
        of_rows = type(self._values) is Columns
        end = min(split.start + (limit * ROWS_PER_RECORD if of_rows else limit), split.stop)
        if split.start == end:
            return END_OF_INPUT
        part = self._values[split.start : end]
        result: Poll[T]
        if of_rows:
            result = Batch(part)  # type: ignore[arg-type]
        else:
            values = list(map(copied, part)) if self._copies else part if type(part) is list else list(part)
            result = stamped(values, self._timestamp)
        self._split = _Slice(split.index, end, split.stop)  # replace() takes longer than all else here
        return result

    def position(self) -> _Slice | None:
        return self._split if self._split.start < self._split.stop else None

    def close_split(self) -> None:
        pass


def _how_to_list(values: Any) -> str:
    # By their methods, so that none of the libraries has to be imported. The list() of a frame has its columns.
    for method in ("to_pylist()", "to_dicts()", 'to_dict("records")'):
        if hasattr(values, "columns") and hasattr(values, method.partition("(")[0]):
            return f".{method} gives its rows as dicts; Pipeline.table() reads it as a stream in columns"
    if isinstance(values, Mapping):
        return "list(values.items()) gives its pairs, and [values] is the mapping as a single record"
    return (
        "list(...) makes one; for records that are produced while the job runs, use Pipeline.from_function(fn), "
        "where fn() returns the iterable"
    )
