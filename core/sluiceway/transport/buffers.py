"""Network buffers: one pool of memory per worker, divided among result partitions.

A worker has a fixed number of segments of a fixed size. Each result partition has a local pool with a guaranteed
minimum and a maximum; what is left over after every minimum is divided in proportion to what each pool
can still take, again whenever a pool is created, closed or changes its bounds. A pool that shrinks returns
segments as they are recycled. The scheme is that of Flink's network stack. In a partition's pool each channel has
one segment that no other channel can take, so that a slow consumer blocks itself alone.

Input gates need no segments: received data stays in the carrier's memory until it is read, and
the gate's credit limits it.

Nothing here is thread-safe: all of it belongs to the worker's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from sluiceway.errors import NoResourceAvailableError

__all__ = ["Buffer", "ChannelBuffers", "LocalBufferPool", "NetworkBufferPool", "PartitionBuffers"]

_PER_CHANNEL: Final = 16
"""Segments that a partition can use for each of its channels at most."""


class _Home(Protocol):
    def _recycle(self, segment: int) -> None: ...


class Buffer:
    """Segment in use, counted by reference; made by a pool with one reference.

    Attributes:
        segment: index of the worker's segment.
        memory: the whole segment; its owner writes and other holders read.
        size: bytes of it that hold data.
    """

    __slots__ = ("_pool", "_references", "memory", "segment", "size")

    def __init__(self, pool: _Home, segment: int, memory: memoryview) -> None:
        self.segment = segment
        self.memory = memory
        self.size = 0
        self._pool = pool
        self._references = 1

    @property
    def data(self) -> memoryview:
        """Written bytes."""
        return self.memory[: self.size]

    def retain(self) -> Buffer:
        """Add a reference."""
        if self._references == 0:
            raise ValueError(f"segment {self.segment} was recycled already: it must not be used again")
        self._references += 1
        return self

    def release(self) -> None:
        """Drop a reference; the last one recycles the segment.

        Raises:
            ValueError: it was recycled already.
        """
        if self._references == 0:
            raise ValueError(f"segment {self.segment} was released more often than it was retained")
        self._references -= 1
        if self._references == 0:
            self._pool._recycle(self.segment)


class NetworkBufferPool:
    """Segments of one worker.

    Args:
        segments: their memory.
    """

    def __init__(self, segments: Sequence[memoryview]) -> None:
        self._memory = list(segments)
        # Taken from the end, where those are that were in use last: they are in the processor's cache.
        self._free = list(range(len(self._memory)))[::-1]
        self._pools: list[LocalBufferPool] = []
        self._waiting: dict[LocalBufferPool, None] = {}

    @property
    def total(self) -> int:
        """Number of segments."""
        return len(self._memory)

    @property
    def available(self) -> int:
        """Number of free segments."""
        return len(self._free)

    def create_pool(
        self, minimum: int, maximum: int | None = None, *, on_available: Callable[[], None], name: str = "a pool"
    ) -> LocalBufferPool:
        """Create a local pool.

        Args:
            minimum: guaranteed number of segments, at least 1.
            maximum: largest number of segments; None: all of the worker.
            on_available: called when a segment has become available after :meth:`LocalBufferPool.request` found
                none.
            name: for messages.

        Raises:
            NoResourceAvailableError: the minimum cannot be met beside those of the other pools; with the figures.
            ValueError: the bounds are invalid.
        """
        if minimum < 1 or (maximum is not None and maximum < minimum):
            raise ValueError(f"{name}: between {minimum} and {maximum} segments is not possible")
        self._check(name, minimum, self._pools)
        pool = LocalBufferPool(self, minimum, self.total if maximum is None else maximum, on_available, name)
        self._pools.append(pool)
        self._redistribute()
        return pool

    def _check(self, name: str, minimum: int, others: Sequence[LocalBufferPool]) -> None:
        required = sum(p.minimum for p in others)
        if required + minimum > self.total:
            raise NoResourceAvailableError(
                f"{name} needs {minimum} network buffers, but {required} of the worker's {self.total} are promised"
                f" to {len(others)} others: raise the option 'network-buffers', or lower the parallelism"
            )

    def _redistribute(self) -> None:
        """Divide what is left over, in proportion to what each pool can still take."""
        pools = self._pools
        left = self.total - sum(p.minimum for p in pools)
        wishes = [min(p.maximum, self.total) - p.minimum for p in pools]
        wished = sum(wishes)
        given = 0
        seen = 0
        for pool, wish in zip(pools, wishes, strict=True):
            # Rounded on the running total, so that nothing is lost and nobody gets more than was wished.
            seen += wish
            until = seen if wished <= left else left * seen // wished
            pool._resize(pool.minimum + until - given)
            given = until
        self._wake_waiting()

    def _take(self) -> int | None:
        return self._free.pop() if self._free else None

    def _give(self, segment: int) -> None:
        self._free.append(segment)
        self._wake_waiting()

    def _forget(self, pool: LocalBufferPool) -> None:
        self._pools.remove(pool)
        self._waiting.pop(pool, None)
        self._redistribute()

    def _wake_waiting(self) -> None:
        for pool in tuple(self._waiting):
            if not self._free:
                return
            # Checked again: the callback of a pool before may have taken the segment, or closed this pool.
            if pool in self._waiting and pool.in_use < pool.size:
                del self._waiting[pool]
                pool._on_available()


class LocalBufferPool:
    """Segments of one result partition or input gate; made by :meth:`NetworkBufferPool.create_pool`.

    Attributes:
        minimum: guaranteed number of segments.
        maximum: largest number of segments.
        size: number of segments that it may have now.
        in_use: number of segments in use.
    """

    def __init__(
        self, parent: NetworkBufferPool, minimum: int, maximum: int, on_available: Callable[[], None], name: str
    ) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.size = minimum
        self.in_use = 0
        self._parent = parent
        self._on_available = on_available
        self._name = name
        self._closed = False

    def __repr__(self) -> str:
        return f"<{self._name}: {self.in_use} of {self.size} buffers in use, {self.minimum} to {self.maximum}>"

    def request(self) -> Buffer | None:
        """Return a buffer, or None for back-pressure: then ``on_available`` will be called.

        Raises:
            ValueError: the pool is closed.
        """
        if self._closed:
            raise ValueError(f"{self._name} is closed and has no buffers to give")
        if self.in_use < self.size:
            segment = self._parent._take()
            if segment is not None:
                self.in_use += 1
                return Buffer(self, segment, self._parent._memory[segment])
        self.wait()
        return None

    def wait(self) -> None:
        """Have ``on_available`` called when a segment has come that this pool may have."""
        self._parent._waiting[self] = None

    def resize(self, minimum: int, maximum: int) -> None:
        """Change the bounds.

        Raises:
            NoResourceAvailableError: the minimum cannot be met beside those of the other pools; with the figures.
        """
        if minimum > self.minimum:
            self._parent._check(self._name, minimum, [p for p in self._parent._pools if p is not self])
        self.minimum, self.maximum = minimum, maximum
        self._parent._redistribute()

    @property
    def available(self) -> bool:
        """True if :meth:`request` would return a buffer."""
        return not self._closed and self.in_use < self.size and self._parent.available > 0

    def close(self) -> None:
        """Give up the pool's share. Buffers in use stay good until they are released."""
        if not self._closed:
            self._closed = True
            self._parent._forget(self)

    def _resize(self, size: int) -> None:
        self.size = size

    def _recycle(self, segment: int) -> None:
        self.in_use -= 1
        self._parent._give(segment)


