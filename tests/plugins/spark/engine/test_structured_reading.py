"""What a reader of Spark's batch jobs has at a time, without Spark: no more than in the engine ``local``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sluiceway import OutputTag, Pipeline, WatermarkStrategy
from sluiceway.config.settings import Settings
from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    Source,
    Wait,
)
from sluiceway.elements import Batch
from sluiceway.plugins import default_manager
from sluiceway.runtime.messages.pickling import dump
from sluiceway.runtime.microbatch.driven_enumerator import deal_splits
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway.steps import SourceStep
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_spark.structured.row_format import Row, rows_in, to_batches
from sluiceway_spark.structured.row_packing import MANY, RowPacker
from sluiceway_spark.structured.stages import batch_tasks

pa = pytest.importorskip("pyarrow")

LATE: Any = OutputTag("late", tuple)
STAMPED: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda e: e[1])


@dataclass(frozen=True, slots=True)
class Part:
    """A split: the numbers of one."""

    index: int
    at: int = 0

    @property
    def split_id(self) -> str:
        return f"part-{self.index}"


class Parts(Source[Any]):
    """Numbers in splits. Readers give one of each split that they have in turn, and say how many these are.

    Args:
        splits: how many.
        each: how many numbers each has.
        ahead: how many splits a reader asks for when it begins.
        enumerator: makes the enumerator of all splits.
        asks: whether readers ask for splits at all.
    """

    boundedness = Boundedness.BOUNDED

    def __init__(
        self,
        splits: int = 4,
        each: int = 3,
        *,
        ahead: int = 1,
        asks: bool = True,
        enumerator: Callable[[EnumeratorContext, list[Part]], Enumerator] = SimpleEnumerator,
    ) -> None:
        self.splits = [Part(index) for index in range(splits)]
        self.each = each
        self.ahead = ahead if asks else 0
        self.asks = asks
        self.enumerator = enumerator

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        return self.enumerator(context, self.splits if restored is None else restored)

    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        return _PartsReader(context, self)


class _PartsReader(Reader[Any]):
    def __init__(self, context: ReaderContext, source: Parts) -> None:
        self._context = context
        self._source = source
        self._parts: list[Part] = []
        self._finished: list[str] = []
        self._no_more = False

    def start(self) -> None:
        for _ in range(self._source.ahead):
            self._context.request_split()

    def add_splits(self, splits: Sequence[Part]) -> None:
        self._parts += splits

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> Poll[Any]:
        if not self._parts:
            return END_OF_INPUT if self._no_more else Wait()
        part = self._parts.pop(0)
        self.current_split_id = part.split_id
        value = (f"{part.index}.{part.at}", 100 - 10 * part.index + part.at, len(self._parts) + 1)
        part = replace(part, at=part.at + 1)
        if part.at < self._source.each:
            self._parts.append(part)
        else:
            self._finished.append(part.split_id)
            if self._source.asks:
                self._context.request_split()
        return [value]

    def finished_splits(self) -> Sequence[str]:
        finished, self._finished = self._finished, []
        return finished

    def snapshot(self) -> list[Part]:
        return list(self._parts)

    def close(self) -> None:
        pass


class Pairs(SimpleEnumerator):
    """Answers with two splits at a time."""

    def handle_split_request(self, reader: int) -> None:
        if self._pending:
            self._context.assign(reader, [self._pending.pop(0) for _ in range(2)])
        else:
            self._context.no_more_splits(reader)


class AtOnce(SimpleEnumerator):
    """Gives a reader everything when it comes, without being asked."""

    def add_reader(self, reader: int) -> None:
        self._context.assign(reader, self._pending)
        self._pending = []
        self._context.no_more_splits(reader)


class NowAndThen(SimpleEnumerator):
    """Gives a split whenever it has found one, without being asked."""

    def start(self) -> None:
        self._context.wake()

    def handle_split_request(self, reader: int) -> None:
        pass

    def run(self) -> None:
        if self._pending:
            self._context.assign(0, [self._pending.pop(0)])
            self._context.wake()
        else:
            self._context.no_more_splits(0)


@pytest.fixture(autouse=True)
def _no_tasks_of_sparks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_tasks, "_attempt", lambda: 0)


def in_a_batch_job(flow: Pipeline, **options: Any) -> list[list[Any]]:
    """What would come to each sink, in order."""
    settings, services = Settings(**options), default_manager().services()
    plan = SteppedPlan.of(flow.graph(settings), settings, services, keyed_subtasks=1)
    given = frozenset(plan.targets_of(plan.last_stage))
    shipped, readers = batch_tasks.ship(plan, services), []
    for id_ in plan.sources:
        vertex = plan.graph.vertex(id_)
        assert isinstance(vertex.head.step, SourceStep)
        dealt = deal_splits(vertex.head.step.source, vertex.parallelism)
        readers += [(plan.target(id_, subtask), splits) for subtask, splits in enumerate(dealt)]
    numbers = pa.record_batch({"id": pa.array(range(len(readers)))})
    batches = list(batch_tasks.read_sources(shipped, dump(readers), (0,), given, [numbers]))
    for stage in range(1, plan.last_stage):
        rows = sorted(rows_in(batches), key=lambda row: (row.target, row.seq, row.sender))
        here = [row for row in rows if row.stage == stage]
        batches = list(batch_tasks.run_stages(shipped, (stage,), given, to_batches(here)))
        batches += to_batches(row for row in rows if row.stage > stage)
    targets = {id_: [t for t in given if plan.who(t)[0] == id_] for id_ in plan.sinks}
    return [[value for target in targets[id_] for value in _values(plan, target, batches)] for id_ in plan.sinks]


def _values(plan: SteppedPlan, target: int, batches: list[Any]) -> Iterable[Any]:
    for row in sorted(rows_in(batches), key=lambda row: (row.seq, row.sender)):
        if row.target == target and row.sender >= 0:
            for element in plan.unpack(row.sender, row.payload):
                if type(element) is Batch:
                    yield from element.values


@pytest.mark.parametrize(
    ("source", "most"),
    [
        (lambda: Parts(), 1),
        (lambda: Parts(ahead=2), 2),
        (lambda: Parts(enumerator=Pairs), 3),
        (lambda: Parts(enumerator=AtOnce), 4),
        (lambda: Parts(enumerator=AtOnce, asks=False), 4),
    ],
)
def test_a_reader_has_as_many_splits_at_a_time_as_it_has_asked_for(source: Callable[[], Parts], most: int) -> None:
    flow = Pipeline("splits")
    result = flow.source(source()).collect()
    flow.run()
    (got,) = in_a_batch_job(flow)
    assert max(held for *_, held in got) == most
    assert len(got) == 12
    if most in (1, 4):  # others come by themselves, sooner or later
        assert got == list(result)


def test_one_that_does_not_ask_gets_the_next_when_it_has_nothing_left() -> None:
    flow = Pipeline("splits")
    flow.source(Parts(enumerator=NowAndThen, asks=False)).collect()
    (got,) = in_a_batch_job(flow)
    assert [(value, held) for value, _, held in got] == [(f"{s}.{n}", 1) for s in range(4) for n in range(3)]


def test_several_readers_have_splits_of_their_own() -> None:
    flow = Pipeline("splits", parallelism=2)
    flow.source(Parts(splits=5)).collect()
    got = [value for values in in_a_batch_job(flow, parallelism=2) for value in values]
    assert {held for *_, held in got} == {1}
    assert sorted(value for value, *_ in got) == [f"{s}.{n}" for s in range(5) for n in range(3)]


def test_rows_have_some_megabytes_however_large_records_are(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def sized(rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            sizes.append(len(row.payload))
            yield row

    monkeypatch.setattr(batch_tasks, "to_batches", lambda rows: to_batches(sized(rows)))
    texts = [f"{n:05}" + "x" * 1000 for n in range(20_000)]
    flow = Pipeline("large")
    flow.from_collection(texts).map(str).collect()
    (got,) = in_a_batch_job(flow)
    assert got == texts
    assert max(sizes) < 5 << 20


def test_large_records_do_not_wait_for_many() -> None:
    flow = Pipeline("large")
    flow.from_collection([""]).collect()
    plan = SteppedPlan.of(flow.graph(Settings()), Settings(), default_manager().services())
    packer = RowPacker(plan)
    few = packer.many
    (sender,) = {route.sender for target in plan.targets_of(1) for route in plan.senders_into(target)}
    list(packer.pack(1, 1, sender, 0, [Batch([f"{n:016384}" for n in range(1000)])]))
    assert few < packer.many < 2100
    list(packer.pack(1, 1, sender, 1000, [Batch(["x"] * MANY) for _ in range(40)]))
    assert packer.many == MANY


def test_what_is_late_is_what_is_late_in_the_engine_local() -> None:
    flow = Pipeline("late")
    windowed = (
        flow.source(Parts(), watermark_strategy=STAMPED)
        .key_by(lambda e: 0)
        .window(TumblingEventTimeWindows.of(10))
        .side_output_late_data(LATE)
        .reduce(lambda a, b: (a[0] + b[0], *b[1:]))
    )
    result, late = windowed.collect(), windowed.get_side_output(LATE).collect()
    flow.run(auto_watermark_interval=0)  # a watermark behind each batch
    on_time, too_late = in_a_batch_job(flow, auto_watermark_interval_ms=0)
    assert len(list(late)) == 9  # all but the first split's
    assert too_late == list(late)
    assert on_time == list(result)
