from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace as replace_struct

import sluiceway as sw
from sluiceway import windows
from sluiceway.config.settings import OPTIONS, Settings
from sluiceway.connector import DeliveryGuarantee
from sluiceway.connector.lib import CallbackSink, CollectionSource, CollectSink, DiscardSink, PrintSink
from sluiceway.engine.capabilities import EVERYTHING, Capabilities, Feature, Unsupported
from sluiceway.errors import ConfigurationError, GraphError
from sluiceway.graph import Level
from sluiceway.graph.check.engine import check_engine
from sluiceway.graph.check.features import OPTION_FEATURES, is_bounded, uses
from sluiceway.graph.check.pipeline import refuse
from sluiceway.runtime.local.engine import LocalEngine
from sluiceway.state.ttl import StateTtlConfig
from sluiceway.testing import EOF, CollectingSink, TestSource

RATES = sw.MapStateDescriptor("rates")
LATE = sw.OutputTag("late", int)


class Bag(list[int]):
    """List of a user's class, whose methods may do anything."""

    def append(self, value: int) -> None: ...


class ExactSink(DiscardSink):
    @property
    def guarantee(self) -> DeliveryGuarantee:
        return DeliveryGuarantee.EXACTLY_ONCE


class SessionSink(ExactSink):
    needs_program = True
    commits_once = True


class SessionSource(CollectionSource[int]):
    needs_program = True
    commits_positions = True
    uses_events = True


class Expires(sw.MapFunction[int, int]):
    SEEN = sw.ValueStateDescriptor("seen", ttl=StateTtlConfig(timedelta(hours=1)))

    def map(self, value: int) -> int:
        return value


class Remembers(sw.MapFunction[int, int], sw.CheckpointedFunction, sw.CheckpointListener):
    def map(self, value: int) -> int:
        return value

    def initialize_state(self, context: Any) -> None: ...
    def snapshot_state(self, context: Any) -> None: ...


class SetsTimers(sw.KeyedProcessFunction[int, int, int]):
    def process_element(self, value: int, ctx: Any) -> Iterable[int]:
        ctx.timer_service().register_event_time_timer(value)
        yield value

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[int]:
        return [timestamp]


class Batches(sw.BatchProcessFunction[int, int]):
    def process_batch(self, batch: Any, ctx: Any) -> Any:
        return batch


class Converts(sw.BroadcastProcessFunction[int, int, int]):
    def process_element(self, value: int, ctx: Any) -> Iterable[int]:
        yield value

    def process_broadcast_element(self, value: int, ctx: Any) -> None: ...


async def wait(value: int) -> int:
    return value


def everything() -> Iterator[sw.DataStream[Any] | sw.Pipeline]:
    """Streams that ask for every feature that can be seen in a graph."""
    flow = sw.Pipeline("everything", parallelism=2)
    patient = sw.WatermarkStrategy.for_monotonous_timestamps().with_idleness("1s")
    numbers = flow.generate(
        count=3, timestamp=lambda n: n, watermark_strategy=patient.with_watermark_alignment("all", "1s")
    )
    endless = flow.generate(timestamp=lambda n: n)
    yield flow.source(SessionSource([1]))
    keyed = numbers.key_by(lambda n: n % 2)
    for way in (numbers.forward(), numbers.rebalance(), numbers.rescale(), numbers.shuffle(), numbers.broadcast()):
        yield way.map(lambda n: n).disable_chaining()
    yield numbers.global_().map(lambda n: n).set_parallelism(1).slot_sharing_group("apart")
    yield numbers.partition_custom(lambda key, n: 0, lambda n: n).map(Remembers()).on_error("skip")
    skipping = numbers.map(lambda n: n).on_error("skip")
    yield skipping.dead_letters()
    yield numbers.union(endless).filter(bool).process(Batches())
    yield keyed.count()
    yield keyed.map(Expires())
    yield keyed.process(SetsTimers())
    seconds = keyed.window(windows.TumblingEventTimeWindows.of("1s")).side_output_late_data(LATE).count()
    yield seconds
    yield seconds.get_side_output(LATE)
    yield keyed.window(windows.TumblingProcessingTimeWindows.of("1s")).count()
    yield keyed.count_window(3).count()
    yield numbers.window_all(windows.TumblingEventTimeWindows.of("1s")).count()
    other = numbers.key_by(lambda n: n % 2)
    yield keyed.interval_join(other).between(0, 1).apply(lambda a, b: a)
    yield keyed.asof_join(other).apply(lambda a, b: a)
    join = numbers.join(endless).where(lambda n: n).equal_to(lambda n: n)
    yield join.window(windows.TumblingEventTimeWindows.of("1s")).apply(lambda a, b: a)
    yield numbers.connect(endless).map(lambda n: n, lambda n: n)
    yield numbers.connect(endless.broadcast(RATES)).process(Converts())
    yield numbers.async_map(wait, timeout="1s")
    yield numbers.to_columns(pa.schema([("n", pa.int64())])).to_records()
    loop = numbers.iterate()
    yield loop.close_with(loop.map(lambda n: n))


