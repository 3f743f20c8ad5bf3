"""Variations of one input, as a runtime may deliver it: results must not depend on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from sluiceway.api import DataStream, Pipeline
from sluiceway.elements import Batch
from sluiceway.runtime.task.snapshot import JobSnapshot
from sluiceway.testing.collecting import CollectingSink
from sluiceway.testing.pipelines import PipelineHarness
from sluiceway.testing.programs import check_program
from sluiceway.testing.script import EOF, PAUSE, TestSource

__all__ = ["every_way"]

Program = Callable[[DataStream[Any]], DataStream[Any] | Sequence[DataStream[Any]]]
Results = list[list[Any]]


def every_way(
    program: Program,
    values: Iterable[Any],
    *,
    timestamps: Iterable[int] | None = None,
    ordered: bool = True,
    parallelism: Sequence[int] = (2, 3),
    object_reuse: bool = False,
) -> Any:
    """Run a program on variations of the same input, and compare the results.

    As one batch; a record at a time; every step in a task of its own; with a sink that takes a batch only when
    everything before it has come to a stop; stopped after every record, its state restored into a pipeline made
    anew; all that again at other parallelisms, and with the parallelism changed at every restore.

    Args:
        program: adds steps to a stream, and returns the stream of results, or several. It is called once a
            run, and should make its function objects itself.
        values: the input, a bounded one.
        timestamps: its event times in ms.
        ordered: whether results must come in the same order wherever the parallelism is 1; with more, or with
            False, they are compared without regard to order.
        parallelism: the other parallelisms; none where a program works at parallelism 1 only.
        object_reuse: whether to run all ways with the option ``object-reuse``. Records are compared as they were
            when they came to the end, so a program that changes what it has emitted is found out.

    Returns:
        the results of the first way: a list, or one per stream if the program returned several.

    Raises:
        AssertionError: a way has other results than the first one; says which, and where they differ.
        BaseException: what the program itself raised.
    """
    check_program("every_way()", program)
    trial = _Trial(program, list(values), None if timestamps is None else list(timestamps), object_reuse)
    expected = trial.at_once()
    for name, in_order, run in trial.others(parallelism):
        try:
            results = run()
        except Exception as error:
            error.add_note(f"every_way: {name}; the first way, all at once, did not raise this")
            raise
        _compare(name, expected, results, in_order=ordered and in_order)
    return expected if trial.several else expected[0]


class _Trial:
    def __init__(
        self, program: Program, values: list[Any], timestamps: list[int] | None, object_reuse: bool
    ) -> None:
        self._reuse: dict[str, Any] = {"object_reuse": True} if object_reuse else {}
        self._program = program
        self._values = values
        self._timestamps = timestamps
        if timestamps is not None and len(timestamps) != len(values):
            raise ValueError(f"there are {len(values)} values, but {len(timestamps)} timestamps")
        self.several = False

    # ---- ways ---------------------------------------------------------------------------------------------

    def at_once(self) -> Results:
        return self._straight([self._batch(0, len(self._values))])

    def others(self, parallelism: Sequence[int]) -> Iterator[tuple[str, bool, Callable[[], Results]]]:
        one_by_one = [self._batch(i, i + 1) for i in range(len(self._values))]
        whole = [self._batch(0, len(self._values))]
        yield "a record at a time", True, lambda: self._straight(one_by_one)
        yield "a record at a time, coming to rest after each", True, lambda: self._paused(one_by_one)
        yield "every step in a task of its own", True, lambda: self._straight(whole, chaining=False)
        yield "batches of one between tasks", True, lambda: self._straight(whole, chaining=False, batch_size=1)
        yield "held back until batches are full", True, lambda: self._straight(one_by_one, buffer_timeout=-1)
        yield "a sink that is blocked after every batch", True, lambda: self._blocked(one_by_one)
        yield "the same, every step in a task of its own", True, lambda: self._blocked(one_by_one, chaining=False)
        yield "restored after every record", True, lambda: self._restored(one_by_one, [1])
        yield (
            "restored after every record, every step in a task of its own",
            True,
            lambda: self._restored(one_by_one, [1], chaining=False),
        )
        for n in parallelism:
            yield f"parallelism {n}", False, lambda n=n: self._straight(whole, parallelism=n)  # type: ignore[misc]
            yield (
                f"parallelism {n}, a record at a time, a sink that is blocked after every batch",
                False,
                lambda n=n: self._blocked(one_by_one, parallelism=n),  # type: ignore[misc]
            )
        if parallelism:
            steps = [1, *parallelism]
            yield (
                f"restored after every record, at parallelism {', '.join(map(str, steps))} in turn",
                False,
                lambda: self._restored(one_by_one, steps),
            )

    def _straight(self, script: Sequence[Any], **options: Any) -> Results:
        flow, _, sinks = self._build([*script, EOF])
        with PipelineHarness(flow, **self._reuse, **options) as harness:
            harness.run_to_end()
        return [sink.values for sink in sinks]

    def _paused(self, script: Sequence[Any], **options: Any) -> Results:
        flow, source, sinks = self._build([item for batch in script for item in (batch, PAUSE)] + [EOF])
        with PipelineHarness(flow, **self._reuse, **options) as harness:
            for _ in script:
                harness.run_until(lambda: source.paused)
                source.resume()
            harness.run_to_end()
        return [sink.values for sink in sinks]

    def _blocked(self, script: Sequence[Any], **options: Any) -> Results:
        flow, _, sinks = self._build([*script, EOF], blocked=True)
        with PipelineHarness(flow, **self._reuse, **options) as harness:
            while not harness.run().ended:
                before = sum(len(sink.writes) for sink in sinks)
                for sink in sinks:
                    sink.unblock(1)
                    harness.run()
                if not harness.ended and sum(len(sink.writes) for sink in sinks) == before:
                    # Nothing waits to be written: let the ends through.
                    for sink in sinks:
                        sink.unblock()
                    harness.run_to_end()
        return [sink.values for sink in sinks]

    def _restored(self, script: Sequence[Any], parallelism: Sequence[int], **options: Any) -> Results:
        items = [item for batch in script for item in (batch, PAUSE)] + [EOF]
        results: Results = []
        snapshot: JobSnapshot | None = None
        for turn in range(len(script) + 1):
            flow, source, sinks = self._build(items)
            n = parallelism[turn % len(parallelism)]
            with PipelineHarness(flow, restored=snapshot, parallelism=n, **self._reuse, **options) as harness:
                if script:
                    harness.run_until(lambda: source.paused)  # noqa: B023 (called at once)
                # The source is restored in front of the PAUSE at which the snapshot was taken.
                if turn:
                    source.resume()
                if turn < len(script):
                    harness.run_until(lambda: source.paused and not harness.under_way)  # noqa: B023
                    snapshot = harness.snapshot()
                else:
                    harness.run_to_end()
            written = [sink.values for sink in sinks]
            results = [a + b for a, b in zip(results, written, strict=True)] if results else written
        return results

    # ---- inside -------------------------------------------------------------------------------------------

    def _batch(self, start: int, stop: int) -> Batch[Any]:
        stamps = None if self._timestamps is None else self._timestamps[start:stop]
        return Batch(self._values[start:stop], stamps)

    def _build(
        self, script: Iterable[Any], blocked: bool = False
    ) -> tuple[Pipeline, TestSource, list[CollectingSink]]:
        # The number of key groups must outlast every change of parallelism.
        flow = Pipeline("every way", max_parallelism=128)
        source = TestSource([item for item in script if not isinstance(item, Batch) or item.values])
        made = self._program(flow.source(source))
        if not isinstance(made, DataStream | Iterable):
            raise TypeError(
                f"the program of every_way() returned {made!r:.100} ({type(made).__name__}): it must return the "
                "stream of results, or several, and end in no sink"
            )
        self.several = not isinstance(made, DataStream)
        sinks = []
        for stream in [made] if isinstance(made, DataStream) else made:
            sink = CollectingSink(blocked=blocked, copies=True)
            stream.sink(sink)
            sinks.append(sink)
        return flow, source, sinks


def _compare(name: str, expected: Results, results: Results, *, in_order: bool) -> None:
    for number, (wanted, got) in enumerate(zip(expected, results, strict=True)):
        which = f" of stream {number}" if len(expected) > 1 else ""
        if in_order:
            if not _same(wanted, got):
                at = next(
                    (i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if not _same(a, b)),
                    min(len(wanted), len(got)),
                )
                raise AssertionError(
                    f"{name}: result {at}{which} is {_item(got, at)}; all at once it is {_item(wanted, at)}\n"
                    f"all at once: {wanted!r:.1000}\nthis way:    {got!r:.1000}"
                )
            continue
        missing, extra = _difference(wanted, got)
        if missing or extra:
            raise AssertionError(
                f"{name}: other results{which} than all at once: "
                f"missing {missing!r:.500}, in excess {extra!r:.500}"
            )


def _item(values: list[Any], at: int) -> str:
    return f"{values[at]!r:.200}" if at < len(values) else "missing"


def _difference(wanted: list[Any], got: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return missing and excess results, which need be neither hashable nor sortable."""
    extra = list(got)
    missing = []
    for value in wanted:
        try:
            extra.remove(value)
        except ValueError:
            at = next((i for i, other in enumerate(extra) if _same(value, other)), None)
            if at is None:
                missing.append(value)
            else:
                del extra[at]
    return missing, extra


def _same(one: Any, other: Any) -> bool:
    """Return whether results are equal; NaN, which equals nothing, is the same as NaN."""
    if one is other or one == other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one != one and other != other
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if is_dataclass(one) and getattr(one, "__dataclass_params__").eq:  # noqa: B009 (unknown to type checkers)
        return all(_same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one) if f.compare)
    return False
