"""Random pipelines that say the same wherever they run.

Nothing promises in which order records of different sources, or of different subtasks, meet. So a step that goes
by the order of its records (a running reduction, say) is put only where that order is promised; behind a union, a
rebalance, a join or a change of key come steps alone that go by event time. No record is late there: late ones are
decided by watermarks that come between records now and then. They have a step of their own, whose watermarks come
behind certain records. Timers in processing time wait for the end of the input, and no more can be said of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import Any

import equality_functions as fn
from equality_functions import PRIME, Rec, key_of
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.connector.lib import Collected, CollectSink
from sluiceway.windows import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows

Stream = Any
RECORDS_AT_MOST = 4_000


class Order(Enum):
    """What is promised of the order of records."""

    ALL = "all of them"
    KEY = "those of a key"
    NONE = "none"


@dataclass(frozen=True)
class Traits:
    """What is known of a stream before it runs."""

    order: Order
    most: int  # records
    timed: bool = True
    late: bool = False  # some records are behind the watermark

    @property
    def ordered(self) -> bool:
        return self.order is not Order.NONE


@dataclass(frozen=True)
class Origin:
    """A source: records as (key, value, time), none of which comes more than ``bound`` ms behind a later one."""

    records: tuple[tuple[int, int, int], ...]
    bound: int
    parallel: bool

    def traits(self) -> Traits:
        return Traits(Order.NONE if self.parallel else Order.ALL, len(self.records))

    def build(self, flow: sw.Pipeline) -> Stream:
        strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness(self.bound)
        if self.parallel:
            read = flow.from_collection(self.records, timestamp=_time, watermark_strategy=strategy)
            return read.map(_record)
        read = flow.from_collection(self.records).set_parallelism(1)
        timed = read.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(_time)).set_parallelism(1)
        return timed.map(_record).set_parallelism(1)


def _time(record: tuple[int, int, int]) -> int:
    return record[2]


def _record(record: tuple[int, int, int]) -> Rec:
    return Rec(record[0], record[1])


@dataclass(frozen=True)
class Kind:
    """A kind of step.

    Attributes:
        build: adds it to the streams, given two numbers to be different by; the streams that come out.
        fits: for each input, what it must be.
        gives: what comes out.
    """

    build: Callable[[Sequence[Stream], Sequence[Traits], int, int], Sequence[Stream]]
    fits: tuple[Callable[[Traits], bool], ...]
    gives: Callable[[Sequence[Traits]], Sequence[Traits]]


@dataclass(frozen=True)
class Step:
    kind: str
    inputs: tuple[int, ...]
    a: int
    b: int


@dataclass(frozen=True)
class Leaf:
    """A stream that nothing follows, and what came of it."""

    where: str
    order: Order
    collected: Collected[tuple[Rec, Any]]


@dataclass(frozen=True)
class Program:
    """A pipeline. Streams are numbered: those of the origins, then those of the steps."""

    origins: tuple[Origin, ...]
    steps: tuple[Step, ...]

    def build(self, flow: sw.Pipeline) -> list[Leaf]:
        leaves = []
        for where, order, stream in self.outputs([origin.build(flow) for origin in self.origins]):
            sink: CollectSink[Any] = CollectSink()
            stream.sink(sink).set_parallelism(1)
            leaves.append(Leaf(where, order, sink.collected))
        return leaves

    def outputs(self, streams: list[Stream]) -> list[tuple[str, Order, Stream]]:
        """Results of the steps on the streams of the origins: for each leaf its name, its order, its records."""
        traits = [origin.traits() for origin in self.origins]
        makers = [f"origin {n}" for n in range(len(streams))]
        used: set[int] = set()
        for step in self.steps:
            kind = KINDS[step.kind]
            entering = [traits[i] for i in step.inputs]
            made = kind.build([streams[i] for i in step.inputs], entering, step.a, step.b)
            streams += made
            traits += kind.gives(entering)
            makers += [step.kind] * len(made)
            used.update(step.inputs)
        return [
            (f"stream {n}, of {makers[n]}", traits[n].order, _alike(stream.process(fn.Stamp()), traits[n]))
            for n, stream in enumerate(streams)
            if n not in used
        ]


def _alike(stream: Stream, traits: Traits) -> Stream:
    """In as many subtasks as before, where more would mix up the order."""
    return stream.set_parallelism(1) if traits.order is Order.ALL else stream


# ---- kinds of steps --------------------------------------------------------------------------------------------


def _any(traits: Traits) -> bool:
    return True


def _ordered(traits: Traits) -> bool:
    return traits.ordered


def _timed(traits: Traits) -> bool:
    return traits.timed and not traits.late


def _timed_in_order(traits: Traits) -> bool:
    return _timed(traits) and traits.ordered


def _in_whole(traits: Traits) -> bool:
    return _timed(traits) and traits.order is Order.ALL


def _same(entering: Sequence[Traits]) -> Sequence[Traits]:
    return entering


def _keyed(entering: Sequence[Traits]) -> Sequence[Traits]:
    [one] = entering
    return [Traits(Order.KEY, one.most, one.timed, one.late)]


def _by_key(entering: Sequence[Traits]) -> Sequence[Traits]:
    return [Traits(Order.KEY, sum(one.most for one in entering))]


def _mixed(entering: Sequence[Traits]) -> Sequence[Traits]:
    return [
        Traits(
            Order.NONE,
            sum(one.most for one in entering),
            all(one.timed for one in entering),
            any(one.late for one in entering),
        )
    ]


def _pairs(entering: Sequence[Traits]) -> Sequence[Traits]:
    return [Traits(Order.NONE, entering[0].most * entering[1].most)]


def _simple(build: Callable[[Stream, int, int], Stream], order: bool = True) -> Kind:
    """A step of one record after the other, which leaves the order alone."""

    def one(streams: Sequence[Stream], entering: Sequence[Traits], a: int, b: int) -> Sequence[Stream]:
        return [_alike(build(streams[0], a, b), entering[0])]

    return Kind(one, (_any,), _same if order else _mixed)


def _of_keyed(build: Callable[[Stream, int, int], Stream], fits: Any = _ordered, gives: Any = _keyed) -> Kind:
    return Kind(lambda streams, _, a, b: [build(streams[0].key_by(key_of), a, b)], (fits,), gives)


def _windowed(assigner: Callable[[int, int], Any]) -> Kind:
    def build(keyed: Stream, a: int, b: int) -> Stream:
        windowed = keyed.window(assigner(a, b))
        ways = (
            lambda: windowed.apply(fn.whole),
            lambda: windowed.reduce(lambda one, other: Rec(one.key, (one.value + other.value) % PRIME)),
            lambda: windowed.aggregate(fn.Total()),
            lambda: windowed.count().map(lambda pair: Rec(*pair)),
            lambda: windowed.process(fn.Whole()),
            lambda: windowed.sum("value").map(lambda record: Rec(record.key, record.value % PRIME)),
            lambda: windowed.max_by("value").map(lambda record: record),
        )
        return ways[(a + b) % len(ways)]()

    def gives(entering: Sequence[Traits]) -> Sequence[Traits]:
        return [Traits(Order.KEY, entering[0].most * 4)]

    return _of_keyed(build, _timed, gives)


def _size(a: int) -> int:
    return (5, 10, 37, 100)[a % 4]


def _co(build: Callable[[Stream, Stream, int, int], Stream], fits: Any, gives: Any) -> Kind:
    return Kind(lambda streams, _, a, b: [build(streams[0], streams[1], a, b)], fits, gives)


def _keyed_both(build: Callable[[Stream, Stream, int, int], Stream], fits: Any, gives: Any) -> Kind:
    return _co(lambda one, other, a, b: build(one.key_by(key_of), other.key_by(key_of), a, b), fits, gives)


def _window_join(left: Stream, right: Stream, a: int, b: int) -> Stream:
    joined = left.join(right).where(key_of).equal_to(key_of).window(TumblingEventTimeWindows.of(_size(a)))
    return joined.apply(lambda one, other: Rec(one.key, fn.mixed(one.value, other.value)))


def _co_group(left: Stream, right: Stream, a: int, b: int) -> Stream:
    grouped = left.co_group(right).where(key_of).equal_to(key_of).window(TumblingEventTimeWindows.of(_size(a)))
    return grouped.apply(fn.Grouped())


def _interval_join(left: Stream, right: Stream, a: int, b: int) -> Stream:
    joined = left.interval_join(right).between(-(a % 7), b % 11)
    return joined.apply(lambda one, other: Rec(one.key, fn.mixed(one.value, other.value)))


def _asof_join(left: Stream, right: Stream, a: int, b: int) -> Stream:
    joined = left.asof_join(right, tolerance=None if a % 2 else b + 1, how="left" if b % 2 else "inner")
    return joined.apply(lambda one, other: Rec(one.key, fn.mixed(one.value, other.value if other else -1)))


def _broadcast(stream: Stream, rules: Stream, a: int, b: int) -> Stream:
    return stream.key_by(key_of).connect(rules.broadcast(fn.RULES)).process(fn.ByRules())


def _aside(streams: Sequence[Stream], entering: Sequence[Traits], a: int, b: int) -> Sequence[Stream]:
    tag = sw.OutputTag[Rec](f"aside {a}")

    def sort(record: Rec, ctx: Any) -> list[Rec]:
        if (record.value + a) % (2 + b % 3):
            return [record]
        ctx.output(tag, record)
        return []

    main = _alike(streams[0].process(sort), entering[0])
    return [main, main.get_side_output(tag)]


def _branch(streams: Sequence[Stream], entering: Sequence[Traits], a: int, b: int) -> Sequence[Stream]:
    main, rest = streams[0].branch(lambda record: (record.value + a) % (2 + b % 3))
    return [_alike(main, entering[0]), rest]


def _branch_keyed(streams: Sequence[Stream], entering: Sequence[Traits], a: int, b: int) -> Sequence[Stream]:
    return list(streams[0].key_by(key_of).branch(fn.EachNth(a % 3 + 2)))


def _remember(streams: Sequence[Stream], entering: Sequence[Traits], a: int, b: int) -> Sequence[Stream]:
    tag = sw.OutputTag[Rec]("odd")
    main = streams[0].key_by(key_of).process(fn.Remember(tag))
    return [main, main.get_side_output(tag)]


def _skipping(streams: Sequence[Stream], entering: Sequence[Traits], a: int, b: int) -> Sequence[Stream]:
    main = _alike(streams[0].map(lambda r: Rec(r.key, 60 // ((r.value + a) % 4))).on_error("skip"), entering[0])
    letters = _alike(main.dead_letters().map(lambda letter: letter.value()), entering[0])
    return [main, letters]


def _late(streams: Sequence[Stream], entering: Sequence[Traits], a: int, b: int) -> Sequence[Stream]:
    """Watermarks behind certain records, with no regard to how late others come."""
    tag = sw.OutputTag[Rec]("late")
    strategy = sw.WatermarkStrategy.for_generator(lambda: fn.Latest(b % 5))
    hurried = streams[0].assign_timestamps_and_watermarks(strategy).set_parallelism(1)
    windowed = hurried.key_by(key_of).window(TumblingEventTimeWindows.of(_size(a)))
    if a % 3:
        windowed = windowed.allowed_lateness(a % 3 * 4)
    sums = windowed.side_output_late_data(tag).apply(fn.in_order)
    return [sums, sums.get_side_output(tag)]


def _both(entering: Sequence[Traits]) -> Sequence[Traits]:
    return [*entering, *entering]


def _both_keyed(entering: Sequence[Traits]) -> Sequence[Traits]:
    return [*_keyed(entering), *_keyed(entering)]


def _gives_late(entering: Sequence[Traits]) -> Sequence[Traits]:
    return [Traits(Order.KEY, entering[0].most, late=True), Traits(Order.KEY, entering[0].most, late=True)]


def _gives_more(entering: Sequence[Traits]) -> Sequence[Traits]:
    [one] = entering
    return [Traits(one.order, one.most * 2, one.timed, one.late)]


def _rekeyed(entering: Sequence[Traits]) -> Sequence[Traits]:
    [one] = entering
    return [Traits(Order.ALL if one.order is Order.ALL else Order.NONE, one.most, one.timed, one.late)]


def _untimed(entering: Sequence[Traits]) -> Sequence[Traits]:
    return [Traits(Order.KEY, entering[0].most, timed=False)]


def _whole(entering: Sequence[Traits]) -> Sequence[Traits]:
    return [Traits(Order.ALL, entering[0].most)]


async def _slowly(record: Rec) -> Rec:
    import asyncio

    await asyncio.sleep(record.value % 3 / 10_000)
    return Rec(record.key, fn.mixed(record.value))


_REKEY = _simple(lambda s, a, b: s.map(lambda r: Rec((r.value + a) % (b % 5 + 2), r.value)))

KINDS: dict[str, Kind] = {
    # one record after the other
    "map": _simple(lambda s, a, b: s.map(lambda r: Rec(r.key, (r.value * (a + 1) + b) % PRIME))),
    "filter": _simple(lambda s, a, b: s.filter(lambda r: (r.value + r.key + a) % (b % 4 + 2))),
    "flat_map": Kind(
        lambda streams, entering, a, b: [
            _alike(
                streams[0].flat_map(lambda r: [Rec(r.key, r.value + i) for i in range((r.value + a) % 3)]),
                entering[0],
            )
        ],
        (_any,),
        _gives_more,
    ),
    "rekey": Kind(_REKEY.build, (_any,), _rekeyed),
    "own chain": _simple(lambda s, a, b: s.map(lambda r: Rec(r.key, r.value ^ 1)).disable_chaining()),
    "aside": Kind(_aside, (_any,), _both),
    "inspect": _simple(lambda s, a, b: s.inspect(lambda r: r.value + a)),
    "branch": Kind(_branch, (_any,), _both),
    "skipping": Kind(_skipping, (_any,), _both),
    "async": _simple(lambda s, a, b: s.async_map(_slowly, timeout=None, capacity=a % 4 + 1)),
    "async, any order": _simple(lambda s, a, b: s.async_map(_slowly, timeout=None, ordered=False), order=False),
    "rebalance": Kind(lambda s, _, a, b: [s[0].rebalance().map(lambda r: r)], (_any,), _mixed),
    "union": _co(lambda one, other, a, b: one.union(other), (_any, _any), _mixed),
    "connect": _co(
        lambda one, other, a, b: one.connect(other).map(
            lambda r: Rec(r.key, fn.mixed(r.value, 1)), lambda r: Rec(r.key, fn.mixed(r.value, 2))
        ),
        (_any, _any),
        _mixed,
    ),
    # by key, in order
    "count": _of_keyed(lambda k, a, b: k.count().map(lambda pair: Rec(*pair))),
    "reduce": _of_keyed(lambda k, a, b: k.reduce(lambda x, y: Rec(x.key, fn.mixed(x.value, y.value, a)))),
    "aggregate": _of_keyed(lambda k, a, b: k.aggregate(fn.Running())),
    "sum": _of_keyed(lambda k, a, b: k.sum("value")),
    "min_by": _of_keyed(lambda k, a, b: k.min_by("value", first=bool(a % 2))),
    "max": _of_keyed(lambda k, a, b: k.max("value")),
    "remember": Kind(_remember, (_ordered,), _both_keyed),
    "branch of keys": Kind(_branch_keyed, (_ordered,), _both_keyed),
    "changed": _of_keyed(lambda k, a, b: k.filter_with_state(fn.is_another)),
    "first of each": _of_keyed(lambda k, a, b: k.flat_map(fn.FirstOfEach())),
    "count window": _of_keyed(lambda k, a, b: k.count_window(a % 4 + 1).apply(_in_order), gives=_untimed),
    "late": Kind(_late, (_in_whole,), _gives_late),
    # by event time
    "tumbling": _windowed(lambda a, b: TumblingEventTimeWindows.of(_size(a))),
    "sliding": _windowed(lambda a, b: SlidingEventTimeWindows.of(_size(a) * (b % 3 + 1), _size(a))),
    "session": _windowed(lambda a, b: EventTimeSessionWindows.with_gap(a % 20 + 1)),
    "window_all": Kind(
        lambda s, _, a, b: [s[0].window_all(TumblingEventTimeWindows.of(_size(a))).apply(fn.whole_of_all)],
        (_timed,),
        _whole,
    ),
    "timers": _of_keyed(lambda k, a, b: k.process(fn.InTime(a % 30)), _timed),
    "timers of both": _keyed_both(
        lambda one, other, a, b: one.connect(other).process(fn.BothInTime()), (_timed, _timed), _by_key
    ),
    "broadcast": _co(_broadcast, (_timed, _timed), lambda entering: _by_key(entering[:1])),
    "interval join": _keyed_both(_interval_join, (_timed, _timed), _pairs),
    "as-of join": _keyed_both(_asof_join, (_timed, _timed_in_order), lambda entering: _mixed(entering[:1])),
    "window join": _co(_window_join, (_timed, _timed), _pairs),
    "co-group": _co(_co_group, (_timed, _timed), _by_key),
    # at the end
    "at the end": _of_keyed(lambda k, a, b: k.process(fn.AtTheEnd()), _any, _untimed),
}


def _in_order(key: int, window: Any, elements: Sequence[Rec]) -> list[Rec]:
    return [Rec(key, fn.mixed(*[record.value for record in elements]))]


# ---- what hypothesis draws -------------------------------------------------------------------------------------


@st.composite
def origins(draw: st.DrawFn) -> Origin:
    bound = draw(st.sampled_from([0, 3, 20]))
    time, records = 0, []
    for key, value, later, behind in draw(
        st.lists(
            st.tuples(st.integers(0, 6), st.integers(0, 99), st.integers(0, 9), st.integers(0, bound)), max_size=40
        )
    ):
        time += later
        records.append((key, value, max(0, time - behind)))
    return Origin(tuple(records), bound, draw(st.booleans()))


@st.composite
def programs(draw: st.DrawFn, most_steps: int = 7) -> Program:
    """A pipeline of up to three sources and some steps."""
    read = draw(st.lists(origins(), min_size=1, max_size=3))
    traits = [origin.traits() for origin in read]
    steps = []
    for _ in range(draw(st.integers(1, most_steps))):
        name, kind = draw(st.sampled_from([item for item in KINDS.items() if _inputs(item[1], traits)]))
        inputs = draw(st.sampled_from(_inputs(kind, traits)))
        given = kind.gives([traits[i] for i in inputs])
        if max(one.most for one in given) <= RECORDS_AT_MOST:
            steps.append(Step(name, inputs, draw(st.integers(0, 30)), draw(st.integers(0, 30))))
            traits += given
    return Program(tuple(read), tuple(steps))


def _inputs(kind: Kind, traits: Sequence[Traits]) -> list[tuple[int, ...]]:
    """What streams could be given to it, of the last ones that fit: another one at each of its ports."""
    fitting = [[n for n, one in enumerate(traits) if fits(one)][-4:] for fits in kind.fits]
    return [inputs for inputs in product(*fitting) if len(set(inputs)) == len(inputs)]


# ---- comparing -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What came of a leaf."""

    where: str
    order: Order
    records: list[tuple[Rec, Any]]


def found(leaves: Sequence[Leaf]) -> list[Found]:
    return [Found(leaf.where, leaf.order, list(leaf.collected)) for leaf in leaves]


def differences(expected: Sequence[Found], got: Sequence[Found]) -> list[str]:
    """What is not equal, in words; an empty list where all is."""
    said = []
    for one, other in zip(expected, got, strict=True):
        missing = Counter(one.records) - Counter(other.records)
        excess = Counter(other.records) - Counter(one.records)
        if missing or excess:
            said.append(
                f"{one.where}: missing {list(missing.elements())[:5]}, in excess {list(excess.elements())[:5]}"
            )
        elif one.order is not Order.NONE:
            for key in {record.key for record, _ in one.records}:
                first, second = (
                    [r for r in records if r[0].key == key] for records in (one.records, other.records)
                )
                if first != second:
                    said.append(
                        f"{one.where}: records of key {key} are in another order: {first[:9]}, {second[:9]}"
                    )
                    break
    return said
