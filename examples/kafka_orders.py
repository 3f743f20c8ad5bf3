"""Orders from Apache Kafka; their totals per product and minute to Kafka, exactly once.

``make kafka`` starts a broker with the two topics. In another terminal::

    python3 examples/kafka_orders.py produce
    sluiceway run examples/kafka_orders.py --checkpoint-interval 1s --checkpoints kept --resume
    python3 examples/kafka_orders.py check

The first command writes orders. The second one reads the orders that exist and ends; with --follow after the name
of the file it keeps reading. Kill it at any time and run it again. The third one is an independent consumer: it
computes the totals from the orders and compares them with the committed records of the other topic.

All of it in one process, with topics of its own. The variable KAFKA_BOOTSTRAP_SERVERS names another broker::

    python3 examples/kafka_orders.py --assert
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sluiceway as sw
from sluiceway.windows import TumblingEventTimeWindows

SERVERS = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
ORDERS = os.environ.get("KAFKA_ORDERS", "orders")
TOTALS = os.environ.get("KAFKA_TOTALS", "order-totals")
DAY_S = 86_400
MINUTE_MS = 60_000
LATENESS_MS = 5_000
PRODUCTS = ("apples", "bread", "cheese", "dates", "eggs", "figs", "grapes")


@dataclass(frozen=True)
class Order:
    """The value of a record of the topic ``orders``, as JSON. The record's timestamp is the time of the order."""

    number: int
    product: str
    cents: int


@dataclass(frozen=True)
class Total:
    """The value of a record of the topic ``order-totals``, as JSON; its key is the product."""

    product: str
    minute: int
    orders: int
    cents: int


class Totals(sw.ProcessWindowFunction[str, Order, Total]):
    """One total for each product and minute."""

    def process(self, key: str, ctx: sw.ProcessWindowFunction.Context, elements: list[Order]) -> Iterator[Total]:
        yield Total(key, ctx.window().start // MINUTE_MS, len(elements), sum(order.cents for order in elements))


def flow(arguments: list[str]) -> sw.Pipeline:
    """The pipeline. It ends with the orders that are there when it starts, unless it is to follow."""
    from sluiceway_kafka import KafkaSink, KafkaSource

    flow = sw.Pipeline("orders")
    source = KafkaSource(
        SERVERS,
        ORDERS,
        deserializer="json",
        type=Order,
        stop=None if "--follow" in arguments else "latest",
        group_id="totals",
    )
    # Given to the source, the strategy has a watermark generator for each partition. In a step of its own it would
    # have one for all of them, and the records of a partition that is read later would be late.
    in_time = sw.WatermarkStrategy.for_bounded_out_of_orderness(f"{LATENESS_MS}ms")
    (
        flow.source(source, watermark_strategy=in_time)
        .uid("orders")
        .key_by(lambda order: order.product)
        .window(TumblingEventTimeWindows("1min"))
        .process(Totals())
        .uid("totals")
        .sink(
            KafkaSink(
                SERVERS,
                TOTALS,
                serializer="json",
                key=lambda total: total.product,
                guarantee="exactly-once",
                transactional_id_prefix=TOTALS,
            )
        )
        .uid("written")
    )
    return flow


def create_topics() -> None:
    """Create new topics, and use these from here on."""
    from confluent_kafka.admin import AdminClient, NewTopic

    global ORDERS, TOTALS
    ORDERS, TOTALS = f"{ORDERS}-{os.getpid()}", f"{TOTALS}-{os.getpid()}"
    admin = AdminClient({"bootstrap.servers": SERVERS})
    for created in admin.create_topics([NewTopic(ORDERS, 4), NewTopic(TOTALS, 2)]).values():
        created.result(60)


def produce(count: int, first: int = 0) -> None:
    """Write orders to four partitions: 20 per second of event time, from yesterday on, at most 5 s late."""
    from confluent_kafka import Producer

    numbers = random.Random(first)
    yesterday_ms = (int(time.time()) // DAY_S - 1) * DAY_S * 1000  # brokers refuse times in the future
    producer = Producer({"bootstrap.servers": SERVERS, "linger.ms": 50})
    for number in range(first, first + count):
        at_ms = yesterday_ms + number * 50 - numbers.randrange(LATENESS_MS)
        value = json.dumps(
            {"number": number, "product": numbers.choice(PRODUCTS), "cents": numbers.randrange(10_000)}
        )
        producer.produce(ORDERS, value, partition=number % 4, timestamp=at_ms)
        producer.poll(0)
    if producer.flush(60):
        sys.exit(f"orders could not be written to {SERVERS}")


def records(topic: str) -> Iterator[tuple[int, Any]]:
    """The timestamps and values of a topic's committed records, up to its end, read by a plain consumer."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": SERVERS,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    left = {
        TopicPartition(topic, number, 0) for number in consumer.list_topics(topic, 30).topics[topic].partitions
    }
    consumer.assign(list(left))
    ended: set[int] = set()
    while len(ended) < len(left):
        message = consumer.poll(30)
        if message is None:
            sys.exit(f"{SERVERS} does not answer")
        if message.error() is None:
            yield message.timestamp()[1], json.loads(message.value())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            sys.exit(str(message.error()))
    consumer.close()


def check() -> dict[str, int]:
    """Compare what was written with what the orders say. Totals that are not due yet are not missed."""
    expected: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    newest: dict[int, int] = defaultdict(int)
    orders = 0
    for at_ms, order in records(ORDERS):
        total = expected[order["product"], at_ms // MINUTE_MS]
        total[0] += 1
        total[1] += order["cents"]
        newest[order["number"] % 4] = max(newest[order["number"] % 4], at_ms)
        orders += 1
    watermark = min(newest.values(), default=0) - LATENESS_MS
    found = Counter[tuple[str, int]]()
    wrong = 0
    for _, total in records(TOTALS):
        key = total["product"], total["minute"]
        found[key] += 1
        wrong += [total["orders"], total["cents"]] != expected.get(key)
    due = {key for key in expected if (key[1] + 1) * MINUTE_MS <= watermark}
    return {
        "orders": orders,
        "totals": found.total(),
        "lost": len(due - found.keys()),
        "doubled": sum(count - 1 for count in found.values()),
        "wrong": wrong,
    }


def main() -> None:
    """Produce or check, or do it all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=["produce", "check"])
    parser.add_argument("--count", type=int, default=20_000, help="number of orders")
    parser.add_argument("--first", type=int, default=0, help="number of the first order")
    parser.add_argument("--assert", action="store_true", help="produce, run and check in this process")
    given = parser.parse_args()
    if given.what == "produce":
        produce(given.count, given.first)
        print(f"{given.count} orders written to {ORDERS} at {SERVERS}")
        return
    if given.what == "check":
        result = check()
        print(", ".join(f"{name} {count}" for name, count in result.items()))
        sys.exit(any(result[name] for name in ("lost", "doubled", "wrong")))
    create_topics()
    with tempfile.TemporaryDirectory() as directory:
        produce(given.count)
        flow([]).run(checkpoint_interval="1s", checkpoints=directory)
    result = check()
    print(result)
    if "--assert" in sys.argv:
        assert result["orders"] == given.count
        assert result["totals"] > 0
        assert [result["lost"], result["doubled"], result["wrong"]] == [0, 0, 0]


if __name__ == "__main__":
    main()
