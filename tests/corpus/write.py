"""Writes the corpus of this version: ``python -m tests.corpus.write``, once per release.

A job with every kind of state is stopped in the middle: once with a savepoint, and once by a failure for each
state backend, which leaves its last checkpoint. Every later version restores them, in ``test_corpus.py``. So the
job stays as it is: what is to be added gets steps with new uids, which earlier corpora do not know.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import sluiceway as sw
from sluiceway.windows import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows

HERE = Path(__file__).parent
COUNT, KEYS = 2_000, 5
STOP_AT = 900
THE_END = 10**12
"""An event time that comes with the end of the input only."""
KINDS = ("savepoint", "memory", "rocksdb", "changes", "unaligned")
"""The checkpoint ``unaligned`` is one of the memory backend's, with records that were in flight; ``rocksdb`` has
the files of a database alone, ``changes`` files of changes."""


@dataclass
class Reading:
    """A value of a declared type."""

    number: int
    text: str
    tags: list[str] = field(default_factory=list)


class Mean(sw.AggregateFunction[int, tuple[int, int], Fraction]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> Fraction:
        return Fraction(*accumulator)

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


class Everything(sw.KeyedProcessFunction[int, int, Any]):
    """All kinds of keyed state, with and without a time to live, and both kinds of timers."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.count = context.get_state(sw.ValueStateDescriptor("count", int, default=0))
        self.last = context.get_state(sw.ValueStateDescriptor("last", Reading))
        self.pickled = context.get_state(sw.ValueStateDescriptor("pickled"))
        self.some = context.get_list_state(sw.ListStateDescriptor("some", int))
        self.digits = context.get_map_state(sw.MapStateDescriptor("digits", int, key_type=str))
        self.sum = context.get_reducing_state(sw.ReducingStateDescriptor("sum", int, reduce=lambda a, b: a + b))
        self.mean = context.get_aggregating_state(sw.AggregatingStateDescriptor("mean", aggregate=Mean()))
        lasting, short = sw.StateTtlConfig("36500d"), sw.StateTtlConfig(1)
        self.lasting = context.get_state(sw.ValueStateDescriptor("lasting", int, ttl=lasting))
        self.lasting_list = context.get_list_state(sw.ListStateDescriptor("lasting list", int, ttl=lasting))
        self.lasting_map = context.get_map_state(
            sw.MapStateDescriptor("lasting map", int, key_type=int, ttl=lasting)
        )
        self.short = context.get_state(sw.ValueStateDescriptor("short", int, ttl=short))
        self.fired = context.get_state(sw.ValueStateDescriptor("fired", int, default=0))

    def process_element(self, value: int, ctx: Any) -> None:
        number = self.count.value() + 1
        if number == 1:
            timers = ctx.timer_service()
            timers.register_event_time_timer(THE_END)
            timers.register_processing_time_timer(timers.current_processing_time() + THE_END)
            self.short.update(value)
            self.pickled.update(Fraction(value, 7))
        if number % 100 == 0:
            self.some.add(value)
            self.lasting_list.add(value)
            self.lasting_map.put(value, number)
            ctx.timer_service().register_event_time_timer(THE_END + value)
        self.count.update(number)
        self.last.update(Reading(value, str(value), ["a", "b"]))
        self.digits.put(str(value % 10), value)
        self.sum.add(value)
        self.mean.add(value)
        self.lasting.update(number)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        key = ctx.get_current_key()
        if ctx.time_domain() is sw.TimeDomain.PROCESSING_TIME:
            yield "processing time", key, 1
        elif timestamp != THE_END:
            self.fired.update(self.fired.value() + 1)
            yield "fired", key, self.fired.value()
        else:
            yield "value", key, (self.count.value(), self.last.value(), self.pickled.value())
            yield "list", key, list(self.some.get())
            yield "map", key, sorted(self.digits.items())
            yield "reducing", key, self.sum.get()
            yield "aggregating", key, self.mean.get()
            yield "lasting", key, (self.lasting.value(), list(self.lasting_list.get()))
            yield "lasting map", key, sorted(self.lasting_map.items())
            yield "short", key, self.short.value()


class Remembers(sw.FlatMapFunction[int, Any], sw.CheckpointedFunction):
    """Operator state."""

    def initialize_state(self, context: sw.FunctionInitializationContext) -> None:
        store = context.operator_state_store
        self.own = store.get_list_state(sw.ListStateDescriptor("own", int))
        self.union = store.get_union_list_state(sw.ListStateDescriptor("union", str))
        if not context.is_restored:
            self.union.update(["of the first run"])

    def snapshot_state(self, context: sw.FunctionSnapshotContext) -> None:
        """The state is always up to date."""

    def flat_map(self, value: int) -> Iterator[Any]:
        if value % 100 == 0:
            self.own.add(value)
            yield "operator list", value, list(self.own.get())
            yield "union list", value, list(self.union.get())


LIMITS = sw.MapStateDescriptor("limits", int, key_type=str)


class Limited(sw.KeyedBroadcastProcessFunction[int, int, int, Any]):
    """Broadcast state, of a source that has come to its end."""

    def process_broadcast_element(self, value: int, ctx: Any) -> None:
        ctx.get_broadcast_state(LIMITS).put("all", value)

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        if value % 50 == 0:
            yield "limit", value, ctx.get_broadcast_state(LIMITS).get("all")


COMMITTED: dict[str, list[int]] = {}
"""By transaction."""


