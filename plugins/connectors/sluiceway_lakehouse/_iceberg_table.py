"""Tables of Iceberg: where they are, what they look like, and what may be done with them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlparse

from sluiceway.errors import ConfigurationError, ConnectorError, MissingExtraError
from sluiceway.util.install_hints import install_command
from sluiceway.util.overriding import override
from sluiceway.util.redaction import HIDDEN, is_secret, redact
from sluiceway_lakehouse._errors import MisfitError
from sluiceway_lakehouse._lake_sink import LakeTarget
from sluiceway_lakehouse._parquet_files import FileStore

__all__ = ["IcebergFiles", "IcebergPlace", "IcebergTarget", "arrow_schema", "check_types", "need_pyiceberg"]

_FIELD_ID: Final = b"PARQUET:field_id"
_LEAST_HIDDEN: Final = 4
"""Characters of a secret below which a message keeps it: short ones are parts of ordinary words."""


def need_pyiceberg() -> None:
    """Raise MissingExtraError if pyiceberg is missing."""
    try:
        import pyarrow  # noqa: F401
        import pyiceberg  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"tables of Iceberg need pyiceberg and pyarrow: {install_command('sluiceway[iceberg]')}"
        ) from error


@dataclass(frozen=True)
class IcebergPlace:
    """Place of a table.

    Attributes:
        table: namespaces and name, joined by dots.
        catalog: name of its catalog; None: the default one.
        properties: of the catalog, as ``pyiceberg.catalog.load_catalog`` takes them.
    """

    table: str
    catalog: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, table: Any, catalog: Any, properties: Any) -> IcebergPlace:
        """Return the place that a user names. Raises ConfigurationError."""
        parts = table.split(".") if isinstance(table, str) else []
        if len(parts) < 2 or not all(part.strip() for part in parts):
            raise ConfigurationError(
                f"an Iceberg table is named by its namespace and name, such as 'shop.sales', not {table!r:.100}"
            )
        if catalog is not None and (not isinstance(catalog, str) or not catalog):
            raise ConfigurationError(f"catalog={type(catalog).__name__} must be the name of a catalog")
        given = dict(properties or {})
        if not all(isinstance(one, str) for pair in given.items() for one in pair):
            raise ConfigurationError("properties= must have texts as names and values")
        return cls(table, catalog, given)

    def __str__(self) -> str:
        return f"Iceberg table {self.table if self.catalog is None else f'{self.catalog}.{self.table}'}"

    @contextmanager
    def failing_with(self, doing: str) -> Iterator[None]:
        """Turn errors of pyiceberg, the catalog and the object store into ``cannot {doing} ...: reason``."""
        try:
            yield
        except ConnectorError:
            raise
        except Exception as error:  # each catalog and filesystem raises its own
            # Without the cause, whose message may have what is hidden here.
            raise ConnectorError(f"cannot {doing} {self}: {self.reason(error)}") from (
                error if isinstance(error, OSError) else None
            )

    def reason(self, error: Exception) -> str:
        """Return the message of an error without values of secret properties."""
        text = str(error).strip() or type(error).__name__
        for name, value in self.properties.items():
            if is_secret(name) and len(value) >= _LEAST_HIDDEN:
                text = text.replace(value, HIDDEN)
        return redact(text.split("\n[SQL:")[0])

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Open the catalog. Raises ConnectorError."""
        with self.failing_with("open the catalog of"):
            from pyiceberg.catalog import load_catalog

            catalog = load_catalog(self.catalog, **self.properties)
        try:
            yield catalog
        finally:
            catalog.close()

    def find(self, catalog: Any) -> Any:
        """Return the ``pyiceberg.table.Table``; None: there is none. Raises ConnectorError."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with self.failing_with("open"):
            try:
                return catalog.load_table(self.table)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def load(self) -> Any:
        """Open the catalog, and return the table. Raises MisfitError: it does not exist; ConnectorError."""
        with self.opened() as catalog:
            table = self.find(catalog)
        if table is None:
            raise MisfitError(f"{self} does not exist")
        return table


@dataclass(frozen=True)
class IcebergTarget(LakeTarget):
    """Settings of a sink.

    Attributes:
        partition_by: column and transform of each partition field of a table to create, or that the table must
            have; None: any.
        merge_schema: whether new columns are added to the table.
        table_properties: of a table to create.
        row_group_size: rows that are kept in memory and written together.
        file_size: bytes after which another file is begun; None: the table says it.
        max_open: files that a subtask has open at a time.
    """

    place: IcebergPlace
    partition_by: tuple[tuple[str, str], ...] | None
    merge_schema: bool
    table_properties: Mapping[str, str]
    row_group_size: int
    file_size: int | None
    max_open: int


class IcebergFiles(FileStore):
    """Files of a table, where its ``FileIO`` has them.

    Args:
        io: of the table.
    """

    def __init__(self, io: Any) -> None:
        self.io = io

    @override
    def create(self, path: str) -> Any:
        local = _local_path(path)
        if local is None:
            return self.io.new_output(path).create()
        os.makedirs(os.path.dirname(local), exist_ok=True)
        return open(local, "xb")

    def close(self, file: Any) -> None:
        """Close a complete file; on a local disk, sync it."""
        if hasattr(file, "fileno") and hasattr(file, "name"):
            file.flush()
            os.fsync(file.fileno())
        file.close()

    @override
    def remove(self, path: str) -> None:
        self.io.delete(path)

    def open(self, path: str) -> Any:
        """Return a file, open for reading. Raises FileNotFoundError."""
        return self.io.new_input(path).open()

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Return those of the paths that are no files."""
        return [path for path in paths if not self.io.new_input(path).exists()]


def _local_path(path: str) -> str | None:
    parts = urlparse(path)  # as pyiceberg does it, so that it finds the file
    if parts.scheme == "file" and not parts.netloc:
        return parts.path
    return path if not parts.scheme else None


def arrow_schema(schema: Any) -> Any:
    """Return the ``pyarrow.Schema`` of a ``pyiceberg.schema.Schema``, with the ids of its fields as metadata."""
    import pyarrow
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pyarrow.schema([_small_field(one) for one in schema_to_pyarrow(schema)])


def _small_field(given: Any) -> Any:
    return given.with_type(_small(given.type)).with_metadata(
        {key: value for key, value in (given.metadata or {}).items() if key == _FIELD_ID}
    )


def _small(kind: Any) -> Any:
    """Return the type with 32-bit offsets; of an extension that of its values."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if types.is_large_list(kind) or types.is_list(kind):
        return pa.list_(_small_field(kind.value_field))
    if types.is_map(kind):
        return pa.map_(_small_field(kind.key_field), _small_field(kind.item_field))
    if types.is_struct(kind):
        return pa.struct([_small_field(kind.field(at)) for at in range(kind.num_fields)])
    return kind


def check_types(schema: Any, place: IcebergPlace, doing: str, refused: frozenset[str]) -> None:
    """Raise MisfitError if a column has a type that is not supported, also inside of another one.

    Args:
        schema: ``pyiceberg.schema.Schema``.
        place: of the table.
        doing: what cannot be done, such as ``read``.
        refused: names of these types.
    """
    from pyiceberg.schema import index_by_id

    for number, one in index_by_id(schema).items():
        name = str(one.field_type)
        if name.partition("(")[0] in refused:
            raise MisfitError(
                f"{place}: column {schema.find_column_name(number)!r} has {name}, so the table cannot be {doing}"
            )
