"""Tables of Delta Lake: where they are, what they look like, and what may be done with them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from sluiceway.errors import ConfigurationError, ConnectorError, MissingExtraError
from sluiceway.util.install_hints import install_command
from sluiceway.util.overriding import override
from sluiceway.util.redaction import redact
from sluiceway_lakehouse._errors import MisfitError
from sluiceway_lakehouse._lake_sink import LakeTarget
from sluiceway_lakehouse._parquet_files import FileStore

__all__ = [
    "DeltaFiles",
    "DeltaPlace",
    "DeltaTarget",
    "check_readable",
    "check_writable",
    "need_deltalake",
    "schema_of_table",
]

_WRITER_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
    }
)
"""Features that an append need not do anything for, as long as no column and no constraint uses them."""
_READER_FEATURES: Final = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "variantType"}
)
_USES: Final = {
    "delta.columnMapping.": "column mapping",
    "delta.generationExpression": "generated columns",
    "delta.identity.": "identity columns",
    "delta.invariants": "invariants",
}


def need_deltalake() -> None:
    """Raise MissingExtraError if deltalake is missing."""
    try:
        import deltalake  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"tables of Delta Lake need deltalake and pyarrow: {install_command('sluiceway[delta]')}"
        ) from error


def _absolute(path: str) -> str:
    """Return a path that is valid in other processes, which may have another working directory."""
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


@dataclass(frozen=True)
class DeltaPlace:
    """Place of a table.

    Attributes:
        path: path or URL.
        options: of its object store, as delta-rs has them.
    """

    path: str
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, table: str | os.PathLike[str], options: Mapping[str, str] | None) -> DeltaPlace:
        """Return the place that a user names. Raises ConfigurationError."""
        path = os.fspath(table) if isinstance(table, str | os.PathLike) else table
        if not isinstance(path, str) or not path.strip():
            raise ConfigurationError(f"a Delta table is a path or a URL, not {table!r:.100}")
        given = dict(options or {})
        if not all(isinstance(one, str) for pair in given.items() for one in pair):
            raise ConfigurationError("storage_options= must have texts as names and values")
        return cls(path, given)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": _absolute(self.path), "options": self.options}

    def __str__(self) -> str:
        return f"Delta table {redact(self.path)}"

    @cached_property
    def uri(self) -> str:
        """URL or absolute path, that of the first use: functions may change the working directory during a run."""
        return _absolute(self.path)

    @contextmanager
    def failing_with(self, doing: str) -> Iterator[None]:
        """Turn errors of delta-rs and of the object store into ``cannot {doing} ...: reason``."""
        try:
            yield
        except ConnectorError:
            raise
        except Exception as error:  # delta-rs raises plain ones, too
            reason = str(error).strip() or type(error).__name__
            raise ConnectorError(f"cannot {doing} {self}: {reason}") from error

    def find(self, version: int | None = None) -> Any:
        """Return the ``deltalake.DeltaTable``; None: there is none. Raises ConnectorError."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with self.failing_with("open"):
            try:
                return DeltaTable(self.uri, version=version, storage_options=dict(self.options))
            except TableNotFoundError:
                return None

    @cached_property
    def files(self) -> DeltaFiles:
        """Its files."""
        return DeltaFiles(self)


@dataclass(frozen=True)
class DeltaTarget(LakeTarget):
    """Settings of a sink.

    Attributes:
        partition_by: partition columns of a table to create, or that the table must have; None: any.
        merge_schema: whether new columns are added to the table.
        configuration: properties of a table to create.
        row_group_size: rows that are kept in memory and written together.
        file_size: bytes after which another file is begun.
        max_open: files that a subtask has open at a time.
        codec: compression inside files.
    """

    place: DeltaPlace
    partition_by: tuple[str, ...] | None
    merge_schema: bool
    configuration: Mapping[str, str]
    row_group_size: int
    file_size: int
    max_open: int
    codec: str


class DeltaFiles(FileStore):
    """Files of a table, in the object store of its log.

    Args:
        place: of the table.
    """

    def __init__(self, place: DeltaPlace) -> None:
        import pyarrow.fs
        from deltalake.fs import DeltaStorageHandler

        self._is_local = "://" not in place.uri or place.uri.startswith("file://")
        with place.failing_with("open"):
            self._handler = DeltaStorageHandler(place.uri, dict(place.options))
            self._filesystem = pyarrow.fs.PyFileSystem(self._handler)
        self._root = place.uri.removeprefix("file://")

    @override
    def create(self, path: str) -> Any:
        if not self._is_local:
            return self._filesystem.open_output_stream(path)
        whole = os.path.join(self._root, path)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        # A file of Python's own can be synced; a stream of the object store cannot.
        return open(whole, "xb")

    def close(self, file: Any) -> None:
        """Close a complete file; on a local disk, sync it."""
        if self._is_local:
            file.flush()
            os.fsync(file.fileno())
        file.close()

    @override
    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(path)

    def open(self, path: str) -> Any:
        """Return a file, open for reading. Raises FileNotFoundError."""
        return self._filesystem.open_input_file(path)

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Return those of the paths that are no files."""
        return [path for path in paths if not self._filesystem.get_file_info(path).is_file]


def schema_of_table(table: Any) -> Any:
    """Return the ``pyarrow.Schema`` of a table."""
    import pyarrow

    return pyarrow.schema(table.schema())


def check_writable(table: Any, place: DeltaPlace) -> None:
    """Raise MisfitError if files cannot be appended to a table without further work."""
    _check(table, place, "written to", table.protocol().writer_features, _WRITER_FEATURES, _USES)
    constraints = [key for key in table.metadata().configuration if key.startswith("delta.constraints.")]
    if constraints:
        raise MisfitError(
            f"{place} has the constraint {constraints[0].rpartition('.')[2]!r}, which rows are not checked "
            "against here, so it cannot be written to"
        )


def check_readable(table: Any, place: DeltaPlace) -> None:
    """Raise MisfitError if the files of a table do not have its rows as they are."""
    uses = {"delta.columnMapping.": "column mapping"}
    _check(table, place, "read", table.protocol().reader_features, _READER_FEATURES, uses)


def _check(
    table: Any,
    place: DeltaPlace,
    doing: str,
    features: Sequence[str] | None,
    known: frozenset[str],
    uses: Mapping[str, str],
) -> None:
    if unknown := sorted(set(features or ()) - known):
        raise MisfitError(f"{place} has the feature {unknown[0]!r}, so it cannot be {doing}")
    configuration = table.metadata().configuration
    if (mode := configuration.get("delta.columnMapping.mode", "none")) != "none":
        raise MisfitError(f"{place} maps its columns by {mode}, so it cannot be {doing}")
    for one in table.schema().fields:
        if "Variant" in repr(one.type):
            raise MisfitError(f"{place}: column {one.name!r} has variants, so it cannot be {doing}")
        for key in one.metadata:
            for prefix, what in uses.items():
                if key.startswith(prefix):
                    raise MisfitError(f"{place}: column {one.name!r} uses {what}, so it cannot be {doing}")
