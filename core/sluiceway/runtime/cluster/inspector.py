"""Inspector of a worker: a thread that reports on the process, whatever its loop is doing."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Final

from sluiceway.clock import Clock
from sluiceway.monitoring.processes import ProcessFigures
from sluiceway.runtime.cluster.connection import Connection, ConnectionLostError
from sluiceway.runtime.cluster.process_probe import ProcessProbe
from sluiceway.runtime.cluster.worker_host import connect
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.processes import InspectProcess, ProcessInspected, RegisterInspector

__all__ = ["Inspector"]

# Seconds without a request after which the connection is closed.
_IDLE_S: Final = 30.0
_CLOSE_S: Final = 2.0


class Inspector(Handlers):
    """Thread with its own connection to the job manager, opened on request.

    It ends after 30 s without a request, or when the job manager is gone. A worker that is not inspected has
    neither the thread nor the connection.

    Args:
        config: configuration of the worker.
        clock: clock of the machine.
    """

    def __init__(self, config: WorkerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._called = False
        self._closed = False
        self._loop: TaskletLoop | None = None
        self._connection: Connection | None = None
        self._probe: ProcessProbe | None = None
        self._asked = 0.0

    def open(self) -> None:
        """Connect unless connected; return without waiting. From any thread."""
        with self._lock:
            self._called = True
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="sluiceway-inspector", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread. From any other thread; harmless twice."""
        with self._lock:
            self._closed = True
            thread, loop = self._thread, self._loop
        if loop is not None:
            loop.mail(self._leave)
        if thread is not None:
            thread.join(_CLOSE_S)

    def _run(self) -> None:
        while self._is_called():
            with suppress(OSError):  # the job manager is gone, so nobody waits for an answer
                self._serve()

    def _is_called(self) -> bool:
        with self._lock:
            # Under the lock of open(): a call either finds the thread and is served by it, or starts another one.
            called, self._called = self._called and not self._closed, False
            if not called:
                self._thread = None
            return called

    def _serve(self) -> None:
        sock = connect(self._config.manager)
        poller = SelectorPoller()
        try:
            loop = TaskletLoop(self._clock, poller)
            self._probe = ProcessProbe(self._config.name, loop, self._clock)
            self._connection = Connection(
                sock,
                loop,
                bytes.fromhex(self._config.secret),
                "inspector",
                peer_role="manager",
                on_open=lambda connection: None,
                on_message=self._take,
                on_closed=self._left,
            )
            self._connection.send(RegisterInspector(self._config.name, os.getpid()))
            self._asked = self._clock.monotonic()
            self._watch(loop)
            with self._lock:
                self._loop = loop
                # close() has come before there was a loop to mail to.
                if self._closed:
                    loop.mail(self._leave)
            loop.run()
        finally:
            with self._lock:
                self._loop = None
            if self._probe is not None:
                self._probe.close()
            poller.close()

    def _watch(self, loop: TaskletLoop) -> None:
        if self._clock.monotonic() - self._asked >= _IDLE_S:
            self._leave()
        else:
            loop.at(self._asked + _IDLE_S, lambda: self._watch(loop))

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _left(self, connection: Connection, why: ConnectionLostError | None) -> None:
        """Handle the end of the connection: the loop ends by itself, as nothing is left to run in it."""

    def _take(self, connection: Connection, message: Message) -> None:
        self.dispatch(message, connection)

    @handles(InspectProcess)
    def _inspect(self, message: InspectProcess, connection: Connection) -> None:
        if self._probe is None:
            return
        self._asked = self._clock.monotonic()
        number = message.number
        if message.threads:
            connection.send(ProcessInspected(number, dump=self._probe.threads()))
            return

        def done(figures: ProcessFigures) -> None:
            connection.send(ProcessInspected(number, figures))

        self._probe.figures(done)
