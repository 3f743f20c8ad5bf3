"""One step, or a few that run in one task, by themselves: fed by hand, looked at after every element."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from sluiceway.api import DataStream, Pipeline
from sluiceway.clock import VirtualClock
from sluiceway.config.settings import Settings
from sluiceway.connector.lib import DiscardSink
from sluiceway.elements import MAX_WATERMARK, Batch, Element, Watermark
from sluiceway.engine import Services
from sluiceway.errors import GraphError
from sluiceway.functions import KeySelector, OutputTag
from sluiceway.graph import JobGraph, build_job_graph
from sluiceway.keygroups import KeyGroupRange, key_group, subtask_for_key_group
from sluiceway.metrics import MetricGroup
from sluiceway.operators import OperatorContext, OperatorSnapshot, Output
from sluiceway.plugins import default_manager
from sluiceway.runtime.jobmanager.state_compatibility import check_states, restored_job
from sluiceway.runtime.task.operator_chain import Blocked, OperatorChain
from sluiceway.runtime.task.snapshot import JobSnapshot
from sluiceway.state import StateBackend
from sluiceway.steps import IterationHeadStep, SinkStep, SourceStep
from sluiceway.streamgraph import PartitionerSpec, StreamEdge, StreamGraph, StreamNode
from sluiceway.testing.programs import check_control, check_program, check_restored, clock_step, event_time
from sluiceway.testing.script import EOF, TestSource
from sluiceway.testing.virtual_loop import VirtualEventLoop
from sluiceway.util.raising import raise_again

__all__ = ["OperatorHarness"]

T = TypeVar("T")


class OperatorHarness:
    """Harness that runs steps as a task would, without a job around them.

    A context manager: leaving it closes functions and state. What a user's function raises comes out of the
    method that fed it, with the notes that a job would add.

    Args:
        program: adds the steps to a stream: ``lambda stream: stream.key_by(key).process(MyFunction())``. They
            must run in one task: at most the first may be keyed, and there is neither a sink nor a loop.
        parallelism: number of subtasks. Records go to the one that owns their key, without a key in turn.
        max_parallelism: number of key groups.
        state_backend: name of the state backend.
        restored: begin with the state of this snapshot, which a harness of any parallelism may have taken.
        allow_dropped_state: whether state of that snapshot may be left behind, as with the option of a run.
        start_ms: the first reading of the clock, ms since the epoch.

    Attributes:
        clock: what the functions see as processing time.
        elements: everything that came out of the main output: batches and control elements.

    Raises:
        GraphError: the program has steps that do not run in one task.
        IncompatibleStateError: a job would not be restored from the snapshot.
    """

    _inputs: ClassVar[int] = 1
    _called: ClassVar[str] = "an OperatorHarness"

    def __init__(
        self,
        program: Callable[[DataStream[Any]], DataStream[Any]],
        *,
        parallelism: int = 1,
        max_parallelism: int = 128,
        state_backend: str = "memory",
        restored: JobSnapshot | None = None,
        allow_dropped_state: bool = False,
        start_ms: int = 0,
    ) -> None:
        check_restored(self._called, restored)
        self.clock = VirtualClock(start_ms)
        self.elements: list[Element] = []
        self._sides: dict[str, list[tuple[Any, int | None]]] = {}
        self._fresh: list[Any] = []
        self._turn = 0
        self._event_loop = VirtualEventLoop(self.clock)
        graph = _graph_of(program, self._inputs, parallelism, max_parallelism)
        nodes, self._edges, entries, self._result = _steps_of(graph, self._inputs, self._called)
        self._partitioners = [entry.partitioner for entry in entries]
        services = default_manager().services(self.clock)
        # With `resume` functions are checked for states that they do not declare any more.
        settings = Settings(resume=restored is not None, allow_dropped_state=allow_dropped_state)
        self._subtasks: list[_Subtask] = []
        try:
            for index in range(parallelism):
                backend = services.state_backend(state_backend)
                self._subtasks.append(_Subtask(self, graph.job_name, nodes, index, backend, settings))
            for subtask in self._subtasks:
                subtask.open([] if restored is None else list(restored.operators))
            if restored is not None:
                # Behind open(): operators say more about state that does not fit.
                _check_restored(restored, build_job_graph(graph), settings, services)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> OperatorHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- feeding ------------------------------------------------------------------------------------------

    def process(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Feed one record, with its event time in ms; what came out of the main output for it."""
        return self.process_batch([value], None if timestamp is None else [timestamp])

    def process_batch(self, values: Sequence[Any], timestamps: Sequence[int] | None = None) -> list[Any]:
        """Feed a batch; what came out of the main output for it.

        With several subtasks it is split among them, as a partitioner would.
        """
        return self._feed(0, values, timestamps)

    def process_watermark(self, timestamp: int) -> list[Any]:
        """Feed a watermark, ms, to every subtask; what came out for it."""
        return self.process_element(Watermark(event_time(timestamp)))

    def process_element(self, element: Element) -> list[Any]:
        """Feed a batch or a control element; control elements go to every subtask."""
        if isinstance(element, Batch):
            return self.process_batch(element.values, element.timestamps)
        check_control(element)
        for subtask in self._open_subtasks:
            subtask.control(element)
        return self._settled()

    def advance(self, ms: int) -> list[Any]:
        """Let processing time go on by ``ms``, from timer to timer, the input dry; what came out meanwhile.

        Coroutines run in the test's thread, and this is the time that they sleep by. What they wait for outside
        the test, :meth:`finish` waits for.
        """
        until = self.clock.now_ms() + clock_step(ms)
        for subtask in self._open_subtasks:
            subtask.idle()
        while (
            due := min((at for s in self._subtasks if (at := s.next_due(until)) is not None), default=None)
        ) is not None:
            self.clock.advance(max(0, due - self.clock.now_ms()))
            for subtask in self._subtasks:
                subtask.settle()
                subtask.idle()
        self.clock.advance(until - self.clock.now_ms())
        for subtask in self._subtasks:
            subtask.idle()
            subtask.settle()
        return self.take()

    def finish(self) -> list[Any]:
        """End the input; what came out for it. Time goes on as far as something is under way.

        Event time does not: in a job the end of a bounded stream is the watermark ``MAX_WATERMARK`` first, so
        give that one to have windows and timers fire that still wait.

        Raises:
            AssertionError: something is under way and nothing brings it to its end.
        """
        for subtask in self._open_subtasks:
            subtask.finish()
        return self._settled()

    # ---- looking ------------------------------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """Return whether a step accepts no input until an operation in flight has ended."""
        return any(subtask.settle() is not None for subtask in self._open_subtasks)

    @property
    def values(self) -> list[Any]:
        """Every record that came out of the main output so far."""
        return [value for value, _ in self.records]

    @property
    def records(self) -> list[tuple[Any, int | None]]:
        """The same, with event times (ms, or None)."""
        return [record for element in self.elements if isinstance(element, Batch) for record in _records(element)]

    def take(self) -> list[Any]:
        """Return what came out of the main output since the last call of a method that returns records."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def side_output(self, tag: OutputTag[Any] | str) -> list[Any]:
        """Every record that came out of a side output so far; of a name that nothing was emitted to, none."""
        return [value for value, _ in self.side_records(tag)]

    def side_records(self, tag: OutputTag[Any] | str) -> list[tuple[Any, int | None]]:
        """Return the records of a side output, with event times (ms, or None)."""
        name = tag.name if isinstance(tag, OutputTag) else tag
        if not isinstance(name, str):
            raise TypeError(f"a side output goes by its OutputTag or the name of that, not by {tag!r:.100}")
        return list(self._sides.get(name, []))

    def metrics(self, subtask: int = 0) -> MetricGroup:
        """Return the metrics of the first step in a subtask."""
        return self._open_subtasks[subtask].operators[0].context.metrics

    def snapshot(self) -> JobSnapshot:
        """Return the current state of all subtasks, as read back from a file."""
        taken = JobSnapshot(tuple(s for subtask in self._open_subtasks for s in subtask.snapshot()))
        copied: JobSnapshot = pickle.loads(pickle.dumps(taken))
        return copied

    def close(self) -> None:
        """Close functions and state, as after a failure if :meth:`finish` was not called. Harmless twice."""
        subtasks, self._subtasks = self._subtasks, []
        first: BaseException | None = None
        for subtask in subtasks:
            try:
                subtask.close()
            except Exception as error:
                first = first or error
        self._event_loop.close()
        if first is not None:
            raise first

    # ---- inside -------------------------------------------------------------------------------------------

    @property
    def _open_subtasks(self) -> list[_Subtask]:
        # Without this check a snapshot taken behind the with block would have no state and say nothing.
        assert self._subtasks, "the harness is closed"
        return self._subtasks

    def _settled(self) -> list[Any]:
        for subtask in self._subtasks:
            subtask.settle()
        return self.take()

    def _wait(self) -> None:
        """Let time go on to what is due next, or wait for the outside."""
        due = min((at for s in self._subtasks if (at := s.next_due(MAX_WATERMARK)) is not None), default=None)
        if due is not None:
            self.clock.advance(max(0, due - self.clock.now_ms()))
        elif not self._event_loop.wait_outside():
            raise AssertionError("a coroutine is under way and waits neither for time nor for anything that comes")

    def _feed(self, port: int, values: Sequence[Any], timestamps: Sequence[int] | None) -> list[Any]:
        values = list(values)
        stamps = None if timestamps is None else [event_time(timestamp) for timestamp in timestamps]
        if stamps is not None and len(stamps) != len(values):
            raise ValueError(f"{len(values)} records were given with {len(stamps)} timestamps: each needs one")
        for subtask, batch in self._split(self._partitioners[port], values, stamps):
            subtask.process(port, batch)
        return self._settled()

    def _split(
        self, partitioner: PartitionerSpec, values: list[Any], stamps: list[int] | None
    ) -> list[tuple[_Subtask, Batch[Any]]]:
        subtasks = self._open_subtasks
        if len(subtasks) == 1 or partitioner.name == "broadcast":
            return [(subtask, Batch(values, stamps)) for subtask in subtasks]
        parts: dict[int, Batch[Any]] = {}
        key_of = partitioner.key.get_key if isinstance(partitioner.key, KeySelector) else partitioner.key
        groups = self._subtasks[0].max_parallelism
        for i, value in enumerate(values):
            if key_of is None:
                owner, self._turn = self._turn, (self._turn + 1) % len(self._subtasks)
            else:
                key = key_of(value)
                owner = subtask_for_key_group(key_group(key, groups), len(self._subtasks), groups)
            if owner not in parts:
                parts[owner] = Batch([], None if stamps is None else [], None if key_of is None else [])
            part = parts[owner]
            part.values.append(value)
            if part.timestamps is not None and stamps is not None:
                part.timestamps.append(stamps[i])
            if part.keys is not None:
                part.keys.append(key)
        return [(self._subtasks[owner], parts[owner]) for owner in sorted(parts)]

    def _emitted(self, element: Element) -> None:
        self.elements.append(element)
        if isinstance(element, Batch):
            self._fresh.extend(element.values)

    def _emitted_aside(self, tag: str, batch: Batch[Any]) -> None:
        self._sides.setdefault(tag, []).extend(_records(batch))


class _Result:
    """Collector of the results of the last step."""

    def __init__(self, harness: OperatorHarness) -> None:
        self._harness = harness

    def emit(self, batch: Batch[Any]) -> None:
        self._harness._emitted(batch)

    def side(self, tag: str, batch: Batch[Any]) -> None:
        raise AssertionError("side outputs are tapped before they come here")

    def control(self, element: Element) -> None:
        self._harness._emitted(element)


class _Tap:
    """Collector of copies of a step's side outputs."""

    def __init__(self, inner: Output, harness: OperatorHarness) -> None:
        self._inner = inner
        self._harness = harness
        self.emit = inner.emit
        self.control = inner.control

    def side(self, tag: str, batch: Batch[Any]) -> None:
        self._harness._emitted_aside(tag, batch)
        self._inner.side(tag, batch)


