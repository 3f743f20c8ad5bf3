"""A model of transaction coordinators, and clients of it in the places of both libraries' clients.

It answers EndTxn and InitProducerId as Apache Kafka 4.4.0 did when it was asked, except that producer ids reach
their last epoch after a few transactions. Requests of a client can fail at any point, before or
after they take effect; then all requests of its process do.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sluiceway.errors import ConnectorError
from sluiceway_kafka._coordinator import Transaction

LAST_EPOCH = 2


class DeadError(ConnectorError):
    """The process of the client has ended."""


@dataclass
class _Id:
    producer_id: int
    epoch: int = 0
    state: str = "Empty"
    records: list[str] = field(default_factory=list)
    marker: tuple[str, str, int, str] | None = None
    ended: tuple[int, int] | None = None  # producer id and epoch of the transaction that has ended last


class Broker:
    """What brokers know.

    Attributes:
        version: level of ``transaction.version``.
        values: records of committed transactions.
        producers: number of producer ids that were given.
    """

    def __init__(self, version: int) -> None:
        self.version = version
        self.values: list[str] = []
        self.producers = 0
        self.ids: dict[str, _Id] = {}
        self.markers: dict[tuple[str, str], tuple[int, str]] = {}

    def _new_producer(self) -> int:
        self.producers += 1
        return self.producers

    def _raise_epoch(self, each: _Id) -> None:
        if each.epoch >= LAST_EPOCH:
            each.producer_id, each.epoch = self._new_producer(), 0
        else:
            each.epoch += 1

    def init(self, name: str) -> _Id:
        if name not in self.ids:
            self.ids[name] = _Id(self._new_producer())
            return self.ids[name]
        each = self.ids[name]
        if each.state == "Ongoing":
            self._finish(each, False)
        self._raise_epoch(each)
        each.state, each.ended = "Empty", None
        return each

    def end(self, name: str, producer_id: int, epoch: int, commit: bool, version: int) -> str:
        each = self.ids[name]
        asked = (producer_id, epoch)
        outcome = "CompleteCommit" if commit else "CompleteAbort"
        if each.ended == asked:  # a repeated request
            return "" if each.state == outcome else "INVALID_TXN_STATE"
        if asked != (each.producer_id, each.epoch):
            same = producer_id == each.producer_id
            return "PRODUCER_FENCED" if same else "INVALID_PRODUCER_ID_MAPPING"
        if each.state != "Ongoing":
            return "INVALID_TXN_STATE"
        self._finish(each, commit)
        each.ended = asked
        if version >= 1:
            self._raise_epoch(each)
        return ""

    def _finish(self, each: _Id, commit: bool) -> None:
        if commit:
            self.values += each.records
            if each.marker is not None:
                group, topic, offset, metadata = each.marker
                self.markers[group, topic] = (offset, metadata)
        each.records, each.marker = [], None
        each.state = "CompleteCommit" if commit else "CompleteAbort"


class Process:
    """One attempt of a job, whose requests end it when their number is reached.

    Args:
        broker: what it asks.
        dies_at: number of the request at which it dies; 0: it lives.
        after: whether that request still takes effect.
    """

    def __init__(self, broker: Broker, dies_at: int = 0, after: bool = False) -> None:
        self.broker = broker
        self._left = dies_at
        self._after = after
        self.is_dead = False

    def ask(self, method: Any, *arguments: Any) -> Any:
        if self.is_dead:
            raise DeadError("dead")
        self._left -= 1
        dies = self._left == 0
        if dies and not self._after:
            self.is_dead = True
            raise DeadError("dead before it")
        answer = method(*arguments)
        if dies:
            self.is_dead = True
            raise DeadError("dead after it")
        return answer


class Coordinator:
    """In place of the client for transactions."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._broker = process.broker

    def transaction_version(self) -> int:
        return self._broker.version

    def end(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        version: int,
        patience_s: float | None = None,
    ) -> str:
        answer: str = self._process.ask(self._broker.end, name, producer_id, epoch, commit, version)
        if not answer and version < 1:
            self.fence(name)
        return answer

    def fence(self, name: str, timeout_ms: int = 0) -> None:
        self._process.ask(self._broker.init, name)

    def list(self, prefix: str) -> list[Transaction]:
        known = self._process.ask(lambda: sorted(self._broker.ids.items()))
        return [
            Transaction(name, each.state, each.producer_id, -1) for name, each in known if name.startswith(prefix)
        ]

    def describe(self, names: Iterable[str]) -> dict[str, Transaction]:
        known = self._process.ask(lambda: self._broker.ids)
        return {
            n: Transaction(n, known[n].state, known[n].producer_id, known[n].epoch) for n in names if n in known
        }

    def close(self) -> None: ...


class Producer:
    """In place of confluent's; sends at once."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._name = name
        self._identity = (-1, -1)

    def init_transactions(self, timeout: float) -> None:
        each = self._process.ask(self._process.broker.init, self._name)
        self._identity = (each.producer_id, each.epoch)

    def begin_transaction(self) -> None: ...

    def produce(self, topic: str, value: str, *others: Any) -> None:
        self._process.ask(self._in_transaction).records.append(value)

    def send_offsets_to_transaction(self, offsets: list[Any], group: str, timeout: float) -> None:
        (at,) = offsets
        self._process.ask(self._in_transaction).marker = (group, at.topic, at.offset, at.metadata)

    def _in_transaction(self) -> _Id:
        each = self._process.broker.ids[self._name]
        if self._identity != (each.producer_id, each.epoch):
            raise ConnectorError(f"{self._name} is fenced")
        each.state, each.ended = "Ongoing", None
        return each

    def poll(self, timeout: float) -> int:
        return 0

    def flush(self, timeout: float) -> int:
        return 0

    def purge(self) -> None: ...

    def __len__(self) -> int:
        return 0


class Consumer:
    """In place of confluent's, for the group of markers."""

    def __init__(self, process: Process, group: str) -> None:
        self._process = process
        self._group = group

    def consumer_group_metadata(self) -> str:
        return self._group

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        (at,) = partitions
        known = self._process.ask(lambda: self._process.broker.markers)
        offset, metadata = known.get((self._group, at.topic), (-1001, None))
        return [SimpleNamespace(offset=offset, metadata=metadata, error=None)]

    def close(self) -> None: ...


class Connection:
    """In place of the connector's, with clients of the model."""

    servers = "model:1"
    timeout_s = 1.0
    timeout_ms = 1000
    properties: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def __init__(self, process: Process) -> None:
        self._process = process

    def producer(self, on_error: Any, **settings: Any) -> Producer:
        return Producer(self._process, settings["transactional.id"])

    def consumer(self, on_error: Any, **settings: Any) -> Consumer:
        return Consumer(self._process, settings["group.id"])


class InlineExecutor:
    """In place of the thread that makes producers ready: the order of requests is the same each time."""

    def __init__(self, threads: int, name: str) -> None: ...

    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, cancel_futures: bool = False) -> None: ...
