"""Connection to a Kafka cluster: client properties, their checks, and errors of the clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from sluiceway.config.options import duration_ms
from sluiceway.errors import ConfigurationError, ConnectorError, SuppressRestartsError
from sluiceway.util.surrogates import encodable
from sluiceway_kafka._client_log import client_log
from sluiceway_kafka._security import SECURITY_HINT

__all__ = [
    "Connection",
    "PositionLostError",
    "Refusal",
    "check_duration",
    "check_texts",
    "connection_of",
    "describe_error",
    "failing_with",
    "is_refusal",
    "refused",
]

_log: Final = client_log()

# Properties that the connector sets itself, and what to use instead.
_OWN: Final = {
    "bootstrap.servers": "use the argument bootstrap_servers",
    "metadata.broker.list": "use the argument bootstrap_servers",
    "group.id": "use the argument group_id",
    "enable.auto.commit": "offsets are in checkpoints, and committed to the group when these complete",
    "enable.auto.offset.store": "offsets are in checkpoints",
    "auto.offset.reset": "use the argument start; an offset that has expired fails the job",
    "isolation.level": "use the argument isolation_level",
    "enable.partition.eof": "use the argument stop",
    "transactional.id": "use the argument transactional_id_prefix",
    "transaction.timeout.ms": "use the argument transaction_timeout",
    "enable.idempotence": "the producer is always idempotent",
    "delivery.report.only.error": "delivery reports are the connector's",
    "go.delivery.reports": "delivery reports are the connector's",
    "on_delivery": "delivery reports are the connector's",
    "statistics.interval.ms": "statistics are the connector's; see its metrics",
    "stats_cb": "statistics are the connector's; see its metrics",
    "error_cb": "errors of the client are logged or fail the job",
    "logger": "the client logs to the logger sluiceway_kafka.client",
}


class PositionLostError(ConnectorError, SuppressRestartsError):
    """Records that were to be read, or were to be committed, are gone: no restart brings them back."""


_REFUSALS: Final = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL)
_PAUSE_S: Final = 0.1

_CONSUMER_DEFAULTS: Final = {
    "fetch.error.backoff.ms": 100,
    # Pause before a partition with a full queue is fetched from again. With the client's default, a second, a
    # reader waits for most of the time: a million records of 100 bytes took 6.1 s, and 1.5 s with 10 ms.
    "fetch.queue.backoff.ms": 20,
}


@dataclass(frozen=True)
class Connection:
    """Bootstrap servers and client properties. Opens nothing by itself.

    Attributes:
        servers: ``host:port``, several separated by commas.
        properties: properties of librdkafka, for all clients that are made.
        timeout_ms: how long requests about topics, offsets and transactions may take.
    """

    servers: str
    properties: Mapping[str, Any] = field(default_factory=dict, repr=False)
    timeout_ms: int = 30_000

    @property
    def timeout_s(self) -> float:
        """The time limit of requests, in seconds."""
        return self.timeout_ms / 1000

    def consumer(self, on_error: Callable[[KafkaError], None], **settings: Any) -> Consumer:
        """Make a consumer. It is never subscribed: partitions are assigned."""
        fixed = {
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # An offset that has expired comes as an error. Any other value would skip or repeat records silently.
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "error_cb": on_error,
        }
        return self._make(Consumer, {**_CONSUMER_DEFAULTS, **self.properties}, fixed | settings)

    def producer(self, on_error: Callable[[KafkaError], None], **settings: Any) -> Producer:
        """Make an idempotent producer."""
        fixed = {"enable.idempotence": True, "error_cb": on_error}
        return self._make(Producer, self.properties, fixed | settings)

    def admin(self) -> AdminClient:
        """Make a client for requests about topics and offsets, and wait until the cluster has answered it. Blocks.

        Without the wait, wrong passwords and certificates would show as requests that take too long.

        Raises:
            ConfigurationError: a property cannot be used.
            ConnectorError: the cluster refuses the client, or does not answer in time; says why.
        """
        refusal = Refusal()
        admin: AdminClient = self._make(AdminClient, self.properties, {"error_cb": refusal})
        deadline = time.monotonic() + self.timeout_s
        answer = admin.describe_cluster(request_timeout=self.timeout_s)
        while not answer.done():
            # A wait in poll() would not end with the answer, which another thread brings.
            wait([answer], _PAUSE_S)
            # poll() calls error_cb: a refusal ends the wait before its time is over.
            admin.poll(0)
            if refusal.final is not None or time.monotonic() > deadline + _PAUSE_S:
                break
        if answer.done() and answer.exception() is None:
            return admin
        if refusal.final is not None:
            raise refused("log in", self, refusal.final)
        reason = refusal.reason or (describe_error(answer.exception()) if answer.done() else "no answer")
        raise ConnectorError(
            f"no broker at {self.servers} has answered within {self.timeout_ms} ms: {reason}. Check the "
            "addresses, that brokers are running, and security.protocol in properties"
        )

    def _make(self, kind: Callable[..., Any], properties: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
        try:
            return kind({**properties, **fixed, "bootstrap.servers": self.servers, "logger": _log})
        except (KafkaException, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"the Kafka client refuses its properties: {describe_error(error)}"
            ) from error


def connection_of(
    servers: str | Sequence[str], properties: Mapping[str, Any] | None, timeout: timedelta | int | str
) -> Connection:
    """Check the arguments that sources and sinks have in common.

    Raises:
        ConfigurationError: one of them cannot be used.
    """
    listed = servers.split(",") if isinstance(servers, str) else list(servers)
    listed = [str(server).strip() for server in listed]
    if not listed or not all(listed):
        raise ConfigurationError(f"bootstrap_servers={servers!r} must name a host:port, or several")
    if properties is not None and not isinstance(properties, Mapping):
        raise ConfigurationError("properties must be a mapping from names of librdkafka to values")
    for name in properties or {}:
        if name in _OWN:
            raise ConfigurationError(f"properties may not hold {name!r}: {_OWN[name]}")
    check_texts(f"bootstrap_servers={servers!r:.100}", *listed)
    for name, value in (properties or {}).items():
        check_texts(f"property {name!r:.100}", name, value)
    return Connection(",".join(listed), dict(properties or {}), check_duration("request_timeout", timeout, 1))


def check_texts(argument: str, *texts: Any) -> None:
    """Check texts for what the client is not prepared for: on some of it, it ends the process.

    Raises:
        ConfigurationError: a text is not UTF-8, or holds a null character.
    """
    if any(isinstance(text, str) and ("\0" in text or encodable(text) != text) for text in texts):
        raise ConfigurationError(f"{argument} must be text that can be encoded in UTF-8, without null characters")


def check_duration(name: str, value: timedelta | int | str, least_ms: int = 0) -> int:
    """Return a duration in ms.

    Raises:
        ConfigurationError: it is no duration, or shorter than ``least_ms``.
    """
    try:
        ms = duration_ms(value)
    except ValueError as error:
        raise ConfigurationError(f"{name}={value!r}: {error}") from None
    if ms < least_ms:
        raise ConfigurationError(f"{name}={value!r} must be at least {least_ms} ms")
    return ms


def describe_error(error: BaseException | KafkaError) -> str:
    """Return what an error of the clients says, with its name."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        error = error.args[0]
    if isinstance(error, KafkaError):
        text = error.str() or "no details"
        return f"{text} ({error.name()})"
    return str(error) or type(error).__name__


