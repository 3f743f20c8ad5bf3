"""Plans tell what is set of a step: triggers, evictors, lateness, bounds and so on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.windows import CountEvictor, CountTrigger, EventTimeTrigger, TumblingEventTimeWindows

LATE = sw.OutputTag[Any]("late")


class Mine(EventTimeTrigger):
    """Says nothing of itself."""

    __repr__ = object.__repr__


async def look_up(value: Any) -> Any:
    return value


class Rules(sw.BroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> None: ...

    def process_broadcast_element(self, value: Any, ctx: Any) -> None: ...


def keyed(stream: Any) -> Any:
    return stream.key_by(lambda n: n)


def cut(stream: Any) -> Any:
    return keyed(stream).window(TumblingEventTimeWindows.of("10s"))


def first(left: Any, right: Any) -> Any:
    return left


RETRIES = sw.AsyncRetryStrategy.fixed_delay(3, "1s")

LAST = sw.ValueStateDescriptor("last", ttl=sw.StateTtlConfig("1s"))


class Remembers(sw.KeyedProcessFunction[Any, Any, Any]):
    SEEN = sw.ValueStateDescriptor("seen", ttl=sw.StateTtlConfig("1h"))
    EVER = sw.ValueStateDescriptor("ever", int)

    def open(self, runtime_context: sw.RuntimeContext) -> None:
        self._last = runtime_context.get_state(LAST)

    def process_element(self, value: Any, ctx: Any) -> Any:
        return ()


CASES: list[tuple[Callable[[Any], Any], dict[str, Any], str]] = [
    (lambda s: cut(s).count(), {}, "state, gives"),
    (
        lambda s: cut(s).trigger(CountTrigger.of(5)).evictor(CountEvictor.of(3)).count(),
        {"trigger": "CountTrigger(5)", "evictor": "CountEvictor(3)"},
        "state, trigger CountTrigger(5), evictor CountEvictor(3), gives",
    ),
    (lambda s: cut(s).trigger(Mine()).count(), {"trigger": "Mine"}, "state, trigger Mine, gives"),
    (
        lambda s: cut(s).allowed_lateness("5s").side_output_late_data(LATE).count(),
        {"allowed_lateness_ms": 5000, "late_output": "late"},
        "state, allowed lateness 5s, late output 'late', gives",
    ),
    (
        lambda s: keyed(s).count_window(3).sum(),
        {"trigger": "PurgingTrigger(CountTrigger(3))"},
        "state, trigger PurgingTrigger(CountTrigger(3)), ",
    ),
    (
        lambda s: (
            keyed(s).interval_join(keyed(s)).between("-5s", 1500).side_output_left_late_data(LATE).apply(first)
        ),
        {"bounds_ms": [-5000, 1500], "left_late_output": "late"},
        "state, bounds -5s to 1500ms, left late output 'late', ",
    ),
    (lambda s: keyed(s).asof_join(keyed(s)).apply(first), {}, "state, uid "),
    (
        lambda s: keyed(s).asof_join(keyed(s), tolerance="1min", how="inner").apply(first),
        {"how": "inner", "tolerance_ms": 60_000},
        "state, inner, tolerance 1min, ",
    ),
    (
        lambda s: s.async_map(look_up, timeout="3s", capacity=7, ordered=False, retry=RETRIES),
        {"order": "unordered", "capacity": 7, "timeout_ms": 3000, "retry": "fixed_delay(3, 1000)"},
        "state, unordered, capacity 7, timeout 3s, retry fixed_delay(3, 1000), ",
    ),
    (
        lambda s: s.connect(s.broadcast(sw.MapStateDescriptor("a"), sw.MapStateDescriptor("b"))).process(Rules()),
        {"broadcast_state": ["a", "b"]},
        "state, broadcast state 'a', 'b', ",
    ),
    (
        lambda s: s.assign_timestamps_and_watermarks(
            sw.WatermarkStrategy.for_monotonous_timestamps().with_idleness("10s")
        ),
        {"idleness_ms": 10_000},
        "  idleness 10s, ",
    ),
    (
        lambda s: s.key_by(lambda n: n).process(Remembers()),
        {"time_to_live_ms": {"seen": 3_600_000, "last": 1_000}, "pickled_state": ["seen", "last"]},
        "state, 'seen' lives 1h, 'last' lives 1s, pickled state 'seen', 'last', ",
    ),
]


@pytest.mark.parametrize(("make", "settings", "told"), CASES)
def test_settings_are_told(make: Callable[[Any], Any], settings: dict[str, Any], told: str) -> None:
    flow = sw.Pipeline("settings")
    make(flow.from_collection([1]).returns(int).name("numbers")).name("this").print()
    steps = {step["name"]: step for step in json.loads(flow.explain("json"))["steps"]}
    assert steps["this"]["settings"] == settings
    line = next(line for line in flow.explain("text").splitlines() if line.strip().startswith("this "))
    assert told in line
    html = flow.explain("html").replace("&#x27;", "'")
    for word in [part for part in told.strip().split(", ")[1:-1] if part]:
        assert word in html
    assert steps["numbers"]["settings"] == {}


def test_a_source_tells_with_whom_it_keeps_in_step() -> None:
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_watermark_alignment("readers", "30s")
    flow = sw.Pipeline("settings")
    flow.from_collection([1], watermark_strategy=strategy).name("numbers").print()
    assert json.loads(flow.explain("json"))["steps"][0]["settings"] == {
        "alignment_group": "readers",
        "max_drift_ms": 30_000,
    }
    assert "bounded, alignment group readers, max drift 30s, " in flow.explain("text")
