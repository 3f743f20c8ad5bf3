"""A producer that a sink writer owns: its queue, its flushes, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Condition, Thread
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from sluiceway.clock import Clock
from sluiceway.connector import Wait
from sluiceway.errors import ConnectorError, RejectedRecordError
from sluiceway_kafka._client_log import client_log
from sluiceway_kafka._connection import Connection, describe_error, is_refusal, refused
from sluiceway_kafka._encoders import Message

__all__ = ["Flusher", "Outbox"]

_log: Final = client_log()

_FENCED: Final = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_REJECTIONS: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError._UNKNOWN_PARTITION,
    }
)
"""Errors about a record, which the same record meets again."""

_UNKNOWN: Final = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)

_BLOCK_S: Final = 0.1
_FULL_S: Final = 0.01
_POLL_S: Final = 1.0


class Outbox:
    """Messages on their way through one producer.

    Args:
        connection: how to reach the cluster.
        settings: properties of the producer that the sink sets.
        wake: has the runtime ask the writer again; from any thread.

    Attributes:
        producer: the client.
        failure: the first that went wrong with a message, or with the producer as a whole.
    """

    def __init__(self, connection: Connection, settings: Mapping[str, Any], wake: Callable[[], None]) -> None:
        self._connection = connection
        self._wake = wake
        self._transactional_id = settings.get("transactional.id")
        self._waiting: list[Message] = []
        self.failure: ConnectorError | None = None
        self.producer: Producer = connection.producer(
            self._on_error,
            # A callback for each record doubles the processor time of writing: 2.4 to 2.7 µs a record instead of
            # 1.1 to 1.3, measured with produce_batch().
            **{**settings, "delivery.report.only.error": True, "on_delivery": self._on_delivery},
        )

    @property
    def waiting(self) -> int:
        """Number of messages that the client has not accepted."""
        return len(self._waiting)

    def send(self, messages: Sequence[Message]) -> None:
        """Give messages to the client; what it has no room for waits, in order."""
        self._waiting.extend(messages)
        self.push()

    def push(self) -> bool:
        """Give the client what waits, as far as it has room; whether nothing is left.

        Raises:
            ConnectorError: the client refuses a message, or an earlier one was refused by a broker.
        """
        self.check()
        # Not produce_batch(): it has no headers, and does not raise where the client's queue is full.
        waiting, produce = self._waiting, self.producer.produce
        accepted = 0
        try:
            for topic, value, key, partition, timestamp, headers in waiting:
                produce(topic, value, key, partition, None, None, timestamp, headers)
                accepted += 1
        except BufferError:
            self.serve()
        except (KafkaException, TypeError, ValueError, OverflowError) as error:
            self.serve()  # what has failed before says more
            at = "" if partition == -1 else f", partition {partition!r}"
            raise _kind_of(error)(
                f"cannot write to topic {topic!r}{at} at {self._connection.servers}: {describe_error(error)}; "
                f"the value was {value!r:.80}{self._taken_over(error)}"
            ) from error
        finally:
            del waiting[:accepted]
        return not waiting

    def serve(self) -> None:
        """Take reports of the client's."""
        try:
            self.producer.poll(0)
        except (KafkaException, SystemError) as error:
            self.fail(error)
        self.check()

    def check(self) -> None:
        """Raise what went wrong."""
        if self.failure is not None:
            raise self.failure

    def fail(self, error: BaseException) -> None:
        """Keep the first error."""
        if isinstance(error, SystemError) and isinstance(error.__cause__, KafkaException):
            error = error.__cause__  # raised so by the client where a report is due while another error is set
        if self.failure is not None:
            return
        message = f"the producer at {self._connection.servers} has failed: {describe_error(error)}"
        self.failure = ConnectorError(message + self._taken_over(error))

    def close(self) -> None:
        """Drop what is outstanding, and end the client. A transaction stays as it is."""
        self._waiting.clear()
        try:
            self.producer.purge()
        except (KafkaException, SystemError) as error:
            _log.debug("closing a producer: %s", describe_error(error))
        # Not close(), which aborts a transaction that a checkpoint may name. The client ends with this reference.
        del self.producer

    def _taken_over(self, error: BaseException) -> str:
        """Return a sentence where an error says that the producer was fenced, else nothing."""
        if not (isinstance(error, KafkaException) and error.args[0].code() in _FENCED):
            return ""
        return (
            f". The producer was fenced: a later one has taken over transactional id {self._transactional_id!r}, "
            "that of a newer attempt of this job, or of another job with the same transactional_id_prefix"
        )

    def _on_delivery(self, error: KafkaError | None, message: Delivered) -> None:
        # The excepted ones come from the purge of close().
        if error is not None and error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            if self.failure is None:
                failed = KafkaException(error)
                number = message.partition()
                at = "" if number is None or number < 0 else f", partition {number}"
                advice = ". A topic has to be there before the job starts" if error.code() in _UNKNOWN else ""
                self.failure = _kind_of(failed)(
                    f"a record was not written to topic {message.topic()!r}{at} at {self._connection.servers}: "
                    f"{describe_error(error)}{advice}{self._taken_over(failed)}"
                )
            self._wake()

    def _on_error(self, error: KafkaError) -> None:
        if is_refusal(error):
            if self.failure is None:
                self.failure = refused("write", self._connection, error)
            self._wake()
        elif error.fatal():
            self.fail(KafkaException(error))
            self._wake()
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            _log.warning("no broker of %s can be reached; trying again", self._connection.servers)
        else:
            _log.info("writing to %s: %s", self._connection.servers, describe_error(error))


