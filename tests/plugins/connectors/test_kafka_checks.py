"""What the Kafka connector decides without a broker: when a partition counts as gone, and which options clash."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.cli.app import app
from sluiceway.clock import VirtualClock
from sluiceway.connector import EnumeratorContext, Wait, WriterContext
from sluiceway.errors import ConfigurationError, ConnectorError, GraphError
from sluiceway.metrics import MetricGroup

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from confluent_kafka import KafkaError, KafkaException, Producer

from sluiceway_kafka import KafkaOffsets, KafkaSink, KafkaSource, _source
from sluiceway_kafka._connection import Connection, PositionLostError
from sluiceway_kafka._coordinator import Coordinator
from sluiceway_kafka._enumerator import CONFIRM_S, Discovered, Found, KafkaEnumerator
from sluiceway_kafka._offset_bounds import EARLIEST, Partition, resolve
from sluiceway_kafka._producer import Flusher
from sluiceway_kafka._splits import KafkaSplit
from sluiceway_kafka._transactions import TransactionalWriter
from sluiceway_kafka._writers import count_written

BOTH = frozenset({("orders", 0), ("orders", 1)})
ONE = frozenset({("orders", 0)})


class Context(EnumeratorContext):
    def __init__(self) -> None:
        self.time = VirtualClock()
        self.waits: list[float] = []

    parallelism = 1

    @property
    def clock(self) -> VirtualClock:
        return self.time

    def assign(self, reader: int, splits: Sequence[Any]) -> None: ...
    def no_more_splits(self, reader: int) -> None: ...
    def wake(self, after_s: float = 0.0) -> None:
        self.waits.append(after_s)


class Looks:
    """An enumerator whose looks find what they are told."""

    def __init__(self, interval_ms: int) -> None:
        self.there = BOTH
        self.identity = "a"
        self.context = Context()
        self.enumerator = KafkaEnumerator(self.context, self._look, lambda: None, interval_ms, None)
        self.enumerator.start()

    def _look(self, known: frozenset[Partition], is_first: bool) -> Found:
        splits = [KafkaSplit(*each, EARLIEST) for each in sorted(self.there - known)]
        return Found(self.there, splits, {"orders": self.identity})

    def again(self, there: frozenset[Partition], after_s: float) -> None:
        self.there = there
        self.context.time.advance(round(after_s * 1000))
        self.enumerator.run()
        assert self.enumerator._under_way is not None, "no look is due"
        wait([self.enumerator._under_way], PATIENT_S)  # type: ignore[list-item]
        self.enumerator.run()


@pytest.fixture
def looks(request: pytest.FixtureRequest) -> Iterator[Looks]:
    looks = Looks(getattr(request, "param", 60_000))
    yield looks
    looks.enumerator.close()


def test_a_partition_that_one_look_does_not_find_is_not_gone(looks: Looks) -> None:
    for _ in range(2):
        looks.again(ONE, 60)
        looks.again(BOTH, CONFIRM_S)
    looks.again(ONE, 60)  # each time is the first one


def test_a_partition_that_two_looks_do_not_find_is_gone(looks: Looks) -> None:
    looks.again(ONE, 60)
    with pytest.raises(PositionLostError, match="partition 1 of topic 'orders' is not there any more"):
        looks.again(ONE, CONFIRM_S)  # sooner than the interval says


@pytest.mark.parametrize("looks", [100], indirect=True)
def test_looks_at_short_intervals_are_not_enough(looks: Looks) -> None:
    for _ in range(10):
        looks.again(ONE, 0.2)
    with pytest.raises(PositionLostError, match="partition 1 of topic 'orders'"):
        looks.again(ONE, CONFIRM_S)


def test_a_topic_that_was_made_anew_is_another_one(looks: Looks) -> None:
    state = looks.enumerator.snapshot()
    looks.identity = "b"
    with pytest.raises(PositionLostError, match="topic 'orders' was deleted and created again"):
        looks.again(BOTH, 60)
    restored = KafkaEnumerator(Context(), looks._look, lambda: None, 60_000, state)
    with pytest.raises(PositionLostError, match="topic 'orders' was deleted and created again"):
        restored.start()
    earlier = Discovered([], BOTH)
    object.__delattr__(earlier, "topics")  # as restored from a checkpoint of before there were ids
    KafkaEnumerator(Context(), looks._look, lambda: None, 60_000, earlier).start()


@pytest.mark.parametrize(
    "options",
    [{"topics": "orders"}, {"pattern": "o.*"}, {"partitions": {"orders": [0, 1]}}],
    ids=["topics", "pattern", "partitions"],
)
@pytest.mark.parametrize("stop", [None, "latest"])
def test_partitions_that_are_named_no_more_are_not_looked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, options: dict[str, Any], stop: Any
) -> None:
    others = frozenset({("orders", 2), ("bills", 0)}) if "partitions" in options else frozenset({("bills", 0)})
    restored = Discovered(
        [KafkaSplit(*each, EARLIEST) for each in sorted(BOTH | others)],
        BOTH | others,
        {"orders": "a", "bills": "b"},
    )
    context = Context()
    monkeypatch.setattr(_source._Look, "__call__", lambda *_: Found(BOTH, [], {"orders": "a"}))
    enumerator = KafkaSource("127.0.0.1:1", **options, stop=stop).create_enumerator(context, restored)
    try:
        with caplog.at_level("WARNING"):
            enumerator.start()
        assert enumerator.snapshot() == Discovered(
            [KafkaSplit(*each, EARLIEST) for each in sorted(BOTH)], BOTH, {"orders": "a"}
        )
    finally:
        enumerator.close()
    (warning,) = caplog.messages
    assert ("bills-0, orders-2." if "partitions" in options else "bills-0.") in warning
    assert ("reads them from their first record" in warning) == (stop is None and "partitions" not in options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"partitions": {"orders": [0, 1, 7]}}, "partition orders-7"),
        ({"topics": ["orders", "bills"], "stop": "latest"}, "topic 'bills'"),
        ({"topics": ["orders", "bills"], "discovery_interval": None}, "topic 'bills'"),
    ],
    ids=["partitions", "stop", "no looks"],
)
def test_what_a_source_would_never_look_for_is_refused(options: dict[str, Any], named: str) -> None:
    restored = Discovered([], BOTH, {"orders": "a"})
    source = KafkaSource("127.0.0.1:1", **options)
    with pytest.raises(ConfigurationError, match=f"the restored state does not have {named}: read them"):
        source.create_enumerator(Context(), restored)


class Admin:
    """Client that finds nothing and counts how often its queue was emptied."""

    def __init__(self) -> None:
        self.polled = 0

    def poll(self, timeout_s: float) -> int:
        self.polled += 1
        return 0


@pytest.mark.parametrize("stop", [None, "latest"])
def test_a_look_leaves_no_client_that_is_not_polled(monkeypatch: pytest.MonkeyPatch, stop: Any) -> None:
    """Its queue of log lines would grow while brokers are away."""
    admin = Admin()
    monkeypatch.setattr("sluiceway_kafka._connection.Connection.admin", lambda _: admin)
    monkeypatch.setattr(_source._Look, "_there", lambda *_: (frozenset(), {}))
    look = _source._Look(KafkaSource("127.0.0.1:1", "orders", stop=stop))
    for count in (1, 2):
        look(frozenset(), False)
        assert admin.polled == count
        assert (look._admin is None) == (stop is not None)


PIPELINE = """
import sluiceway as sw