class Transactions(sw.TwoPhaseCommitSink[int, dict[str, Any]]):
    """Transactions that are committed in this process."""

    def begin_transaction(self) -> dict[str, Any]:
        return {"name": uuid4().hex, "numbers": []}

    def write(self, transaction: dict[str, Any], values: Sequence[int], timestamps: Sequence[int] | None) -> None:
        transaction["numbers"] += values

    def commit(self, transaction: dict[str, Any]) -> None:
        COMMITTED[transaction["name"]] = transaction["numbers"]

    def abort(self, transaction: dict[str, Any]) -> None:
        """Nothing is visible."""


class Ends(Exception):
    """The run is to leave its last checkpoint."""


async def held_up(value: int) -> int:
    if value % 10 == 0:
        await asyncio.sleep(0.02)
    return value


def refuse(value: int) -> int:
    if value % 97 == 0:
        raise ValueError(value)
    return value


def pipeline(out: list[Any], rate: int | None = None, until: Path | None = None) -> sw.Pipeline:
    """The job.

    Args:
        out: what it gives out is appended here.
        rate: records per second.
        until: fail when this directory has a checkpoint that knows of enough records.
    """

    def check(value: int) -> int:
        if until is not None and value % 20 == 0 and value > STOP_AT:
            numbers = [int(file.parent.name[4:]) for file in until.glob("*/*/metadata.json")]
            if max(numbers, default=0) >= 2:
                raise Ends
        return value

    in_order: sw.WatermarkStrategy[int] = sw.WatermarkStrategy.for_monotonous_timestamps()
    flow = sw.Pipeline("corpus", max_parallelism=16)
    # One by one up to where keys part: so each key's numbers come in order.
    numbers = flow.generate(
        lambda n: n, count=COUNT, rate=rate, timestamp=lambda n: n * 10, watermark_strategy=in_order
    ).set_parallelism(1)
    numbers = numbers.uid("numbers").map(check).set_parallelism(1)
    numbers = numbers.async_map(held_up, timeout=None).set_parallelism(1).uid("async")
    keyed = numbers.key_by(lambda n: n % KEYS)
    day = TumblingEventTimeWindows.of("1d")
    outputs: list[sw.DataStream[Any]] = [
        keyed.process(Everything()).uid("everything"),
        keyed.window(day).aggregate(Mean()).uid("tumbling").map(lambda mean: ("tumbling", 0, mean)),
        keyed.window(SlidingEventTimeWindows.of("2d", "1d"))
        .reduce(lambda a, b: a + b)
        .uid("sliding")
        .map(lambda total: ("sliding", 0, total)),
        keyed.window(EventTimeSessionWindows.with_gap("1d"))
        .process(lambda key, window, values: [("session", key, (len(values), window.start))])
        .uid("session"),
        keyed.count_window(7).process(lambda key, window, values: [("count window", key, values)]).uid("sevens"),
        keyed.map(lambda n: (n % KEYS, n))
        .key_by(lambda pair: pair[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
        .uid("reduce")
        .map(lambda pair: ("reduce", pair[0], pair[1])),
        numbers.flat_map(Remembers()).set_parallelism(1).uid("remembers"),
        keyed.connect(flow.from_collection([7]).uid("limits").broadcast(LIMITS)).process(Limited()).uid("limited"),
    ]
    for number, stream in enumerate(outputs):
        stream.for_each(out.append).set_parallelism(1).uid(f"out {number}")
    numbers.map(refuse).on_error("skip").set_parallelism(1).uid("refused").for_each(lambda n: None).uid("accepted")
    numbers.sink(Transactions()).set_parallelism(1).uid("transactions")
    return flow


def write(place: Path) -> None:
    """Write the corpus of one version into a new directory."""
    for kind in KINDS:
        letters, kept = place / kind / "letters", place / kind / "kept"
        options: dict[str, Any] = {"parallelism": 2, "dead_letters": letters, "restart": "none"}
        if kind == "savepoint":
            asyncio.run(_save(kept, options | {"checkpoint_interval": "1h"}))
            continue
        if kind == "unaligned":
            options |= {"checkpoint_unaligned": True, "buffer_timeout": "250ms"}
        else:
            options["state_backend"] = "memory" if kind == "memory" else "rocksdb"
        os.environ["SLUICEWAY_ROCKSDB_CHANGES"] = "0" if kind == "rocksdb" else "32"
        flow = pipeline([], 250, kept)
        try:
            flow.run(**options, checkpoints=kept, checkpoint_interval="300ms")
        except Ends:
            pass
        else:
            raise AssertionError("no checkpoint was there in time")
        for directory in kept.glob("*/chk-*"):
            if not (directory / "metadata.json").exists():
                shutil.rmtree(directory)
    for file in place.rglob("*"):
        if file.is_file() and file.parent.name == "letters":
            # A traceback names the file; in which directory of whose machine it was is nobody's business.
            file.write_bytes(file.read_bytes().replace(str(HERE.parent.parent).encode() + b"/", b""))


async def _save(kept: Path, options: dict[str, Any]) -> None:
    async with await pipeline([], 250).start(**options) as handle:
        while max((s.records_in for s in handle.metrics().subtasks), default=0) < STOP_AT:
            if handle.status.ended:
                await handle.result()
                raise AssertionError("it has ended before the savepoint was taken")
            await asyncio.sleep(0.005)
        await handle.savepoint(kept)


if __name__ == "__main__":
    target = HERE / (sys.argv[1] if len(sys.argv) > 1 else version("sluiceway"))
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory) / "corpus")
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(Path(directory) / "corpus", target)
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    print(f"{target}: {size} bytes")