class PartitionBuffers:
    """Local pool of one result partition, of which each channel has a part.

    Args:
        parent: the worker's pool.
        name: for messages.
    """

    def __init__(self, parent: NetworkBufferPool, name: str) -> None:
        self._parent = parent
        self._name = name
        self._pool: LocalBufferPool | None = None
        self._channels = 0
        self._idle = 0
        self._waiting: dict[ChannelBuffers, None] = {}

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self._channels

    @property
    def size(self) -> int:
        """Number of segments that the partition may have now."""
        return 0 if self._pool is None else self._pool.size

    def channel(self, on_available: Callable[[], None]) -> ChannelBuffers:
        """Create the part of one more channel.

        Args:
            on_available: called when a buffer may be free, after :meth:`ChannelBuffers.request` found none.

        Raises:
            NoResourceAvailableError: the worker has too few network buffers; with the figures.
        """
        count = self._channels + 1
        if self._pool is None:
            self._pool = self._parent.create_pool(1, _PER_CHANNEL, on_available=self._wake, name=self._name)
        else:
            self._pool.resize(count, count * _PER_CHANNEL)
        self._channels = count
        self._idle += 1
        return ChannelBuffers(self, on_available)

    def _request(self, channel: ChannelBuffers) -> Buffer | None:
        pool = self._pool
        assert pool is not None
        # One segment is left for each channel that has none.
        if channel.in_use and pool.in_use + self._idle >= pool.size:
            pool.wait()
            buffer = None
        else:
            buffer = pool.request()
        if buffer is None:
            self._waiting[channel] = None
        elif not channel.in_use:
            self._idle -= 1
        return buffer

    def _recycled(self, channel: ChannelBuffers, segment: int) -> None:
        # A channel without a segment has one reserved; a closed one has none.
        if not channel.in_use and not channel.closed:
            self._idle += 1
        pool = self._pool
        if pool is not None:
            pool._recycle(segment)

    def _left(self, channel: ChannelBuffers) -> None:
        pool = self._pool
        assert pool is not None
        self._waiting.pop(channel, None)
        self._idle -= not channel.in_use
        self._channels -= 1
        if self._channels:
            pool.resize(self._channels, self._channels * _PER_CHANNEL)
        else:
            pool.close()

    def _wake(self) -> None:
        # A channel that still finds no segment adds itself to the new dict.
        waiting, self._waiting = self._waiting, {}
        for channel in waiting:
            if not channel.closed:
                channel.on_available()


class ChannelBuffers:
    """Part of one channel in its partition's segments; made by :meth:`PartitionBuffers.channel`.

    Attributes:
        in_use: number of segments in use.
        closed: True after it was closed.
    """

    def __init__(self, partition: PartitionBuffers, on_available: Callable[[], None]) -> None:
        self.on_available = on_available
        self.in_use = 0
        self.closed = False
        self._partition = partition

    @property
    def size(self) -> int:
        """Number of segments that it may have now, when the partition's are divided evenly."""
        return 0 if self.closed else self._partition.size // self._partition.channels

    def request(self) -> Buffer | None:
        """Return a buffer, or None for back-pressure: then ``on_available`` will be called."""
        buffer = self._partition._request(self)
        if buffer is not None:
            self.in_use += 1
            # Recycled by way of the channel, which counts its segments.
            buffer._pool = self
        return buffer

    def close(self) -> None:
        """Give up its part. Buffers in use stay good until they are released."""
        if not self.closed:
            self._partition._left(self)
            self.closed = True

    def _recycle(self, segment: int) -> None:
        self.in_use -= 1
        self._partition._recycled(self, segment)
