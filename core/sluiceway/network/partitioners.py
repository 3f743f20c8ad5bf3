"""Built-in partitioners. Each works on whole batches, and by slicing where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from random import Random
from typing import Any, Final

from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError, GraphError
from sluiceway.keygroups import SubtaskCache, check_key
from sluiceway.partitioner import Distribution, Partitioner
from sluiceway.record_errors import record_loop, shown
from sluiceway.streamgraph import PartitionerSpec
from sluiceway.util.overriding import override

__all__ = ["BUILT_IN", "make_partitioner"]

_LEARNT: Final = 256
"""Records of a batch whose keys are worth being computed together."""

_FEW: Final = 8
"""One record of so many has a key that is not known: below that the keys of a batch are looked up as they come."""


class ForwardPartitioner(Partitioner):
    """Partitioner that sends everything to the consumer with the same index."""

    name = "forward"
    distribution = Distribution.POINTWISE

    @override
    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        return ((0, batch),)


class RebalancePartitioner(Partitioner):
    """Round robin over all consumers, record by record, from a random start."""

    name = "rebalance"

    def setup(self, subtask: int, consumers: int, seed: int) -> None:
        """Draw the first consumer."""
        super().setup(subtask, consumers, seed)
        # Random, so that many producers with few records each do not all begin with the first consumer.
        self._next = Random(seed).randrange(consumers)

    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Send every n-th record to each consumer."""
        n = self.consumers
        if n == 1:
            return ((0, batch),)
        if batch.columns is not None:
            return self._in_runs(batch)
        values, stamps, first = batch.values, batch.timestamps, self._next
        self._next = (first + len(values)) % n
        # One slice per consumer instead of a loop over the records.
        return [
            ((first + i) % n, Batch(values[i::n], None if stamps is None else stamps[i::n]))
            for i in range(min(n, len(values)))
        ]

    def _in_runs(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Send a run of rows to each consumer: a slice, where every n-th row would have to be copied."""
        n, size, first = self.consumers, len(batch), self._next
        runs = min(n, size)
        self._next = (first + runs) % n
        bounds = [size * i // runs for i in range(runs + 1)]
        return [((first + i) % n, batch.part(bounds[i], bounds[i + 1])) for i in range(runs)]


class RescalePartitioner(RebalancePartitioner):
    """Round robin over the local share of the consumers."""

    name = "rescale"
    distribution = Distribution.POINTWISE


class _RoutingPartitioner(Partitioner):
    """Base of partitioners that choose a consumer for each record."""

    def _scatter(self, batch: Batch[Any], routes: Sequence[int]) -> list[tuple[int, Batch[Any]]]:
        if batch.columns is not None:
            from sluiceway.columns.routing import scattered

            return scattered(batch.columns, batch.timestamps, routes, self.consumers)
        parts: list[list[Any]] = [[] for _ in range(self.consumers)]
        _deal(batch.values, routes, parts)
        return self._batches(parts, batch.timestamps, routes, None)

    def _batches(
        self,
        parts: list[list[Any]],
        timestamps: list[int] | None,
        routes: Sequence[int],
        keys: list[list[Any]] | None,
    ) -> list[tuple[int, Batch[Any]]]:
        stamps: list[list[int]] | None = None
        if timestamps is not None:
            stamps = [[] for _ in parts]
            _deal(timestamps, routes, stamps)
        return [
            (i, Batch(part, None if stamps is None else stamps[i], None if keys is None else keys[i]))
            for i, part in enumerate(parts)
            if part
        ]


def _deal(items: list[Any], routes: Sequence[int], parts: list[list[Any]]) -> None:
    appends = [part.append for part in parts]
    for route, item in zip(routes, items, strict=True):
        appends[route](item)


def _picked(batch: Batch[Any], indices: list[int]) -> Batch[Any]:
    values, stamps = batch.values, batch.timestamps
    return Batch([values[i] for i in indices], None if stamps is None else [stamps[i] for i in indices])


class ShufflePartitioner(_RoutingPartitioner):
    """Partitioner that sends each record to a random consumer."""

    name = "shuffle"

    def setup(self, subtask: int, consumers: int, seed: int) -> None:
        """Seed the random generator."""
        super().setup(subtask, consumers, seed)
        self._random = Random(seed)

    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Draw a consumer for every record."""
        if self.consumers == 1:
            return ((0, batch),)
        routes = self._random.choices(range(self.consumers), k=len(batch.values))
        return self._scatter(batch, routes)


class BroadcastPartitioner(Partitioner):
    """Partitioner that sends each record to every consumer."""

    name = "broadcast"

    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Send the same batch to all."""
        return [(i, batch) for i in range(self.consumers)]


class GlobalPartitioner(Partitioner):
    """Partitioner that sends everything to the first consumer."""

    name = "global"

    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Send the batch to channel 0."""
        return ((0, batch),)


class HashPartitioner(_RoutingPartitioner):
    """Partitioner that sends each record to the consumer that owns the key group of its key.

    With one consumer nothing is computed where the consumer computes the keys itself.

    Args:
        key: returns the key of a record.
        max_parallelism: number of key groups of the consumer.
        columns: names of the columns that rows are sent with; None: all.
        skips: whether the consumer skips records on which a function raises. A record without a key goes to the
            first consumer then, which computes the key again and makes a dead letter of it.
        checks: whether keys are computed for a single consumer, too. A step that computes no keys would else
            accept with one subtask what two refuse: keys that cannot be hashed, and records on which the key
            function raises.
    """

    name = "hash"
    step_name = "key_by"
    """For notes of failures: no step of the chain that sends has called the key function."""

    def __init__(
        self,
        key: Callable[[Any], Any],
        max_parallelism: int,
        columns: tuple[str, ...] | None = None,
        *,
        skips: bool = False,
        checks: bool = False,
    ) -> None:
        self._key = key
        self._max_parallelism = max_parallelism
        self._columns = None if columns is None else list(columns)
        self._skips = skips
        self._checks = checks
        self._with_keys = False
        self._learns = True
        self._rows: Any = None  # a KeyRouting, made for the first rows in columns: it needs pyarrow

    def setup(self, subtask: int, consumers: int, seed: int) -> None:
        """Clear the cache of known keys."""
        super().setup(subtask, consumers, seed)
        self._known = SubtaskCache(consumers, self._max_parallelism)
        self._known.misses = self._known.limit  # the first batch is of new keys
        self._learns = True
        self._rows = None

    @property
    def key(self) -> Callable[[Any], Any]:
        """Function that returns the key of a record."""
        return self._key

    def route(self, key: Any) -> int:
        """Return the index of the consumer of a key.

        Raises:
            TypeError: the key is not hashable.
            UnstableKeyError: the key's hash differs between processes.
        """
        return self._known[key]

    def carry_keys(self, all_by_reference: bool) -> None:
        """Send keys with the records if all consumers receive by reference; the wire format has none."""
        self._with_keys = all_by_reference

    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Route each record by its key."""
        columns = self._columns
        if columns is not None and batch.columns is not None:
            # Before the rows are taken apart: each column costs a copy there, and its bytes on the wire.
            batch = Batch.of_columns(batch.columns.select(columns), batch.timestamps)
        if self.consumers == 1 and not self._checks:
            return ((0, batch),)
        if batch.columns is not None:
            if self._rows is None:
                from sluiceway.columns.routing import KeyRouting

                self._rows = KeyRouting(self._key, self._known)
            return self._scatter(batch, self._rows.routes(batch.columns))
        try:
            return self._by_key(batch)
        except Exception:
            keyless = (
                [i for i, value in enumerate(batch.values) if not self._has_key(value)] if self._skips else []
            )
            if not keyless:
                raise
            others = sorted(set(range(len(batch.values))).difference(keyless))
            routed = self._by_key(_picked(batch, others)) if others else ()
            return [*routed, (0, _picked(batch, keyless))]

    def _has_key(self, value: Any) -> bool:
        try:
            check_key(self._key(value))
        except Exception:
            return False
        return True

    def _by_key(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        parts: list[list[Any]] = [[] for _ in range(self.consumers)]
        misses, self._known.misses = self._known.misses, 0
        # Where the batch before had many new keys.
        if self._learns and _LEARNT <= len(batch.values) <= misses * _FEW:
            return self._learning(batch, parts)
        if not self._with_keys:
            if batch.timestamps is None:
                self._split(batch.values, parts)
                return [(i, Batch(part)) for i, part in enumerate(parts) if part]
            stamps: list[list[int]] = [[] for _ in parts]
            self._split_stamped(batch.values, batch.timestamps, parts, stamps)
            return [(i, Batch(part, stamps[i])) for i, part in enumerate(parts) if part]
        keys: list[list[Any]] = [[] for _ in parts]
        routes = self._route(batch.values, parts, keys)
        return self._batches(parts, batch.timestamps, routes, keys)

    def _learning(self, batch: Batch[Any], parts: list[list[Any]]) -> Sequence[tuple[int, Batch[Any]]]:
        """Route a batch in which many keys are new: computed together, these cost a fraction."""
        keys = self._keys_of(batch.values)
        self._learns = self._known.learn(keys)
        routes = self._routes_of(batch.values, keys)
        _deal(batch.values, routes, parts)
        if not self._with_keys:
            return self._batches(parts, batch.timestamps, routes, None)
        keys_of_parts: list[list[Any]] = [[] for _ in parts]
        _deal(keys, routes, keys_of_parts)
        return self._batches(parts, batch.timestamps, routes, keys_of_parts)

    @record_loop
    def _keys_of(self, values: list[Any]) -> list[Any]:
        key_of = self._key
        keys: list[Any] = []
        for value in values:
            keys.append(key_of(value))  # not in a comprehension, which would hide the record of a failure
        return keys

    @record_loop
    def _routes_of(self, values: list[Any], keys: list[Any]) -> list[int]:
        known = self._known
        routes: list[int] = []
        for value, of_value in zip(values, keys, strict=True):  # noqa: B007 (read where it fails)
            try:
                routes.append(known[of_value])
            except TypeError:
                check_key(of_value)
                raise
        return routes

    # One pass each, touching every record as little as possible: memory access dominates the cost here.

    @record_loop
    def _split(self, values: list[Any], parts: list[list[Any]]) -> None:
        key_of, known = self._key, self._known
        append = [part.append for part in parts]
        for value in values:
            of_value = key_of(value)
            try:
                # The stable hash of a key is computed on its first record only; then this is a dict lookup.
                append[known[of_value]](value)
            except TypeError:
                check_key(of_value)  # says which key is unhashable
                raise

    @record_loop
    def _split_stamped(
        self, values: list[Any], timestamps: list[int], parts: list[list[Any]], stamps: list[list[int]]
    ) -> None:
        key_of, known = self._key, self._known
        append, append_stamp = [part.append for part in parts], [part.append for part in stamps]
        for value, timestamp in zip(values, timestamps, strict=True):
            of_value = key_of(value)
            try:
                route = known[of_value]
            except TypeError:
                check_key(of_value)
                raise
            append[route](value)
            append_stamp[route](timestamp)

    @record_loop
    def _route(self, values: list[Any], parts: list[list[Any]], keys: list[list[Any]]) -> list[int]:
        key_of, known = self._key, self._known
        append, append_key = [part.append for part in parts], [part.append for part in keys]
        routes: list[int] = []
        for value in values:
            of_value = key_of(value)
            try:
                route = known[of_value]
            except TypeError:
                check_key(of_value)
                raise
            routes.append(route)
            append[route](value)
            append_key[route](of_value)
        return routes


class CustomPartitioner(_RoutingPartitioner):
    """Partitioner that routes each record by a user function.

    Args:
        select: ``select(key, consumers) -> index``.
        key: returns the first argument of ``select`` for a record; None: the record itself.
    """

    name = "custom"
    step_name = "partition_custom"

    def __init__(self, select: Callable[[Any, int], int], key: Callable[[Any], Any] | None) -> None:
        self._select = select
        self._key = key

    @record_loop
    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        """Call the function for every record. Raises FunctionContractError for an index out of range."""
        select, key_of, n = self._select, self._key, self.consumers
        routes: list[int] = []
        for value in batch.values:
            key = value if key_of is None else key_of(value)
            chosen = select(key, n)
            route = chosen if type(chosen) is int else _whole_number(chosen)
            if route is None or not 0 <= route < n:
                raise FunctionContractError(
                    f"a custom partitioner returned {chosen!r}; it must return the index of one of {n} "
                    f"consumers, a whole number from 0 to {n - 1}"
                )
            routes.append(route)
        return self._scatter(batch, routes)


def _whole_number(chosen: Any) -> int | None:
    """Return an integer of another type, such as numpy's, as an int; None for what is none."""
    try:
        return index(chosen)
    except TypeError:
        return None


class _CheckedPartitioner(Partitioner):
    """Partitioner of a plugin, with a check of what it returns.

    Unchecked, an index of -1 would be the last consumer, and other mistakes would fail in the engine's words.
    """

    def __init__(self, checked: Partitioner) -> None:
        self._checked = checked
        self.name = checked.name
        self.distribution = checked.distribution

    @override
    def setup(self, subtask: int, consumers: int, seed: int) -> None:
        super().setup(subtask, consumers, seed)
        self._checked.setup(subtask, consumers, seed)

    @override
    def partition(self, batch: Batch[Any]) -> Sequence[tuple[int, Batch[Any]]]:
        parts = self._checked.partition(batch)
        if not isinstance(parts, list | tuple) or not all(map(self._is_part, parts)):
            raise FunctionContractError(
                f"{type(self._checked).__name__}.partition() of partitioner {self.name!r} returned "
                f"{shown(parts, 200)}; it must return a list of pairs: the index of one of {self.consumers} "
                f"consumers, a whole number from 0 to {self.consumers - 1}, and a Batch"
            )
        return parts

    def _is_part(self, part: object) -> bool:
        return (
            isinstance(part, tuple)
            and len(part) == 2
            and isinstance(part[0], int)
            and 0 <= part[0] < self.consumers
            and isinstance(part[1], Batch)
        )


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
    """Create the partitioner of an edge.

    Args:
        spec: name and functions from the stream graph.
        max_parallelism: number of key groups of the consumer.
        plugin: returns a plugin's partitioner by name.

    Raises:
        UnknownNameError: no partitioner has that name.
        GraphError: a custom partitioner has no function.
    """
    key = getattr(spec.key, "get_key", spec.key)
    if spec.name == "hash":
        return HashPartitioner(key, max_parallelism, spec.columns, skips=spec.skips, checks=spec.checks)
    if spec.name == "custom":
        if spec.select is None:
            raise GraphError("a custom partitioner needs a function: partition_custom(select, key)")
        return CustomPartitioner(spec.select, key)
    known = BUILT_IN.get(spec.name)
    return known() if known is not None else _CheckedPartitioner(plugin(spec.name))
