"""Metrics of a job: combined from those of its tasks, and sent to reporters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from sluiceway.clock import Clock
from sluiceway.engine import JobStatus
from sluiceway.graph import ExecutionGraph
from sluiceway.metrics import (
    CheckpointFigures,
    CheckpointInfo,
    JobMetrics,
    MetricsReporter,
    RestartInfo,
    SubtaskMetrics,
    WorkerMetrics,
)
from sluiceway.runtime.failures.explanation import add_note, contained
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.messages.figures import TaskFigures
from sluiceway.runtime.task.task_figures import plain_subtask

__all__ = ["JobFigures", "Reporting", "plain_metrics"]


def plain_metrics(metrics: JobMetrics) -> JobMetrics:
    """Return the metrics of a job with plain numbers, to be sent."""
    return replace(metrics, subtasks=tuple(map(plain_subtask, metrics.subtasks)))


class JobFigures:
    """Last figures of each subtask of a job.

    Of a subtask that was restarted, the newest attempt is told of; what the sources of the earlier ones have read
    and their sinks have written counts in the job's totals, which so never go back.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[int, int], TaskFigures] = {}
        self._workers: dict[str, WorkerMetrics] = {}
        self._earlier_in = 0
        self._earlier_out = 0

    def take_process(self, process: WorkerMetrics, present: Iterable[str]) -> None:
        """Store the figures of a worker's process, and forget workers that are not present."""
        # Replaced as a whole: other threads read it.
        known = {**self._workers, process.worker: process}
        self._workers = {name: known[name] for name in present if name in known}

    def worker_lost(self, worker: str) -> None:
        """Forget the process of a worker."""
        self._workers = {name: known for name, known in self._workers.items() if name != worker}

    def take(self, figures: Iterable[TaskFigures]) -> None:
        """Store figures; those of an attempt arrive before those of the next one."""
        for each in figures:
            which = each.metrics.vertex_id, each.metrics.subtask
            known = self._newest.get(which)
            if known is not None and known.metrics.attempt > each.metrics.attempt:
                continue  # a worker keeps reporting ended tasks
            if known is not None and known.attempt_id != each.attempt_id:
                self._earlier_in += known.metrics.records_in if known.is_source else 0
                self._earlier_out += known.records_to_sinks
            self._newest[which] = each

    def metrics(
        self,
        job_name: str,
        status: str,
        elapsed_s: float,
        executions: ExecutionGraph | None,
        restarts: int = 0,
        checkpoints: CheckpointFigures = CheckpointFigures(),  # noqa: B008 - it is frozen
    ) -> JobMetrics:
        """Return the job's metrics, with the states that the job master knows. From any thread."""
        figures = [each for _, each in sorted(self._newest.items(), key=lambda item: item[0])]
        latency: dict[str, dict[str, float]] = {}
        for each in figures:
            for name, quantiles in each.latency_ms.items():
                shown = latency.setdefault(name, {})
                for label, ms in quantiles.items():
                    shown[label] = max(shown.get(label, 0.0), ms)
        return JobMetrics(
            job_name=job_name,
            status=status,
            elapsed_s=elapsed_s,
            records_in=self._earlier_in + sum(f.metrics.records_in for f in figures if f.is_source),
            records_out=self._earlier_out + sum(f.records_to_sinks for f in figures),
            subtasks=tuple(
                _with_state(f, executions, JobStatus(status).ended) for f in figures if _is_there(f, executions)
            ),
            latency_ms=latency,
            restarts=restarts,
            checkpoints=checkpoints,
            workers=tuple(process for _, process in sorted(self._workers.items())),
        )


def _is_there(figures: TaskFigures, executions: ExecutionGraph | None) -> bool:
    """Return False for a subtask that the job had at another parallelism, until there are figures of the next."""
    which = figures.metrics
    if executions is None:
        return True
    known = executions.execution(figures.attempt_id) is not None
    return known and which.subtask < executions.vertex(which.vertex_id).job_vertex.parallelism


def _with_state(figures: TaskFigures, executions: ExecutionGraph | None, over: bool) -> SubtaskMetrics:
    """Return the figures with the job master's state; once the job is over, no buffer is in use."""
    metrics = figures.metrics
    execution = None if executions is None else executions.execution(figures.attempt_id)
    if execution is not None and (state := execution.state.value) != metrics.state:
        metrics = replace(metrics, state=state)
    return replace(metrics, queued=0, backlog=0, buffers_in_use=0) if over else metrics


