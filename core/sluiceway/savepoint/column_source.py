"""Sources of the state of steps in columns: a row for each key and window, or for each row that is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sluiceway.checkpoint.metadata import KeyedEntry, VertexEntry
from sluiceway.checkpoint.offline_reader import blocks_in_columns, definitions_in_columns, progress_in_columns
from sluiceway.errors import CheckpointError
from sluiceway.savepoint.arrow_reader import KeyedSource, Part, Place
from sluiceway.savepoint.arrow_schema import Fixed, Shape, arrow
from sluiceway.util.overriding import override

__all__ = ["ColumnSource", "DefinitionSource", "ProgressSource"]


class _AsItIs(Shape):
    """Column that is an Arrow array already."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    @override
    def columns(self, name: str) -> list[tuple[str, Any]]:
        return [(name, self._kind)]

    @override
    def arrays(self, name: str, values: Sequence[Any]) -> list[Any]:
        return [values]


class ColumnSource(KeyedSource):
    """Source of aggregates, or of kept rows, of a step in columns.

    Args:
        place: access to the checkpoint.
        name: name of the state.
        parts: entries of the subtasks that have it.
        kind: ``aggregates`` or ``rows``.
    """

    def __init__(
        self, place: Place, name: str, parts: Sequence[tuple[VertexEntry, str, KeyedEntry]], kind: str
    ) -> None:
        super().__init__(place, name, parts)
        self._kind = kind
        self._schema_of_rows: Any = None

    def shapes(self) -> dict[str, Shape]:
        """Return a shape for each column. All blocks are read, as the columns of one may differ from another's."""
        from sluiceway.columns.saved import BOUNDS, common_schema

        # Blocks of before the windows were saved have bounds also where there are no windows.
        schemas = {found.data.schema: found.bounds for found in self._found()}
        if any(not bounds for bounds in schemas.values()):
            schemas = {_without(schema, BOUNDS if bounds else ()): () for schema, bounds in schemas.items()}
        try:
            schema = common_schema(schemas)
        except ValueError as error:
            raise self._cannot(error) from error
        self._schema_of_rows = arrow().schema([]) if schema is None else schema
        return {field.name: _AsItIs(field.type) for field in self._schema_of_rows}

    def parts(self, rows: int, *, only: frozenset[str] | None = None) -> Iterator[Part]:
        """Yield the rows, key group by key group."""
        from sluiceway.columns.saved import as_common

        if only is not None and not only:
            return
        schema = self._schema_of_rows
        for found in self._found():
            data = found.data
            if data.schema.names != schema.names:
                data = data.select(schema.names)
            data = as_common(data, schema)
            for begin in range(0, data.num_rows, rows):
                part = data.slice(begin, rows)
                yield dict(zip(schema.names, part.columns, strict=True))

    def _found(self) -> Iterator[Any]:
        from sluiceway.columns.saved import saved_rows

        assert self._open is not None
        for snapshot in self._open:
            for _, blocks in blocks_in_columns(snapshot, self._name, self._place.decode):
                try:
                    yield from saved_rows(self._kind, blocks)
                except ValueError as error:
                    raise self._cannot(error) from error

    def _cannot(self, error: ValueError) -> CheckpointError:
        return CheckpointError(f"state {self._name!r} of step {self._entries[0][1]!r} cannot be read: {error}")


class ProgressSource(KeyedSource):
    """Source of the progress of a step in columns, by key group."""

    def shapes(self) -> dict[str, Shape]:
        """Return the shapes of the key group, the time and the number."""
        pa = arrow()
        return {"key_group": Fixed(pa.int32()), "watermark": Fixed(pa.int64()), "number": Fixed(pa.int64())}

    def parts(self, rows: int, *, only: frozenset[str] | None = None) -> Iterator[Part]:
        """Yield a row for each key group."""
        assert self._open is not None
        for snapshot in self._open:
            found = list(progress_in_columns(snapshot, self._name, self._place.decode))
            for begin in range(0, len(found), rows):
                groups, times, numbers = zip(*found[begin : begin + rows], strict=True)
                yield {"key_group": groups, "watermark": times, "number": numbers}


class DefinitionSource(KeyedSource):
    """Source of the definition of a step in columns, by key group."""

    def shapes(self) -> dict[str, Shape]:
        """Return the shapes of the key group and the definition."""
        pa = arrow()
        return {"key_group": Fixed(pa.int32()), "definition": Fixed(pa.string())}

    def parts(self, rows: int, *, only: frozenset[str] | None = None) -> Iterator[Part]:
        """Yield a row for each key group."""
        assert self._open is not None
        for snapshot in self._open:
            found = list(definitions_in_columns(snapshot, self._name, self._place.decode))
            for begin in range(0, len(found), rows):
                groups, texts = zip(*found[begin : begin + rows], strict=True)
                yield {"key_group": groups, "definition": texts}


def _without(schema: Any, names: Sequence[str]) -> Any:
    return arrow().schema([field for field in schema if field.name not in names])
