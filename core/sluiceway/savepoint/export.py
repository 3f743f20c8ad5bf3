"""Export of state tables to files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sluiceway.errors import ConfigurationError
from sluiceway.savepoint.arrow_schema import arrow
from sluiceway.savepoint.json_text import as_json, as_text

__all__ = ["FORMATS", "format_of", "write_table"]

FORMATS: Final = ("parquet", "csv", "jsonl", "arrow")


def format_of(path: str) -> str:
    """Return the format that the ending of a path names. Raises ConfigurationError."""
    ending = path.rpartition(".")[2]
    if ending not in FORMATS:
        endings = ", ".join(f".{name}" for name in FORMATS)
        raise ConfigurationError(
            f"{path} has no known file ending: state is exported to files ending in {endings}"
        )
    return ending


def write_table(path: str, schema: Any, batches: Iterable[Any]) -> int:
    """Write Arrow batches to a file, and return the number of rows.

    Args:
        path: its ending names the format; it may be a URL.
        schema: the Arrow schema of the batches.
        batches: Arrow record batches.

    Raises:
        ConfigurationError: the ending names no format.
    """
    format_ = format_of(path)
    rows = 0
    with _file(path) as file, _WRITERS[format_](file, schema) as write:
        for batch in batches:
            write(batch)
            rows += batch.num_rows
    return rows


@contextmanager
def _file(path: str) -> Iterator[Any]:
    if "://" in path:
        import fsspec

        with fsspec.open(path, "wb") as file:
            yield file
        return
    # Renamed when it is complete, so that a failure leaves no half of a file under the name.
    part = f"{path}.part"
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.remove(part)
        raise


@contextmanager
def _parquet(file: Any, schema: Any) -> Iterator[Callable[[Any], None]]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        yield writer.write_batch


@contextmanager
def _arrow(file: Any, schema: Any) -> Iterator[Callable[[Any], None]]:
    with arrow().ipc.new_file(file, schema) as writer:
        yield writer.write_batch


@contextmanager
def _csv(file: Any, schema: Any) -> Iterator[Callable[[Any], None]]:
    import pyarrow.csv

    pa = arrow()
    # CSV has no lists, structs or bytes: they are written as JSON text.
    flat = pa.schema([(f.name, pa.string() if _is_deep(f.type) else f.type) for f in schema])
    with pyarrow.csv.CSVWriter(file, flat) as writer:

        def write(batch: Any) -> None:
            columns = [
                pa.array([as_text(value) for value in column.to_pylist()], pa.string())
                if _is_deep(column.type)
                else column
                for column in batch.columns
            ]
            writer.write_batch(pa.record_batch(columns, flat))

        yield write


@contextmanager
def _jsonl(file: Any, schema: Any) -> Iterator[Callable[[Any], None]]:
    def write(batch: Any) -> None:
        lines = [as_json(row) for row in batch.to_pylist()]
        file.write(("\n".join(lines) + "\n").encode() if lines else b"")

    yield write


def _is_deep(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_nested(kind) or types.is_binary(kind) or types.is_duration(kind) or types.is_null(kind))


_WRITERS: Final[dict[str, Any]] = {"parquet": _parquet, "csv": _csv, "jsonl": _jsonl, "arrow": _arrow}