def _kind_of(error: BaseException) -> type[ConnectorError]:
    if isinstance(error, KafkaException) and error.args[0].code() not in _REJECTIONS:
        return ConnectorError
    return RejectedRecordError


class Flusher:
    """A thread that waits until all messages of an outbox are acknowledged, then wakes the task.

    The client sends at once, whatever ``linger.ms`` says, while it is told to flush.

    All methods are for the task's thread.
    """

    def __init__(self, wake: Callable[[], None], clock: Clock) -> None:
        self._wake = wake
        self._clock = clock
        self._next_poll = 0.0
        self._changed = Condition()
        self._outbox: Outbox | None = None
        self._wanted = False
        self._closed = False
        self._thread: Thread | None = None

    def begin(self, outbox: Outbox) -> None:
        """Flush an outbox."""
        self._wanted = True
        if not len(outbox.producer):
            return
        if self._thread is None:
            self._thread = Thread(target=self._run, name="sluiceway-kafka-flush", daemon=True)
            self._thread.start()
        with self._changed:
            self._outbox = outbox
            self._changed.notify()

    def poll_is_due(self) -> bool:
        """Return whether to poll clients that may be idle: once a second.

        Without a poll, a client without records reports no refusal, and its queue of errors and log lines grows.
        """
        now = self._clock.monotonic()
        if now < self._next_poll:
            return False
        self._next_poll = now + _POLL_S
        return True

    def blocked(self, outbox: Outbox) -> Wait | None:
        """Return the event to wait for before more can be written; None: nothing.

        Raises:
            ConnectorError: what went wrong meanwhile.
        """
        # Before the check: the thread keeps a failure first, and then ends the flush.
        flushes = self._outbox is not None
        outbox.check()
        if outbox.waiting and not outbox.push():
            return Wait(until=self._clock.monotonic() + _FULL_S)
        if flushes:
            return Wait()
        if self._wanted:
            self._wanted = False
            if len(outbox.producer):  # it had no room for them before
                self.begin(outbox)
                return self.blocked(outbox)
        return None

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
                while self._outbox is None and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                outbox = self._outbox
            assert outbox is not None
            try:
                left = outbox.producer.flush(_BLOCK_S)
            except (KafkaException, SystemError) as error:
                outbox.fail(error)
                left = 0
            if not left or outbox.failure is not None:
                self._outbox = None
                self._wake()
