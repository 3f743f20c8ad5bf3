"""Pipeline: the root of a program, which builds its graph and runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from inspect import isasyncgenfunction
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, Unpack, overload

from sluiceway.api.arguments import check_arity, check_function
from sluiceway.api.location import caller_location
from sluiceway.api.plan_text import PlanText
from sluiceway.api.program import Program
from sluiceway.api.resolution import resolve_source
from sluiceway.api.run_options import RunOptions
from sluiceway.api.stream import DataStream
from sluiceway.api.timestamps import check_strategy
from sluiceway.api.unknown_names import answer
from sluiceway.config.settings import Settings, resolve
from sluiceway.connector import Source
from sluiceway.connector.lib import CollectionSource, FunctionSource, GeneratorSource
from sluiceway.engine import Job, JobResult, Services
from sluiceway.errors import GraphError
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.graph import Finding, InputRef, Level, build_stream_graph
from sluiceway.steps import SourceStep
from sluiceway.streamgraph import StreamGraph
from sluiceway.util.instants import Instant
from sluiceway.util.name_hints import HintingType, hint_for

if TYPE_CHECKING:
    from threading import Event

    from sluiceway.api.handle import JobHandle
    from sluiceway.api.table.stream import TableStream

__all__ = ["Pipeline"]

T = TypeVar("T")
J = TypeVar("J")


class Pipeline(Program, metaclass=HintingType):
    """Program of sources, steps and sinks. Building it opens nothing; :meth:`run` does.

    Not for use from several threads while it is being written. It can be run several times, each time anew.

    Args:
        name: used in messages, plans and metrics.
        parallelism: subtasks per step where a step does not say; None: the run's option.
        max_parallelism: key groups, a bound for parallelism; None: the run's option.
        buffer_timeout: how long a record may stay in an output buffer that is not full: a timedelta, ms, a
            text (``"100ms"``), or -1 (until a batch is full); None: the run's option.
        chaining: whether neighbouring steps may share a task.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an empty name, or a number out of range.
    """

    # ---- sources ------------------------------------------------------------------------------------------

    @overload
    def source(
        self, source: Source[T], /, *, watermark_strategy: WatermarkStrategy[T] | None = None
    ) -> DataStream[T]: ...
    @overload
    def source(
        self, source: str, /, *, watermark_strategy: WatermarkStrategy[Any] | None = None, **options: Any
    ) -> DataStream[Any]: ...
    def source(
        self,
        source: Any,
        /,
        *unnamed: Any,
        watermark_strategy: WatermarkStrategy[Any] | None = None,
        **options: Any,
    ) -> DataStream[Any]:
        """Read a source.

        Args:
            source: a source object, or the name of a connector that a plugin offers:
                ``flow.source("socket", host="localhost", port=9999)``.
            watermark_strategy: gives the records event times, and makes watermarks, with a generator for each
                split of the source; None: neither, so that event time does not advance until the input ends.
            unnamed: none; options are given by name.
            options: for a name: the connector's own.

        Raises:
            TypeError: neither a source nor a name; an option without a name, or that the connector does not have;
                or no strategy.
            UnknownNameError: no plugin offers a connector of that name.
            MissingExtraError: the connector's third-party library is not installed.
        """
        return self._read(resolve_source(source, options, unnamed), watermark_strategy)

    def from_collection(
        self,
        values: Sequence[T],
        *,
        timestamp: Callable[[T], Instant] | None = None,
        watermark_strategy: WatermarkStrategy[T] | None = None,
    ) -> DataStream[T]:
        """Read the elements of a list, tuple, range or other sequence, once each.

        One subtask reads them in order; several, each a consecutive part. ``set_parallelism(1)`` behind it has one
        read all of them, at any parallelism of the pipeline.

        Args:
            values: the elements; a list is copied.
            timestamp: gives the event time of an element in ms since the epoch, or as an aware datetime; None:
                elements have none.
            watermark_strategy: as for :meth:`source`.
        """
        return self._read(CollectionSource(values, timestamp=timestamp), watermark_strategy)

    @overload
    def from_function(
        self,
        function: Callable[[], AsyncIterator[T]],
        *,
        bounded: bool = True,
        timestamp: Callable[[T], Instant] | None = None,
        watermark_strategy: WatermarkStrategy[T] | None = None,
    ) -> DataStream[T]: ...
    @overload
    def from_function(
        self,
        function: Callable[[], Iterable[T]],
        *,
        bounded: bool = True,
        blocking: bool = False,
        timestamp: Callable[[T], Instant] | None = None,
        watermark_strategy: WatermarkStrategy[T] | None = None,
    ) -> DataStream[T]: ...
    @overload
    def from_function(
        self,
        function: Callable[[Event], Iterable[T]],
        *,
        bounded: bool = True,
        blocking: Literal[True],
        timestamp: Callable[[T], Instant] | None = None,
        watermark_strategy: WatermarkStrategy[T] | None = None,
    ) -> DataStream[T]: ...
    def from_function(
        self,
        function: Callable[..., Any],
        *,
        bounded: bool = True,
        blocking: bool = False,
        timestamp: Callable[[Any], Instant] | None = None,
        watermark_strategy: WatermarkStrategy[Any] | None = None,
    ) -> DataStream[Any]:
        """Read what a generator function yields, or the iterable that a function returns.

        A plain function runs in the task's thread: while it waits, all other tasks of its worker do, too. One that
        waits for something goes with ``blocking``, or is an async generator function: it has a thread of its own,
        in which it is up to 2048 records ahead of the task, and waits when the task does not take them.

        After a failure the function is called anew, and as many records are passed over as were taken before:
        right only if it gives the same records again.

        Args:
            function: called without arguments when the job runs. An async generator function runs in an event loop
                of its own. With ``blocking`` it may take an argument: a ``threading.Event`` that is set when the
                job ends, for a function that would not notice otherwise.
            bounded: whether the iterable comes to an end.
            blocking: whether the function runs in a thread of its own.
            timestamp: gives the event time of a record in ms since the epoch, or as an aware datetime; None:
                records have none.
            watermark_strategy: as for :meth:`source`.
        """
        if not blocking and not isasyncgenfunction(function):
            check_function("from_function", function, (), 0)
            return self._read(FunctionSource(function, bounded=bounded, timestamp=timestamp), watermark_strategy)
        # Imported here: it needs asyncio, and most pipelines do not.
        from sluiceway.runtime.source.threaded_function import ThreadedFunctionSource, takes_event

        if isasyncgenfunction(function):
            if blocking:
                raise TypeError(
                    f"from_function() at {caller_location()}: blocking= is for a plain function; an async "
                    "generator function has a thread of its own"
                )
            check_arity(f"from_function() at {caller_location()}", function, 0)
        else:
            check_function("from_function", function, (), int(callable(function) and takes_event(function)))
        source = ThreadedFunctionSource[Any](function, bounded=bounded, timestamp=timestamp)
        return self._read(source, watermark_strategy)

    def from_sequence(self, start: int, end: int) -> DataStream[int]:
        """Read the numbers from ``start`` to ``end``, both included."""
        return self.from_collection(range(start, end + 1))

    @overload
    def generate(
        self,
        *,
        count: int | None = None,
        rate: float | None = None,
        watermark_strategy: WatermarkStrategy[int] | None = None,
    ) -> DataStream[int]: ...
    @overload
    def generate(
        self,
        function: Callable[[int], T],
        *,
        count: int | None = None,
        rate: float | None = None,
        timestamp: Callable[[T], Instant] | None = None,
        watermark_strategy: WatermarkStrategy[T] | None = None,
    ) -> DataStream[T]: ...
    def generate(
        self,
        function: Any = None,
        *,
        count: int | None = None,
        rate: float | None = None,
        timestamp: Any = None,
        watermark_strategy: WatermarkStrategy[Any] | None = None,
    ) -> DataStream[Any]:
        """Make records from the numbers 0, 1, 2, ...

        Args:
            function: makes the record of a number; None: the number is the record.
            count: how many; None: without end. A run that goes on from a checkpoint ends at the
                smaller of this and the count of the run that took it.
            rate: records per second, of all readers together; None: as fast as they are taken.
            timestamp: gives the event time of a record in ms since the epoch, or as an aware datetime; None:
                records have none.
            watermark_strategy: as for :meth:`source`.
        """
        if function is not None:
            check_function("generate", function, (), 1)
        return self._read(GeneratorSource(function, count, rate=rate, timestamp=timestamp), watermark_strategy)

    def table(self, rows: Any, /, *, watermark_strategy: WatermarkStrategy[Any] | None = None) -> TableStream:
        """Read rows as a stream in columns, which needs the extra ``columns``.

        Args:
            rows: a ``pyarrow.Table`` or ``RecordBatch``; a frame of pandas, Polars or Narwhals; any object with
                ``__arrow_c_stream__()``, as a query of DuckDB; or a source in columns.
            watermark_strategy: as for :meth:`source`; ``with_timestamp_column(name)`` takes the event time from a
                column.

        Raises:
            TypeError: it is none of these.
            GraphError: no such column of event times.
            MissingExtraError: the extra is not installed.
        """
        from sluiceway.api.table.sources import source_of
        from sluiceway.api.table.stream import TableStream, check_time_column, time_column_of

        source, schema = source_of(rows)
        if watermark_strategy is not None:
            check_strategy("watermark_strategy=", watermark_strategy, at_source=True)
            check_time_column("table", watermark_strategy, schema)
        step = SourceStep(source, watermark_strategy)
        ref, time_column = InputRef(self._add(step, ())), time_column_of(watermark_strategy)
        return TableStream(self, (ref,), schema, "table()", time_column=time_column)

    def sql(self, query: str, /, **tables: Any) -> TableStream:
        """Add the steps of a query over streams in columns, which needs the extra ``sql-query``.

        ``flow.sql("SELECT user, price * count AS total FROM orders WHERE count > 0", orders=table)``. What a
        query may have is in the guide to SQL; the dialect is DuckDB's.

        Args:
            query: one query, ``SELECT ... FROM ...``.
            tables: the streams by the names that the query has for them; for JOIN also tables that stay the
                same, as ``pyarrow.Table`` or frames of pandas, Polars or Narwhals.

        Raises:
            TypeError: the query is no text, or a table is none.
            GraphError: the text is no query, a part of it has no translation, or a column does not exist: says
                which, with line and column; or a stream of another pipeline.
            MissingExtraError: the extra is not installed.
        """
        from sluiceway.api.table.sql.queries import table_of

        return table_of(self, query, tables)

    # ---- running ------------------------------------------------------------------------------------------

    def graph(self, settings: Settings | None = None) -> StreamGraph:
        """Return the stream graph, with all settings derived and checked.

        Args:
            settings: options of the run; None: the defaults.

        Raises:
            GraphError: the program cannot become a job; names everything that is wrong.
        """
        graph = build_stream_graph(
            self._name,
            self._steps(),
            self._effective(settings or Settings()),
            max_parallelism=self._max_parallelism,
        )
        return replace(graph, left_out=self._left_out)

    def prepare(self, settings: Settings | None = None, services: Services | None = None) -> Job:
        """Make a job of the pipeline as it is now. Handles of :meth:`DataStream.collect` are cleared.

        Args:
            settings: options of the run; None: the defaults.
            services: what plugins give; None: what the installed ones do.

        Raises:
            GraphError: the program cannot become a job, or asks for something that the engine does not have.
            ConfigurationError: an option does.
            UnknownNameError: an engine, a state backend and so on that nobody offers.
        """
        from sluiceway.api.submission import prepare
        from sluiceway.plugins import default_manager

        settings = settings or Settings()
        engine = default_manager().engine(settings.engine)
        services = services or default_manager().services()
        return self._make_job(lambda graph, effective: prepare(engine, graph, effective, services), settings)

    def run(self, **options: Unpack[RunOptions]) -> JobResult:
        """Run the pipeline to its end, in the calling thread.

        Ctrl-C cancels it, and raises KeyboardInterrupt when it has ended; a second one ends it at once. In a
        notebook, figures of the job are shown below the cell.

        Args:
            options: those of ``sluiceway run`` by keyword (``parallelism=2``); they go before the environment
                (``SLUICEWAY_*``), ``sluiceway.toml`` and the defaults.

        Raises:
            ConfigurationError: an option that does not exist, or a value it cannot take.
            GraphError: the program cannot become a job, or has :meth:`DataStream.collect` and is running already.
            KeyboardInterrupt: Ctrl-C cancelled it; its results are not complete.
            BaseException: what a user's function, a source or a sink raised, with notes that name the step,
                the subtask and the record.
        """
        from sluiceway.api.tracebacks import without_engine_frames

        try:
            return self._run(resolve(options).settings)
        except BaseException as error:
            without_engine_frames(error)
            # Alone, it adds no frame of this function, and leaves what was handled when the error was raised.
            raise

    async def start(self, **options: Unpack[RunOptions]) -> JobHandle:
        """Start the pipeline in a thread of its own, and return at once.

        A program that ends while the job runs cancels it and waits for its end for at most 5 s.

        Args:
            options: as for :meth:`run`.

        Raises:
            ConfigurationError, GraphError: as :meth:`run`; what fails later is raised by the handle's result.
        """
        from sluiceway.api.handle import JobHandle

        job = self.prepare(resolve(options).settings)
        self._under_way.add(job)
        return JobHandle(job, self._name, lambda: self._under_way.discard(job))

    # ---- looking at it ------------------------------------------------------------------------------------

    def explain(
        self,
        format: Literal["text", "mermaid", "json", "html"] = "text",  # noqa: A002 (as the flag is called)
        **options: Unpack[RunOptions],
    ) -> str:
        """Show the plan: the steps, which of them share a task, and how records travel between them.

        A notebook shows the returned text as a picture.

        Args:
            format: ``text``, ``mermaid``, ``json`` or ``html``.
            options: as for :meth:`run`.

        Raises:
            GraphError: the program has no plan; missing sinks do not matter here.
            UnknownNameError: there is no such format.
            PluginError: a serializer that a plugin offers is broken.
        """
        from sluiceway.graph.plan.explain import explain
        from sluiceway.plugins import default_manager

        default_manager().register_serializers()
        graph = self._unfinished_graph(resolve(options).settings)
        return PlanText(explain(graph, format), lambda: explain(graph, "html"))

    def check(self, **options: Unpack[RunOptions]) -> list[Finding]:
        """Look for what is wrong or doubtful, without running anything; an empty list if all is well.

        An error is what :meth:`run` refuses before the job begins, in the same words: in the code of the finding,
        ``refused`` stands for what the engine says, and ``unavailable`` for a plugin, a checkpoint or something
        else outside the pipeline that cannot be used. What steps and options ask for that the engine has in a way
        of its own is a warning, and so is, with workers in mind, a function that only this process can call.

        Args:
            options: as for :meth:`run`.

        Raises:
            UnknownNameError: there is no such engine.
            PluginError: a serializer that a plugin offers is broken.
        """
        from sluiceway.api.submission import find_refusal
        from sluiceway.graph.check.pipeline import check
        from sluiceway.plugins import default_manager
        from sluiceway.util.machine import usable_cpus

        manager = default_manager()
        manager.register_serializers()
        settings = self._effective(resolve(options).settings)
        engine = manager.engine(settings.engine)
        findings = check(
            self._steps(),
            settings,
            job_name=self._name,
            max_parallelism=self._max_parallelism,
            capabilities=lambda bounded: engine.capabilities(settings, bounded=bounded),
            cpus=usable_cpus(),
        )
        if not any(finding.level is Level.ERROR for finding in findings):
            findings += find_refusal(engine, self.graph(settings), settings, manager.services())
        return findings

    def _repr_html_(self) -> str:
        from html import escape

        from sluiceway.graph.plan.explain import explain

        try:
            return explain(self._unfinished_graph(Settings()), "html")
        except GraphError as error:  # a cell that shows an unfinished pipeline is no failed cell
            return f"<pre>{escape(f'{self!r}: {error}')}</pre>"

    def __repr__(self) -> str:
        count = len(self._transformations)
        return f"<Pipeline {self._name!r}: {count} step{'s' * (count != 1)}>"

    # ---- inside -------------------------------------------------------------------------------------------

    def _make_job(self, make: Callable[[StreamGraph, Settings], J], settings: Settings) -> J:
        if self._collected and self._under_way:
            raise GraphError(
                f"pipeline {self._name!r} is running, and collect() has one list, in which records of two runs "
                "would be mixed: wait for the end of the run or cancel it, or make another pipeline, as by a "
                "function that returns one"
            )
        job = make(self.graph(settings), self._effective(settings))
        # Behind all that can refuse the job: until then the results of the run before stay.
        for collected in self._collected:
            collected.clear()
        return job

    def _run(self, settings: Settings) -> JobResult:
        from sluiceway.api.interrupts import cancel_on_sigint, say_cancelling
        from sluiceway.api.notebook import in_notebook, run_in_notebook

        job = self.prepare(settings)
        self._under_way.add(job)
        try:
            if in_notebook():
                return run_in_notebook(job, self._name)
            with cancel_on_sigint(job, first=say_cancelling) as interrupts:
                result = job.run()
            interrupts.raise_if_any(self._name)
            return result
        finally:
            self._under_way.discard(job)

    def _read(self, source: Source[T], strategy: WatermarkStrategy[Any] | None = None) -> DataStream[T]:
        if strategy is not None:
            check_strategy("watermark_strategy=", strategy, at_source=True)
        return DataStream(self, (InputRef(self._add(SourceStep(source, strategy), ())),), "source()")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in dir(DataStream) and not name.startswith("_") and not hint_for("Pipeline", name):
                raise AttributeError(
                    f"Pipeline has no {name}(): begin with a source, as in source(...).{name}(...)"
                )
            answer(self, name, "Pipeline", "DataStream")
