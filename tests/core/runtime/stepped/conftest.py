"""A whole job by embedded subtasks: what an engine without tasks and transports would do, in one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluiceway.api import Pipeline
from sluiceway.clock import SystemClock
from sluiceway.config.settings import Settings
from sluiceway.plugins import default_manager
from sluiceway.runtime.microbatch.driven_enumerator import plan_splits
from sluiceway.runtime.stepped import SteppedPlan, SteppedTask
from sluiceway.steps import SourceStep


class Stages:
    """Runs a pipeline stage after stage; elements are bytes in between."""

    def __init__(self, flow: Pipeline, settings: Settings | None = None, **how: Any) -> None:
        settings = settings or Settings()
        self.services = default_manager().services()
        self.plan = SteppedPlan.of(flow.graph(settings), settings, self.services, **how)
        self.rows: list[tuple[int, int, int, int, bytes]] = []
        self.chains: list[SteppedTask] = []
        self.records_in = 0

    def chain(self, target: int, **how: Any) -> SteppedTask:
        vertex, subtask = self.plan.who(target)
        chain = SteppedTask(
            self.plan,
            vertex,
            subtask,
            state_backend=self.services.state_backend("memory"),
            clock=SystemClock(),
            services=self.services,
            own=self.plan.stage_of(vertex) != self.plan.last_stage,
            **how,
        )
        self.chains.append(chain)
        return chain

    def send(self, chain: SteppedTask) -> None:
        for stage, target, sender, seq, elements in chain.take():
            for place, payload in self.plan.pack_in_parts(sender, elements):
                self.rows.append((stage, target, sender, seq + place, payload))

    def run(self) -> Stages:
        for stage in range(self.plan.last_stage + 1):
            for target in self.plan.targets_of(stage):
                chain = self.chain(target)
                chain.open()
                if stage == 0:
                    step = chain.vertex.head.step
                    assert isinstance(step, SourceStep)
                    splits = plan_splits(step.source, chain.vertex.parallelism, SystemClock())
                    chain.add_splits(splits[chain.subtask])
                    chain.no_more_splits()
                    assert chain.read(1 << 30)
                    self.records_in += chain.records_in
                else:
                    mine = sorted(r for r in self.rows if r[1] == target)
                    for _, _, sender, _, payload in sorted(mine, key=lambda row: (row[3], row[2])):
                        chain.feed(sender, self.plan.unpack(sender, payload))
                assert chain.ended
                chain.snapshot(1)
                chain.completed(1)
                self.send(chain)
                chain.close()
        return self

    def close(self) -> None:
        for chain in self.chains:
            chain.close()


@pytest.fixture
def stages() -> Any:
    """``stages(flow)`` has a pipeline in stages; ``.run()`` runs it."""
    made: list[Stages] = []

    def make(flow: Pipeline, settings: Settings | None = None, **how: Any) -> Stages:
        made.append(Stages(flow, settings, **how))
        return made[-1]

    yield make
    for each in made:
        each.close()


Make = Callable[..., Stages]
