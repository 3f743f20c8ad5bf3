"""Diagnosis of jobs: which task limits the throughput, and which one holds back event time.

The task that limits a job is the first one, against the stream, that is busy while its consumers are not
blocked: producers in front of it are back-pressured, consumers behind it are idle. If tasks of one process take
turns on its thread, none of them is busy all the time, and the process is the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Final

import msgspec

from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import SluicewayError
from sluiceway.metrics import FailureInfo, JobMetrics, SubtaskMetrics
from sluiceway.monitoring.checkpoint_diagnosis import slow_checkpoints
from sluiceway.monitoring.findings import Finding, age
from sluiceway.monitoring.infos import CheckpointInfo, JobDescription, VertexInfo
from sluiceway.monitoring.key_samples import KeySample, hottest_key
from sluiceway.monitoring.micro_batches import is_load_known, why_slow_in_batches
from sluiceway.monitoring.rates import SubtaskRates
from sluiceway.monitoring.restarts import fails_repeatedly, waits_for_restart
from sluiceway.monitoring.split_diagnosis import held_back_by_split, idle_splits

__all__ = [
    "Diagnosis",
    "Finding",
    "diagnose",
    "limiting_task",
    "why_late",
    "why_slow",
    "with_function",
    "with_key",
]

BLOCKED: Final = 0.25
"""Share of the time from which a subtask counts as back-pressured."""
BUSY: Final = 0.80
"""Share from which a subtask counts as busy without a break."""
FULL: Final = 0.50
"""Share of a process's time that its tasks use, from which they are what the others of them wait for."""
DOMINANT: Final = 0.80
"""Share of that from which one task is."""
WAITING: Final = 0.15
SKEW: Final = 2.0
"""Ratio of the busiest subtask to the median from which the load counts as skewed."""
LATE_MS: Final = 10_000
"""Difference between watermarks, ms, from which one counts as held back."""
_DELAYED: Final = "delayed"
_BACK_PRESSURED: Final = "back-pressured"
_OF_ONE_TASK: Final = frozenset({"busy-task", "busy-source", "skew", "slow-consumer", "full-process"})


class Diagnosis(msgspec.Struct, frozen=True):
    """Result of a diagnosis. ``findings`` begin with the most important one; there is at least one."""

    findings: list[Finding]

    @property
    def summary(self) -> str:
        """The sentence of the first finding."""
        return self.findings[0].text

    @property
    def healthy(self) -> bool:
        """True if nothing was found that limits the job."""
        return all(finding.severity != "cause" for finding in self.findings)


def diagnose(
    description: JobDescription,
    metrics: JobMetrics,
    rates: Sequence[SubtaskRates],
    checkpoints: Sequence[CheckpointInfo] = (),
    failures: Sequence[FailureInfo] = (),
) -> Diagnosis:
    """Return the findings of :func:`why_slow`, and those of :func:`why_late` that are causes.

    Of a slow job, event time that is late because records wait is left out: that follows from the first finding.
    """
    slow = why_slow(description, metrics, rates, checkpoints, failures)
    if waits_for_restart(description, failures) is not None:
        return slow
    late = [finding for finding in why_late(description, metrics, rates).findings if finding.severity == "cause"]
    if not slow.healthy:
        late = [finding for finding in late if finding.kind not in (_DELAYED, _BACK_PRESSURED)]
    if late and slow.healthy:
        return Diagnosis([*late, *(f for f in slow.findings if f.severity != "ok")])
    return Diagnosis([*slow.findings, *late])


# ---- why slow -----------------------------------------------------------------------------------------------


def why_slow(
    description: JobDescription,
    metrics: JobMetrics,
    rates: Sequence[SubtaskRates],
    checkpoints: Sequence[CheckpointInfo] = (),
    failures: Sequence[FailureInfo] = (),
) -> Diagnosis:
    """Find what limits the throughput of a job.

    Args:
        description: its graph.
        metrics: the newest reading.
        rates: of all its subtasks, over the last seconds.
        checkpoints: the last ones, oldest first.
        failures: the last ones, oldest first.
    """
    if (stopped := _not_running(metrics, description, failures)) is not None:
        return Diagnosis([stopped])
    if not is_load_known(metrics):
        every_ms = description.checkpoint_interval_ms
        return Diagnosis([why_slow_in_batches(description.micro_batches, metrics, every_ms)])
    tasks = _by_vertex(description, rates)
    found = _bottleneck(description, tasks, rates)
    now_ms = max((r.metrics.at_ms for r in rates), default=0)
    slow = slow_checkpoints(description, checkpoints, now_ms)
    if slow is not None:
        found.append(slow)
    if (repeated := fails_repeatedly(description, checkpoints, failures, now_ms)) is not None:
        found.insert(0, repeated)
    if not found:
        found.append(_healthy(tasks, rates))
    return Diagnosis(found)


