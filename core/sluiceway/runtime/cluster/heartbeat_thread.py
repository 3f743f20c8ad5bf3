"""Heartbeat thread of a worker: sends heartbeats beside the loop, and ends the process when its parent is gone."""

from __future__ import annotations

import os
import select
import shutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from sluiceway.runtime.cluster.cluster_directory import remove_if_dead
from sluiceway.runtime.cluster.worker_launcher import BEAT, CALL, UP, WorkerConfig

__all__ = ["HeartbeatThread"]

GRACE_S: Final = 2.0
"""Seconds that a worker has for closing its tasks after its job manager is gone."""
STUCK_S: Final = 60.0
"""Seconds in one call of a user's function after which a warning is written."""
EXIT_CODE: Final = 70


class HeartbeatThread:
    """Thread that serves the line to the process that has started this one.

    A user's function may block the loop for any time: heartbeats are sent by this thread, so that
    it does not count as a hang. When the line closes, the loop has two seconds to end by itself; then this
    thread ends the process.

    A worker that may wait for another job manager continues once the loop, and with it its tasks, has ended.

    Args:
        config: configuration of the worker.
        line: this end of the line, owned by the thread; or a listening socket that accepts the line.
        stuck_s: a loop that has not turned for this time is reported once on standard error, with its stack.
        own: whether the process at the other end has started this one.
    """

    def __init__(
        self, config: WorkerConfig, line: socket.socket, *, stuck_s: float = STUCK_S, own: bool = True
    ) -> None:
        self._config = config
        self._own = own
        self._line = line
        self._line.setblocking(False)
        self._stuck_s = stuck_s
        self._up = False
        self._done = threading.Event()
        self._mail: Callable[[Callable[[], None]], None] | None = None
        self._called: Callable[[], None] = lambda: None
        self._turned = time.monotonic()
        self._told = False
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="sluiceway-guard", daemon=True)
        self._thread.start()

    def up(self, mail: Callable[[Callable[[], None]], None], called: Callable[[], None] = lambda: None) -> None:
        """Mark the worker as started, and restore its standard error.

        Args:
            mail: calls an action in the loop's thread.
            called: called in this thread when the other end requests the inspector.
        """
        if self._own:
            # For the one byte that must not be lost.
            self._line.setblocking(True)
            self._line.sendall(UP)
            self._line.setblocking(False)
            sys.stderr.flush()
            if self._config.stderr >= 0:
                os.dup2(self._config.stderr, 2)
                os.close(self._config.stderr)
        self._mail = mail
        self._called = called
        self._turned = time.monotonic()
        self._up = True

    def close(self) -> None:
        """Stop after the loop has ended. If the job manager is gone, remove what is left of the cluster."""
        self._done.set()
        if not self._config.rejoin_s and self._is_alone(0):
            self._remove_directory()

    def part(self) -> None:
        """Stop after both the line and the loop have ended."""
        self._done.set()
        self._thread.join()
        self._line.close()

    def _run(self) -> None:
        if not self._own and not self._has_come():
            return
        while not self._done.is_set():
            if self._up:
                with suppress(OSError):  # a full line needs no further byte; that it is closed is found out below
                    self._line.send(BEAT)
                self._look_at_loop()
            # Also the pause between two heartbeats.
            if self._is_alone(self._config.beat_s):
                if not self._done.wait(GRACE_S):
                    if not self._config.rejoin_s:
                        self._remove_directory()
                    # The loop may be in a call that never returns: no ordinary exit can be waited for.
                    os._exit(EXIT_CODE)
                return

    def _remove_directory(self) -> None:
        """Remove the cluster's directory, unless its job manager lives: a function may have closed the line."""
        directory, ends = Path(self._config.directory), time.monotonic() + GRACE_S
        # The line of a process that ends is closed a moment before its lock is released.
        while not self._is_orphan() and not remove_if_dead(directory) and time.monotonic() < ends:
            time.sleep(0.02)
        if self._is_orphan():
            # A process that the job manager had forked may hold the lock still.
            shutil.rmtree(directory, ignore_errors=True)

    def _is_orphan(self) -> bool:
        return self._own and os.getppid() != self._config.parent

    def _has_come(self) -> bool:
        """Wait for the line on the listening socket; return False if the loop ends before."""
        while not self._done.is_set():
            if select.select([self._line], [], [], self._config.beat_s)[0]:
                listening, (self._line, _) = self._line, self._line.accept()
                listening.close()
                self._line.setblocking(False)
                return True
        return False

    def _is_alone(self, wait_s: float) -> bool:
        """Return whether the line closes within that time; a call ends the wait."""
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        ended = bool(poll.poll(wait_s * 1000)) and not self._has_called()
        # The line may stay open in another process that has inherited it; an orphan has another parent.
        return ended or self._is_orphan()

    def _has_called(self) -> bool:
        """Read the line; return False if it is closed."""
        try:
            said = self._line.recv(64)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if CALL in said:
            self._called()
        return bool(said)

    def _look_at_loop(self) -> None:
        assert self._mail is not None
        self._mail(self._turn)
        stuck_s = time.monotonic() - self._turned
        # Once per call: a turn of the loop resets it.
        if stuck_s > self._stuck_s and not self._told:
            self._told = True
            frame = sys._current_frames().get(self._main)
            where = "".join(traceback.format_stack(frame, 3)) if frame is not None else ""
            print(
                f"warning: {self._config.name} has been in one call for {stuck_s:.0f} s, and nothing else can run"
                f" there; use async_map() for what waits. It is at\n{where.rstrip()}",
                file=sys.stderr,
                flush=True,
            )

    def _turn(self) -> None:
        self._turned = time.monotonic()
        self._told = False
