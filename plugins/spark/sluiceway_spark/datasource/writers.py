"""Writers of the data source ``sluiceway``: of a DataFrame, and of a streaming query."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import cloudpickle
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from sluiceway.connector import DeliveryGuarantee, Sink
from sluiceway.errors import CheckpointError, ConfigurationError
from sluiceway.runtime.microbatch.commit_log import CommitLog, CommitRecord
from sluiceway.runtime.microbatch.transactions import SingleBatch, StreamOfBatches
from sluiceway_spark.datasource.lazy_pickle import Shipped
from sluiceway_spark.datasource.named_objects import made_by, storage_at
from sluiceway_spark.datasource.rows_to_records import Rows

__all__ = ["sink_writer", "stream_sink_writer"]

# How Spark tells tasks what they are part of.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_SPECULATION: Final = "spark.speculation"

_OPTIONS: Final = ("sink", "records", "timestamp", "commits", "name")
_OF_SPARK: Final = "checkpointlocation"


def sink_writer(
    options: Mapping[str, str], schema: Any, overwrite: bool, search_path: tuple[str, ...]
) -> DataSourceArrowWriter:
    """Return the writer of a DataFrame to the sink that the options name.

    Raises:
        ConfigurationError: the options cannot be used.
    """
    told = _Told.of(options, schema, overwrite)
    if "commits" in {name.lower() for name in options}:
        raise ConfigurationError("option commits is for streams: a DataFrame is written and committed once")
    return _Writer(Shipped(told, search_path), told.name or f"spark-{uuid.uuid4().hex}")


def stream_sink_writer(
    options: Mapping[str, str], schema: Any, overwrite: bool, search_path: tuple[str, ...]
) -> DataSourceStreamArrowWriter:
    """Return the writer of a micro-batch of a streaming query to the sink that the options name.

    Raises:
        ConfigurationError: the options cannot be used.
    """
    told = _Told.of(options, schema, overwrite)
    if told.commits is None and told.sink.guarantee is DeliveryGuarantee.EXACTLY_ONCE:
        raise ConfigurationError(
            f"sink {told.sink.name!r} is exactly-once, which takes a place to note what was committed: give the "
            "query its checkpointLocation as an option, or the option commits, a directory or URL that the driver "
            "sees at each start"
        )
    log = told.log()
    return _StreamWriter(Shipped(told, search_path), None if log is None else log.newest())


@dataclass(frozen=True)
class _Told:
    """Parsed options."""

    sink: Sink[Any]
    rows: Rows
    commits: str | None
    name: str

    @classmethod
    def of(cls, options: Mapping[str, str], schema: Any, overwrite: bool) -> _Told:
        given = {name.lower(): value for name, value in options.items()}
        arguments = {name[len("sink.") :]: given.pop(name) for name in list(given) if name.startswith("sink.")}
        if "path" in given:
            raise ConfigurationError(
                f"format 'sluiceway' writes to what option sink names: call save() or start() without a path, and "
                f"give {given['path']!r} to the function that makes the sink"
            )
        if odd := [name for name in given if name not in (*_OPTIONS, _OF_SPARK)]:
            near = get_close_matches(odd[0], _OPTIONS, 1)
            raise ConfigurationError(
                f"format 'sluiceway' has no option {odd[0]!r} for writing: "
                f"{f'did you mean {near[0]}? ' if near else ''}There are {', '.join(_OPTIONS)}, and sink.NAME for "
                "arguments of the function that makes the sink"
            )
        if "sink" not in given:
            raise ConfigurationError(
                "option sink says what to write to: 'package.module:function', or the name of a connector"
            )
        if overwrite:
            raise ConfigurationError(
                "format 'sluiceway' adds to what is there: write with mode('append'), and a stream not with "
                "outputMode('complete')"
            )
        sink: Sink[Any] = made_by("sink", given["sink"], Sink, arguments)  # type: ignore[type-abstract]
        _refuse_others(sink)
        rows = Rows.of(given.get("records"), given.get("timestamp"), schema.names)
        return cls(sink, rows, given.get("commits") or _beside(given.get(_OF_SPARK)), given.get("name", ""))

    def log(self) -> CommitLog | None:
        return None if self.commits is None else CommitLog(storage_at(self.commits))


def _refuse_others(sink: Sink[Any]) -> None:
    """Raise ConfigurationError for a sink that tasks cannot write to, or that replaces what is there."""
    if sink.needs_program:
        raise ConfigurationError(
            f"sink {sink.name!r} commits by an object of the program, such as its session, and tasks of format "
            "'sluiceway' have none: have Spark write the rows itself, as by DataFrame.writeTo(), or run a pipeline"
        )
    # A sink that commits once in a run would replace in each batch of a stream what the batch before has written.
    if sink.commits_once or getattr(sink, "overwrites", False):
        raise ConfigurationError(
            f"sink {sink.name!r} replaces what is there (mode='overwrite'), and format 'sluiceway' adds to it: "
            "have the sink append, or run a pipeline"
        )


def _beside(checkpoints: str | None) -> str | None:
    """Return the default place of commit records: beside the checkpoints of the query."""
    if checkpoints is None:
        return None
    scheme, colon, rest = checkpoints.partition(":")
    if colon and scheme == "file":
        checkpoints = "/" + rest.lstrip("/")
    elif colon and scheme in ("s3a", "s3n"):
        checkpoints = f"s3:{rest}"
    checkpoints = checkpoints.rstrip("/")
    try:
        json.loads(storage_at(checkpoints).read("metadata"))
    except CheckpointError as error:
        # Spark reads a path as its own file system does, which need not be ours.
        raise ConfigurationError(
            f"commits cannot be noted beside checkpointLocation, where Spark's own files are not seen ({error}): "
            "set the option commits to a directory or URL that the driver sees at each start"
        ) from error
    return f"{checkpoints}/sluiceway"


@dataclass
class _Message(WriterCommitMessage):  # type: ignore[misc]
    """Message of a task to the driver. Bytes, as committables may be of classes that Spark's pickler rejects."""

    query: str
    written: bytes