def limiting_task(found: Diagnosis) -> int | None:
    """Return the id of the vertex that is the cause, if a task is: its stacks name the function."""
    first = found.findings[0]
    return first.vertex if first.kind in _OF_ONE_TASK else None


def with_function(found: Diagnosis, hottest: Callable[[int], tuple[str, float] | None]) -> Diagnosis:
    """Add the function in which the task of the first finding spends its time, if a task is the cause.

    Args:
        found: a diagnosis.
        hottest: returns the function of a vertex, whose id it is given, and its share of the samples, as
            :func:`~sluiceway.monitoring.stack_samples.hottest_function` does; not called if no task is the cause.
            If it returns None or raises SluicewayError, the diagnosis stays as it is.
    """
    vertex = limiting_task(found)
    if vertex is None:
        return found
    try:
        named = hottest(vertex)
    except SluicewayError:
        return found
    if named is None:
        return found
    function, share = named
    first = found.findings[0]
    text = f"{first.text} In the busiest task, {share:.0%} of the samples are in {function}."
    return Diagnosis([msgspec.structs.replace(first, text=text, function=function), *found.findings[1:]])


def with_key(found: Diagnosis, sample: Callable[[int], Sequence[KeySample]]) -> Diagnosis:
    """Name the hottest key of the first finding, if that is about skewed keys.

    Args:
        found: a diagnosis.
        sample: counts the keys of a vertex, whose id it is given; not called if nothing is skewed. If it raises
            SluicewayError, the diagnosis stays as it is.
    """
    first = found.findings[0]
    if first.kind != "skew" or first.vertex is None:
        return found
    try:
        hottest = hottest_key(sample(first.vertex), first.vertex)
    except SluicewayError:
        return found
    if hottest is None:
        return found
    text = f"{first.text} The hottest key, {hottest.key}, has {hottest.share:.0%} of all records of the step."
    return Diagnosis([msgspec.structs.replace(first, text=text, key=hottest.key), *found.findings[1:]])


def _not_running(
    metrics: JobMetrics, description: JobDescription, failures: Sequence[FailureInfo]
) -> Finding | None:
    status = metrics.status
    if not metrics.running:
        doing = f": {metrics.doing}" if metrics.doing and status == "created" else ""
        return Finding("status", f"The job is {status}{doing}.", "notice")
    if (waits := waits_for_restart(description, failures)) is not None:
        return waits
    newest = {(e.vertex, e.subtask): e for e in description.executions}
    starting = [e for e in newest.values() if e.state in ("created", "scheduled", "deploying", "initializing")]
    if starting:
        state = starting[0].state
        name = next((v.name for v in description.vertices if v.id == starting[0].vertex), "?")
        why = " after a failure" if metrics.restarts else ""
        doing = f" ({metrics.doing})" if metrics.doing else ""
        text = f"{len(starting)} of {len(newest)} subtasks are not running{why}: {name!r} is {state}{doing}."
        return Finding("starting", text, "notice", starting[0].vertex)
    if not metrics.subtasks:
        return Finding("no-figures", "The job has reported no figures yet.", "notice")
    return None


_Tasks = dict[int, tuple[VertexInfo, list[SubtaskRates]]]


def _by_vertex(description: JobDescription, rates: Iterable[SubtaskRates]) -> _Tasks:
    tasks: _Tasks = {vertex.id: (vertex, []) for vertex in description.vertices}
    for each in rates:
        if each.metrics.vertex_id in tasks and each.metrics.state == "running":
            tasks[each.metrics.vertex_id][1].append(each)
    return {vertex_id: task for vertex_id, task in tasks.items() if task[1]}


