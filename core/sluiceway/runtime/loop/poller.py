"""Poller: the only place where a worker sleeps, until a file is ready, a deadline passes, or a wake-up."""

from __future__ import annotations

import os
import selectors
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from sluiceway.connector import Wait
from sluiceway.util.overriding import override

__all__ = ["Poller", "SelectorPoller"]

_LONGEST_S: Final = 86_400.0
"""Longest sleep in seconds: the system's timers end after 24 days."""


class Poller(ABC):
    """Poller of files on behalf of tasks. All methods except :meth:`wake` from the worker's thread."""

    @abstractmethod
    def watch(self, owner: object, wait: Wait, ready: Callable[[], None]) -> None:
        """Call ``ready`` once, from :meth:`poll`, when the file of ``wait`` is ready."""

    @abstractmethod
    def forget(self, owner: object) -> None:
        """Stop watching for ``owner``, who may close its files now."""

    def keep(self, fileno: int, write: bool, ready: Callable[[], None]) -> None:
        """Call ``ready`` from :meth:`poll` whenever the file is ready, until :meth:`drop`."""
        raise NotImplementedError(f"{type(self).__name__} watches no files for good")

    def drop(self, fileno: int, write: bool) -> None:
        """Stop :meth:`keep`; harmless if the file is not registered."""
        raise NotImplementedError(f"{type(self).__name__} watches no files for good")

    @abstractmethod
    def watching(self) -> bool:
        """Return whether any file is watched."""

    @abstractmethod
    def poll(self, timeout_s: float | None) -> None:
        """Sleep until a file is ready or :meth:`wake` is called, at most ``timeout_s`` (None: for ever)."""

    @abstractmethod
    def wake(self) -> None:
        """End a sleep, the present one or the next. From any thread and from signal handlers."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""


class _Watch(NamedTuple):
    owner: object
    event: int
    ready: Callable[[], None]


def _event(write: bool) -> int:
    return selectors.EVENT_WRITE if write else selectors.EVENT_READ


@contextmanager
def _woken_by_signals(fileno: int) -> Iterator[None]:
    """Have signals write to a file in this context, unless they write to one of the program's own.

    Python runs handlers between bytecodes. A signal that comes after the last of them and before the system call
    does not interrupt the latter: its handler would wait until the sleep is over, which may be never.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.set_wakeup_fd(fileno, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
    try:
        yield
    finally:
        if before == -1:
            signal.set_wakeup_fd(-1)


class SelectorPoller(Poller):
    """Poller on the operating system's selector."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        os.set_blocking(self._wake_in, False)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        # Several owners may wait for one file, but the selector knows each descriptor once.
        self._watches: dict[int, list[_Watch]] = {}
        self._kept: dict[int, dict[int, Callable[[], None]]] = {}
        self._closed = False

    def watch(self, owner: object, wait: Wait, ready: Callable[[], None]) -> None:
        """Register the file, or add to what is registered for it."""
        assert wait.fileno is not None
        event = selectors.EVENT_WRITE if wait.write else selectors.EVENT_READ
        watches = self._watches.get(wait.fileno, [])
        self._set(wait.fileno, [*watches, _Watch(owner, event, ready)])

    def forget(self, owner: object) -> None:
        """Unregister what ``owner`` watched."""
        for fileno, watches in list(self._watches.items()):
            kept = [w for w in watches if w.owner is not owner]
            if len(kept) != len(watches):
                self._set(fileno, kept)

    def keep(self, fileno: int, write: bool, ready: Callable[[], None]) -> None:
        """Register the file for good."""
        known = self._kept.get(fileno)
        if known is None:
            self._kept[fileno] = {_event(write): ready}
            self._selector.register(fileno, _event(write))
        else:
            known[_event(write)] = ready
            self._selector.modify(fileno, sum(known))

    @override
    def drop(self, fileno: int, write: bool) -> None:
        known = self._kept.get(fileno)
        if known is None or known.pop(_event(write), None) is None or self._closed:
            return
        if known:
            self._selector.modify(fileno, sum(known))
        else:
            del self._kept[fileno]
            self._selector.unregister(fileno)

    @override
    def watching(self) -> bool:
        return bool(self._watches or self._kept)

    def poll(self, timeout_s: float | None) -> None:
        """Sleep, at most as long as the system's timers allow, then call back for each file that is ready."""
        for key, events in self._select(timeout_s):
            if key.fd == self._wake_out:
                self._drain()
                continue
            if key.fd in self._kept:
                for event, ready in list(self._kept[key.fd].items()):
                    # A callback before this one may have dropped the file.
                    if event & events and event in self._kept.get(key.fd, ()):
                        ready()
                continue
            # Once only, and unregistered first: the callback may close the file.
            watches = self._watches.get(key.fd, [])
            self._set(key.fd, [w for w in watches if not w.event & events])
            for watch in watches:
                if watch.event & events:
                    watch.ready()

    def wake(self) -> None:
        """Write a byte to the pipe; a full pipe ends the sleep as well."""
        if not self._closed:
            try:
                os.write(self._wake_in, b"\0")
            # A full pipe, or one that the worker's thread has closed since the check.
            except OSError:
                return

    @override
    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._selector.close()
            os.close(self._wake_in)
            os.close(self._wake_out)

    def _select(self, timeout_s: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout_s == 0:
            return self._selector.select(0)
        with _woken_by_signals(self._wake_in):
            return self._selector.select(None if timeout_s is None else min(timeout_s, _LONGEST_S))

    def _set(self, fileno: int, watches: list[_Watch]) -> None:
        events = 0
        for watch in watches:
            events |= watch.event
        registered = fileno in self._watches
        if not watches:
            self._watches.pop(fileno, None)
            if registered:
                self._selector.unregister(fileno)
            return
        self._watches[fileno] = watches
        if registered:
            self._selector.modify(fileno, events)
        else:
            self._selector.register(fileno, events)

    def _drain(self) -> None:
        try:
            while os.read(self._wake_out, 4096):
                pass
        except BlockingIOError:
            return