@contextmanager
def failing_with(doing: str, connection: Connection) -> Iterator[None]:
    """Turn errors of the clients into a ConnectorError that says what was done, and where."""
    try:
        yield
    except SystemError as error:  # raised by the client where a callback is due while another error is set
        cause = error.__cause__ if isinstance(error.__cause__, KafkaException) else error
        raise ConnectorError(f"cannot {doing} at {connection.servers}: {describe_error(cause)}") from error
    except KafkaException as error:
        raise ConnectorError(f"cannot {doing} at {connection.servers}: {describe_error(error)}") from error


class Refusal:
    """The newest reason for which brokers cannot be reached, taken as the ``error_cb`` of a client.

    Attributes:
        reason: what the client said; empty: nothing.
        final: the event after which trying again is of no use: brokers refuse the credentials, or certificates do
            not fit.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.final: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Take an event of the client."""
        _log.debug("%s", describe_error(error))
        if self.reason and error.code() == KafkaError._ALL_BROKERS_DOWN:
            return
        self.reason = describe_error(error)
        if self.final is None and is_refusal(error):
            self.final = error


def refused(doing: str, connection: Connection, error: KafkaError) -> ConnectorError:
    """Return the error for an event of a client of which :func:`is_refusal` is true."""
    return ConnectorError(f"cannot {doing} at {connection.servers}: {describe_error(error)}. {SECURITY_HINT}")


def is_refusal(error: KafkaError) -> bool:
    """Return whether a client's event reports a refusal by the brokers, or of their certificates."""
    # A broker that wants another certificate says so after the handshake, when the client counts it as transport.
    return error.code() in _REFUSALS or "ssl/tls alert" in (error.str() or "")
