"""Resources that a process holds: file descriptors and threads."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["nothing_left_behind"]

_DESCRIPTORS: Final = next((p for p in (Path("/proc/self/fd"), Path("/dev/fd")) if p.is_dir()), None)
_PATIENCE_S: Final = 60.0
_STEP_S: Final = 0.01


def _held() -> set[str]:
    held = {f"thread {t.name} ({t.ident})" for t in threading.enumerate()}
    if _DESCRIPTORS is not None:
        for name in os.listdir(_DESCRIPTORS):
            try:
                held.add(f"descriptor {name}: {os.readlink(_DESCRIPTORS / name)}")
            except OSError:  # the listing's own, or closed meanwhile
                continue
    return held


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Fail if the block leaves threads or open descriptors that were not there before.

    What another thread is about to close, such as the other side of a connection, gets a little time.
    """
    gc.collect()
    before = _held()
    yield
    deadline = time.monotonic() + _PATIENCE_S
    while left := _held() - before:
        gc.collect()
        assert time.monotonic() < deadline, f"left behind: {', '.join(sorted(map(_described, left)))}"
        time.sleep(_STEP_S)


def _described(held: str) -> str:
    """Add the two ends of a socket, which tell whose it is: clients of other tests open theirs at any time."""
    name, _, target = held.removeprefix("descriptor ").partition(": ")
    if not target.startswith("socket:"):
        return held
    try:
        with socket.socket(fileno=os.dup(int(name))) as sock:
            return f"{held} {sock.family.name} at {sock.getsockname()!r}, peer {_peer(sock)!r}"
    except OSError:  # closed meanwhile
        return held


def _peer(sock: socket.socket) -> object:
    try:
        return sock.getpeername()
    except OSError:  # it listens, or its other end is gone
        return None
