"""Slots: their allocation, and their sharing by subtasks. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final

import msgspec

from sluiceway.errors import NoResourceAvailableError
from sluiceway.graph.job_graph import JobGraph

__all__ = ["Slot", "SlotPool", "SlotSharing"]


_REMEMBERED: Final = 4096
"""Names of withdrawn workers that are remembered, as their slots are freed a while after."""


class Slot(msgspec.Struct, frozen=True):
    """Slot of a worker, which can run one subtask of every vertex of a group.

    Attributes:
        worker: name of the worker.
        index: index of the worker's slot, from 0.
    """

    worker: str
    index: int


class SlotPool:
    """Slots that workers offer, free and allocated. Not thread-safe."""

    def __init__(self) -> None:
        self._withdrawn: dict[str, None] = {}
        self._offered: dict[str, int] = {}
        self._free: dict[str, list[Slot]] = {}

    @property
    def total(self) -> int:
        """Number of slots that the workers offer."""
        return sum(self._offered.values())

    @property
    def available(self) -> int:
        """Number of free slots."""
        return sum(map(len, self._free.values()))

    def available_of(self, worker: str) -> int:
        """Return the number of a worker's free slots; 0: there is no such worker."""
        return len(self._free.get(worker, ()))

    def offer(self, worker: str, slots: int) -> None:
        """Add the slots of a new worker.

        Args:
            worker: a name that no worker had before: a worker that returns is a new one.
            slots: the number of slots.

        Raises:
            ValueError: a worker has that name, or had it lately, or it offers less than one slot.
        """
        if worker in self._offered or worker in self._withdrawn:
            raise ValueError(f"worker {worker!r} has offered its slots already: a new one needs a new name")
        if slots < 1:
            raise ValueError(f"worker {worker!r} offers {slots} slots: it must offer at least 1")
        self._offered[worker] = slots
        self._free[worker] = [Slot(worker, i) for i in range(slots)]

    def extend(self, worker: str, slots: int) -> None:
        """Add slots of a worker that has offered some already.

        Raises:
            KeyError: there is no such worker.
        """
        first = self._offered[worker]
        self._offered[worker] += slots
        self._free[worker] += [Slot(worker, first + i) for i in range(slots)]

    def withdraw(self, worker: str) -> None:
        """Remove a worker and its slots; freeing one of them later does nothing."""
        if self._offered.pop(worker, None) is None:
            return
        del self._free[worker]
        self._withdrawn[worker] = None
        if len(self._withdrawn) > _REMEMBERED:
            del self._withdrawn[next(iter(self._withdrawn))]

    def idle_workers(self) -> set[str]:
        """Return the workers without an allocated slot."""
        return {w for w, free in self._free.items() if len(free) == self._offered[w]}

    def allocate(self, count: int, purpose: str = "the job", before: Sequence[str | None] = ()) -> list[Slot]:
        """Allocate ``count`` free slots, or none at all; spread over the workers with the most free ones.

        Args:
            count: the number of slots.
            purpose: the user of the slots, for the message.
            before: for each slot the worker that is preferred, or None.

        Raises:
            NoResourceAvailableError: there are not so many.
        """
        if count > self.available:
            raise NoResourceAvailableError(
                f"{purpose} needs {count} more slot{'s' * (count != 1)}, but only {self.available} of"
                f" {self.total} {'is' if self.available == 1 else 'are'} free: lower the parallelism, let steps"
                " share a slot-sharing group, or run with more slots"
            )
        # First the preferred workers, then the rest, so that no slot goes to a subtask without a preference that
        # another one prefers.
        taken: list[Slot | None] = [
            self._free[worker].pop(0) if worker is not None and self._free.get(worker) else None
            for worker, _ in zip_longest(before, range(count))
        ]
        return [self._free[self._freest()].pop(0) if slot is None else slot for slot in taken]

    def _freest(self) -> str:
        # Spread, not packed: a job packed onto few workers leaves the cores of the others idle.
        return max(self._free, key=lambda worker: len(self._free[worker]))

    def free(self, slot: Slot) -> None:
        """Free a slot.

        Raises:
            ValueError: it is free already.
        """
        # The worker was withdrawn, and its slots with it.
        if slot.worker not in self._offered:
            return
        free = self._free[slot.worker]
        if slot in free:
            raise ValueError(f"slot {slot.index} of worker {slot.worker!r} was freed twice")
        free.append(slot)
        # By index, so that the next allocation does not depend on the order of releases.
        free.sort(key=lambda s: s.index)