def used(graph: Any, settings: Settings | None = None) -> set[Feature]:
    return {use.feature for use in uses(graph, settings or Settings())}


NOT_SEEN = {Feature.STATE_AS_DATA, Feature.SAVEPOINTS, Feature.STAYING_CLUSTER}
"""What no graph and no option asks for, but a command."""
OF_OPTIONS = {feature for feature in OPTION_FEATURES.values() if feature is not None}
OF_SINKS = {
    Feature.SINKS,
    Feature.TWO_PHASE_SINKS,
    Feature.COLLECTING,
    Feature.PROCESS_OBJECTS,
    Feature.PRINTING,
    Feature.PROGRAM_SINKS,
    Feature.REPLACING_SINKS,
}


def test_every_option_asks_for_a_feature() -> None:
    assert set(OPTION_FEATURES) == set(OPTIONS)


def test_every_feature_is_found() -> None:
    found = {Feature.PLUGIN_PARTITIONER} | OF_SINKS  # below
    for stream in everything():
        stream.sink(DiscardSink())  # type: ignore[union-attr]
    found |= used(stream._pipeline.graph())  # type: ignore[union-attr]
    assert set(Feature) - found - OF_OPTIONS == NOT_SEEN


@pytest.mark.parametrize(
    ("option", "value", "feature"),
    [
        ("checkpoint_unaligned", True, Feature.UNALIGNED),
        ("workers", 2, Feature.WORKERS),
        ("state_backend", "rocksdb", Feature.STATE_BACKENDS),
        ("restart", "fixed-delay:3:1s", Feature.RESTARTS),
    ],
)
def test_an_option_asks_for_something_where_it_is_not_the_default(
    option: str, value: Any, feature: Feature
) -> None:
    flow = sw.Pipeline("p")
    flow.from_collection([1]).sink(DiscardSink())
    plain = used(flow.graph())
    assert used(flow.graph(), replace(Settings(), **{option: value})) - plain == {feature}


