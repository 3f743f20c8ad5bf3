"""Source coordinators: the enumerator of each source, beside the job master."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from sluiceway.clock import Clock
from sluiceway.connector import Enumerator, Source
from sluiceway.isolation import copied
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.runtime.loop.tasklet import Scheduled
from sluiceway.runtime.source.enumerator_driver import EnumeratorDriver
from sluiceway.util.overriding import override

__all__ = ["SourceCoordinator"]

T = TypeVar("T")

_LATE_S: Final = 30.0
"""Seconds after which a first search that has not ended is logged."""


class _Search(Protocol):
    """Executor of blocking work, as :meth:`.JobHost.search`."""

    def __call__(self, work: Callable[[], T], done: Callable[[T, BaseException | None], None], /) -> None: ...


class SourceCoordinator(EnumeratorDriver):
    """Driver of a source's enumerator that sends splits to readers. Job master's thread, except :meth:`wake`.

    Assigned splits are in the readers' snapshots, unassigned ones in the enumerator's.

    Args:
        source: the source.
        parallelism: number of readers.
        clock: the runtime's clock.
        assign: sends splits to a reader.
        no_more: notifies a reader that no splits will come.
        post: calls an action in the job master's thread after a delay in seconds; from any thread.
        search: does blocking work in another thread, one after the other, and reports its end in the job master's.
        send_event: sends an event to a reader.
        restored: what an earlier enumerator's snapshot returned, or None.
    """

    def __init__(
        self,
        source: Source[Any],
        parallelism: int,
        clock: Clock,
        *,
        assign: Callable[[int, Sequence[Any]], None],
        no_more: Callable[[int], None],
        post: Callable[[Callable[[], None], float], Scheduled],
        search: _Search,
        send_event: Callable[[int, Any], None] = lambda reader, event: None,
        restored: Any = None,
    ) -> None:
        super().__init__(source, parallelism, clock, restored=restored)
        self._assign = assign
        self._end = no_more
        self._send_event = send_event
        self._post = post
        self._search = search
        # The enumerator whose first search is under way. All that comes up meanwhile waits for its end.
        self._searching: Enumerator | None = None
        self._asked: list[int] = []
        self._late: Scheduled | None = None
        self._may_block = False
        self._readers: set[int] = set()
        # Splits for readers that are not running yet.
        self._early: dict[int, list[Any]] = {}
        self._early_ends: set[int] = set()
        # Splits by reader: those assigned since the last checkpoint, and those between earlier incomplete ones.
        self._assigned: dict[int, list[Any]] = {}
        self._sealed: dict[int, dict[int, list[Any]]] = {}

    @override
    def start(self, readers: Iterable[int] = ()) -> None:
        enumerator = self.create()
        search = enumerator.first_search()
        if search is None:
            self.enumerator = enumerator
            enumerator.start()
            return
        # A store that is slow, or does not answer, must not keep the job master's thread from other jobs.
        self._may_block = True
        self._searching = enumerator
        self._late = self._post(self._note_late, _LATE_S)
        self._search(search, self._searched)

    def _searched(self, take: Callable[[], None], error: BaseException | None) -> None:
        enumerator, self._searching = self._searching, None
        if enumerator is None:
            return  # it was closed
        self._stop_waiting()
        self.enumerator = enumerator
        if error is not None:
            raise error
        take()
        for reader in sorted(self._readers):
            self.add_reader(reader)
        asked, self._asked = self._asked, []
        for reader in asked:
            self.request(reader)

    def _note_late(self) -> None:
        text = f"source {self.source.name} has looked for its first splits for {_LATE_S:g} s, and goes on"
        log(WARNING, "jobs", text)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()

    @override
    def close(self) -> None:
        self._stop_waiting()
        if not self._may_block:
            super().close()
            return
        enumerator = self.enumerator if self._searching is None else self._searching
        self.enumerator = self._searching = None
        if enumerator is not None:
            # Behind a search that is under way, which may use what is closed.
            self._search(partial(_close, enumerator, self.source.name), lambda nothing, error: None)

    def deliver(self, reader: int, splits: Sequence[Any]) -> None:
        """Send splits to a reader, once it is running."""
        # Copies: in one process a reader gets these objects, and may move them on. After a failure they go back.
        self._assigned.setdefault(reader, []).extend(map(_own, splits))
        if reader in self._readers:
            self._assign(reader, splits)
        else:
            # An enumerator that discovers splits by itself does not know that a reader is about to restart.
            self._early.setdefault(reader, []).extend(splits)

    def deliver_end(self, reader: int) -> None:
        """Notify a reader of the end, once it is running."""
        if reader in self._readers:
            self._end(reader)
        else:
            self._early_ends.add(reader)

    @override
    def send_event(self, reader: int, event: Any) -> None:
        if reader in self._readers:
            self._send_event(reader, event)

    @override
    def call_async(self, work: Callable[[], Callable[[], None]]) -> None:
        self._search(work, self._called)

    def _called(self, take: Callable[[], None], error: BaseException | None) -> None:
        if self.enumerator is None:
            return  # it was closed
        if error is not None:
            raise error
        take()

    def wake(self, after_s: float = 0.0) -> None:
        """Run the enumerator soon. From any thread."""
        self._post(self.run, after_s)

    def reader_ready(self, reader: int) -> None:
        """Handle a reader that has started."""
        is_open = self.enumerator is not None or self._searching is not None
        if is_open and reader not in self._readers:
            self._readers.add(reader)
            early = self._early.pop(reader, None)
            if early is not None:
                self._assign(reader, early)
            if reader in self._early_ends:
                self._early_ends.discard(reader)
                self._end(reader)
            self.add_reader(reader)

    def reader_failed(self, reader: int) -> None:
        """Return splits assigned since the last complete checkpoint: the reader restarts."""
        self._readers.discard(reader)
        self._asked = [each for each in self._asked if each != reader]
        self._early_ends.discard(reader)
        self._early.pop(reader, None)  # it is among the assigned splits
        # What was sealed belongs to checkpoints that are not complete, so the reader is restored from before it.
        given = (*self._sealed.values(), self._assigned)
        self.add_splits_back([split for assigned in given for split in assigned.pop(reader, ())], reader)

    def split_requested(self, reader: int) -> None:
        """Handle a reader's request for a split."""
        self.reader_ready(reader)
        if self._searching is not None:
            self._asked.append(reader)
        self.request(reader)

    @override
    def snapshot(self) -> Any:
        if self._searching is not None:
            return _own(self._restored)  # its readers have no split that is not in it
        # It is written when all tasks have acknowledged, and the enumerator assigns splits meanwhile.
        return _own(super().snapshot())

    def checkpoint(self, checkpoint_id: int) -> Any:
        """Return the enumerator's state for a checkpoint; the readers' snapshots hold splits assigned before.

        Raises:
            ConnectorError: as for :meth:`snapshot`.
        """
        state = self.snapshot()
        if self._assigned:  # no entry for checkpoints without new assignments
            self._sealed[checkpoint_id], self._assigned = self._assigned, {}
        return state

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Drop splits assigned before that checkpoint: the readers' snapshots hold them."""
        self._sealed = {id_: given for id_, given in self._sealed.items() if id_ > checkpoint_id}


def _close(enumerator: Enumerator, name: str) -> None:
    try:
        enumerator.close()
    except Exception as error:
        # The job may have ended by now.
        log(WARNING, "jobs", f"the enumerator of {name} could not be closed", error=error)


def _own(value: Any) -> Any:
    """Return a copy of what can be changed in it; the object itself if it cannot be copied.

    Fields of dataclasses are copied one by one: lists of many splits that cannot be changed are copied flat then.
    """
    try:
        if not is_dataclass(value) or isinstance(value, type):
            return copied(value)
        made = copy(value)
        for name in (one.name for one in fields(value) if hasattr(value, one.name)):
            object.__setattr__(made, name, copied(getattr(value, name)))
        return made
    except Exception:  # in one process: objects of the program that cannot be copied
        return value
