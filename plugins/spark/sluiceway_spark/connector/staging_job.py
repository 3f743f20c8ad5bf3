"""Spark job that stages a DataFrame: by the JVM's own conversion of rows to Arrow, or by ``mapInArrow``."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from sluiceway.errors import ConfigurationError
from sluiceway_spark.connector.staging_files import stager
from sluiceway_spark.conversion.arrow_schema import schema_as_is

__all__ = ["StagingJob"]

_LARGE: Final = "spark.sql.execution.arrow.useLargeVarTypes"


class StagingJob:
    """Job that stages all partitions of a DataFrame in files of a directory.

    Where the session is a JVM's, that makes the Arrow batches that ``toArrow()`` would collect in the driver, and
    Python writes their bytes. Against ``mapInArrow`` this spares the JVM to wrap each row, and Python to take
    batches apart, which is half of all work with scans of files.

    Args:
        frame: the DataFrame.
        what: names it on Spark's pages.
    """

    def __init__(self, frame: Any, what: str = "a DataFrame") -> None:
        self._frame = frame
        self._what = what
        self._session = frame.sparkSession
        self._schema = _plain_schema(frame)
        self._tag = f"sluiceway-{uuid.uuid4().hex}"

    def run(self, directory: str) -> None:
        """Compute all, in the calling thread, which does nothing else with Spark."""
        self._session.addTag(self._tag)
        with suppress(Exception):  # over Connect there is no context
            self._session.sparkContext.setLocalProperty("spark.job.description", f"sluiceway: read {self._what}")
        messages = None if self._schema is None else self._messages()
        if messages is None:
            self._frame.mapInArrow(_told(stager(directory)), "partition int").collect()
        else:
            messages.mapPartitions(stager(directory, self._schema)).collect()

    def cancel(self) -> None:
        """Have :meth:`run` come back. From any thread."""
        self._session.interruptTag(self._tag)
        if self._schema is not None:
            self._session.sparkContext.cancelJobsWithTag(self._tag)

    def _messages(self) -> Any:
        """The batches as an RDD of bytes; None: this JVM does not let us have them."""
        from py4j.protocol import Py4JError, Py4JJavaError
        from pyspark import RDD
        from pyspark.serializers import NoOpSerializer

        context = self._session.sparkContext
        context.addJobTag(self._tag)
        context.setInterruptOnCancel(True)
        for name, value in self._session.conf.getAll.items():  # as Spark does it for queries of its own
            context.setLocalProperty(name, value)
        try:
            made = self._frame._jdf.toArrowBatchRdd().toJavaRDD()  # stages before the last run here
        except Py4JJavaError:
            raise
        except Py4JError:
            return None
        return RDD(made, context, NoOpSerializer())


def _plain_schema(frame: Any) -> Any:
    """Return the Arrow schema that the JVM gives a DataFrame; None: it is not known."""
    try:
        if not _is_pinned(frame.sparkSession.sparkContext):
            return None
        conf = frame.sparkSession.conf
        if conf.get(_LARGE, "false") == "true":
            return None
        return schema_as_is(frame.schema, conf.get("spark.sql.session.timeZone"))
    except (AttributeError, ConfigurationError):  # over Connect; a type that is not known here
        return None


def _is_pinned(context: Any) -> bool:
    """Return whether each Python thread has a JVM thread, and so job tags and properties, of its own."""
    from py4j.clientserver import ClientServer

    return isinstance(context._gateway, ClientServer)


def _told(stage: Callable[[Iterable[Any]], Iterator[int]]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def staged(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for partition in stage(batches):
            yield pa.RecordBatch.from_pydict({"partition": pa.array([partition], pa.int32())})

    return staged
