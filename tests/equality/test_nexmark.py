"""The queries of Nexmark have the answers of plain loops, wherever they run: all of them as one job."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from equality_engines import IN_PROCESS, ON_SPARK, OTHERS, Engine
from examples.nexmark import QUERIES, REFERENCE, NexmarkConfig, events_of, nexmark_events

import sluiceway as sw

COUNT = 2_000
CONFIGS = {
    "in order": NexmarkConfig(seed=1, events_per_second=100, base_time=NexmarkConfig().base_time - 10_000),
    "out of order": NexmarkConfig(seed=2, events_per_second=100, out_of_order_group_size=500),
}


def answers(config: NexmarkConfig, engine: Engine, place: Path) -> dict[str, Counter[object]]:
    flow = sw.Pipeline("nexmark")
    events = events_of(flow, COUNT, config)
    results = {name: query.build(events).collect() for name, query in QUERIES.items()}
    engine.run(flow, place, batch=400)
    return {name: Counter(QUERIES[name].final(results[name])) for name in QUERIES}


@pytest.mark.slow
@pytest.mark.parametrize("engine", [engine.parameter for engine in [IN_PROCESS, *OTHERS, *ON_SPARK]])
@pytest.mark.parametrize("config", CONFIGS)
def test_answers_are_those_of_plain_loops(config: str, engine: Engine, tmp_path: Path) -> None:
    events = list(nexmark_events(COUNT, CONFIGS[config]))
    found = answers(CONFIGS[config], engine, tmp_path)
    for name, got in found.items():
        expected = Counter(REFERENCE[name](events))
        assert got == expected, (
            f"{name}: missing {list((expected - got).elements())[:5]}, "
            f"in excess {list((got - expected).elements())[:5]}"
        )
        assert expected or name in ("q3", "q6", "q20"), f"{name} has no answer, so nothing was compared"