class _Subtask:
    """Operator chain of one subtask, driven by the calls of the test instead of a task."""

    def __init__(
        self,
        harness: OperatorHarness,
        job_name: str,
        nodes: Sequence[StreamNode],
        index: int,
        backend: StateBackend,
        settings: Settings,
    ) -> None:
        self.max_parallelism = nodes[0].max_parallelism
        self._harness = harness
        self.chain = OperatorChain(" -> ".join(node.name for node in nodes), nodes, harness._edges, index)

        def context(node: StreamNode) -> OperatorContext:
            return OperatorContext(
                node=node,
                job_name=job_name,
                subtask=index,
                attempt=0,
                key_groups=KeyGroupRange.of_subtask(index, node.parallelism, node.max_parallelism),
                clock=harness.clock,
                state_backend=backend,
                settings=settings,
                # settle() looks after each call what is due.
                wake=lambda: None,
                calls=harness._event_loop.calls,
            )

        result = harness._result
        tag = None if result.tag is None else result.tag.name
        self.chain.build(context, {result.source: [(tag, _Result(harness))]}, copy=index > 0)
        self.operators = self.chain.operators
        for operator in self.operators:
            operator.output = _Tap(operator.output, harness)

    def open(self, restored: Sequence[OperatorSnapshot]) -> None:
        self._guard(lambda: self.chain.open(restored))
        while self.settle() is not None:
            self._harness._wait()

    def process(self, port: int, batch: Batch[Any]) -> None:
        self._check_accepts()
        self._guard(lambda: self.chain.process(batch, port))
        self.settle()

    def control(self, element: Element) -> None:
        self._check_accepts()
        self._guard(lambda: self.chain.control(element))
        self.settle()

    def next_due(self, until: int) -> int | None:
        """Return the first time up to ``until`` at which processing time makes something due."""
        times = (self.chain.next_timer(self._harness.clock), self._harness._event_loop.next_due())
        return min((at for at in times if at is not None and at <= until), default=None)

    def settle(self) -> Blocked | None:
        """Do all work that is due, as the task would between two elements; return who accepts no input."""
        while True:
            self._harness._event_loop.run()
            state = self._guard(lambda: self.chain.poll(self._harness.clock.now_ms()))
            if state is None or isinstance(state, Blocked):
                return state
            self._guard(state)

    def _check_accepts(self) -> None:
        assert self.settle() is None, (
            f"step {self.chain.step!r} can take no more until something that is under way has ended; a job would "
            "give it nothing now: let time go on, with advance()"
        )

    def idle(self) -> None:
        self._guard(self.chain.flush)

    def finish(self) -> None:
        self.chain.start_finish()
        while self.chain.finishing:
            if self.settle() is not None or self._guard(self.chain.finish_next) is not None:
                self._harness._wait()
        self.settle()

    def snapshot(self) -> list[OperatorSnapshot]:
        return self._guard(lambda: self.chain.snapshot(0))

    def close(self) -> None:
        failure = self.chain.close()
        if failure is not None:
            raise failure

    def _guard(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except Exception as error:
            raise_again(self.chain.explain(error))


def _check_restored(restored: JobSnapshot, graph: JobGraph, settings: Settings, services: Services) -> None:
    """Refuse a snapshot from which a job of this graph would not be restored."""
    if not settings.allow_dropped_state:
        restored.check_known(graph)
    check_states(restored_job(restored), graph, settings, services)


def _graph_of(
    program: Callable[..., DataStream[Any]], inputs: int, parallelism: int, max_parallelism: int
) -> StreamGraph:
    flow = Pipeline("harness", parallelism=parallelism, max_parallelism=max_parallelism)
    scripts = [[EOF] for _ in range(parallelism)]
    check_program("an OperatorHarness", program)
    result = program(*(flow.source(TestSource(*scripts)) for _ in range(inputs)))
    if not isinstance(result, DataStream):
        raise TypeError(f"the program of an OperatorHarness must return a stream, not {type(result).__name__}")
    result.sink(DiscardSink())
    return flow.graph(Settings())


def _steps_of(
    graph: StreamGraph, inputs: int, harness: str
) -> tuple[list[StreamNode], list[StreamEdge], list[StreamEdge], StreamEdge]:
    """Return the nodes of the program, the edges between them, those into them by port and the one out."""
    nodes = [n for n in graph.nodes if not isinstance(n.step, SourceStep | SinkStep)]
    ids = {n.id for n in nodes}
    if not nodes:
        raise GraphError(f"the program of {harness} must add a step")
    entries = sorted((e for e in graph.edges if e.target in ids and e.source not in ids), key=lambda e: e.port)
    inner = [e for e in graph.edges if e.target in ids and e.source in ids]
    sources = [n for n in graph.nodes if isinstance(n.step, SourceStep)]
    looped = any(isinstance(n.step, IterationHeadStep) for n in nodes)
    split = next((e for e in inner if e.partitioner.name != "forward"), None)
    if split is not None:
        why = f"records travel by {split.partitioner.name} to {graph.node(split.target).name!r}"
    elif looped:
        why = "there is a loop"
    elif len(entries) != inputs or len(sources) != inputs or len({e.target for e in inner}) != len(inner):
        why = "streams come together"
    elif any((e.target, e.port) != (nodes[0].id, port) for port, e in enumerate(entries)):
        why = "the first step does not connect its streams"
    elif any(n.parallelism != nodes[0].parallelism for n in nodes):
        why = "they have different parallelisms"
    else:
        result = next(e for e in graph.edges if isinstance(graph.node(e.target).step, SinkStep))
        return nodes, inner, entries, result
    raise GraphError(f"{harness} takes steps that run in one task, but {why}: use a PipelineHarness")


def _records(batch: Batch[Any]) -> list[tuple[Any, int | None]]:
    stamps: Sequence[int | None] = batch.timestamps or [None] * len(batch.values)
    return list(zip(batch.values, stamps, strict=True))
