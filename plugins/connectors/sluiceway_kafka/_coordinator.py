"""Requests to transaction coordinators: what confluent-kafka has no method for, sent by kafka-python."""

from __future__ import annotations

import logging
import socket
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway_kafka._client_log import RepeatedLines
from sluiceway_kafka._connection import Connection
from sluiceway_kafka._security import SecurityContext, coordinator_arguments

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # it reads its own files in a way that Python 3.11 deprecates
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError, KafkaTimeoutError, TransactionalIdNotFoundError
    from kafka.net.compat import KafkaNetClient
    from kafka.net.inet import KafkaNetSocket
    from kafka.protocol.metadata import CoordinatorType
    from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

__all__ = ["Coordinator", "Transaction", "timeout_refused"]

_NAMES: Final = {
    -1: "UNKNOWN_SERVER_ERROR",
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    15: "COORDINATOR_NOT_AVAILABLE",
    16: "NOT_COORDINATOR",
    35: "UNSUPPORTED_VERSION",
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    50: "INVALID_TRANSACTION_TIMEOUT",
    51: "CONCURRENT_TRANSACTIONS",
    53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    90: "PRODUCER_FENCED",
    105: "TRANSACTIONAL_ID_NOT_FOUND",
}
# Answers after which a request is sent again: the coordinator is another one or is loading its log, or
# (_CONCURRENT) is still completing the last transaction of the id.
_MOVED: Final = (14, 15, 16)
_CONCURRENT: Final = 51
_TIMEOUT_REFUSED: Final = 50
# Answers to the end of a transaction that is not open any more, or not under that producer.
_GONE: Final = (47, 48, 49, 90, 105)
_PAUSE_S: Final = 0.02
_HANDSHAKE_S: Final = 10.0

_DIRECT: Final = "sluiceway-direct://"
_LOOP: Final = "sluiceway-coordinator"