flow = sw.Pipeline("totals")
flow.from_collection(["a"]).sink(
    "kafka",
    bootstrap_servers="127.0.0.1:1",
    topic="totals",
    guarantee="exactly-once",
    transactional_id_prefix="totals",
    transaction_timeout="1min",
)
"""


def test_a_timeout_shorter_than_the_checkpoint_interval_is_refused_before_anything_runs(tmp_path: Path) -> None:
    begun = []

    def begin() -> Iterator[str]:
        begun.append(True)
        yield "a"

    flow = sw.Pipeline("totals")
    sink = KafkaSink(
        "127.0.0.1:1", "t", guarantee="exactly-once", transactional_id_prefix="p", transaction_timeout="1min"
    )
    flow.from_function(begin).sink(sink)
    message = "transaction_timeout=60000 ms must be longer than the checkpoint interval of 60000 ms"
    with pytest.raises(GraphError, match=message):
        flow.run(checkpoint_interval="1min")
    assert not begun
    assert not [finding for finding in flow.check(checkpoint_interval="59s") if finding.code == "sink-options"]

    (tmp_path / "totals.py").write_text(PIPELINE)
    result = CliRunner().invoke(app, ["check", "--checkpoint-interval", "1min", str(tmp_path / "totals.py")])
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("transaction_timeout", "properties", "expected"),
    [("15min", {}, 60_000), ("1min", {}, 59_900), ("1s", {}, 900), ("15min", {"socket.timeout.ms": 5000}, 5000)],
)
def test_a_silent_broker_is_noticed_before_its_transactions_time_out(
    monkeypatch: pytest.MonkeyPatch, transaction_timeout: str, properties: dict[str, Any], expected: int
) -> None:
    given: list[dict[str, Any]] = []

    def refuse(configuration: dict[str, Any]) -> None:
        given.append(configuration)
        Producer(configuration).close()  # it takes the value
        raise ValueError("enough")

    monkeypatch.setattr("sluiceway_kafka._connection.Producer", refuse)
    sink = KafkaSink(
        "127.0.0.1:1",
        "t",
        guarantee="exactly-once",
        transactional_id_prefix="p",
        transaction_timeout=transaction_timeout,
        properties=properties,
    )
    writer = sink.create_writer(WriterContext(0, 1, VirtualClock(), lambda: None, MetricGroup()))
    assert isinstance(writer, TransactionalWriter)
    with pytest.raises(ConfigurationError, match="enough"):
        writer._make(0)
    assert [each["socket.timeout.ms"] for each in given] == [expected]


def test_a_client_without_records_is_polled_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    polled: list[float] = []
    clock = VirtualClock()

    class Refused:
        def __init__(self, configuration: dict[str, Any]) -> None:
            self.report = configuration["error_cb"]

        def __len__(self) -> int:
            return 0

        def poll(self, timeout: float) -> None:
            polled.append(clock.monotonic())
            if len(polled) == 2:
                self.report(KafkaError(KafkaError._AUTHENTICATION))

        def purge(self) -> None: ...

    monkeypatch.setattr("sluiceway_kafka._connection.Producer", Refused)
    monkeypatch.setattr(Connection, "admin", lambda self: None)
    writer = KafkaSink("127.0.0.1:1", "t").create_writer(WriterContext(0, 1, clock, lambda: None, MetricGroup()))
    writer.open()
    try:
        for _ in range(9):
            assert writer.blocked() is None
            clock.advance(100)
        assert polled == [0.0]
        clock.advance(100)
        with pytest.raises(ConnectorError, match=r"127\.0\.0\.1:1"):
            writer.blocked()
    finally:
        writer.close()


def test_a_refusal_that_ends_a_flush_is_raised_before_the_flush_counts_as_done() -> None:
    flusher = Flusher(lambda: None, VirtualClock())

    class Refused:
        waiting, producer, failure = 0, (), None

        def check(self) -> None:
            if self.failure is not None:
                raise self.failure
            # The thread of the flush has its turn right after the first check.
            self.failure, flusher._outbox = ConnectorError("refused"), None

    outbox: Any = Refused()
    flusher._outbox, flusher._wanted = outbox, True
    assert flusher.blocked(outbox) == Wait()
    with pytest.raises(ConnectorError, match="refused"):
        flusher.blocked(outbox)


@pytest.mark.parametrize(
    ("code", "name"),
    [(-1, "UNKNOWN_SERVER_ERROR"), (53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"), (31, "error 31")],
)
def test_an_error_that_says_nothing_of_a_transaction_is_no_proof_that_it_is_gone(
    monkeypatch: pytest.MonkeyPatch, code: int, name: str
) -> None:
    """A transaction that counts as gone is fenced when a checkpoint is restored, and its records would be lost."""
    answers = iter([code, 48])
    monkeypatch.setattr(Coordinator, "_send", lambda *_: next(answers))
    coordinator = Coordinator.__new__(Coordinator)
    coordinator._connection = Connection("127.0.0.1:1")
    message = rf"cannot commit the transaction of 'p-0-0' at 127\.0\.0\.1:1: {name}\."
    with pytest.raises(ConnectorError, match=message):
        coordinator.end("p-0-0", 7, 1, commit=True, version=2)
    assert coordinator.end("p-0-0", 7, 1, commit=True, version=2) == "INVALID_TXN_STATE"


class _Admin:
    """Client whose requests fail with the errors given, each once, and then are answered."""

    def __init__(self, *failures: int) -> None:
        self._failures = [KafkaException(KafkaError(code)) for code in failures]

    def _answer(self, answer: Any) -> Any:
        future: Future[Any] = Future()
        if self._failures:
            future.set_exception(self._failures.pop(0))
        else:
            future.set_result(answer)
        return future

    def list_offsets(self, asked: Any, **_: Any) -> Any:
        return {partition: self._answer(SimpleNamespace(offset=7)) for partition in asked}

    def list_consumer_group_offsets(self, asked: Any, **_: Any) -> Any:
        (group,) = asked
        for partition in group.topic_partitions:
            partition.offset = 5
        return {group.group_id: self._answer(group)}


def _resolved(start: KafkaOffsets, *failures: int, timeout_ms: int = 600_000) -> Any:
    connection = Connection("broker:1", timeout_ms=timeout_ms)
    admin: Any = _Admin(*failures)
    return resolve(start, sorted(BOTH), admin, connection, group_id="group", read_committed=True)


@pytest.mark.parametrize(
    ("start", "code", "offset"),
    [
        (KafkaOffsets.latest(), KafkaError.NOT_LEADER_FOR_PARTITION, 7),
        (KafkaOffsets.timestamp(1), KafkaError.UNKNOWN_TOPIC_OR_PART, 7),
        (KafkaOffsets.committed(), KafkaError.COORDINATOR_LOAD_IN_PROGRESS, 5),
    ],
    ids=["latest", "timestamp", "committed"],
)
def test_offsets_are_asked_for_until_leaders_answer(start: KafkaOffsets, code: int, offset: int) -> None:
    """Those of a topic that was created just now, or whose broker restarts, do not at first."""
    assert _resolved(start, code, code) == dict.fromkeys(BOTH, offset)
    with pytest.raises(ConnectorError, match=KafkaError(code).name()):
        _resolved(start, *[code] * 100, timeout_ms=1)
    with pytest.raises(ConnectorError, match=r"cannot list .* at broker:1: .*GROUP_AUTHORIZATION_FAILED"):
        _resolved(start, KafkaError.GROUP_AUTHORIZATION_FAILED)


def test_a_committed_offset_that_cannot_be_read_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source would begin at the first record."""

    def listed(self: _Admin, asked: Any, **_: Any) -> Any:
        (group,) = asked
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        partitions = [SimpleNamespace(topic=p.topic, error=error, offset=-1001) for p in group.topic_partitions]
        return {group.group_id: self._answer(SimpleNamespace(topic_partitions=partitions))}

    monkeypatch.setattr(_Admin, "list_consumer_group_offsets", listed)
    with pytest.raises(ConnectorError, match=r"cannot list the offsets of group 'group' .*TOPIC_AUTHORIZATION"):
        _resolved(KafkaOffsets.committed())


