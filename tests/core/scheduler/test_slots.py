from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.errors import NoResourceAvailableError
from sluiceway.graph import JobGraph, slots_required
from sluiceway.scheduler import Slot, SlotPool, SlotSharing


def job_of(program: Any) -> JobGraph:
    """Three vertices: source (2) and reduce (4) in the default group, sink (3) in group io."""
    reduced = program.reduce(program.source(parallelism=2), parallelism=4)
    program.sink(reduced, parallelism=3, slot_sharing_group="io")
    job: JobGraph = program.job()
    return job


def everybody(job: JobGraph) -> list[tuple[int, int]]:
    return [(v.id, i) for v in job.vertices for i in range(v.parallelism)]


def pool_of(**workers: int) -> SlotPool:
    pool = SlotPool()
    for worker, slots in workers.items():
        pool.offer(worker, slots)
    return pool


class TestNeed:
    def test_is_the_highest_parallelism_of_each_group(self, program: Any) -> None:
        assert slots_required(job_of(program)) == {"default": 4, "io": 3}


class TestPool:
    def test_allocates_across_workers(self) -> None:
        pool = pool_of(a=2, b=2)
        assert {s.worker for s in pool.allocate(2)} == {"a", "b"}
        assert (pool.available, pool.total) == (2, 4)

    def test_all_or_nothing(self) -> None:
        pool = pool_of(a=2)
        pool.allocate(1)
        with pytest.raises(NoResourceAvailableError) as caught:
            pool.allocate(3, "job 'x'")
        message = str(caught.value)
        assert message.startswith("job 'x' needs 3 more slots, but only 1 of 2 is free")
        assert "lower the parallelism" in message
        assert pool.available == 1

    def test_freed_slots_can_be_taken_again(self) -> None:
        pool = pool_of(a=1)
        (slot,) = pool.allocate(1)
        pool.free(slot)
        assert pool.allocate(1) == [slot] == [Slot("a", 0)]

    def test_who_was_on_a_worker_gets_a_slot_there_if_there_is_one(self) -> None:
        pool = pool_of(a=1, b=2, c=4)
        slots = pool.allocate(4, before=["b", "gone", "a", "a"])
        assert [slot.worker for slot in slots] == ["b", "c", "a", "c"]
        assert pool.available == 3

    def test_free_slots_are_counted_by_worker(self) -> None:
        pool = pool_of(a=2, b=1)
        pool.allocate(1, before=["a"])
        assert [pool.available_of(worker) for worker in ("a", "b", "unknown")] == [1, 1, 0]
        pool.withdraw("a")
        assert pool.available_of("a") == 0

    def test_freeing_twice(self) -> None:
        pool = pool_of(a=1)
        (slot,) = pool.allocate(1)
        pool.free(slot)
        with pytest.raises(ValueError, match="slot 0 of worker 'a' was freed twice"):
            pool.free(slot)

    def test_a_worker_that_goes_takes_its_slots_along(self) -> None:
        pool = pool_of(a=2, b=1)
        taken = pool.allocate(3)
        pool.withdraw("a")
        for slot in taken:
            pool.free(slot)
        assert (pool.available, pool.total) == (1, 1)

    def test_offers_that_make_no_sense(self) -> None:
        pool = pool_of(a=1)
        with pytest.raises(ValueError, match="worker 'a' has offered its slots already"):
            pool.offer("a", 1)
        with pytest.raises(ValueError, match="worker 'b' offers 0 slots"):
            pool.offer("b", 0)

    def test_a_worker_that_comes_again_needs_a_new_name(self) -> None:
        pool = pool_of(a=1)
        pool.withdraw("a")
        pool.withdraw("a")
        with pytest.raises(ValueError, match="a new one needs a new name"):
            pool.offer("a", 1)

    def test_workers_that_are_long_gone_are_forgotten(self) -> None:
        pool = pool_of(a=1)
        for n in range(10_000):
            pool.withdraw("unknown")
            pool.offer(f"w{n}", 1)
            pool.withdraw(f"w{n}")
        assert len(pool._withdrawn) < 5_000
        with pytest.raises(ValueError, match="a new one needs a new name"):
            pool.offer("w9999", 1)
        assert (pool.available, pool.total) == (1, 1)


