"""Operator of sessions with the default trigger; the open session of a key is held outside the state tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from textwrap import indent
from typing import Any, Final

from sluiceway.operators.context import OperatorContext
from sluiceway.operators.folds import Text, made_of
from sluiceway.operators.opened_functions import may_ask_for_state
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.operators.windows.merging import MergingWindowOperator
from sluiceway.record_errors import MISSING
from sluiceway.steps import WindowStep
from sluiceway.windows import EventTimeSessionWindows, EventTimeTrigger
from sluiceway.windows.base import TimeWindow, Window

__all__ = ["SessionWindowOperator", "works_on_sessions"]

_MOST: Final = 1 << 14
"""Largest number of held sessions: all are written before a snapshot, during which no record is processed."""

# Places in the list of a held session. The generated loop writes the first three as numbers.
_START, _END, _HELD, _PLACE, _STORED = range(5)

_LOOP: Final = """\
def loop(self, values, stamps, keys, sessions, begin, key_of, gap, assign, times, first, add):
    get = sessions.get
    for {names} in zip({lists}):
{key}        end = {end}
        try:
            session = get(key)
        except TypeError:
            stable_hash(key)  # says which key is unhashable
            raise
        if session is None or timestamp > session[1] or end < session[0]:
            session = begin(key, value, timestamp, end)
            if session is None:
                continue
        if end > session[1]:
            session[1] = end
        if timestamp < session[0]:
            session[0] = timestamp
        held = session[2]
{next}        session[2] = held
"""


@cache
def _session_loop(text: Text, *, with_keys: bool, dynamic: bool) -> Callable[..., None]:
    columns = {"value": "values", "timestamp": "stamps"} | ({"key": "keys"} if with_keys else {})
    source = _LOOP.format(
        names=", ".join(columns),
        lists=", ".join(columns.values()),
        key="" if with_keys else "        key = key_of(value)\n",
        end="assign(value, timestamp, times)[0][1]" if dynamic else "timestamp + gap",
        next=indent(text.next, " " * 8),
    )
    forms = ["keys"] * with_keys + ["dynamic gap"] * dynamic + [text.next.strip().replace("\n", "; ")]
    return made_of(f"<sluiceway: sessions, {', '.join(forms)}>", source)


def works_on_sessions(step: WindowStep) -> bool:
    """Return whether :class:`SessionWindowOperator` can run a step."""
    trigger = step.trigger or step.assigner.default_trigger()
    return (
        type(step.assigner) is EventTimeSessionWindows
        and type(trigger) is EventTimeTrigger
        and not step.allowed_lateness_ms
        # The current key is not set for each record, so no function may have state of its own.
        and not may_ask_for_state(step.fn)
    )


class SessionWindowOperator(MergingWindowOperator):
    """Operator of sessions of event time with the default trigger and without allowed lateness.

    The only session of a key is held as a list that its records change in place: its start, end, contents
    place, and whether the tables have a version of it. It is written to the tables when another session
    of the key begins, and before a snapshot; a session that ends before that is never in them.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        assigner: Any = self._assigner
        self._gap: int | None = assigner.gap_ms
        self._sessions: dict[Any, list[Any]] = {}

    # ---- records ----------------------------------------------------------------------------------------------

    def _loop(self, values: list[Any], stamps: list[int] | None, given: list[Any] | None) -> None:
        fold, sessions = self._contents.fold(), self._sessions
        loop = _session_loop(fold.text, with_keys=given is not None, dynamic=self._gap is None)
        called = self._assign, self._times, fold.first, fold.add
        loop(self, values, stamps, given, sessions, self._begin, self._key, self._gap, *called)
        if len(sessions) > _MOST:
            self._settle_all()

    def _begin(self, key: Any, value: Any, timestamp: int, end: int) -> list[Any] | None:
        """Return the held session that a record extends; None: the record is processed already."""
        self.store.current_key = key
        # The record does not touch the held session: from now on the key has several, in the tables.
        if key in self._sessions:
            self._settle(key)
        held = self._of(key)
        new = TimeWindow(timestamp, end)
        # The key has no session to merge with: the record is late by its own window.
        if not held:
            if new.max_timestamp <= self.current_watermark:
                self._too_late(value, timestamp)
                return None
            entries: dict[Any, Any] = {}
            self._contents.add(entries, key, value, timestamp)
            self._sessions[key] = [timestamp, end, entries[key], new, False]
            # Not moved while the session grows: when it fires too early, it is set again.
            self.event_timers.register(new.max_timestamp, key, new)
            return None
        # The only session of the key, and in the tables: held again if the record touches it.
        if len(held) == 1:
            window, place = held[0]
            if window.intersects(new) and (kept := self._entries_at(place).get(key, MISSING)) is not MISSING:
                session = self._sessions[key] = [*window, kept, place, True]
                return session
        if not self._add_merging(key, value, timestamp, new, held):
            self._too_late(value, timestamp)
        return None

    def _settle(self, key: Any) -> None:
        """Write the session of a key to the tables."""
        start, end, held, place, _ = self._sessions.pop(key)
        self._sets[key] = [(TimeWindow(start, end), place)]
        self._entries_at(place)[key] = held

    def _settle_all(self) -> None:
        for key in list(self._sessions):
            self._settle(key)

    # ---- time -------------------------------------------------------------------------------------------------

    def _on_timer(self, event_time: bool, timestamp: int, key: Any, window: Window) -> None:
        session = self._sessions.get(key)
        if session is None:
            super()._on_timer(event_time, timestamp, key, window)
            return
        place = session[_PLACE]
        if place != window:
            return  # it has become part of another session
        own = TimeWindow(session[_START], session[_END])
        if timestamp < own.max_timestamp:
            self.event_timers.register(own.max_timestamp, key, place)
        # The tables have an older version of it, which must be removed, too.
        elif session[_STORED]:
            self._settle(key)
            super()._on_timer(event_time, timestamp, key, window)
        else:
            del self._sessions[key]
            entries = {key: session[_HELD]}
            self._evaluate(key, own, entries)
            self._clear(key, own, entries)

    # ---- state ------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorSnapshot:
        """Return the state of all windows, with the held sessions."""
        self._settle_all()
        return super().snapshot()