def test_an_offset_or_a_timestamp_that_kafka_has_no_number_for_is_refused() -> None:
    """The client would raise an OverflowError when the job runs."""
    largest = 2**63 - 1
    assert KafkaOffsets.timestamp(largest).at_ms == largest
    with pytest.raises(ConfigurationError, match=rf"timestamp\({2**63}\): give .*, from 0 to {largest}"):
        KafkaOffsets.timestamp(2**63)
    with pytest.raises(ConfigurationError, match=rf"\('orders', 0\): {2**63}.*: an offset is from 0 to"):
        KafkaOffsets.partitions({("orders", 0): 2**63})


@pytest.mark.parametrize(
    ("partition", "options"),
    [
        (("ordres", 0), {"topics": "orders"}),
        (("orders", 1), {"partitions": {"orders": [0]}}),
        (("bills", 0), {"pattern": "orders.*"}),
    ],
    ids=["topic", "partition", "pattern"],
)
def test_an_offset_of_a_partition_that_is_not_read_is_refused(
    partition: Partition, options: dict[str, Any]
) -> None:
    """The fallback would apply to the partition that was meant, and nothing would say so."""
    named = f"topic '{partition[0]}', partition {partition[1]}, which the source does not read"
    offsets = KafkaOffsets.partitions({partition: 5}, fallback="earliest")
    with pytest.raises(ConfigurationError, match=rf"start=KafkaOffsets.partitions\(\) has an offset of {named}"):
        KafkaSource("127.0.0.1:1", start=offsets, **options)
    with pytest.raises(ConfigurationError, match=rf"stop=KafkaOffsets.partitions\(\) has an offset of {named}"):
        KafkaSource("127.0.0.1:1", stop=offsets, **options)


