"""SparkSink: a sink of Parquet or ORC files and catalog tables."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sluiceway.connector import DeliveryGuarantee, Sink, SinkWriter, WriterContext
from sluiceway.errors import ConfigurationError, MissingExtraError, choose
from sluiceway.util.install_hints import install_command
from sluiceway.util.overriding import override
from sluiceway.util.trial_pickling import is_trial
from sluiceway_spark.connector.catalog_tables import Table
from sluiceway_spark.connector.column_file import CODECS
from sluiceway_spark.connector.partition_directories import check_partitions
from sluiceway_spark.connector.sink_writer import SparkSinkWriter, Target
from sluiceway_spark.conversion.arrow_schema import schema_of
from sluiceway_spark.session.configuration import SessionConf, need_spark

__all__ = ["SparkSink"]

_MODES: Final = ("error", "append", "overwrite")
_ROW_GROUP_SIZE: Final = 100_000


class SparkSink(Sink[Any]):
    """Sink that writes records as rows of files that Spark reads. Made by one of its class methods.

    A record is a dict, a tuple, a NamedTuple, a dataclass, a msgspec.Struct, or an Arrow batch with any number of
    rows. With checkpoints the output is exactly-once: what belongs to a checkpoint is seen when that is complete,
    not before, and once, whatever fails. Without checkpoints it is seen when the input ends, so that a job whose
    input does not end needs them. ``spark.read`` may read at any moment: no file is seen before it is whole, and
    none goes or changes that was. Of one checkpoint, though, files appear one after the other.

    Each subtask writes one file per checkpoint and partition, or more where they are large: take an interval that
    makes them large enough. Workers write on their own, by pyarrow: for a path nobody needs a session, or a Java.
    Jobs that write to one place at the same time must have different names.
    """

    def __init__(self, target: Target | Table) -> None:
        if not isinstance(target, (Target, Table)):
            raise ConfigurationError("SparkSink is made by SparkSink.path or SparkSink.table")
        self._target = target

    def __getstate__(self) -> dict[str, Any]:
        # Workers have no session, so that this is where a table is looked up.
        if is_trial() and isinstance(self._target, Table):
            return {"_target": self._target.look_up()}
        return {"_target": self._resolved()}

    @classmethod
    def path(
        cls,
        path: str | os.PathLike[str],
        *,
        schema: Any = None,
        format: str = "parquet",  # noqa: A002 - Spark's word
        partition_by: str | Sequence[str] = (),
        mode: str = "error",
        codec: str | None = None,
        row_group_size: int = _ROW_GROUP_SIZE,
        file_size: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> SparkSink:
        """To a directory, or a URL that fsspec knows: what ``spark.read.parquet(path)`` then reads.

        Args:
            path: the directory; made if it is not there. All workers must see it.
            schema: the columns: a ``pyarrow.Schema``, a ``StructType``, or a dataclass, NamedTuple, TypedDict or
                msgspec.Struct. None: those of the first record's type, if that says so: dicts and tuples need one.
                A ``datetime`` becomes a timestamp; one without a zone is taken as UTC.
            format: ``parquet`` or ``orc``.
            partition_by: columns that become directories, such as ``day=2026-01-02``: integers, strings, booleans
                and dates.
            mode: what becomes of data that is there when a job begins: ``error`` refuses to run, ``append``
                writes beside it, ``overwrite`` has it go with the first commit. A job that goes on from a
                checkpoint writes beside what is there in any case.
            codec: compression in the files; None: ``snappy`` for Parquet, ``zlib`` for ORC.
            row_group_size: rows that are kept in memory, per partition, and written together.
            file_size: bytes after which another file is begun, at the end of a row group; None: none.
            storage_options: passed to the filesystem of a URL.

        Raises:
            ConfigurationError: one of them cannot be used.
            MissingExtraError: pyarrow is not installed.
        """
        _need_pyarrow()
        text = os.fspath(path)
        if not isinstance(text, str) or not text.strip():
            raise ConfigurationError(f"SparkSink.path takes a path, not {path!r:.100}")
        return cls(
            _target(
                text, schema, format, partition_by, mode, codec, row_group_size, file_size, storage_options or {}
            )
        )

    @classmethod
    def table(
        cls,
        name: str,
        *,
        schema: Any = None,
        format: str | None = None,  # noqa: A002 - Spark's word
        partition_by: str | Sequence[str] = (),
        mode: str = "error",
        codec: str | None = None,
        row_group_size: int = _ROW_GROUP_SIZE,
        file_size: int | None = None,
        master: str | None = None,
        remote: str | None = None,
        conf: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> SparkSink:
        """To a table of a session's catalog, of Parquet or ORC files; no table of Delta or Iceberg.

        It is looked up, or made, in the process that starts the job, by the session that is active there, else by
        one that is made of ``master`` and ``conf``. Workers write the files on their own. The catalog gets to know
        of new partitions, and the session of new files, when a later checkpoint is complete, and at the end; other
        sessions see them when they look anew (``REFRESH TABLE``).

        Args:
            name: of the table, such as ``shop.orders``.
            schema: as for :meth:`path`; None: that of the table, which must be there then.
            format: ``parquet``, the default for a new table, or ``orc``.
            partition_by: as for :meth:`path`; for a table that is there, it may be left out.
            mode: as for :meth:`path`: ``error`` takes a table that is there if it is empty.
            codec: as for :meth:`path`.
            row_group_size: as for :meth:`path`.
            file_size: as for :meth:`path`.
            master: of a session that has to be made.
            remote: URL of a Spark Connect server, instead.
            conf: settings of a session that has to be made, ``spark.*``.
            storage_options: passed to the filesystem of the table's location, where that is a URL.

        Raises:
            ConfigurationError: one of them cannot be used.
            MissingExtraError: PySpark is not installed.
        """
        need_spark()
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError(f"SparkSink.table takes the name of a table, not {name!r:.100}")
        target = _target(
            "",
            schema,
            format or "parquet",
            partition_by,
            mode,
            None if format is None else codec,
            row_group_size,
            file_size,
            storage_options or {},
            table=name,
        )
        return cls(Table(name, SessionConf.of(master, remote, conf), target, format, codec))

    @classmethod
    def of(
        cls, *, path: str | os.PathLike[str] | None = None, table: str | None = None, **options: Any
    ) -> SparkSink:
        """By name of an argument: what ``sink("spark", path="totals")`` calls."""
        if (path is None) == (table is None):
            raise ConfigurationError("sink 'spark' takes one of path= and table=")
        return cls.table(table, **options) if path is None else cls.path(path, **options)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<{self._shown}>"

    @property
    def overwrites(self) -> bool:
        """True if what was there before is deleted first."""
        return self._shown.mode == "overwrite"

    @property
    def name(self) -> str:
        """Name in plans: the target."""
        target = self._shown
        return f"spark table {target.table}" if target.table else f"spark {target.path}"

    @property
    @override
    def guarantee(self) -> DeliveryGuarantee:
        return DeliveryGuarantee.EXACTLY_ONCE

    @override
    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return SparkSinkWriter(self._resolved(), context)

    @property
    def _shown(self) -> Target:
        return self._target.target if isinstance(self._target, Table) else self._target

    def _resolved(self) -> Target:
        return self._target.resolve() if isinstance(self._target, Table) else self._target


def _target(
    path: str,
    schema: Any,
    form: str,
    partition_by: str | Sequence[str],
    mode: str,
    codec: str | None,
    row_group_size: int,
    file_size: int | None,
    options: Mapping[str, Any],
    table: str = "",
) -> Target:
    where = f"SparkSink to {f'table {table}' if table else path}"
    if form not in CODECS:
        raise ConfigurationError(
            f"{where}: format={form!r} must be 'parquet' or 'orc'. FilesSink writes CSV and JSON lines, which "
            "Spark reads, too"
        )
    if mode in ("errorifexists", "ErrorIfExists"):  # Spark's other word
        mode = "error"
    if mode not in _MODES:
        raise choose("mode", mode, _MODES)
    codec = CODECS[form][0] if codec is None else codec
    if codec not in CODECS[form]:
        raise choose(f"codec of {form} files", codec, CODECS[form])
    if isinstance(row_group_size, bool) or not isinstance(row_group_size, int) or row_group_size < 1:
        raise ConfigurationError(
            f"{where}: row_group_size={row_group_size!r} must be a number of rows, at least 1"
        )
    if file_size is not None and (not isinstance(file_size, int) or file_size < 1):
        raise ConfigurationError(
            f"{where}: file_size={file_size!r} must be a number of bytes, at least 1, or None"
        )
    names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"{where}: partition_by={partition_by!r} must be names of columns")
    found = None if schema is None else schema_of(schema, where)
    if found is not None:
        check_partitions(found, names, where)
    return Target(path, found, form, codec, names, mode, row_group_size, file_size, dict(options), table=table)


def _need_pyarrow() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError(f"SparkSink needs pyarrow: {install_command('sluiceway[spark]')}")
