"""Sinks chained to the stage before them: written by the tasks of Spark whose subtasks give them their records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from sluiceway.elements import Element
from sluiceway.engine import Services
from sluiceway.runtime.messages.pickling import dump
from sluiceway.runtime.microbatch.commit_log import CommitLog
from sluiceway.runtime.stepped import SteppedPlan, SteppedTask
from sluiceway_spark.persisted import SinkProgress
from sluiceway_spark.structured.row_format import Row
from sluiceway_spark.structured.stages.chained_sinks_spec import ChainedSinksSpec
from sluiceway_spark.structured.stages.sink_tasks import DELIVERED, finish_batch, open_sink, sink_chain
from sluiceway_spark.structured.state.placement import keys_of, partition_of

__all__ = ["REPLAYED", "ChainedSinks", "chained_sinks"]

REPLAYED: Final = "replayed"
"""Instead of the number of a micro-batch: this one was noted before, and is not written again."""

_NONE: Final = -1


def chained_sinks(
    plan: SteppedPlan, partitions: int, *, spread: bool, local: frozenset[int]
) -> dict[int, frozenset[int]]:
    """Return the producers of each sink subtask, if sinks can be chained to the last stateful stage, else none.

    A sink subtask can if all its producers are of that stage, and in one partition of state: then the task of that
    partition has all its records. Either all sinks that work in tasks of Spark are chained or none is. No exchange
    may follow the tasks that write: where an executor is lost, Spark repeats such a task although its outcome has
    been used, and the writer that opens again takes away what the first one has made ready.

    Args:
        plan: the job.
        partitions: of Spark's state.
        spread: whether subtasks are spread over the partitions; else a hash of their numbers decides.
        local: ids of the vertices whose sinks work in the driver.
    """
    stage = plan.last_stage - 1
    keys = keys_of(plan, partitions) if spread else list(range(plan.targets))
    found: dict[int, frozenset[int]] = {}
    for target in plan.targets_of(plan.last_stage):
        if plan.who(target)[0] in local:
            continue
        senders = (plan.from_whom(route.sender) for route in plan.senders_into(target))
        producers = frozenset(plan.target(edge.source, subtask) for edge, subtask in senders)
        of_stage = {plan.stage_of(plan.who(producer)[0]) for producer in producers} == {stage}
        if (
            stage < 1
            or not of_stage
            or len({partition_of(keys[producer], partitions) for producer in producers}) > 1
        ):
            return {}
        found[target] = producers
    return found


class ChainedSinks:
    """Chained sink subtasks in one task of Spark, for one micro-batch.

    The subtasks of the task give their output to :meth:`feed` and then call :meth:`done`. A sink subtask whose
    producers are all done is finished, also if it was fed nothing: the driver waits for its outcome. So each
    producer has to be called in each micro-batch, and gets a row in each.

    Args:
        plan: the job.
        services: what plugins give.
        chaining: the sinks.
        batch: number of the micro-batch.
        after: what the driver has told: the number of the last micro-batch that was noted, -1 if none was, or
            :data:`REPLAYED`.
    """

    def __init__(
        self, plan: SteppedPlan, services: Services, chaining: ChainedSinksSpec, batch: int, after: str
    ) -> None:
        self._plan = plan
        self._services = services
        self._location = chaining.location
        self._batch = batch
        self._after = after
        self._waiting = {target: set(producers) for target, producers in chaining.producers.items()}
        self._consumers: dict[int, list[int]] = {}
        for target, producers in chaining.producers.items():
            for producer in producers:
                self._consumers.setdefault(producer, []).append(target)
        self._chains: dict[int, SteppedTask] = {}
        self._progress: SinkProgress | None = None

    def __contains__(self, target: int) -> bool:
        return target in self._waiting

    def feed(self, target: int, sender: int, elements: Iterable[Element]) -> None:
        """Write elements of a sender, unless the sink has ended or the micro-batch was written before."""
        chain = self._open(target)
        if chain is not None:
            chain.feed(sender, elements)

    def done(self, producer: int) -> Iterator[Row]:
        """Yield the outcomes of the sinks whose producers are done with the micro-batch."""
        for target in self._consumers.get(producer, ()):
            waiting = self._waiting[target]
            waiting.discard(producer)
            if waiting:
                continue
            chain = self._open(target)
            if chain is not None:
                delivered = finish_batch(self._plan, chain, self._batch)
                del self._chains[target]
                chain.close()
                yield Row(self._plan.last_stage + DELIVERED, target, -1, 0, dump(delivered))

    def finish(self) -> None:
        """Close what is open. Raises RuntimeError if a sink was fed by some of its producers and not by all."""
        missing = {target: self._waiting[target] for target in self._chains}
        self.close()
        if missing:
            raise RuntimeError(
                "Spark has placed the producers of sink subtasks in several tasks, or has not called all of them: "
                f"{missing} are missing, by sink"
            )

    def close(self) -> None:
        """Close what is open, after a failure."""
        chains, self._chains = self._chains, {}
        for chain in chains.values():
            with suppress(Exception):
                chain.close()

    def _open(self, target: int) -> SteppedTask | None:
        if self._after == REPLAYED:
            return None
        found = self._chains.get(target)
        if found is not None:
            return found
        vertex, subtask = self._plan.who(target)
        name = self._plan.graph.vertex(vertex).uid, subtask
        progress = self._before()
        if name in progress.ended:
            return None
        chain = self._chains[target] = sink_chain(self._plan, target, self._services)
        open_sink(chain, progress.subtasks.get(name))
        return chain

    def _before(self) -> SinkProgress:
        """Return how far the sinks were before the micro-batch, from the log of commits."""
        if self._progress is None:
            self._progress = SinkProgress()
            if int(self._after) > _NONE:
                record = CommitLog(self._services.checkpoint_storage(self._location)).read(int(self._after))
                if record is None:
                    raise RuntimeError(f"the record of micro-batch {self._after} is not in {self._location}")
                self._progress = record.kept
        return self._progress