def test_an_offset_of_a_partition_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluiceway_kafka._connection.Connection.admin", lambda _: Admin())
    monkeypatch.setattr(_source._Look, "_there", lambda *_: (BOTH, {}))
    offsets = KafkaOffsets.partitions({("orders", 7): 5}, fallback="earliest")
    look = _source._Look(KafkaSource("127.0.0.1:1", "orders", start=offsets))
    with pytest.raises(ConnectorError, match=r"of topic 'orders', partition 7, which does not exist at 127"):
        look(frozenset(), True)
    # A job that goes on from a checkpoint begins where that says.
    assert look(BOTH, False) == Found(BOTH, [], {})


def test_the_wait_for_a_cluster_ends_with_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Future[None]):
        """Future whose result comes after the first question."""

        asked = False

        def done(self) -> bool:
            asked, self.asked = self.asked, True
            return asked and super().done()

    class Client(Admin):
        waited_s = 0.0

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()

        def describe_cluster(self, **_: Any) -> Future[None]:
            answer = Late()
            answer.set_result(None)
            return answer

        def poll(self, timeout_s: float) -> int:
            Client.waited_s += timeout_s
            return super().poll(timeout_s)

    monkeypatch.setattr("sluiceway_kafka._connection.AdminClient", Client)
    Connection("127.0.0.1:1").admin()
    assert Client.waited_s == 0


