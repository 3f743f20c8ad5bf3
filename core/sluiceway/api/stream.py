"""Stream of records, and the methods that add steps to it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, TypeVar, Unpack, overload

from sluiceway.api.arguments import check_count, check_function, check_text, describe
from sluiceway.api.location import caller_location
from sluiceway.api.resolution import check_partitioner, resolve_sink
from sluiceway.api.step_options import StepSettings, both_inputs, output_of_one_step
from sluiceway.api.timestamps import check_strategy
from sluiceway.api.unknown_names import KEYED_ONLY, answer
from sluiceway.connector import Sink
from sluiceway.connector.lib import CallbackSink, Collected, CollectSink, PrintSink
from sluiceway.errors import GraphError
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.functions import (
    DEAD_LETTERS,
    AsyncFunction,
    AsyncRetryStrategy,
    BatchProcessFunction,
    DeadLetter,
    FilterFunction,
    FlatMapFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    ProcessFunction,
)
from sluiceway.graph import InputRef, Transformation
from sluiceway.state import MapStateDescriptor
from sluiceway.steps import (
    REST,
    BatchProcessStep,
    BranchStep,
    FilterStep,
    FlatMapStep,
    InspectStep,
    IterationHeadStep,
    MapStep,
    ProcessStep,
    SinkStep,
    Step,
    TimestampsStep,
)
from sluiceway.streamgraph import PartitionerSpec

# Streams of other kinds are made here and lead back here, so their modules import this one. Those of windows and
# joins take some ten milliseconds to import, which a program that has none need not wait for.
if TYPE_CHECKING:
    from sluiceway.api.broadcast import BroadcastConnectedStream, BroadcastStream
    from sluiceway.api.connected import ConnectedStreams
    from sluiceway.api.iteration import IterativeStream
    from sluiceway.api.keyed import KeyedStream
    from sluiceway.api.program import Program
    from sluiceway.api.results import CloseableIterator
    from sluiceway.api.run_options import RunOptions
    from sluiceway.api.sink import DataStreamSink
    from sluiceway.api.table.stream import TableStream
    from sluiceway.api.window_joins import CoGroupedStreams, JoinedStreams
    from sluiceway.api.windowed import AllWindowedStream
    from sluiceway.windows.base import WindowAssigner

__all__ = ["DataStream"]

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K")
S = TypeVar("S")


class DataStream(StepSettings, Generic[T]):
    """Stream of records of type ``T`` between two steps.

    Made by a pipeline's sources and by the methods here; a method adds a step and returns what comes out of
    it. A stream may be used more than once: each use sees every record. Nothing runs before the pipeline does.

    Functions are plain callables or function objects. Every method raises TypeError, at once, for something
    that cannot be its function.
    """

    def __init__(self, pipeline: Program, inputs: tuple[InputRef, ...], made_by: str) -> None:
        self._pipeline = pipeline
        self._inputs = inputs
        self._made_by = made_by

    # ---- record by record ---------------------------------------------------------------------------------

    def map(self, fn: Callable[[T], R] | MapFunction[T, R]) -> DataStream[R]:
        """Emit ``fn(value)`` for each record."""
        check_function("map", fn, (MapFunction,), 1)
        return self._then(MapStep(fn), "map")

    def flat_map(self, fn: Callable[[T], Iterable[R]] | FlatMapFunction[T, R]) -> DataStream[R]:
        """Emit the elements of the iterable ``fn(value)`` for each record."""
        check_function("flat_map", fn, (FlatMapFunction,), 1)
        return self._then(FlatMapStep(fn), "flat_map")

    def filter(self, fn: Callable[[T], object] | FilterFunction[T]) -> DataStream[T]:
        """Keep the records for which ``fn(value)`` is true."""
        check_function("filter", fn, (FilterFunction,), 1)
        return self._then(FilterStep(fn), "filter")

    def inspect(self, fn: Callable[[T], object]) -> DataStream[T]:
        """Call ``fn(value)`` for each record in passing, and emit the record: ``inspect(print)``.

        What ``fn`` returns is ignored; it must not change the record. On workers and on Spark it is a copy that is
        called, as for :meth:`for_each`, which ends a stream. :meth:`take` looks at records without such a step.
        """
        check_function("inspect", fn, (), 1)
        return self._then(InspectStep(fn), "inspect")

    def branch(self, fn: Callable[[T], object] | FilterFunction[T]) -> tuple[DataStream[T], DataStream[T]]:
        """Split into two streams: the records for which ``fn(value)`` is true, and the others.

        It is one step, which calls ``fn`` once for each record; its settings are those of the first stream.
        """
        check_function("branch", fn, (FilterFunction,), 1)
        return self._split(BranchStep(fn))

    @overload
    def async_map(
        self,
        fn: AsyncFunction[T, R],
        *,
        timeout: timedelta | int | str | None,
        capacity: int = 100,
        ordered: bool = True,
        retry: AsyncRetryStrategy | None = None,
    ) -> DataStream[R]: ...
    @overload
    def async_map(
        self,
        fn: Callable[[T], Coroutine[Any, Any, R]],
        *,
        timeout: timedelta | int | str | None,
        capacity: int = 100,
        ordered: bool = True,
        retry: AsyncRetryStrategy | None = None,
    ) -> DataStream[R]: ...
    def async_map(
        self,
        fn: Any,
        *,
        timeout: timedelta | int | str | None,
        capacity: int = 100,
        ordered: bool = True,
        retry: AsyncRetryStrategy | None = None,
    ) -> DataStream[Any]:
        """Emit ``await fn(value)`` for each record without blocking the records behind it.

        A coroutine function (``async def``) gives one result per record; an AsyncFunction gives any number, has
        ``open`` and ``close``, and a say about records whose time is up. Results keep the timestamps of their
        records, and watermarks their place among them. All coroutines of a worker run in one event loop in a
        thread of its own, so they must not block.

        Args:
            fn: the function.
            timeout: how long a record may take, all attempts together: a timedelta, ms, a text (``"1s"``), or
                None for any time. Then ``fn`` is cancelled, and the job fails with TimeoutError unless an
                AsyncFunction's ``timeout(value)`` has other results.
            capacity: how many records of a subtask may be under way; the next one has to wait.
            ordered: whether results come in the order of the records. If not, a result goes on as soon as it
                is there, but none passes a watermark.
            retry: when to call again after a failure, or for a result of no use; None: never.

        Raises:
            TypeError: ``fn`` is no async function, or something is of the wrong type.
            ValueError: a number or a duration is too small.
        """
        from sluiceway.api.async_arguments import async_step

        return self._then(async_step("async_map", fn, timeout, capacity, ordered, retry), "async_map")

    def process(
        self,
        fn: ProcessFunction[T, R]
        | BatchProcessFunction[T, R]
        | Callable[[T, ProcessFunction.Context], Iterable[R] | None],
    ) -> DataStream[R]:
        """Emit any records, also to side outputs: ``fn(value, ctx)`` yields them, or returns an iterable or None.

        ``ctx.output(tag, record)`` emits to a side output, which :meth:`get_side_output` then gives. A
        BatchProcessFunction takes many records at a time.
        """
        check_function("process", fn, (ProcessFunction, BatchProcessFunction), 2)
        if isinstance(fn, BatchProcessFunction):
            return self._then(BatchProcessStep(fn), "process")
        return self._then(ProcessStep(fn), "process")

    def get_side_output(self, tag: OutputTag[S]) -> DataStream[S]:
        """Return the records that the step emits with ``tag``: from a process function, or late ones.

        Raises:
            GraphError: this comes of a step that never emits to it.
            TypeError: ``tag`` is no OutputTag.
        """
        if not isinstance(tag, OutputTag):
            raise TypeError(f'get_side_output() takes an OutputTag, as in OutputTag("late"), not {describe(tag)}')
        t = self._settable("get_side_output")
        if tag.name == DEAD_LETTERS.name:
            raise GraphError(
                f"get_side_output({tag.name!r}) at {caller_location()}: dead_letters() gives what a step has "
                "skipped; call a side output of your own by another name"
            )
        # That of branch() is the other stream of its result.
        if not t.step.side_outputs or isinstance(t.step, BranchStep):
            raise GraphError(
                f"get_side_output({tag.name!r}) at {caller_location()}: {t.label()} has no side outputs; only "
                "process(), windows and joins have, so call it on what one of these returned"
            )
        names = t.step.known_side_outputs
        if names is not None and tag.name not in names:
            has = f"only {', '.join(map(repr, sorted(names)))}" if names else "none"
            raise GraphError(
                f"get_side_output({tag.name!r}) at {caller_location()}: nothing is ever emitted there, as "
                f"{t.label()} has {has}: name the one for late records before, as in side_output_late_data(tag), "
                "or use a process function, which may emit to any"
            )
        known = next((have for have in t.side_output_tags if have.name == tag.name), None)
        if known is None:
            t.side_output_tags.append(tag)
        elif known.type != tag.type:
            raise GraphError(
                f"get_side_output({tag.name!r}) at {caller_location()}: the side output was taken from "
                f"{t.label()} before with type {known.type}, now with {tag.type}; use one OutputTag for both"
            )
        return DataStream(self._pipeline, (InputRef(t, tag),), "get_side_output()")

    def dead_letters(self) -> DataStream[DeadLetter]:
        """Return the records that the step skips because its function raises; see :meth:`on_error`.

        Raises:
            GraphError: a step of this kind cannot skip records.
        """
        t = self._settable("dead_letters")
        if not t.step.skips:
            raise GraphError(
                f"dead_letters() at {caller_location()}: {t.label()} cannot skip records, so there are none"
            )
        return DataStream(self._pipeline, (InputRef(t, DEAD_LETTERS),), "dead_letters()")

    # ---- event time ---------------------------------------------------------------------------------------

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy[T]) -> DataStream[T]:
        """Assign event timestamps and generate watermarks; watermarks from upstream are dropped.

        Each subtask has a watermark generator of its own; for one per split of a source, give the strategy to
        :meth:`Pipeline.source` instead. The generator is asked at the option ``auto_watermark_interval``, and
        earlier after a full batch of records.

        Raises:
            TypeError: not a WatermarkStrategy.
            GraphError: the strategy aligns sources, which only a source can do.
        """
        step = TimestampsStep(check_strategy("assign_timestamps_and_watermarks()", strategy, at_source=False))
        return self._then(step, "assign_timestamps_and_watermarks")

    # ---- several streams ----------------------------------------------------------------------------------

    def union(self, *streams: DataStream[T]) -> DataStream[T]:
        """Merge this and the other streams; the order of records from different streams is undefined.

        Raises:
            GraphError: a stream belongs to another pipeline.
            TypeError: something is no stream, or none is given.
        """
        if not streams:
            raise TypeError("union() takes at least one other stream")
        inputs = self._inputs
        for stream in streams:
            inputs += self._others("union", stream)._inputs
        return DataStream(self._pipeline, inputs, "union()")

    def join(self, other: DataStream[S]) -> JoinedStreams[T, S]:
        """Join with another stream by key, in windows: ``.where(key).equal_to(key).window(assigner).apply(fn)``.

        Raises:
            GraphError: ``other`` belongs to another pipeline.
            TypeError: ``other`` is no stream.
        """
        from sluiceway.api.window_joins import JoinedStreams

        return JoinedStreams(self, self._others("join", other))

    def co_group(self, other: DataStream[S]) -> CoGroupedStreams[T, S]:
        """Group with another stream by key, in windows: ``.where(key).equal_to(key).window(assigner).apply(fn)``.

        Raises:
            GraphError: ``other`` belongs to another pipeline.
            TypeError: ``other`` is no stream.
        """
        from sluiceway.api.window_joins import CoGroupedStreams

        return CoGroupedStreams(self, self._others("co_group", other))

    @overload
    def connect(self, other: DataStream[S]) -> ConnectedStreams[T, S]: ...
    @overload
    def connect(self, other: BroadcastStream[S]) -> BroadcastConnectedStream[T, S]: ...
    def connect(self, other: Any) -> Any:
        """Put another stream beside this one, of any type, for a step that takes both together.

        Keyed streams stay keyed: then the step has state per key that both share.

        Args:
            other: a stream; or what ``broadcast(descriptor)`` returned, to look records up in what it broadcasts.

        Raises:
            GraphError: the stream belongs to another pipeline.
            TypeError: ``other`` is no stream.
        """
        from sluiceway.api.broadcast import BroadcastConnectedStream, BroadcastStream
        from sluiceway.api.connected import ConnectedStreams

        if isinstance(other, BroadcastStream):
            self._others("connect", other._stream)
            return BroadcastConnectedStream(self, other)
        return ConnectedStreams(self, self._others("connect", other))

    def iterate(self) -> IterativeStream[T]:
        """Start a loop: the returned stream has these records and those that ``close_with`` sends back."""
        from sluiceway.api.iteration import IterativeStream

        t = self._pipeline._add(IterationHeadStep(), self._inputs)
        return IterativeStream(self._pipeline, (InputRef(t),), "iterate()")

    # ---- windows ------------------------------------------------------------------------------------------

    def window_all(self, assigner: WindowAssigner) -> AllWindowedStream[T]:
        """Cut the whole stream into windows, in one subtask. For windows per key there is ``key_by().window()``.

        Args:
            assigner: says to which windows a record belongs: one of :mod:`sluiceway.windows`, or your own.

        Raises:
            TypeError: not a WindowAssigner.
        """
        from sluiceway.api.windowed import AllWindowedStream, only_key

        # By a key that all records share, as windows have their state by key.
        together = self._by(PartitionerSpec("hash", key=only_key))
        return AllWindowedStream(DataStream(self._pipeline, together, "window_all()"), only_key, assigner)

    def count_window_all(self, size: int, slide: int | None = None) -> AllWindowedStream[T]:
        """Cut the whole stream into windows of ``size`` records, in one subtask.

        Arguments and errors are those of :meth:`KeyedStream.count_window`.
        """
        from sluiceway.api.windowed import in_counts

        counted: AllWindowedStream[T] = in_counts("count_window_all", self.window_all, size, slide)
        return counted

    # ---- how records travel -------------------------------------------------------------------------------

    def key_by(self, key: Callable[[T], K] | KeySelector[T, K]) -> KeyedStream[T, K]:
        """Partition by key: records with equal ``key(value)`` go to the same subtask, which keeps their state.

        The key must be hashable and hash the same in every process: strings, numbers, bools, None, bytes,
        dates, enums, and tuples and frozen dataclasses of such.
        """
        from sluiceway.api.keyed import KeyedStream

        if type(key).__name__ in ("int", "str"):
            how = f"lambda record: record[{key!r}]"
            raise TypeError(f"key_by({key!r}) at {caller_location()} takes a callable: key_by({how})")
        check_function("key_by", key, (KeySelector,), 1)
        return KeyedStream(self._pipeline, self._by(PartitionerSpec("hash", key=key)), "key_by()", key)

    def forward(self) -> DataStream[T]:
        """Send each record to the subtask with the same index; both sides must have the same parallelism."""
        return self._partitioned("forward")

    def rebalance(self) -> DataStream[T]:
        """Send records to all subtasks, round robin."""
        return self._partitioned("rebalance")

    def rescale(self) -> DataStream[T]:
        """Send records round robin to the subtask's own share of the next step's subtasks."""
        return self._partitioned("rescale")

    def shuffle(self) -> DataStream[T]:
        """Send each record to a random subtask."""
        return self._partitioned("shuffle")

    @overload
    def broadcast(self) -> DataStream[T]: ...
    @overload
    def broadcast(
        self, descriptor: MapStateDescriptor, /, *descriptors: MapStateDescriptor
    ) -> BroadcastStream[T]: ...
    def broadcast(self, *descriptors: MapStateDescriptor) -> Any:
        """Send every record to every subtask.

        Args:
            descriptors: the states in which a step is to keep what it needs of the records. With any, the result
                is for another stream to be connected with, which looks its records up in them:
                ``stream.connect(rules.broadcast(descriptor)).process(function)``.

        Raises:
            TypeError: not a MapStateDescriptor.
            GraphError: two descriptors of one name, or one with a time to live.
        """
        stream = self._partitioned("broadcast")
        if not descriptors:
            return stream
        from sluiceway.api.broadcast import BroadcastStream

        return BroadcastStream(stream, descriptors)

    def global_(self) -> DataStream[T]:
        """Send every record to the first subtask."""
        return self._partitioned("global")

    @overload
    def partition_custom(
        self, partitioner: Callable[[K, int], int], key: Callable[[T], K] | KeySelector[T, K]
    ) -> DataStream[T]: ...
    @overload
    def partition_custom(
        self, partitioner: str, key: Callable[[T], Any] | KeySelector[T, Any] | None = None
    ) -> DataStream[T]: ...
    def partition_custom(self, partitioner: Any, key: Any = None) -> DataStream[T]:
        """To the subtask that a function of the key says, or as a plugin's partitioner does it.

        Args:
            partitioner: ``partitioner(key, number of subtasks)`` gives the subtask's index; or the name of a
                partitioner that a plugin offers.
            key: computes the key from a record; for a plugin's partitioner only where that wants one.

        Raises:
            TypeError: ``partitioner`` is neither callable nor a name, or there is no key for it.
            UnknownNameError: no plugin offers a partitioner of that name.
        """
        self._check_not_by_key("partition_custom()")
        if key is not None:
            check_function("partition_custom", key, (KeySelector,), 1)
        if isinstance(partitioner, str):
            check_partitioner(partitioner)
            spec = PartitionerSpec(partitioner, key=key)
        else:
            check_function("partition_custom", partitioner, (), 2)
            if key is None:
                raise TypeError(
                    f"partition_custom(partitioner, key) at {caller_location()} needs key, a function of a record"
                )
            spec = PartitionerSpec("custom", key=key, select=partitioner)
        return DataStream(self._pipeline, self._by(spec), "partition_custom()")

    # ---- columns ------------------------------------------------------------------------------------------

    def to_columns(self, of: Any = None) -> TableStream:
        """Put the records into Arrow columns, for steps of expressions. Needs the extra ``columns``.

        Args:
            of: class with named and typed fields (a dataclass, named tuple, Struct, TypedDict or model), or a
                ``pyarrow.Schema``; records are objects of the class, or mappings. None: the type of the records as
                hints say. A stream of ``pyarrow.RecordBatch`` needs the schema; the rows of each come out.

        Raises:
            GraphError: the type of the records is not known, or a field has no Arrow type.
            MissingExtraError: the extra is not installed.
        """
        from sluiceway.api.table.conversion import columns_of

        return columns_of(self, of)

    # ---- ends ---------------------------------------------------------------------------------------------

    def sink(self, sink: Sink[T] | str, /, *unnamed: Never, **options: Any) -> DataStreamSink:
        """Write the records to a sink.

        Args:
            sink: a sink object, or the name of a connector that a plugin offers: ``sink("socket", port=9999)``.
            unnamed: none; options are given by name.
            options: for a name: the connector's own.

        Raises:
            TypeError: neither a sink nor a name; or an option without a name, or that the connector does not have.
            UnknownNameError: no plugin offers a connector of that name.
            MissingExtraError: the connector's third-party library is not installed.
        """
        return self._end(resolve_sink(sink, options, unnamed))

    def print(self, label: str = "") -> DataStreamSink:
        """Print every record on a line of its own, after ``label> `` if there is a label."""
        return self._end(PrintSink(label))

    def collect(self) -> Collected[T]:
        """Keep all records in memory: a sequence that fills while the job runs, and starts anew with each run.

        The records of a subtask keep their order, at any parallelism of the pipeline.
        """
        sink: CollectSink[T] = CollectSink()
        self._end(sink)
        self._pipeline._collected.append(sink.collected)
        return sink.collected

    def execute_and_collect(
        self, job_name: str | None = None, **options: Unpack[RunOptions]
    ) -> CloseableIterator[T]:
        """Run what this stream is made of, beside the program, and give its records one after another.

        The records of a subtask keep their order, at any parallelism of the pipeline.

        Other branches of the pipeline, and their sinks, do not run. Each call is a run of its own::

            with stream.execute_and_collect() as records:
                for record in records:
                    ...

        Leaving the block, or ``close()``, cancels the job if it has not ended.

        Args:
            job_name: what the job is called; None: as the pipeline.
            options: as for :meth:`Pipeline.run`. ``checkpoints`` and ``resume`` as arguments only: those that are
                configured are for the job itself.

        Raises:
            ConfigurationError, GraphError: as :meth:`Pipeline.run`; what fails later is raised by the iterator.
        """
        from sluiceway.api.results import collect_from, for_a_look
        from sluiceway.config.settings import resolve

        name = None if job_name is None else check_text("execute_and_collect(job_name=)", job_name)
        settings = resolve(options).settings
        if not options.get("resume"):
            settings = for_a_look(settings, checkpoints=options.get("checkpoints") is not None)
        return collect_from(self._pipeline, self._inputs, settings, name)

    def take(self, n: int, **options: Unpack[RunOptions]) -> list[T]:
        """Run what this stream is made of as far as needed, and return the first ``n`` records, or all if fewer.

        For a look at a stream, also one without end, in a notebook or at a prompt. Steps before this one may have
        seen more records than that.

        Args:
            n: how many, at least 1.
            options: as for :meth:`Pipeline.run`.

        Raises:
            ConfigurationError, GraphError: as :meth:`Pipeline.run`.
            BaseException: what the job failed with before there were ``n`` records.
        """
        check_count("take()", n)
        with self.execute_and_collect(**options) as records:
            return list(islice(records, n))

    def for_each(self, callback: Callable[[T], object]) -> DataStreamSink:
        """Call ``callback(value)`` for every record, in the task's thread; what it returns is ignored.

        On workers and on Spark it is a copy that is called, in another process. A method of a container, as
        ``seen.append``, is refused there: :meth:`execute_and_collect` brings records back.
        """
        check_function("for_each", callback, (), 1)
        return self._end(CallbackSink(callback))

    # ---- types --------------------------------------------------------------------------------------------

    @overload
    def returns(self, output_type: type[R]) -> DataStream[R]: ...
    @overload
    def returns(self, output_type: Any) -> DataStream[Any]: ...
    def returns(self, output_type: Any) -> DataStream[Any]:
        """Declare the type of the records, where the function's annotations do not say it.

        It is binding: a record of another class fails the job with a DeclaredTypeError. What is in the record is
        not looked at.
        """
        t = self._settable("returns")
        t.output_type, t.type_declared = output_type, True
        return self

    # ---- inside -------------------------------------------------------------------------------------------

    def _then(self, step: Step, made_by: str, name: str | None = None) -> DataStream[Any]:
        t = self._pipeline._add(step, self._inputs, name)
        return DataStream(self._pipeline, (InputRef(t),), f"{made_by}()")

    def _then_with(self, second: DataStream[Any], step: Step, made_by: str) -> DataStream[Any]:
        """Add a step that reads this stream and a second one."""
        inputs = both_inputs(self._inputs, second._inputs)
        return DataStream(self._pipeline, (InputRef(self._pipeline._add(step, inputs)),), f"{made_by}()")

    def _split(self, step: BranchStep) -> tuple[DataStream[Any], DataStream[Any]]:
        chosen = self._then(step, "branch")
        (ref,) = chosen._inputs
        return chosen, DataStream(self._pipeline, (replace(ref, tag=REST),), "branch()")

    def _end(self, sink: Sink[Any]) -> DataStreamSink:
        from sluiceway.api.sink import DataStreamSink

        return DataStreamSink(self._pipeline._add(SinkStep(sink), self._inputs), type(self))

    def _by(self, spec: PartitionerSpec) -> tuple[InputRef, ...]:
        return tuple(replace(ref, partitioner=spec) for ref in self._inputs)

    def _partitioned(self, name: str) -> DataStream[T]:
        made_by = "global_()" if name == "global" else f"{name}()"
        self._check_not_by_key(made_by)
        return DataStream(self._pipeline, self._by(PartitionerSpec(name)), made_by)

    def _check_not_by_key(self, word: str) -> None:
        """Raise GraphError where another way of travelling would undo a key_by() unnoticed."""
        if any(ref.partitioner is not None and ref.partitioner.name == "hash" for ref in self._inputs):
            raise GraphError(
                f"{word} at {caller_location()}: the stream is partitioned by key, which {word} would undo, so "
                "that the keys had no effect: leave out key_by() before it, or call key_by() after it"
            )

    def _others(self, method: str, stream: object) -> DataStream[Any]:
        if not isinstance(stream, DataStream):
            raise TypeError(f"{method}() at {caller_location()} takes streams, not {describe(stream)}")
        if stream._pipeline is not self._pipeline:
            raise GraphError(
                f"{method}() at {caller_location()}: one stream belongs to pipeline {self._pipeline.name!r}, the "
                f"other to {stream._pipeline.name!r}; build both from one Pipeline"
            )
        return stream

    def _settable(self, setting: str) -> Transformation:
        return output_of_one_step(self._inputs, setting, self._made_by)

    def __repr__(self) -> str:
        made_of = ", ".join(ref.upstream.label() for ref in self._inputs)
        return f"<{type(self).__name__} of {self._made_by} from {made_of}>"

    if not TYPE_CHECKING:  # a type checker would take it for leave to call anything

        def __getattr__(self, name: str) -> NoReturn:
            if name in KEYED_ONLY:
                raise AttributeError(
                    f"{type(self).__name__} has no {name}(): it works per key, so call key_by(...) first"
                )
            answer(self, name)
