"""Network buffers: every minimum is kept, nothing is lost, and who waits is told."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluiceway.errors import NoResourceAvailableError
from sluiceway.transport.buffers import NetworkBufferPool


def segments(count: int, size: int = 8) -> list[memoryview]:
    return [memoryview(bytearray(size)) for _ in range(count)]


def nothing() -> None:
    pass


def test_what_is_left_over_is_shared_out_in_proportion() -> None:
    network = NetworkBufferPool(segments(20))
    small = network.create_pool(2, 6, on_available=nothing)
    assert small.size == 6
    large = network.create_pool(4, None, on_available=nothing)
    # 14 are left over; the one could take 4 more, the other 16.
    assert (small.size, large.size) == (4, 16)
    small.close()
    assert large.size == 20


def test_a_minimum_that_cannot_be_met_is_refused_with_the_figures() -> None:
    network = NetworkBufferPool(segments(10))
    network.create_pool(8, on_available=nothing)
    with pytest.raises(
        NoResourceAvailableError,
        match="gate 'x' needs 3 network buffers, but 8 of the worker's 10 are promised",
    ):
        network.create_pool(3, on_available=nothing, name="gate 'x'")
    network.create_pool(2, on_available=nothing)


def test_none_left_is_back_pressure_and_recycling_wakes_who_waits() -> None:
    network = NetworkBufferPool(segments(2))
    woken = []
    pool = network.create_pool(2, on_available=lambda: woken.append(1))
    first, second = pool.request(), pool.request()
    assert first is not None
    assert second is not None
    assert pool.request() is None
    assert not pool.available
    first.release()
    assert woken == [1]
    second.release()
    assert woken == [1], "once per request that found none"


def test_a_pool_that_shrinks_gives_back_as_it_recycles() -> None:
    network = NetworkBufferPool(segments(4))
    one = network.create_pool(1, on_available=nothing)
    taken = [one.request() for _ in range(4)]
    woken = []
    other = network.create_pool(2, on_available=lambda: woken.append(1))
    assert (one.size, other.size) == (1, 3)
    assert other.request() is None, "all are still in use"
    for buffer in taken[:3]:
        assert buffer is not None
        buffer.release()
    assert woken
    assert all(other.request() is not None for _ in range(3))
    assert one.request() is None


def test_references_are_counted() -> None:
    pool = NetworkBufferPool(segments(1)).create_pool(1, on_available=nothing)
    buffer = pool.request()
    assert buffer is not None
    buffer.memory[:3] = b"abc"
    buffer.size = 3
    buffer.retain()
    buffer.release()
    assert buffer.data == b"abc"
    assert pool.in_use == 1
    buffer.release()
    assert pool.in_use == 0
    with pytest.raises(ValueError, match="segment 0 was released more often"):
        buffer.release()
    with pytest.raises(ValueError, match="segment 0 was recycled already"):
        buffer.retain()


class Pools(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.network = NetworkBufferPool(segments(12))
        self.pools: list[Any] = []
        self.held: list[tuple[Any, Any]] = []
        self.waiting: set[int] = set()

    @rule(minimum=st.integers(1, 5), more=st.integers(0, 12))
    def create(self, minimum: int, more: int) -> None:
        token = object()
        required = sum(p.minimum for p in self.pools)
        if required + minimum > 12:
            with pytest.raises(NoResourceAvailableError):
                self.network.create_pool(minimum, minimum + more, on_available=nothing)
            return
        box: list[Any] = [token]
        pool = self.network.create_pool(
            minimum, minimum + more, on_available=lambda: self.waiting.discard(id(box[0]))
        )
        box[0] = pool
        self.pools.append(pool)

    @precondition(lambda self: self.pools)
    @rule(data=st.data())
    def request(self, data: st.DataObject) -> None:
        pool = data.draw(st.sampled_from(self.pools))
        buffer = pool.request()
        if buffer is None:
            self.waiting.add(id(pool))
        else:
            self.held.append((pool, buffer))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        self.held.pop(index)[1].release()

    @precondition(lambda self: self.pools)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        pool = data.draw(st.sampled_from(self.pools))
        self.pools.remove(pool)
        self.waiting.discard(id(pool))
        pool.close()

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.network.available + len(self.held) == 12
        assert len({b.segment for _, b in self.held}) == len(self.held)
        assert sum(p.size for p in self.pools) <= 12
        for pool in self.pools:
            assert pool.minimum <= pool.size <= pool.maximum
            # Who waits, waits for a reason.
            assert not (id(pool) in self.waiting and pool.available)


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
