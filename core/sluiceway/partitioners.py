"""The built-in partitioners. Each works on whole batches; what can be done by slicing is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError, GraphError
from sluiceway.faults import record_loop
from sluiceway.keygroups import subtasks_for_keys
from sluiceway.partitioner import Distribution, Partitioner
from sluiceway.streamgraph import PartitionerSpec

__all__ = ["BUILT_IN", "make_partitioner"]


class ForwardPartitioner(Partitioner):
    """To the consumer with the same index."""

    name = "forward"
    distribution = Distribution.POINTWISE

    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Everything to the one channel."""
        return ((0, batch),)


class RebalancePartitioner(Partitioner):
    """Round robin over all consumers, record by record, from a random start."""

    name = "rebalance"

    def setup(self, subtask: int, consumers: int, seed: int) -> None:
        """Draw the start."""
        super().setup(subtask, consumers, seed)
        self._next = Random(seed).randrange(consumers)

    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Every n-th record to each consumer."""
        n = self.consumers
        if n == 1:
            return ((0, batch),)
        values, stamps, first = batch.values, batch.timestamps, self._next
        self._next = (first + len(values)) % n
        return [
            ((first + i) % n, Batch(values[i::n], None if stamps is None else stamps[i::n]))
            for i in range(min(n, len(values)))
        ]


class RescalePartitioner(RebalancePartitioner):
    """Round robin over the local share of the consumers."""

    name = "rescale"
    distribution = Distribution.POINTWISE


class _RoutingPartitioner(Partitioner):
    """Base of those that decide for each record by itself."""

    def _scatter(
        self, batch: Batch[Any], routes: Sequence[int], keys: list[Any] | None
    ) -> list[tuple[int, Batch[Any]]]:
        parts: list[Batch[Any]] = [
            Batch([], None if batch.timestamps is None else [], None if keys is None else [])
            for _ in range(self.consumers)
        ]
        appends = [p.values.append for p in parts]
        for route, value in zip(routes, batch.values, strict=True):
            appends[route](value)
        if batch.timestamps is not None:
            appends = [p.timestamps.append for p in parts]  # type: ignore[union-attr]
            for route, stamp in zip(routes, batch.timestamps, strict=True):
                appends[route](stamp)
        if keys is not None:
            appends = [p.keys.append for p in parts]  # type: ignore[union-attr]
            for route, key in zip(routes, keys, strict=True):
                appends[route](key)
        return [(i, p) for i, p in enumerate(parts) if p.values]


class ShufflePartitioner(_RoutingPartitioner):
    """Each record to a random consumer."""

    name = "shuffle"

    def setup(self, subtask: int, consumers: int, seed: int) -> None:
        """Seed the lots."""
        super().setup(subtask, consumers, seed)
        self._random = Random(seed)

    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Draw a consumer for every record."""
        if self.consumers == 1:
            return ((0, batch),)
        routes = self._random.choices(range(self.consumers), k=len(batch.values))
        return self._scatter(batch, routes, None)


class BroadcastPartitioner(Partitioner):
    """Each record to every consumer."""

    name = "broadcast"

    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """The same batch for all."""
        return [(i, batch) for i in range(self.consumers)]


class GlobalPartitioner(Partitioner):
    """Everything to the first consumer."""

    name = "global"

    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Everything to channel 0."""
        return ((0, batch),)


class HashPartitioner(_RoutingPartitioner):
    """Each record to the consumer that owns its key's key group.

    With one consumer nothing is computed: the consumer works out the keys itself.

    Args:
        key: from a record to its key.
        max_parallelism: number of key groups of the consumer.
    """

    name = "hash"

    def __init__(self, key: Callable[[Any], Any], max_parallelism: int) -> None:
        self._key = key
        self._max_parallelism = max_parallelism

    def setup(self, subtask: int, consumers: int, seed: int) -> None:
        """Start with no known keys."""
        super().setup(subtask, consumers, seed)
        self._known: dict[Any, int] = {}

    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Route by key; the batches that go out carry the keys along."""
        if self.consumers == 1:
            return ((0, batch),)
        keys = self._keys(batch.values)
        routes = subtasks_for_keys(keys, self.consumers, self._max_parallelism, self._known)
        return self._scatter(batch, routes, keys)

    @record_loop
    def _keys(self, values: list[Any]) -> list[Any]:
        key_of = self._key
        keys: list[Any] = []
        add = keys.append
        for value in values:
            add(key_of(value))
        return keys


class CustomPartitioner(_RoutingPartitioner):
    """Each record to the consumer that the user's function names.

    Args:
        select: ``select(key, consumers) -> index``.
        key: from a record to what ``select`` is given; None: the record itself.
    """

    name = "custom"

    def __init__(self, select: Callable[[Any, int], int], key: Callable[[Any], Any] | None) -> None:
        self._select = select
        self._key = key

    @record_loop
    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Ask the function for every record."""
        select, key_of, n = self._select, self._key, self.consumers
        routes: list[int] = []
        for value in batch.values:
            key = value if key_of is None else key_of(value)
            route = select(key, n)
            if not isinstance(route, int) or not 0 <= route < n:
                raise FunctionContractError(
                    f"a custom partitioner returned {route!r}; it must return the index of one of {n} "
                    f"consumers, a whole number from 0 to {n - 1}"
                )
            routes.append(route)
        return self._scatter(batch, routes, None)


BUILT_IN: dict[str, type[Partitioner]] = {
    p.name: p
    for p in (
        ForwardPartitioner,
        RebalancePartitioner,
        RescalePartitioner,
        ShufflePartitioner,
        HashPartitioner,
        BroadcastPartitioner,
        GlobalPartitioner,
        CustomPartitioner,
    )
}


def make_partitioner(
    spec: PartitionerSpec, max_parallelism: int, plugin: Callable[[str], Partitioner]
) -> Partitioner:
    """Make the partitioner that an edge asks for.

    Args:
        spec: what the edge says.
        max_parallelism: number of key groups of the consumer.
        plugin: gives a plugin's partitioner by name.

    Raises:
        UnknownNameError: nothing goes by that name.
        GraphError: a custom partitioner without a function.
    """
    key = getattr(spec.key, "get_key", spec.key)
    if spec.name == "hash":
        return HashPartitioner(key, max_parallelism)
    if spec.name == "custom":
        if spec.select is None:
            raise GraphError("a custom partitioner needs a function: partition_custom(select, key)")
        return CustomPartitioner(spec.select, key)
    known = BUILT_IN.get(spec.name)
    return known() if known is not None else plugin(spec.name)