class TestSharing:
    def test_a_slot_holds_one_subtask_of_every_vertex_of_its_group(self, program: Any) -> None:
        job, pool = job_of(program), pool_of(a=4, b=4)
        slots = SlotSharing(job, pool).allocate(everybody(job))
        assert pool.available == 8 - 7
        source, reduce, sink = (v.id for v in job.vertices)
        assert [slots[source, i] for i in range(2)] == [slots[reduce, i] for i in range(2)]
        assert len({slots[reduce, i] for i in range(4)} | {slots[sink, i] for i in range(3)}) == 7

    def test_too_few_slots_give_none_and_say_the_numbers(self, program: Any) -> None:
        job, pool = job_of(program), pool_of(a=5)
        sharing = SlotSharing(job, pool)
        with pytest.raises(NoResourceAvailableError) as caught:
            sharing.allocate(everybody(job))
        assert "job 'test' (slot-sharing group 'default': 4, 'io': 3) needs 7 more slots" in str(caught.value)
        assert "only 5 of 5 are free" in str(caught.value)
        assert pool.available == 5
        assert sharing.missing(everybody(job)) == 7

    def test_the_last_one_out_gives_the_slot_back(self, program: Any) -> None:
        job, pool = job_of(program), pool_of(a=7)
        sharing = SlotSharing(job, pool)
        sharing.allocate(everybody(job))
        source, reduce, _ = (v.id for v in job.vertices)
        sharing.release(source, 0)
        sharing.release(source, 0)  # harmless
        assert pool.available == 0
        assert sharing.missing([(source, 0)]) == 0, "it would join the other"
        sharing.release(reduce, 0)
        assert pool.available == 1
        assert sharing.missing([(source, 0)]) == 1

    def test_a_second_slot_for_one_subtask(self, program: Any) -> None:
        job = job_of(program)
        sharing = SlotSharing(job, pool_of(a=7))
        sharing.allocate([(0, 1)])
        with pytest.raises(ValueError, match=r"source\(Numbers\) \[1\] has a slot already"):
            sharing.allocate([(0, 0), (0, 1)])
        assert sharing.missing([(0, 0)]) == 1

    def test_a_restarted_subtask_joins_the_slot_of_its_neighbours(self, program: Any) -> None:
        job, pool = job_of(program), pool_of(a=7)
        sharing = SlotSharing(job, pool)
        before = sharing.allocate(everybody(job))
        sharing.release(0, 1)
        assert sharing.allocate([(0, 1)]) == {(0, 1): before[0, 1]}

    def test_all_begin_anew_where_they_were(self, program: Any) -> None:
        job, pool = job_of(program), pool_of(a=4, b=4, c=4)
        sharing = SlotSharing(job, pool)
        before = sharing.allocate(everybody(job))
        for vertex_id, subtask in everybody(job):
            sharing.release(vertex_id, subtask)
        again = sharing.allocate(reversed(list(everybody(job))))
        assert {who: slot.worker for who, slot in again.items()} == {w: s.worker for w, s in before.items()}

    @given(data=st.data())
    @settings(max_examples=60, deadline=None)
    def test_nothing_is_lost_or_given_twice(self, new_program: Any, data: st.DataObject) -> None:
        job, pool = job_of(new_program()), pool_of(a=2, b=3)
        sharing = SlotSharing(job, pool)
        held: dict[tuple[int, int], Slot] = {}
        group = {v.id: v.slot_sharing_group for v in job.vertices}
        for who in data.draw(st.lists(st.sampled_from(everybody(job)), max_size=40)):
            if who in held:
                sharing.release(*who)
                del held[who]
            else:
                try:
                    held |= sharing.allocate([who])
                except NoResourceAvailableError:
                    assert pool.available == 0
                    continue
            shares = {(group[vertex], subtask) for vertex, subtask in held}
            assert len({(group[v], i, slot) for (v, i), slot in held.items()}) == len(shares)
            assert len(set(held.values())) == len(shares)
            assert pool.available == 5 - len(shares)