@pytest.mark.parametrize(
    ("sink", "feature"),
    [
        (DiscardSink(), Feature.SINKS),
        (ExactSink(), Feature.TWO_PHASE_SINKS),
        (CollectSink(), Feature.COLLECTING),
        (CollectingSink(), Feature.PROCESS_OBJECTS),
        (CallbackSink([].append), Feature.PROCESS_OBJECTS),
        (CallbackSink(Counter().update, batch=True), Feature.PROCESS_OBJECTS),
        (CallbackSink(print), Feature.SINKS),
        (CallbackSink(Bag().append), Feature.SINKS),
        (PrintSink(), Feature.PRINTING),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_sinks_ask_for_what_they_are(sink: Any, feature: Feature) -> None:
    flow = sw.Pipeline("p")
    flow.from_collection([1]).sink(sink)
    assert used(flow.graph()) & OF_SINKS == {feature}


def test_a_list_is_not_filled_from_another_process() -> None:
    seen: list[int] = []
    flow = sw.Pipeline("p")
    flow.from_collection([1]).for_each(seen.append).name("keep")
    with pytest.raises(GraphError, match=r"'keep' \(.*fill copies; .*execute_and_collect\(\)"):
        flow.run(workers=1)
    flow.run()
    assert seen == [1]


def test_a_sink_of_the_program_commits_there_and_one_that_replaces_commits_once() -> None:
    flow = sw.Pipeline("p")
    flow.from_collection([1]).sink(SessionSink()).name("table")
    assert used(flow.graph()) & OF_SINKS == {
        Feature.TWO_PHASE_SINKS,
        Feature.PROGRAM_SINKS,
        Feature.REPLACING_SINKS,
    }
    for options, what in (
        ({"workers": 2}, r"'table' \(.*'local' with workers does not have sinks that commit in the program"),
        ({"checkpoint_interval": "1s"}, r"'table' \(.*sinks that replace what is there .*many commits"),
    ):
        with pytest.raises(GraphError, match=what):
            flow.run(**options)
    assert not [finding for finding in flow.check() if finding.code == "engine-lacks"]


def test_a_source_of_tests_asks_for_one_process() -> None:
    flow = sw.Pipeline("p")
    flow.source(TestSource([1, EOF])).sink(DiscardSink())
    assert Feature.PROCESS_OBJECTS in used(flow.graph())


def test_a_partitioner_of_a_plugin_is_told_from_the_built_in_ones() -> None:
    flow = sw.Pipeline("p")
    flow.from_collection([1]).shuffle().sink(DiscardSink())
    graph = flow.graph()
    (edge,) = graph.edges
    assert Feature.PLUGIN_PARTITIONER not in used(graph)
    other = replace(
        graph, edges=(replace_struct(edge, partitioner=replace_struct(edge.partitioner, name="by-weight")),)
    )
    assert used(graph) ^ used(other) == {Feature.SHUFFLE, Feature.PLUGIN_PARTITIONER}


class SetsNone(sw.KeyedProcessFunction[int, int, int]):
    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> Iterator[int]:
        yield value


def test_a_function_that_handles_timers_says_so_by_its_on_timer() -> None:
    flow = sw.Pipeline("p")
    keyed = flow.from_collection([1]).key_by(lambda n: n)
    keyed.map(Expires()).sink(DiscardSink())
    keyed.process(SetsNone()).sink(DiscardSink())
    assert Feature.TIMERS not in used(flow.graph())
    keyed.process(SetsTimers()).sink(DiscardSink())
    assert Feature.TIMERS in used(flow.graph())


@pytest.mark.parametrize(
    ("trigger", "by_clock"),
    [
        (windows.CountTrigger(3), False),
        (windows.PurgingTrigger(windows.ContinuousEventTimeTrigger("1s")), False),
        (windows.PurgingTrigger(windows.ContinuousProcessingTimeTrigger("1s")), True),
    ],
)
def test_a_trigger_by_the_clock_has_timers(trigger: windows.Trigger, by_clock: bool) -> None:
    flow = sw.Pipeline("p")
    keyed = flow.from_collection([1]).key_by(lambda n: n)
    keyed.window(windows.GlobalWindows.create()).trigger(trigger).count().sink(DiscardSink())
    assert (Feature.TIMERS in used(flow.graph())) is by_clock


def test_a_job_is_bounded_if_all_its_sources_are() -> None:
    flow = sw.Pipeline("p")
    flow.generate(count=3).sink(DiscardSink())
    assert is_bounded(flow.graph())
    flow.generate().sink(DiscardSink())
    assert not is_bounded(flow.graph())


LACKING = Capabilities(
    "engine 'half'",
    {
        Feature.ASYNC: Unsupported("it cannot wait", "call the service elsewhere"),
        Feature.UNALIGNED: Unsupported("it has barriers of its own", "leave it out"),
    },
    {Feature.IDLENESS: "Told apart once a minute."},
)


def program() -> sw.Pipeline:
    flow = sw.Pipeline("p")
    calm = sw.WatermarkStrategy.for_monotonous_timestamps().with_idleness("1s")
    numbers = flow.generate(count=3, timestamp=lambda n: n, watermark_strategy=calm)
    numbers.async_map(wait, timeout="1s").name("ask").sink(DiscardSink())
    return flow


def test_what_is_lacking_is_an_error_and_what_is_otherwise_a_warning() -> None:
    unaligned = Settings(checkpoint_unaligned=True)
    findings = check_engine(program().graph(), unaligned, LACKING)
    assert [(f.level, f.code, f.node, re.sub(r"\(\S+:\d+\)", "(HERE)", f.message)) for f in findings] == [
        (
            Level.WARNING,
            "engine-differs",
            "source(GeneratorSource)",
            "'source(GeneratorSource)' (HERE): idle sources (with_idleness) on engine 'half': Told apart once a "
            "minute.",
        ),
        (
            Level.ERROR,
            "engine-lacks",
            "ask",
            "'ask' (HERE): engine 'half' does not have asynchronous calls: it cannot wait; call the service "
            "elsewhere",
        ),
        (
            Level.ERROR,
            "engine-lacks",
            "",
            "checkpoint-unaligned is true: engine 'half' does not have unaligned checkpoints: it has barriers of "
            "its own; leave it out",
        ),
    ]
    assert Path(__file__).name in findings[1].location


def test_all_that_is_lacking_is_refused_at_once() -> None:
    with pytest.raises(GraphError, match=r"(?s)'p' has 2 problems:.*1\. 'ask' .*2\. checkpoint-unaligned is true"):
        refuse(program().graph(), Settings(checkpoint_unaligned=True), LACKING)
    plain = replace(LACKING, lacks={Feature.UNALIGNED: LACKING.lacks[Feature.UNALIGNED]})
    with pytest.raises(ConfigurationError, match=r"^checkpoint-unaligned is true: engine 'half' does not have"):
        refuse(program().graph(), Settings(checkpoint_unaligned=True), plain)
    refuse(program().graph(), Settings(), plain)
    refuse(program().graph(), Settings(checkpoint_unaligned=True), EVERYTHING)


def test_the_local_engine_refuses_what_is_for_others() -> None:
    engine = LocalEngine()
    flow = program()
    for settings, what in (
        (Settings(hosted=True), r"hosted is true: engine 'local' in one process does not .* --engine spark"),
        (Settings(hosted=True, workers=2), r"hosted is true: engine 'local' with workers does not"),
        (Settings(transport="shm"), r"transport 'shm' is between worker processes, .*: leave transport at 'auto'"),
    ):
        with pytest.raises(ConfigurationError, match=what):
            flow.prepare(settings)
    for fits in (Settings(), Settings(transport="local"), Settings(transport="shm", workers=2)):
        assert check_engine(flow.graph(fits), fits, engine.capabilities(fits, bounded=True)) == []


def test_objects_of_one_process_are_refused_with_workers_by_step() -> None:
    flow = sw.Pipeline("p")
    flow.source(TestSource([1, EOF])).name("script").sink(DiscardSink())
    with pytest.raises(
        GraphError, match=r"'script' \(.*\): engine 'local' with workers does not have functions that fill "
    ):
        flow.run(workers=2)
    (finding,) = [f for f in flow.check(workers=2) if f.code == "engine-lacks"]
    assert finding.node == "script"
    assert not [f for f in flow.check() if f.code == "engine-lacks"]


def test_streams_that_are_run_for_their_records_are_checked_too() -> None:
    stream = sw.Pipeline("p").source(TestSource([1, EOF])).map(lambda n: n)
    with pytest.raises(GraphError, match="engine 'local' with workers does not have functions that fill a list"):
        stream.execute_and_collect(workers=2)