def _bottleneck(description: JobDescription, tasks: _Tasks, rates: Sequence[SubtaskRates]) -> list[Finding]:
    producers: dict[int, list[int]] = {}
    for edge in description.edges:
        if not edge.feedback:
            producers.setdefault(edge.target, []).append(edge.source)
    suspects = []
    for vertex_id, (_, subtasks) in tasks.items():
        feeding = [tasks[p][1] for p in producers.get(vertex_id, ()) if p in tasks]
        holds_back = any(rate.blocked >= BLOCKED for group in feeding for rate in group)
        hottest = max(subtasks, key=lambda r: r.busy + r.waiting)
        # The limit blocks its producers and is not blocked itself; a busy source has no producers.
        if hottest.blocked < BLOCKED and (holds_back or hottest.busy >= BUSY):
            suspects.append((hottest.busy + hottest.waiting, vertex_id))
    if not suspects:
        return []
    _, worst = max(suspects)
    vertex, subtasks = tasks[worst]
    hottest = max(subtasks, key=lambda r: r.busy + r.waiting)
    # It has the thread when it wants it: the task itself is the limit, or waits for something outside.
    if hottest.waiting < WAITING:
        if hottest.busy < 0.5:
            return [_neither_busy(vertex, hottest)]
        return [_busy_task(vertex, subtasks, tasks, producers)]
    here = [r for r in rates if r.metrics.worker == hottest.metrics.worker and r.metrics.vertex_id in tasks]
    used, busiest = sum(r.busy for r in here), max(here, key=lambda r: r.busy)
    if used < FULL:
        return [_starved(vertex, hottest)]
    # One task that has the thread to itself is the limit, even if its consumers, which wait for it, block it.
    if busiest.busy >= DOMINANT * used:
        return [_busy_task(*tasks[busiest.metrics.vertex_id], tasks, producers)]
    return [_full_process(hottest.metrics.worker, here)]


def _busy_task(
    vertex: VertexInfo, subtasks: list[SubtaskRates], tasks: _Tasks, producers: Mapping[int, list[int]]
) -> Finding:
    hottest = max(subtasks, key=lambda r: r.busy)
    share = f"{hottest.busy:.0%} busy"
    loads = sorted(r.in_per_s for r in subtasks)
    usual = median(r.busy for r in subtasks)
    if len(subtasks) > 1 and hottest.busy >= SKEW * max(usual, 0.05):
        total = sum(loads)
        part = f", with {hottest.in_per_s / total:.0%} of its records" if total else ""
        return Finding(
            "skew",
            f"Slow because subtask {hottest.metrics.subtask + 1} of {vertex.name!r} is {share}{part}; the median "
            f"of its {len(subtasks)} subtasks is {usual:.0%}: the keys are skewed.",
            vertex=vertex.id,
            subtask=hottest.metrics.subtask,
        )
    hot = sum(r.busy >= BUSY for r in subtasks)
    some = "" if len(subtasks) == 1 else f"; {max(hot, 1)} of {len(subtasks)} subtasks"
    if vertex.is_source:
        return Finding(
            "busy-source", f"Limited by the source {vertex.name!r}, which is {share}{some}.", vertex=vertex.id
        )
    behind = sum(t.backlog for p in producers.get(vertex.id, ()) if p in tasks for t in _readings(tasks[p][1]))
    queue = f"; {behind} batches wait in front of it" if behind else ""
    return Finding(
        "busy-task",
        f"Slow because {vertex.name!r} is {share}{some}{queue}.",
        vertex=vertex.id,
        subtask=hottest.metrics.subtask,
    )


def _readings(subtasks: Iterable[SubtaskRates]) -> list[SubtaskMetrics]:
    return [rate.metrics for rate in subtasks]


def _neither_busy(vertex: VertexInfo, hottest: SubtaskRates) -> Finding:
    return Finding(
        "slow-consumer",
        f"Slow because {vertex.name!r} does not take records as fast as they arrive, and is {hottest.busy:.0%} "
        f"busy and {hottest.idle:.0%} idle: it waits for something outside of its process.",
        vertex=vertex.id,
        subtask=hottest.metrics.subtask,
    )


def _starved(vertex: VertexInfo, hottest: SubtaskRates) -> Finding:
    return Finding(
        "full-process",
        f"Slow because {vertex.name!r} waits for its turn {hottest.waiting:.0%} of the time, and no task of "
        f"{_place(hottest.metrics.worker)} is busy: other processes of the machine use its cores.",
        vertex=vertex.id,
        subtask=hottest.metrics.subtask,
        worker=hottest.metrics.worker,
    )


def _place(worker: str) -> str:
    return f"worker {worker!r}" if worker else "this process"


