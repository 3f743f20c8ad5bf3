"""Thread of a reader that waits inside the Kafka client for messages, and commits offsets when it comes out."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Thread
from typing import Final

from confluent_kafka import Consumer, Message

__all__ = ["PollThread"]

_BLOCK_S: Final = 0.1
"""Longest time in seconds that the thread is inside the client at a time, and that a close may take."""


class PollThread:
    """Thread that waits inside the client for the next message, so that the task's thread never does.

    All methods are for the task's thread. While :attr:`waiting`, nobody else may take messages.

    Args:
        consumer: the client.
        wake: called in the thread when a message or an error has come.
        commit: called in the thread whenever it comes out of the client.
    """

    def __init__(self, consumer: Consumer, wake: Callable[[], None], commit: Callable[[], None]) -> None:
        self._consumer = consumer
        self._wake = wake
        self._commit = commit
        self._changed = Condition()
        self._waits = False
        self._inside = False
        self._closed = False
        self._messages: list[Message] = []
        self._error: BaseException | None = None
        self._thread: Thread | None = None

    @property
    def waiting(self) -> bool:
        """True while the thread is inside the client."""
        return self._waits

    def begin(self) -> None:
        """Have the thread wait."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="sluiceway-kafka-reader", daemon=True)
            self._thread.start()
        with self._changed:
            self._waits = True
            self._changed.notify()

    def hold(self) -> None:
        """Wait until the thread is not inside the client; it stays outside until :meth:`begin`."""
        with self._changed:
            self._waits = False
            while self._inside:
                self._changed.wait()
        self._wake()  # so that the reader is polled, and begins again

    def take(self) -> list[Message]:
        """Return what the thread has got.

        Raises:
            KafkaException: the client has raised it in the thread.
        """
        messages, self._messages = self._messages, []
        error, self._error = self._error, None
        if error is not None:
            raise error
        return messages

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waits and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                self._inside = True
            messages: list[Message] = []
            error: BaseException | None = None
            try:
                messages = self._consumer.consume(1, _BLOCK_S)
                self._commit()
            except BaseException as raised:  # take() raises it in the task's thread
                error = raised
            with self._changed:
                self._inside = False
                if messages or error is not None:
                    self._messages, self._error, self._waits = messages, error, False
                self._changed.notify_all()
            if messages or error is not None:
                self._wake()
