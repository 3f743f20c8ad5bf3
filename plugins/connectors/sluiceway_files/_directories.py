"""Values that the names of directories give to the rows below them, as Hive writes them: ``day=2026-01-02``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from sluiceway.errors import ConfigurationError, RejectedRecordError
from sluiceway_files._partitions import NULL, can_name

__all__ = ["partition_schema", "values_of"]


def partition_schema(given: Any) -> Any:
    """Return the schema of the columns that directories are named after.

    Args:
        given: a ``pyarrow.Schema``, or names of columns of text.

    Raises:
        ConfigurationError: it is neither, or has a type that cannot name directories.
    """
    import pyarrow as pa

    if isinstance(given, str):
        given = [given]
    if not isinstance(given, pa.Schema):
        given = list(given) if isinstance(given, Iterable) else [given]
        if not all(isinstance(name, str) and name for name in given):
            raise ConfigurationError(
                f"partitions={given!r:.100} must be names of columns, or a pyarrow.Schema with their types"
            )
        given = pa.schema([pa.field(name, pa.string()) for name in given])
    if not given.names or len(set(given.names)) < len(given.names):
        raise ConfigurationError(f"partitions={given.names!r} must be at least one column, and each of them once")
    for field in given:
        if not can_name(field.type) or pa.types.is_dictionary(field.type):
            raise ConfigurationError(
                f"partitions= has {field.name!r} with {field.type}; directories are named after text, integers, "
                "booleans or dates"
            )
    return given


def values_of(path: str, schema: Any, name: str) -> Any:
    """Return the values of a file's directories, a ``pyarrow.RecordBatch`` of one row.

    Args:
        path: path of the file.
        schema: the columns, a ``pyarrow.Schema``.
        name: name of the file in messages.

    Raises:
        ConnectorError: a column has no directory, or a name is no value of its type.
    """
    import pyarrow as pa

    texts: dict[str, str] = {}
    for part in path.replace("\\", "/").split("/")[:-1]:
        key, equals, text = part.partition("=")
        if equals:
            texts[unquote(key)] = text
    arrays = []
    for field in schema:
        if field.name not in texts:
            raise RejectedRecordError(
                f"{name} is in no directory {field.name}=..., which partitions= names; "
                f"its directories have {', '.join(texts) or 'no columns'}"
            )
        text = texts[field.name]
        try:
            value = pa.array([None if text == NULL else unquote(text)], pa.string())
            arrays.append(value.cast(field.type))
        except pa.ArrowException as error:
            raise RejectedRecordError(
                f"{name}: {field.name}={text} is no value of {field.type}: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)