class Reporting:
    """Reporting of a job: opens reporters, sends them its metrics at an interval, and once more at the end.

    Call order: :meth:`open` once, :meth:`close` once, also where :meth:`open` has raised. In the loop's thread.
    Events are passed on between steps of the loop: what a reporter raises must not interrupt the job master.

    Args:
        reporters: the reporters.
        loop: loop with the timer.
        clock: clock of the loop.
        interval_ms: time between two reports.
        metrics: returns the current metrics of the job.
        on_error: told what a reporter has raised, after which there are no more reports; None: the loop is.
    """

    def __init__(
        self,
        reporters: Sequence[MetricsReporter],
        loop: TaskletLoop,
        clock: Clock,
        interval_ms: int,
        metrics: Callable[[], JobMetrics],
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self._on_error = on_error
        self._reporters = reporters
        self._loop = loop
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._metrics = metrics
        self._opened: list[MetricsReporter] = []
        self._events: list[Callable[[MetricsReporter], None]] = []
        self._closed = self._failed = False

    def open(self, job_name: str) -> None:
        """Open the reporters, and start the interval."""
        for reporter in self._reporters:
            _call(reporter, lambda reporter: reporter.open(job_name))
            self._opened.append(reporter)
        if self._opened:
            self._report_later()

    def close(self) -> None:
        """Report for the last time, and close the opened reporters, whatever one raises. Harmless twice."""
        opened, self._opened = self._opened, []
        self._closed = True
        if opened:
            with ExitStack() as closing:
                for reporter in reversed(opened):
                    # Registered first: all are closed, whatever the last events and the last report raise.
                    closing.callback(_call, reporter, lambda reporter: reporter.close())
                events, self._events = self._events, []
                _call_each(opened, events)
                metrics = self._metrics()
                _call_each(opened, [lambda reporter: reporter.report(metrics)])

    def checkpoint_ended(self, checkpoint: CheckpointInfo) -> None:
        """Send a checkpoint to reporters, soon."""
        self._tell(lambda reporter: reporter.checkpoint_ended(checkpoint))

    def restart_ended(self, restart: RestartInfo) -> None:
        """Send a restart to reporters, soon."""
        self._tell(lambda reporter: reporter.restart_ended(restart))

    def _tell(self, event: Callable[[MetricsReporter], None]) -> None:
        if self._opened:
            # One call for all events of a step.
            if not self._events:
                self._loop.soon(self._tell_now)
            self._events.append(event)

    def _tell_now(self) -> None:
        events, self._events = self._events, []
        self._guarded(lambda: _call_each(self._opened, events))

    def _report_later(self) -> None:
        self._loop.at(self._clock.monotonic() + self._interval_s, self._report)

    def _report(self) -> None:
        if self._closed:
            return
        metrics = self._metrics()
        if self._guarded(lambda: _call_each(self._opened, [lambda reporter: reporter.report(metrics)])):
            self._report_later()

    def _guarded(self, action: Callable[[], object]) -> bool:
        """Call reporters; False: one has raised, and none is called any more until they are closed."""
        if self._failed:
            return False
        try:
            action()
        except Exception as error:
            self._failed = True
            if self._on_error is None:
                raise
            self._on_error(error)
        return not self._failed


def _call_each(reporters: Sequence[MetricsReporter], calls: Sequence[Callable[[MetricsReporter], None]]) -> None:
    for call in calls:
        for reporter in reporters:
            _call(reporter, call)


def _call(reporter: MetricsReporter, call: Callable[[MetricsReporter], None]) -> None:
    """Call a reporter. What it raises is an :class:`Exception` with a note that names it, except interrupts."""
    try:
        call(reporter)
    except KeyboardInterrupt:
        raise
    # A SystemExit would end the job manager, with all jobs of its cluster.
    except BaseException as error:
        what = f"metrics reporter {type(reporter).__name__}"
        instead = contained(error, what)
        add_note(instead, f"in {what}")
        if instead is error:
            raise
        raise instead from error
