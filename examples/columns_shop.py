r"""Orders in columns: an archive in Parquet and a topic of Kafka in, Parquet and PostgreSQL out, exactly once.

The archive has the orders up to now, the topic those that come. A function of records finds the country of each
order; all orders go into Parquet files by day and country, and the sums per country and minute into a table.

``make kafka`` starts a broker with the topic. With a PostgreSQL of yours, in another terminal::

    export SHOP_DATABASE=postgresql+psycopg://user@host/shop
    python3 examples/columns_shop.py write archive
    python3 examples/columns_shop.py produce
    sluiceway run --workers 2 --checkpoint-interval 1s --checkpoints kept --resume \
        examples/columns_shop.py archive known
    python3 examples/columns_shop.py check known

The third command reads the orders that exist and ends; with --follow behind the directories it keeps reading. Kill
it at any time and run it again. The last one computes from the numbers of the orders what there must be.
"""

import argparse
import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import sluiceway as sw
from sluiceway.table import agg, col
from sluiceway.windows import TumblingEventTimeWindows

SERVERS = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
TOPIC = os.environ.get("SHOP_ORDERS", "orders")
DATABASE = os.environ.get("SHOP_DATABASE", "postgresql+psycopg:///shop")
ARCHIVED = 20_000
BEGIN = datetime(2026, 1, 1, 23, tzinfo=UTC)
PREFIXES = {"41": "CH", "33": "FR", "49": "DE"}
COUNTRIES = pa.table({"prefix": list(PREFIXES), "country": list(PREFIXES.values())})
FIELDS: dict[str, pa.DataType] = {
    "number": pa.int64(),
    "phone": pa.string(),
    "cents": pa.int64(),
    "at": pa.timestamp("us", "UTC"),
}
ORDERS = pa.schema(FIELDS)
SUMS = "CREATE TABLE sums (country text, minute timestamp, orders bigint, cents bigint)"


@dataclass
class Order:
    """An order as it comes."""

    number: int
    phone: str
    cents: int
    at: datetime


@dataclass
class Located(Order):
    """An order, and what a function of records adds to it."""

    prefix: str


def located(order: Order) -> Located:
    """Find the country's prefix in a telephone number: the kind of thing that no expression says well."""
    digits = "".join(c for c in order.phone if c.isdigit())
    return Located(order.number, order.phone, order.cents, order.at, digits.removeprefix("00")[:2])


def flow(arguments: list[str]) -> sw.Pipeline:
    """Take the directory of the archive, and that of the orders whose country is known."""
    from sluiceway_files import FilesSink, FilesSource
    from sluiceway_kafka import ArrowColumns, KafkaSource
    from sluiceway_sql import SqlSink

    directories = [argument for argument in arguments if argument != "--follow"]
    if len(directories) != 2:
        sys.exit("columns_shop takes two directories: archive known")
    archive, known = directories
    live = KafkaSource(
        SERVERS,
        TOPIC,
        deserializer=ArrowColumns(ORDERS),
        stop=None if "--follow" in arguments else "latest",
    )
    in_time = sw.WatermarkStrategy.for_bounded_out_of_orderness("5s").with_timestamp_column("at")
    flow = sw.Pipeline("shop")
    orders = (
        flow.table(FilesSource.parquet(archive), watermark_strategy=in_time)
        .uid("archive")
        .union(flow.table(live, watermark_strategy=in_time).uid("live"))
        .filter(col("cents") > 0)
        .map(located)
        .to_columns(Located)
        .lookup(COUNTRIES, on="prefix")
        .drop("prefix")
    )
    by_day = FilesSink.parquet(known, partition_by=["day", "country"])
    orders.with_columns(day=col("at").dt.date()).sink(by_day).uid("known")
    (
        orders.key_by("country")
        .window(TumblingEventTimeWindows("1min"))
        .aggregate(orders=agg.count(), cents=agg.sum("cents"))
        .uid("sums")
        .select("country", "orders", "cents", minute="window_start")
        .sink(SqlSink(DATABASE, "sums", ["country", "minute", "orders", "cents"], create=SUMS))
        .uid("written")
    )
    return flow


def order(number: int) -> dict[str, Any]:
    """Return an order: each has the same in the archive, in the topic and for the check."""
    prefix = ("+41", "0033", "+49", "+1")[number % 4]
    at = BEGIN + timedelta(milliseconds=number * 200 - number * 37 % 5_000)
    return {"number": number, "phone": f"{prefix} 79 {number:06}", "cents": number * 7 % 1_000, "at": at}


def write(directory: str) -> None:
    """Write the archive."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([order(number) for number in range(ARCHIVED)], ORDERS)
    pq.write_table(table, Path(directory, "orders.parquet"), row_group_size=2_000)


def produce(first: int, count: int) -> None:
    """Write orders to the topic."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": SERVERS, "linger.ms": 50})
    partitions = len(producer.list_topics(TOPIC, 30).topics[TOPIC].partitions)
    for number in range(first, first + count):
        made = order(number)
        producer.produce(TOPIC, json.dumps({**made, "at": made["at"].isoformat()}), partition=number % partitions)
        producer.poll(0)
    if producer.flush(60):
        sys.exit(f"orders could not be written to {SERVERS}")


def check(directory: str, count: int) -> dict[str, int]:
    """Compare files and table with what must be there of so many orders. Sums that are not due are not missed."""
    from sqlalchemy import create_engine, text

    expected = {}
    sums: Counter[tuple[str, datetime]] = Counter()
    for number in range(count):
        made = order(number)
        country = PREFIXES.get(made["phone"].lstrip("+0")[:2])
        if made["cents"] and country is not None:
            expected[number] = (country, made["cents"], made["at"].date())
            sums[country, made["at"].replace(second=0, microsecond=0, tzinfo=None)] += made["cents"]
    due = BEGIN.replace(tzinfo=None) + timedelta(milliseconds=count * 200, minutes=-1, seconds=-15)
    known = ds.dataset(directory, partitioning="hive").to_table().to_pylist()
    with create_engine(DATABASE).connect() as connection:
        written = list(connection.execute(text("SELECT country, minute, cents FROM sums")))
    return {
        "orders": len(known),
        "sums": len(written),
        "lost": len(expected.keys() - {row["number"] for row in known})
        + len({(country, at) for country, at in sums if at <= due} - {(row[0], row[1]) for row in written}),
        "doubled": len(known) - len({row["number"] for row in known}) + len(written) - len(set(written)),
        "wrong": sum(
            (row["country"], row["cents"], str(row["day"])) != (*each[:2], str(each[2]))
            for row in known
            if (each := expected.get(row["number"], ("", 0, None)))
        )
        + sum(row[2] != sums.get((row[0], row[1])) for row in written),
    }


def main() -> None:
    """Write, produce or check."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["write", "produce", "check"])
    parser.add_argument("directory", nargs="?", default="known")
    parser.add_argument("--first", type=int, default=ARCHIVED, help="number of the first order to produce")
    parser.add_argument("--count", type=int, default=10_000, help="number of orders to produce, or in the topic")
    given = parser.parse_args()
    if given.what == "write":
        write(given.directory)
        print(f"{ARCHIVED} orders written to {given.directory}")
    elif given.what == "produce":
        produce(given.first, given.count)
        print(f"{given.count} orders written to {TOPIC} at {SERVERS}")
    else:
        result = check(given.directory, ARCHIVED + given.count)
        print(", ".join(f"{name} {number}" for name, number in result.items()))
        sys.exit(any(result[name] for name in ("lost", "doubled", "wrong")))


if __name__ == "__main__":
    main()
