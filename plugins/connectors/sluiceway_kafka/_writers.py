"""The writer without transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from sluiceway.connector import SinkWriter, Wait, WriterContext
from sluiceway.util.overriding import override
from sluiceway_kafka._connection import Connection
from sluiceway_kafka._encoders import Encoder, Message
from sluiceway_kafka._producer import Flusher, Outbox

__all__ = ["KafkaWriter", "count_written"]

_value: Final = itemgetter(1)


class KafkaWriter(SinkWriter[Any]):
    """Writer of records as they come, without transactions.

    Args:
        context: given by the runtime.
        connection: how to reach the cluster.
        encoder: makes messages of records.
        settings: properties of the producer that the sink sets.
        waits: whether a flush waits until brokers have acknowledged everything.
    """

    def __init__(
        self,
        context: WriterContext,
        connection: Connection,
        encoder: Encoder,
        settings: Mapping[str, Any],
        *,
        waits: bool,
    ) -> None:
        self._context = context
        self._connection = connection
        self._encoder = encoder
        self._settings = settings
        self._waits = waits
        self._outbox: Outbox | None = None
        self._flusher = Flusher(context.wake, context.clock)

    @override
    def open(self) -> None:
        # Before the wait for an answer: a producer that is given records at once finds no broker for its id yet,
        # and looks again after half a second.
        self._outbox = Outbox(self._connection, self._settings, self._context.wake)
        self._connection.admin()

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Give records to the client."""
        assert self._outbox is not None
        messages = self._encoder.encode(values, timestamps)
        self._outbox.send(messages)
        self._outbox.serve()
        count_written(self._context, messages)

    def blocked(self) -> Wait | None:
        """Return a wait for room in the client, or after a flush for all acknowledgements; None: none is due."""
        if self._outbox is None:
            return None
        if self._flusher.poll_is_due():
            self._outbox.serve()
        return self._flusher.blocked(self._outbox)

    def flush(self) -> None:
        """Send everything; with a guarantee, wait for the acknowledgements."""
        assert self._outbox is not None
        if self._waits:
            self._flusher.begin(self._outbox)
        else:
            self._outbox.serve()

    def finish(self) -> None:
        """Send everything and wait for the acknowledgements, in any case."""
        assert self._outbox is not None
        self._flusher.begin(self._outbox)

    def close(self) -> None:
        """End the thread and the producer."""
        self._flusher.close()
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            outbox.close()


def count_written(context: WriterContext, messages: Sequence[Message]) -> None:
    """Count records and bytes."""
    context.metrics.counter("recordsSent").inc(len(messages))
    values = list(filter(None, map(_value, messages)))
    size = sum(map(len, values))
    if str in set(map(type, values)):  # the client sends text as UTF-8
        size += sum(len(v.encode()) - len(v) for v in values if isinstance(v, str) and not v.isascii())
    context.metrics.counter("bytesSent").inc(size)