class _Writer(DataSourceArrowWriter):  # type: ignore[misc]
    def __init__(self, told: Shipped[_Told], name: str) -> None:
        self._told = told
        self._name = name

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        told = self._told.get()
        _refuse_speculation(context, told.sink)
        written = self._batch().write(context.partitionId(), told.rows.batches(iterator))
        return _Message("", cloudpickle.dumps(written))

    def commit(self, messages: Sequence[Any]) -> None:
        batch = self._batch()  # where the classes are that messages need, is known from now on
        batch.commit([pickle.loads(message.written) for message in messages])

    def abort(self, messages: Sequence[Any]) -> None:
        self._batch().abort()

    def _batch(self) -> SingleBatch:
        return SingleBatch(self._told.get().sink, self._name)


class _StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writer of one micro-batch. Made in the driver for each batch, and once more for its commit.

    Args:
        told: what the options say.
        newest: the newest record of a commit.
    """

    def __init__(self, told: Shipped[_Told], newest: CommitRecord | None) -> None:
        self._told = told
        self._newest = newest

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        told = self._told.get()
        _refuse_speculation(context, told.sink)
        query, number = _property(context, _QUERY), int(_property(context, _BATCH))
        batches = told.rows.batches(iterator)
        written = self._stream(query).write(number, context.partitionId(), batches, newest=self._newest)
        return _Message(query, cloudpickle.dumps(written))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        if messages:
            stream = self._stream(messages[0].query)
            stream.commit(batchId, [pickle.loads(message.written) for message in messages])

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        told = [message for message in messages if message is not None]
        if told:  # else the next attempt does it
            self._stream(told[0].query).abort(batchId)

    def _stream(self, query: str) -> StreamOfBatches:
        told = self._told.get()
        return StreamOfBatches(told.sink, query, told.log(), told.name)


def _property(context: Any, name: str) -> str:
    """Return a property of a task, whose name is private to Spark. Raises ConfigurationError if it is not set."""
    told = context.getLocalProperty(name)
    if not told:
        raise ConfigurationError(
            f"Spark does not tell its tasks {name!r}: streams cannot be written with this version of it"
        )
    return str(told)


def _refuse_speculation(context: Any, sink: Sink[Any]) -> None:
    if context.getLocalProperty(_SPECULATION) == "true" and sink.guarantee is DeliveryGuarantee.EXACTLY_ONCE:
        raise ConfigurationError(
            f"sink {sink.name!r} writes in two phases, which does not go with spark.speculation=true: of two "
            "attempts that run at the same time, each would take away what the other has written. Set "
            "spark.speculation to false"
        )
