"""Kafka: source and sink beside plain loops over the same client, exactly once against at least once, latency.

A broker runs on the same machine and takes its share of the cores, beside the loops as well.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from threading import Event, Thread
from typing import Any

import sluiceway as sw
from benchmarks.harness import Plan, Row, Time, short, timed
from benchmarks.latency import quantile
from sluiceway.connector.lib import DiscardSink
from sluiceway.testing.kafka import KafkaCluster, KafkaUnavailableError

__all__ = ["measure"]

RECORDS = 1_000_000
SIZE = 100
PARTITIONS = 4
RATE = 1_000
COPIES = 3
"""Records written for each that is read, so that a run has several checkpoints."""
CONSUMED = 1_000
PRODUCED = 1_000

SOURCE = "Kafka source to a discarding sink"
SINK = "Kafka sink, at least once"
COPY = "Kafka to Kafka with a checkpoint every second, exactly once"
LATENCY = f"latency through Kafka at {RATE:,} records/s"
LATENCIES = {f"{LATENCY}, median": 0.5, f"{LATENCY}, 99th percentile": 0.99}


def measure(plan: Plan) -> Iterator[Row]:
    try:
        if find_spec("confluent_kafka") is None:
            raise KafkaUnavailableError("confluent-kafka is not installed")
        with KafkaCluster() as cluster:
            yield from _rows(cluster.bootstrap_servers, plan)
    except KafkaUnavailableError as error:
        print(error, file=sys.stderr)
        for name in (SOURCE, SINK, COPY, *LATENCIES):
            yield Row(name, "x speed", (), note="a broker of Apache Kafka is not installed")


def _rows(servers: str, plan: Plan) -> Iterator[Row]:
    records = plan.size(RECORDS, 2_000)
    values = [f"{number:0{SIZE}}" for number in range(records)]
    topics = _Topics(servers)
    _sink(servers, topics.make(), values[:1000])  # imports
    filled = topics.make()
    for number in range(PARTITIONS):
        _produce(servers, filled, values[number::PARTITIONS], number)
    yield _ratio(
        SOURCE,
        "a loop over consume(1000) that makes the same values",
        lambda: _consume(servers, filled, records),
        lambda: _source(servers, filled, records),
        records,
        plan,
        0.8,
    )
    yield _ratio(
        SINK,
        "a loop over produce_batch",
        lambda: _produce(servers, topics.make(), values),
        lambda: _sink(servers, topics.make(), values),
        records,
        plan,
        0.8,
    )
    yield _ratio(
        COPY,
        "at least once",
        lambda: _copy(servers, filled, topics.make(), COPIES * records, "at-least-once"),
        lambda: _copy(servers, filled, topics.make(), COPIES * records, "exactly-once"),
        COPIES * records,
        plan,
        0.85,
    )
    yield from _latencies(servers, topics, plan)


def _ratio(
    name: str,
    against: str,
    theirs: Callable[[], Any],
    ours: Callable[[], Any],
    records: int,
    plan: Plan,
    aim: float,
) -> Row:
    pairs: list[tuple[Time, Time]] = [(timed(theirs), timed(ours)) for _ in range(plan.runs)]
    speeds = [records / statistics.median(each.wall for each in side) for side in zip(*pairs, strict=True)]
    cpu = [1e6 * statistics.median(each.cpu for each in side) / records for side in zip(*pairs, strict=True)]
    return Row(
        name,
        "x speed",
        tuple(other.wall / own.wall for other, own in pairs),
        aim=aim,
        note=f"{short(speeds[1])} records/s against {short(speeds[0])}, start and end included; processor time of "
        f"the process {cpu[1]:.2g} against {cpu[0]:.2g} us a record",
        details={
            "records": records,
            "bytes_per_record": SIZE,
            "theirs_s": [a.wall for a, _ in pairs],
            "ours_s": [b.wall for _, b in pairs],
            "cpu_us_per_record": cpu,
        },
        against=against,
    )


class _Topics:
    """Makes topics."""

    def __init__(self, servers: str) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient({"bootstrap.servers": servers})
        self._made = 0

    def make(self, partitions: int = PARTITIONS) -> str:
        from confluent_kafka.admin import NewTopic

        self._made += 1
        name = f"bench{self._made}"
        self._admin.create_topics([NewTopic(name, partitions)])[name].result(60)
        return name


# ---- the loops ------------------------------------------------------------------------------------------------


def _consumer(servers: str, topic: str) -> Any:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings: dict[str, Any] = {"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False}
    # As the source sets it: with the default, a second, the loop waits for most of the time.
    settings |= {"fetch.queue.backoff.ms": 20, "isolation.level": "read_committed"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    return consumer


def _consume(servers: str, topic: str, records: int) -> None:
    consumer = _consumer(servers, topic)
    count = 0
    while count < records:
        values = [message.value().decode() for message in consumer.consume(CONSUMED, 1.0)]
        count += len(values)
    consumer.close()
    _check(count, records)


def _produce(servers: str, topic: str, values: list[str], partition: int = -1) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for first in range(0, len(values), PRODUCED):
        batch = [{"value": value} for value in values[first : first + PRODUCED]]
        while producer.produce_batch(topic, batch, partition=partition) < len(batch):
            batch = [each for each in batch if each.pop("_error", None) is not None]
            producer.poll(0.01)
    producer.flush()


# ---- the pipelines --------------------------------------------------------------------------------------------


def _source(servers: str, topic: str, records: int) -> None:
    from sluiceway_kafka import KafkaSource

    flow = sw.Pipeline("source")
    flow.source(KafkaSource(servers, topic, stop="latest")).sink(DiscardSink())
    _check(flow.run().metrics.records_out, records)


def _sink(servers: str, topic: str, values: list[str]) -> None:
    from sluiceway_kafka import KafkaSink

    flow = sw.Pipeline("sink")
    flow.from_collection(values).sink(KafkaSink(servers, topic))
    flow.run()


def _copy(servers: str, topic: str, to: str, records: int, guarantee: Any) -> None:
    from sluiceway_kafka import KafkaSink, KafkaSource

    prefix = {"transactional_id_prefix": to} if guarantee == "exactly-once" else {}
    flow = sw.Pipeline("copy")
    sink = KafkaSink(servers, to, guarantee=guarantee, **prefix)  # type: ignore[arg-type]
    flow.source(KafkaSource(servers, topic, stop="latest")).flat_map(_copies).sink(sink)
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as directory:
        metrics = flow.run(checkpoint_interval="1s", checkpoints=directory).metrics
    _check(metrics.records_out, records)


def _copies(value: str) -> list[str]:
    return [value] * COPIES


# ---- latency --------------------------------------------------------------------------------------------------


def _latencies(servers: str, topics: _Topics, plan: Plan) -> Iterator[Row]:
    records = plan.size(6 * RATE, RATE + 200)
    runs = [_delays(servers, topics.make(), topics.make(), records) for _ in range(plan.runs)]
    for name, share in LATENCIES.items():
        yield Row(
            name,
            "ms",
            tuple(quantile(run, share) for run in runs),
            note=f"{records - RATE} records a run, after the first {RATE}, from produce() to a consumer behind "
            "source, keyed count and sink; linger.ms=0",
            details={"records": records - RATE},
        )


def _delays(servers: str, topic: str, to: str, records: int) -> list[float]:
    """Milliseconds from producing a record to its result in another topic."""
    from confluent_kafka import Producer

    from sluiceway_kafka import KafkaSink, KafkaSource

    delays: list[float] = []
    consumer = _consumer(servers, to)
    ready = Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
        producer.produce(topic, f"first {time.monotonic_ns()}")
        ready.wait()
        start = time.monotonic()
        for number in range(records):
            time.sleep(max(0.0, start + number / RATE - time.monotonic()))
            producer.produce(topic, f"{number % 10} {time.monotonic_ns()}")
            producer.poll(0)
        producer.flush()

    producing = Thread(target=produce)
    producing.start()
    flow = sw.Pipeline("latency")
    lines = flow.source(KafkaSource(servers, topic))
    counted = lines.map(_parsed).key_by(_key).reduce(_later)
    counted.map(_written).sink(KafkaSink(servers, to, properties={"linger.ms": 0}))

    def consume() -> None:
        while not consumer.consume(1, 0.1):
            pass  # until the job runs
        ready.set()
        while len(delays) < records:
            message = consumer.poll(0.1)  # consume() waits for more than one
            if message is not None:
                delays.append((time.monotonic_ns() - int(message.value().split()[1])) / 1e6)
        del delays[:RATE]  # of a producer and a job that have just begun

    async def run() -> None:
        handle = await flow.start()
        await asyncio.to_thread(consume)
        await handle.stop()

    asyncio.run(run())
    producing.join()
    consumer.close()
    return delays


Line = tuple[str, int, int]


def _parsed(line: str) -> Line:
    key, moment = line.split()
    return (key, int(moment), 1)


def _key(line: Line) -> str:
    return line[0]


def _later(so_far: Line, line: Line) -> Line:
    return (line[0], line[1], so_far[2] + line[2])


def _written(line: Line) -> str:
    return f"{line[0]} {line[1]} {line[2]}"


def _check(count: int, records: int) -> None:
    if count != records:
        raise RuntimeError(f"kafka: {count} records were read instead of {records}")
