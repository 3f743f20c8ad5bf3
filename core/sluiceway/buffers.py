"""Memory for data on its way between workers: one pool per worker, shared out among partitions and gates.

A worker has a fixed number of segments of a fixed size. Each result partition and each input gate has a local
pool with a minimum that is its own and a maximum; what is left over after every minimum is shared out in
proportion to what each pool can still take, anew whenever a pool comes or goes. A pool that shrinks gives
segments back as they are recycled. The scheme is that of Flink's network stack.

Nothing here is thread-safe: all of it belongs to the worker's loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from sluiceway.errors import NoResourceAvailableError

__all__ = ["Buffer", "LocalBufferPool", "NetworkBufferPool"]


class Buffer:
    """A segment in use, counted by reference; made by a pool with one reference.

    Attributes:
        segment: which of the worker's segments it is.
        memory: the whole segment; its owner writes and whoever got it reads.
        size: bytes of it that hold data.
    """

    __slots__ = ("_pool", "_references", "memory", "segment", "size")

    def __init__(self, pool: LocalBufferPool, segment: int, memory: memoryview) -> None:
        self.segment = segment
        self.memory = memory
        self.size = 0
        self._pool = pool
        self._references = 1

    @property
    def data(self) -> memoryview:
        """What was written."""
        return self.memory[: self.size]

    def retain(self) -> Buffer:
        """One more user."""
        if self._references == 0:
            raise ValueError(f"segment {self.segment} was recycled already: it must not be used again")
        self._references += 1
        return self

    def release(self) -> None:
        """One user less; the last one recycles the segment.

        Raises:
            ValueError: it was recycled already.
        """
        if self._references == 0:
            raise ValueError(f"segment {self.segment} was released more often than it was retained")
        self._references -= 1
        if self._references == 0:
            self._pool._recycle(self.segment)


class NetworkBufferPool:
    """All segments of one worker.

    Args:
        segments: their memory.
    """

    def __init__(self, segments: Sequence[memoryview]) -> None:
        self._memory = list(segments)
        self._free = deque(range(len(self._memory)))
        self._pools: list[LocalBufferPool] = []

    @property
    def total(self) -> int:
        """How many segments there are."""
        return len(self._memory)

    @property
    def available(self) -> int:
        """How many of them nobody has."""
        return len(self._free)

    def create_pool(
        self, minimum: int, maximum: int | None = None, *, on_available: Callable[[], None], name: str = "a pool"
    ) -> LocalBufferPool:
        """Make a local pool.

        Args:
            minimum: segments that it can always have, at least 1.
            maximum: segments that it may have at most; None: as many as there are.
            on_available: called when a segment has become available after :meth:`LocalBufferPool.request` found
                none.
            name: for messages.

        Raises:
            NoResourceAvailableError: the minimum cannot be met beside those of the other pools; with the figures.
            ValueError: the bounds are none.
        """
        if minimum < 1 or (maximum is not None and maximum < minimum):
            raise ValueError(f"{name}: between {minimum} and {maximum} segments is not possible")
        required = sum(p.minimum for p in self._pools)
        if required + minimum > self.total:
            raise NoResourceAvailableError(
                f"{name} needs {minimum} network buffers, but {required} of the worker's {self.total} are promised"
                f" to {len(self._pools)} others: lower the parallelism, or give the worker more network memory"
            )
        pool = LocalBufferPool(self, minimum, self.total if maximum is None else maximum, on_available, name)
        self._pools.append(pool)
        self._redistribute()
        return pool

    def _redistribute(self) -> None:
        """Share out what is left over, in proportion to what each pool can still take."""
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
        return self._free.popleft() if self._free else None

    def _give(self, segment: int) -> None:
        self._free.append(segment)
        self._wake_waiting()

    def _forget(self, pool: LocalBufferPool) -> None:
        self._pools.remove(pool)
        self._redistribute()

    def _wake_waiting(self) -> None:
        for pool in self._pools:
            if not self._free:
                return
            pool._segment_came()


class LocalBufferPool:
    """The segments of one result partition or input gate; made by :meth:`NetworkBufferPool.create_pool`.

    Attributes:
        minimum: segments that it can always have.
        maximum: segments that it can ever have.
        size: segments that it may have now.
        in_use: segments that it has handed out.
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
        self._waiting = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<{self._name}: {self.in_use} of {self.size} buffers in use, {self.minimum} to {self.maximum}>"

    def request(self) -> Buffer | None:
        """A buffer, or None if there is none now: that is back-pressure, and ``on_available`` will be called.

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
        self._waiting = True
        return None

    @property
    def available(self) -> bool:
        """Whether :meth:`request` would find one."""
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

    def _segment_came(self) -> None:
        if self._waiting and self.in_use < self.size:
            self._waiting = False
            self._on_available()