def _full_process(worker: str, here: Sequence[SubtaskRates]) -> Finding:
    shares: dict[str, float] = {}
    for rate in here:
        shares[rate.metrics.vertex] = shares.get(rate.metrics.vertex, 0.0) + rate.busy
    largest = sorted(shares.items(), key=lambda item: -item[1])[:3]
    listed = ", ".join(f"{name!r} {share:.0%}" for name, share in largest)
    return Finding(
        "full-process",
        f"Slow because {_place(worker)} is full: its tasks take turns on one core, {listed}. More workers help.",
        vertex=max(here, key=lambda r: r.busy).metrics.vertex_id,
        worker=worker,
    )


def _healthy(tasks: _Tasks, rates: Sequence[SubtaskRates]) -> Finding:
    sources = [r for vertex, subtasks in tasks.values() if vertex.is_source for r in subtasks]
    busiest = max(rates, key=lambda r: r.busy)
    if sources and min(r.idle for r in sources) >= 0.5:
        return Finding(
            "idle",
            f"The job keeps up: its sources are without input {min(r.idle for r in sources):.0%} of the time.",
            "ok",
        )
    return Finding(
        "ok", f"The job keeps up: the busiest task, {busiest.metrics.vertex!r}, is {busiest.busy:.0%} busy.", "ok"
    )


# ---- why late -----------------------------------------------------------------------------------------------


def why_late(
    description: JobDescription,
    metrics: JobMetrics,
    rates: Sequence[SubtaskRates],
    now_ms: int | None = None,
    failures: Sequence[FailureInfo] = (),
) -> Diagnosis:
    """Find what holds back the event time of a job.

    Args:
        description: its graph.
        metrics: the newest reading.
        rates: of all its subtasks, over the last seconds.
        now_ms: the clock; None: that of the newest reading.
        failures: the last ones, oldest first.
    """
    if (stopped := _not_running(metrics, description, failures)) is not None:
        return Diagnosis([stopped])
    tasks = _by_vertex(description, rates)
    now_ms = max((r.metrics.at_ms for r in rates), default=0) if now_ms is None else now_ms
    found = _why_late(description, tasks, rates, now_ms)
    resting = [f for vertex, subtasks in tasks.values() if (f := idle_splits(vertex, subtasks)) is not None]
    sources = [vertex.id for vertex, _ in tasks.values() if vertex.is_source]
    idle = [f for f in resting if f.kind == "idle-source"]
    if found.kind in ("old-records", "silent-sources") and len(idle) == len(sources):
        # It is late since there are no records, and not since they are old.
        lead = f"Event time does not advance. {idle[0].text}"
        return Diagnosis([msgspec.structs.replace(idle[0], text=lead), *idle[1:]])
    return Diagnosis([found, *resting])


def _why_late(description: JobDescription, tasks: _Tasks, rates: Sequence[SubtaskRates], now_ms: int) -> Finding:
    found = _held_back(description, tasks, now_ms) or _delayed(description, tasks)
    if found is not None:
        return found
    makers = [task for task in tasks.values() if any(_mark(r) is not None for r in task[1])]
    if not makers:
        return Finding("no-watermarks", "No task has a watermark: the job does not use event time.", "ok")
    lowest = min((m for _, subtasks in makers for r in subtasks if (m := _mark(r)) is not None))
    if lowest >= MAX_WATERMARK:
        return Finding("ended", "All input has been read: the watermark is at its end.", "ok")
    lag_ms = now_ms - lowest
    if lag_ms >= LATE_MS and (blocked := _blocked_source(tasks)) is not None:
        source, share = blocked
        return Finding(
            _BACK_PRESSURED,
            f"Event time is {age(lag_ms)} behind the clock because the source {source.name!r} is blocked "
            f"{share:.0%} of the time. See why-slow.",
            vertex=source.id,
        )
    backlog = sum(r.metrics.user.get("pendingRecords", 0) for r in rates)
    if lag_ms >= LATE_MS and backlog:
        return Finding(
            "backlog",
            f"Event time is {age(lag_ms)} behind the clock because the sources have {backlog:,.0f} records "
            "still to read.",
        )
    silent_s = _silent_s(tasks)
    if lag_ms >= LATE_MS and silent_s * 1000 >= lag_ms / 2:
        return Finding(
            "silent-sources",
            f"Event time is {age(lag_ms)} behind the clock because the sources have given no record for "
            f"{age(silent_s * 1000)}.",
            "notice",
        )
    if lag_ms >= LATE_MS:
        return Finding(
            "old-records",
            f"Event time is {age(lag_ms)} behind the clock on all inputs alike: the records themselves are that "
            "old, or the bound of out-of-orderness is that long.",
            "notice",
        )
    return Finding("ok", f"Event time is {age(max(lag_ms, 0))} behind the clock.", "ok")


