"""Orders in columns: Parquet in, a function of records in the middle, sums per country and window as Parquet out.

Run it, with the directory of the orders and that of the sums::

    python examples/columns_orders.py write orders
    sluiceway run examples/columns_orders.py --workers 2 --checkpoints kept --checkpoint-interval 1s orders sums
    python examples/columns_orders.py [--assert]

Each sum is in the second directory once, whatever dies on the way. DuckDB, Polars and pandas read both.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import sluiceway as sw
from sluiceway.table import agg, col
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSink, FilesSource

COUNTRIES = pa.table({"prefix": ["41", "33", "49"], "country": ["CH", "FR", "DE"]})


@dataclass
class Order:
    """An order, and what a function of records adds to it."""

    phone: str
    cents: int
    prefix: str = ""


def prefixed(order: Order) -> Order:
    """Find the country's prefix in a telephone number: the kind of thing that no expression says well."""
    digits = "".join(c for c in order.phone if c.isdigit())
    return Order(order.phone, order.cents, digits.removeprefix("00")[:2])


def flow(arguments: list[str]) -> sw.Pipeline:
    """Take the directory of the orders, and that of the sums, which must not have any yet."""
    if len(arguments) != 2:
        sys.exit("columns_orders takes two directories: orders sums")
    orders, sums = arguments
    strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness("5s").with_timestamp_column("at")
    flow = sw.Pipeline("orders-in-columns")
    paid = flow.table(FilesSource.parquet(orders), watermark_strategy=strategy).filter(col("paid"))
    known = paid.select("phone", "cents", prefix="phone").map(prefixed).to_columns(Order)
    (
        known.lookup(COUNTRIES, on="prefix")
        .key_by("country")
        .window(TumblingEventTimeWindows("10s"))
        .aggregate(orders=agg.count(), cents=agg.sum("cents"))
        .drop("window_end")
        .sink(FilesSink.parquet(sums))
    )
    return flow


def write(directory: str) -> None:
    """Write 9,000 orders of two minutes."""
    numbers = range(9_000)
    table = pa.table(
        {
            "phone": [f"{('+41', '0033', '+49', '+1')[n % 4]} 79 {n:06}" for n in numbers],
            "cents": [n * 7 % 1_000 for n in numbers],
            "paid": [n % 5 > 0 for n in numbers],
            "at": pa.array([n * 13 for n in numbers], pa.timestamp("ms")),
        }
    )
    Path(directory).mkdir(parents=True, exist_ok=True)
    pq.write_table(table, Path(directory, "orders.parquet"), row_group_size=1_000)


def check(orders: str, sums: str) -> None:
    """Compare the sums with those that pyarrow computes from the orders."""
    wanted = pq.read_table(orders)
    wanted = wanted.filter(pc.and_(wanted["paid"], pc.invert(pc.starts_with(wanted["phone"], "+1"))))
    found = pq.read_table(sums)
    per_window = found.group_by(["country", "window_start"]).aggregate([([], "count_all")])
    assert pc.max(per_window["count_all"]).as_py() == 1
    assert pc.sum(found["orders"]).as_py() == len(wanted)
    assert pc.sum(found["cents"]).as_py() == pc.sum(wanted["cents"]).as_py()


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as place:
            write(f"{place}/orders")
            flow([f"{place}/orders", f"{place}/sums"]).run()
            print(pq.read_table(f"{place}/sums").sort_by("window_start").slice(0, 3).to_pylist())
            if "--assert" in sys.argv:
                check(f"{place}/orders", f"{place}/sums")