class _ClosingSocket(KafkaNetSocket):  # type: ignore[misc]  # registered for the scheme of _DIRECT
    """Connections without a proxy, whose sockets are closed when the connection fails.

    kafka-python leaves such a socket in a reference cycle, and connects again each second while no broker runs.
    """

    SCHEMES = ("sluiceway-direct",)

    async def sock_connect(self, net: Any, sock: socket.socket, sockaddr: Any, timeout_at: Any = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id as its coordinator knows it.

    Attributes:
        transactional_id: the id.
        state: such as ``Ongoing``, ``PrepareCommit``, ``CompleteAbort``, ``Empty``.
        producer_id: of the producer that has it.
        epoch: of that producer.
        started_ms: when the transaction began, ms since the epoch; -1: none is open.
        timeout_ms: after which the broker aborts it.
        partitions: topics and numbers of the partitions in it.
    """

    transactional_id: str
    state: str
    producer_id: int
    epoch: int
    started_ms: int = -1
    timeout_ms: int = 0
    partitions: tuple[tuple[str, int], ...] = ()


class Coordinator:
    """A client for transactions. From any thread, one at a time. Close it.

    Raises:
        ConfigurationError: a property has no counterpart in kafka-python, or a certificate cannot be used.
        ConnectorError: the cluster cannot be reached, or refuses the client.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        timeout_ms = connection.timeout_ms
        arguments = coordinator_arguments(connection.properties)
        # Says better than kafka-python why brokers cannot be reached, and before the time is over.
        connection.admin()
        _LogFilter.install()
        clients: list[KafkaNetClient] = []

        def make_client(**configuration: Any) -> KafkaNetClient:
            client = KafkaNetClient(**configuration)
            clients.append(client)
            client._net.config["client_id"] = _LOOP  # its thread is called after it
            context = configuration["ssl_context"]
            if isinstance(context, SecurityContext):
                context.call_later = lambda function: client._net.call_later(_HANDSHAKE_S, function)
            return client

        try:
            self._admin = KafkaAdminClient(
                bootstrap_servers=connection.servers.split(","),
                client_id=str(connection.properties.get("client.id", "sluiceway")),
                bootstrap_timeout_ms=timeout_ms,
                request_timeout_ms=timeout_ms,
                proxy_url=_DIRECT,
                kafka_client=make_client,
                **arguments,
            )
        except (KafkaError, OSError, ValueError) as error:
            for client in clients:  # its constructor leaves the thread running
                client.close()
                client._net.stop()
            raise ConnectorError(
                f"cannot reach the transaction coordinators of {connection.servers}: {type(error).__name__}: "
                f"{error}"
            ) from error

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def transaction_version(self) -> int:
        """Return the finalized level of the feature ``transaction.version``; 0 where the cluster has none."""
        features = self._call("ask for features", self._admin.describe_features)
        # Not as its documentation says, which has the finalized features under one key.
        level = features.get("transaction.version", {}).get("finalized")
        return 0 if level is None else int(level[1])

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        version: int,
        patience_s: float | None = None,
    ) -> str:
        """Commit or abort a transaction, which may be another process's.

        Args:
            transactional_id: the id of its producer.
            producer_id: the producer.
            epoch: and its epoch.
            commit: whether it is committed.
            version: the cluster's ``transaction.version``. From 1 on the request raises the epoch, which fences
                the producer. Below, the request that would do so leaves the id stuck, so that another one follows.
            patience_s: how long to try; None: for the request timeout of the connection.

        Returns:
            empty, or the name of the error if the transaction is not open any more.

        Raises:
            ConnectorError: the coordinator was not reached, or refuses for another reason.
        """
        # Every broker that has heard of EndTxn 5 answers it. Where the feature is not finalized it does harm.
        number = 5 if version >= 1 else None

        def make() -> Any:
            return EndTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=commit,
                min_version=number or 0,
                max_version=number or 4,
            )

        code = self._send(transactional_id, make, "end", patience_s)
        if code and code not in _GONE:
            raise ConnectorError(
                f"cannot {'commit' if commit else 'abort'} the transaction of {transactional_id!r} at "
                f"{self._connection.servers}: {_name(code)}. It may still be open, until transaction_timeout is "
                "over"
            )
        if code == 0 and version < 1:
            self.fence(transactional_id)
        return "" if code == 0 else _name(code)

    def fence(self, transactional_id: str, timeout_ms: int = 60_000) -> None:
        """Abort what is open under an id, and fence its producer.

        Raises:
            ConfigurationError: brokers allow no transaction timeout of ``timeout_ms``.
            ConnectorError: the coordinator was not reached, or refuses for another reason.
        """

        def make() -> Any:
            return InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                # Without an id and an epoch the request is that of a new producer: the coordinator aborts what is
                # open, and raises the epoch.
                producer_id=-1,
                producer_epoch=-1,
                max_version=4,
            )

        code = self._send(transactional_id, make, "fence")
        if code == _TIMEOUT_REFUSED:
            raise timeout_refused(timeout_ms)
        if code:
            raise ConnectorError(
                f"cannot fence the producers of transactional id {transactional_id!r}: {_name(code)}"
            )

    def list(self, prefix: str) -> list[Transaction]:
        """Return the transactional ids that begin with ``prefix``, of all brokers, without their partitions."""
        listed = self._call("list transactions", self._admin.list_transactions)
        return sorted(
            (
                Transaction(each.transactional_id, _state(each.state), each.producer_id, -1)
                for of_broker in listed.values()
                for each in of_broker
                if each.transactional_id.startswith(prefix)
            ),
            key=lambda each: each.transactional_id,
        )

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, Transaction]:
        """Return what is known of ids; one that the cluster does not know is left out."""
        found: dict[str, Transaction] = {}
        for transactional_id in transactional_ids:
            described = self._described(transactional_id)
            if described is not None:
                found[transactional_id] = Transaction(
                    transactional_id,
                    _state(described.state),
                    described.producer_id,
                    described.producer_epoch,
                    described.transaction_start_time_ms,
                    described.transaction_timeout_ms,
                    tuple(sorted((tp.topic, tp.partition) for tp in described.topic_partitions)),
                )
        return found

    # ---- inside ----------------------------------------------------------------------------------------------

    def _described(self, transactional_id: str) -> Any:
        deadline = time.monotonic() + self._connection.timeout_s
        while True:
            try:
                return self._admin.describe_transactions([transactional_id])[transactional_id]
            except TransactionalIdNotFoundError:
                return None
            except KafkaError as error:
                if not getattr(error, "retriable", False) or time.monotonic() > deadline:
                    raise ConnectorError(
                        f"cannot describe transactional id {transactional_id!r}: {type(error).__name__}: {error}"
                    ) from error
            self._forget(transactional_id)
            time.sleep(_PAUSE_S)

    def _send(
        self, transactional_id: str, make: Callable[[], Any], doing: str, patience_s: float | None = None
    ) -> int:
        """Send a request to the coordinator of an id, again while it moves or is busy; the error code."""
        manager = self._admin._manager

        async def send() -> Any:
            nodes = await self._admin._find_coordinator_ids(
                [transactional_id], key_type=CoordinatorType.TRANSACTION
            )
            return await manager.send(make(), node_id=nodes[transactional_id])

        def send_in_time() -> Any:
            # Of the two requests each has the time limit of the client.
            return manager.wait_for(manager.call_soon(send), max(deadline - time.monotonic(), 0) * 1000)

        if patience_s is None:
            patience_s = self._connection.timeout_s
        deadline = time.monotonic() + patience_s
        reason = ""
        while True:
            try:
                # Sent again also if only the answer was lost: each transaction has its own producer, so that a
                # request which is repeated finds no other transaction.
                code = int(manager.run(send_in_time).error_code)
                reason = _name(code)
            except KafkaTimeoutError:
                code, reason = _MOVED[1], reason or "no answer"  # an earlier reason says more
            except (KafkaError, OSError) as error:
                code, reason = _MOVED[1], f"{type(error).__name__}: {error}"
            if code not in _MOVED and code != _CONCURRENT:
                return code
            if time.monotonic() > deadline:
                raise ConnectorError(
                    f"cannot {doing} the transaction of {transactional_id!r} at {self._connection.servers} within "
                    f"{patience_s:g} s: {reason}"
                )
            if code in _MOVED:
                self._forget(transactional_id)
            time.sleep(_PAUSE_S)

    def _forget(self, transactional_id: str) -> None:
        """Have the coordinator looked up again."""
        known = self._admin._manager.cluster._coordinators
        for key in [key for key in known if transactional_id in key]:
            known.pop(key, None)

    def _call(self, doing: str, function: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + self._connection.timeout_s
        while True:
            try:
                return function()
            except (KafkaError, OSError) as error:
                if not getattr(error, "retriable", False) or time.monotonic() > deadline:
                    raise ConnectorError(
                        f"cannot {doing} at {self._connection.servers}: {type(error).__name__}: {error}"
                    ) from error
            time.sleep(_PAUSE_S)


class _LogFilter(logging.Filter):
    """Filter of the log of kafka-python.

    Leaves out what it logs at DEBUG with passwords (its configuration, and SASL messages), and, unless DEBUG is
    on, what it logs at INFO in threads of coordinators: some ten lines for each connection. Of warnings and errors
    in these threads, which would be some three a second without a broker, one of a kind each 30 s is left. Other
    clients of the process log as before.
    """

    _repeated: Final = RepeatedLines()

    def filter(self, record: logging.LogRecord) -> bool:
        if (record.threadName or "").endswith(_LOOP) and record.levelno > logging.DEBUG:
            if record.levelno > logging.INFO:
                return self._repeated.filter(record)
            return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        text = str(record.msg)
        if "configuration" in text or "Send: " in text or "Recv: " in text:
            return False
        return "Sasl" not in record.getMessage() or record.levelno > logging.DEBUG

    @classmethod
    def install(cls) -> None:
        """Add the filter to the loggers concerned, once."""
        for name in (
            "kafka.admin.client",
            "kafka.cluster",
            "kafka.net.connection",
            "kafka.net.manager",
            "kafka.net.selector",
            "kafka.net.transport",
            "kafka.protocol.parser",
        ):
            logger = logging.getLogger(name)
            if not any(isinstance(each, cls) for each in logger.filters):
                logger.addFilter(cls())


def timeout_refused(timeout_ms: int) -> ConfigurationError:
    """Return the error for a transaction timeout that the brokers refuse."""
    return ConfigurationError(
        f"transaction_timeout={timeout_ms} ms is more than the brokers allow: lower it, or raise "
        "transaction.max.timeout.ms of the brokers (900000 by default). A transaction that is not committed "
        "within it, for example because the job is down for longer, is lost"
    )


def _name(code: int) -> str:
    return _NAMES.get(code, f"error {code}")


def _state(state: Any) -> str:
    return str(getattr(state, "value", state))