def _blocked_source(tasks: _Tasks) -> tuple[VertexInfo, float] | None:
    """Return the source that is furthest behind, if its output is blocked, and the share of the time."""
    known = [
        (mark, vertex, rate.blocked)
        for vertex, subtasks in tasks.values()
        if vertex.is_source
        for rate in subtasks
        if (mark := _mark(rate)) is not None
    ]
    if not known:
        return None
    _, vertex, blocked = min(known, key=lambda item: item[0])
    return (vertex, blocked) if blocked >= BLOCKED else None


def _silent_s(tasks: _Tasks) -> float:
    """Return the seconds since the last record of any source; 0.0 if a source does not know."""
    sources = [r.metrics.splits for vertex, subtasks in tasks.values() if vertex.is_source for r in subtasks]
    return min((0.0 if splits is None else splits.last_record_s for splits in sources), default=0.0)


def _mark(rate: SubtaskRates) -> int | None:
    metrics = rate.metrics
    return metrics.watermark if metrics.output_watermark is None else metrics.output_watermark


def _held_back(description: JobDescription, tasks: _Tasks, now_ms: int) -> Finding | None:
    """Find a subtask whose watermark is behind that of the others of its vertex, first in topological order."""
    for vertex in description.vertices:
        if vertex.id not in tasks:
            continue
        subtasks = tasks[vertex.id][1]
        if not vertex.is_source and not _makes_watermarks(vertex):
            continue
        if vertex.is_source and (split := held_back_by_split(vertex, subtasks, LATE_MS, now_ms)) is not None:
            return split
        known = [(m, r) for r in subtasks if (m := _mark(r)) is not None]
        unknown = [r for r in subtasks if _mark(r) is None]
        if unknown and known:
            first = unknown[0].metrics
            what = "has read no record yet" if not first.records_in else "has emitted no watermark"
            return Finding(
                "no-watermark",
                f"Event time does not advance because subtask {first.subtask + 1} of {vertex.name!r} {what}: give "
                "the watermark strategy an idleness timeout (with_idleness), or reduce the parallelism of the "
                "source.",
                vertex=vertex.id,
                subtask=first.subtask,
            )
        if len(known) < 2:
            continue
        lowest, slowest = min(known, key=lambda item: item[0])
        usual = median(mark for mark, _ in known)
        if min(usual, now_ms) - lowest >= LATE_MS:
            if slowest.blocked >= BLOCKED:
                return Finding(
                    _BACK_PRESSURED,
                    f"Event time is held back by subtask {slowest.metrics.subtask + 1} of {vertex.name!r}, whose "
                    f"output is blocked {slowest.blocked:.0%} of the time: its watermark is "
                    f"{age(int(usual - lowest))} behind that of the other subtasks. See why-slow.",
                    vertex=vertex.id,
                    subtask=slowest.metrics.subtask,
                )
            idle = ", which is idle" if slowest.idle >= BUSY and not slowest.in_per_s else ""
            return Finding(
                "held-back",
                f"Event time is held back by subtask {slowest.metrics.subtask + 1} of {vertex.name!r}{idle}: its "
                f"watermark is {age(int(usual - lowest))} behind that of the other subtasks.",
                vertex=vertex.id,
                subtask=slowest.metrics.subtask,
            )
    return None


def _makes_watermarks(vertex: VertexInfo) -> bool:
    return any(step.kind == "timestamps" for step in vertex.steps)


def _delayed(description: JobDescription, tasks: _Tasks) -> Finding | None:
    """Find a task whose watermark is far behind that of its producers: the records are on their way."""
    for edge in description.edges:
        if edge.feedback or edge.source not in tasks or edge.target not in tasks:
            continue
        before = [m for r in tasks[edge.source][1] if (m := _mark(r)) is not None]
        after = [m for r in tasks[edge.target][1] if (m := r.metrics.watermark) is not None]
        if before and after and min(before) < MAX_WATERMARK and min(before) - min(after) >= LATE_MS:
            name = tasks[edge.target][0].name
            return Finding(
                _DELAYED,
                f"{name!r} is {age(min(before) - min(after))} of event time behind its producers: records wait "
                "in front of it. See why-slow.",
                vertex=edge.target,
            )
    return None
