"""Spark job that stages a DataFrame: by the JVM's own conversion of rows to Arrow, or by ``mapInArrow``."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from sluiceway.errors import ConfigurationError
from sluiceway_spark.connector.staging_files import StagedPartition, stager
from sluiceway_spark.conversion.any_names import map_in_arrow
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
        # Written by run(). The accumulator has what tasks have told that have ended, while others still run.
        self._finished: Any = None
        self._all: list[StagedPartition] | None = None

    def staged(self) -> list[StagedPartition]:
        """Return what successful tasks have staged until now, as far as Spark tells it early. From any thread."""
        if self._all is not None:
            return self._all
        return [] if self._finished is None else list(self._finished.value)

    def run(self, directory: str, known: frozenset[int] = frozenset()) -> None:
        """Compute all, in the calling thread, which does nothing else with Spark.

        Args:
            directory: for the files.
            known: partitions that an earlier run has staged, which are left out.
        """
        self._session.addTag(self._tag)
        with suppress(Exception):  # over Connect there is no context
            self._session.sparkContext.setLocalProperty("spark.job.description", f"sluiceway: read {self._what}")
        messages = None if self._schema is None else self._messages()
        self._finished = finished = self._accumulator()
        if messages is None:
            stage = _told(stager(directory, known=known, finished=finished))
            rows = map_in_arrow(self._frame, stage, "partition int, names array<string>").collect()
            self._all = [(row.partition, row.names) for row in rows]
        else:
            staged = stager(directory, self._schema, known=known, finished=finished)
            self._all = messages.mapPartitions(staged).collect()
        if finished is not None:
            finished.value = []  # PySpark keeps accumulators for ever

    def cancel(self) -> None:
        """Have :meth:`run` come back. From any thread."""
        self._session.interruptTag(self._tag)
        if self._schema is not None:
            self._session.sparkContext.cancelJobsWithTag(self._tag)

    def _accumulator(self) -> Any:
        """Return an accumulator of lists; None: the session has none, as over Connect."""

        class ListOfAll:  # an AccumulatorParam; here, as executors, which have nothing of ours, are sent its code
            def zero(self, value: Any) -> Any:
                return []

            def addInPlace(self, value1: Any, value2: Any) -> Any:  # noqa: N802 - as PySpark has it
                value1.extend(value2)
                return value1

        try:
            context = self._session.sparkContext
        except Exception:  # each version of Connect raises its own
            return None
        return context.accumulator([], ListOfAll())

    def _messages(self) -> Any:
        """Return the batches as an RDD of bytes; None: this JVM does not let us have them."""
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
        return schema_as_is(frame.schema, conf.get("spark.sql.session.timeZone"), "the DataFrame")
    except (AttributeError, ConfigurationError):  # over Connect; a type that is not known here
        return None


def _is_pinned(context: Any) -> bool:
    """Return whether each Python thread has a JVM thread, and so job tags and properties, of its own."""
    from py4j.clientserver import ClientServer

    return isinstance(context._gateway, ClientServer)


def _told(
    stage: Callable[[Iterable[Any]], Iterator[StagedPartition]],
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def staged(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for partition, names in stage(batches):
            columns = [pa.array([partition], pa.int32()), pa.array([names], pa.list_(pa.string()))]
            yield pa.RecordBatch.from_arrays(columns, ["partition", "names"])

    return staged