def test_bytes_of_text_are_counted_as_it_is_sent() -> None:
    metrics = MetricGroup()
    context: Any = SimpleNamespace(metrics=metrics)
    count_written(
        context, [("t", value, None, -1, 0, None) for value in ("abc", "\u00fc\u20ac", b"\xff\xff", None, "")]
    )
    assert (metrics.counters["recordsSent"].value, metrics.counters["bytesSent"].value) == (5, 3 + 5 + 2)


@pytest.mark.parametrize("text", ["cut\0here", "half a pair \ud800"])
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda text: KafkaSource(text, "orders"), "bootstrap_servers='"),
        (lambda text: KafkaSource("127.0.0.1:1", ["orders", text]), "the name of topic '"),
        (lambda text: KafkaSource("127.0.0.1:1", partitions={text: [0]}), "the name of topic '"),
        (lambda text: KafkaSource("127.0.0.1:1", "orders", group_id=text), "group_id='"),
        (lambda text: KafkaSource("127.0.0.1:1", "orders", properties={text: "1"}), "property '"),
        (
            lambda text: KafkaSource("127.0.0.1:1", "orders", properties={"client.id": text}),
            "property 'client.id'",
        ),
        (lambda text: KafkaSink("127.0.0.1:1", text), "topic='"),
        (
            lambda text: KafkaSink(
                "127.0.0.1:1", "orders", guarantee="exactly-once", transactional_id_prefix=text
            ),
            "transactional_id_prefix='",
        ),
    ],
)
def test_texts_on_which_the_client_would_end_the_process(text: str, make: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{named}.* must be text that can be encoded in UTF-8, without"):
        make(text)