class SlotSharing:
    """Slots of one job: subtask i of every vertex of a group is in the same slot.

    Not thread-safe.

    Args:
        job_graph: the job.
        pool: pool of the slots.
    """

    def __init__(self, job_graph: JobGraph, pool: SlotPool) -> None:
        self._job_graph = job_graph
        self._pool = pool
        self._slots: dict[tuple[str, int], Slot] = {}
        self._holders: dict[tuple[str, int], set[int]] = {}
        self._before: dict[tuple[str, int], str] = {}
        self._reserved: list[Slot] = []

    @property
    def held(self) -> int:
        """Number of slots that the job has, the reserved ones included."""
        return len(self._slots) + len(self._reserved)

    def reserve(self, count: int) -> None:
        """Allocate slots that no subtask gets before :meth:`release_all`.

        Raises:
            NoResourceAvailableError: there are not so many; none is allocated.
        """
        purpose = f"job {self._job_graph.job_name!r}, at another parallelism,"
        self._reserved += self._pool.allocate(count, purpose)

    def release_reserved(self) -> None:
        """Give back what was reserved."""
        reserved, self._reserved = self._reserved, []
        for slot in reserved:
            self._pool.free(slot)

    def release_all(self) -> None:
        """Give everything back. Harmless twice."""
        self.release_reserved()
        slots, self._slots = self._slots, {}
        self._holders.clear()
        for slot in slots.values():
            self._pool.free(slot)

    def resized(self, job_graph: JobGraph) -> SlotSharing:
        """Return the sharing of the same job at another parallelism, after this one has released everything."""
        sharing = SlotSharing(job_graph, self._pool)
        # Subtasks return to the workers of their last attempts, where local copies of their state may be.
        sharing._before = dict(self._before)
        return sharing

    def allocate(self, subtasks: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Slot]:
        """Give slots to subtasks, to all of them or to none; if possible on the workers of their last attempts.

        Args:
            subtasks: pairs of vertex id and subtask index.

        Raises:
            NoResourceAvailableError: there are not enough; the message has the numbers.
            ValueError: one of them has its slot already.
        """
        wanted = list(subtasks)
        shared = {who: (self._job_graph.vertex(who[0]).slot_sharing_group, who[1]) for who in wanted}
        for (vertex_id, subtask), share in shared.items():
            if vertex_id in self._holders.get(share, ()):
                name = self._job_graph.vertex(vertex_id).name
                raise ValueError(f"{name} [{subtask}] has a slot already")
        new = [share for share in dict.fromkeys(shared.values()) if share not in self._slots]
        before = [self._before.get(share) for share in new]
        slots = self._pool.allocate(len(new), self._purpose(new), before)
        # From here on nothing can fail: all subtasks get a slot, or none does.
        for share, slot in zip(new, slots, strict=True):
            self._slots[share] = slot
            self._before[share] = slot.worker
        for (vertex_id, _), share in shared.items():
            self._holders.setdefault(share, set()).add(vertex_id)
        return {who: self._slots[share] for who, share in shared.items()}

    def missing(self, subtasks: Iterable[tuple[int, int]]) -> int:
        """Return how many more slots :meth:`allocate` would take for these subtasks."""
        shares = {(self._job_graph.vertex(vertex_id).slot_sharing_group, i) for vertex_id, i in subtasks}
        return len(shares - self._slots.keys())

    def release(self, vertex_id: int, subtask: int) -> None:
        """Release the slot of a subtask that has ended; the last one in it frees the slot. Harmless twice."""
        share = (self._job_graph.vertex(vertex_id).slot_sharing_group, subtask)
        holders = self._holders.get(share)
        if holders is None or vertex_id not in holders:
            return
        holders.discard(vertex_id)
        if not holders:
            del self._holders[share]
            self._pool.free(self._slots.pop(share))

    def _purpose(self, new: list[tuple[str, int]]) -> str:
        groups: dict[str, int] = {}
        for group, _ in new:
            groups[group] = groups.get(group, 0) + 1
        listed = ", ".join(f"{group!r}: {count}" for group, count in groups.items())
        return f"job {self._job_graph.job_name!r} (slot-sharing group {listed})"
