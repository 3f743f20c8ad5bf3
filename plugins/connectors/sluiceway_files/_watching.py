"""Continuous discovery: an enumerator that looks for new files while the job runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final, TypeAlias

from sluiceway.connector import EnumeratorContext
from sluiceway.connector.discovery import DiscoveringEnumerator
from sluiceway.errors import ConnectorError
from sluiceway.util.overriding import override
from sluiceway_files._places import Found
from sluiceway_files._splits import FileSplit

__all__ = ["Discovered", "WatchingEnumerator"]

_log: Final = logging.getLogger("sluiceway_files")

_REMEMBERED_MS: Final = 24 * 60 * 60 * 1000
"""For so long a file that is gone is still known: a directory that is away for a while is not read again."""

_Known: TypeAlias = tuple[int | None, float | None, int | None]
"""Size and time of modification of a file that was taken; since when it is gone (ms), None: it is there."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """State of the enumerator in checkpoints.

    Attributes:
        pending: splits that nobody has.
        known: by name, the files that were taken.
    """

    pending: list[FileSplit] = field(default_factory=list)
    known: dict[str, _Known] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Look:
    """Result of one look at the directory.

    Attributes:
        there: all files, by name.
        growing: those that are new and may not be complete.
        splits: of those that are new and complete.
        taken: what is to be known of these.
        at_ms: when it was taken.
    """

    there: dict[str, Found]
    growing: dict[str, Found]
    splits: list[FileSplit]
    taken: dict[str, _Known]
    at_ms: int


class WatchingEnumerator(DiscoveringEnumerator[_Look]):
    """Enumerator that takes each file once, when it is complete, and assigns its splits to readers on request.

    A file counts as complete when two looks find it with the same size and time of modification, or when it was
    modified longer ago than one interval.

    Args:
        context: given by the runtime.
        look: lists the files that are there, by name; may block; from any thread.
        planner: given the files of a look that are new and complete, the function that gives the splits of each;
            both may block, and are called in the same thread as ``look``.
        interval_ms: from the end of a look to the next one.
        restored: what an earlier enumerator kept.
    """

    _transient: ClassVar = (ConnectorError, OSError)

    def __init__(
        self,
        context: EnumeratorContext,
        look: Callable[[], dict[str, Found]],
        planner: Callable[[Sequence[Found]], Callable[[Found], list[FileSplit]]],
        interval_ms: int,
        restored: Discovered,
    ) -> None:
        super().__init__(
            context,
            interval_ms,
            create_thread=partial(ThreadPoolExecutor, 1, "sluiceway-files-watch"),
            log=_log,
            sought="files",
        )
        self._look = look
        self._planner = planner
        self._complete_after_ms = interval_ms
        self._pending = list(restored.pending)
        self._known = dict(restored.known)
        self._growing: dict[str, Found] = {}
        # Readers that have asked and have got nothing yet, in that order.
        self._waiting: dict[int, None] = {}

    @property
    @override
    def assigns_to_any(self) -> bool:
        return True

    def handle_split_request(self, reader: int) -> None:
        """Give the next split, or remember the reader until there is one."""
        self._waiting[reader] = None
        self._hand_out()

    def add_splits_back(self, splits: Sequence[FileSplit], reader: int) -> None:
        """Put the splits at the head of the list."""
        self._pending[:0] = splits
        self._waiting.pop(reader, None)  # its next attempt asks anew
        self._hand_out()

    def snapshot(self) -> Discovered:
        """Return the splits that nobody has, and the files that were taken."""
        return Discovered(list(self._pending), dict(self._known))

    # ---- inside ------------------------------------------------------------------------------------------------

    def _search(self) -> _Look:
        """Look, and plan what is new and complete."""
        # In the thread of searches. What it reads of this object changes in _take() alone, between two searches.
        there = self._look()
        now_ms = self._context.clock.now_ms()
        growing: dict[str, Found] = {}
        complete: dict[str, Found] = {}
        for name, file in there.items():
            known = self._known.get(name)
            if known is not None and (known[2] is None or known[:2] == (file.size, file.modified)):
                continue
            if self._is_complete(file, self._growing.get(name), now_ms):
                complete[name] = file
            else:
                growing[name] = file
        splits: list[FileSplit] = []
        taken: dict[str, _Known] = {}
        plan = self._planner(list(complete.values()))
        for name, file in complete.items():
            try:
                splits += plan(file)
            except ConnectorError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    continue  # it was moved away since it was listed
                raise
            taken[name] = (file.size, file.modified, None)
        return _Look(there, growing, splits, taken, now_ms)

    def _is_complete(self, file: Found, before: Found | None, now_ms: int) -> bool:
        if before is not None and (before.size, before.modified) == (file.size, file.modified):
            return True
        return file.modified is not None and now_ms - file.modified * 1000 >= self._complete_after_ms

    def _take(self, found: _Look) -> None:
        self._growing = found.growing
        self._pending += found.splits
        for name, (size, modified, gone_ms) in list(self._known.items()):
            file = found.there.get(name)
            if file is None:
                if gone_ms is None:
                    self._known[name] = (size, modified, found.at_ms)
                elif found.at_ms - gone_ms >= _REMEMBERED_MS:
                    del self._known[name]
            elif (file.size, file.modified) == (size, modified):
                if gone_ms is not None:
                    self._known[name] = (size, modified, None)
            elif gone_ms is None:
                _log.warning(
                    "%s was changed after it was taken: files are read once. Write to a name that begins with '.' "
                    "and rename when the file is complete",
                    name,
                )
                self._known[name] = (file.size, file.modified, None)
        self._known |= found.taken

    def _hand_out(self) -> None:
        while self._pending and self._waiting:
            reader = next(iter(self._waiting))
            del self._waiting[reader]
            self._context.assign(reader, [self._pending.pop(0)])
