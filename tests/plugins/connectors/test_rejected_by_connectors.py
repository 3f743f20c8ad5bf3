"""Records that a connector cannot read or write: a job with checkpoints does not try them for ever."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.errors import RejectedRecordError
from sluiceway_files import FilesSink, FilesSource
from sluiceway_sql import SqlSink


@dataclass
class Order:
    user: str
    amount: int


def broken(value: Any) -> NoReturn:
    raise ValueError(f"{value} is broken")


def csv(flow: sw.Pipeline, place: Path) -> None:
    (place / "orders.csv").write_text("user,amount\nann,1\nbob,two\n")
    flow.source(FilesSource.csv(str(place / "orders.csv"), type=Order)).for_each(id)


def json_lines(flow: sw.Pipeline, place: Path) -> None:
    (place / "orders.jsonl").write_text('{"user":"ann","amount":1}\n{broken\n')
    flow.source(FilesSource.json_lines(str(place / "orders.jsonl"), type=Order)).for_each(id)


def text(flow: sw.Pipeline, place: Path) -> None:
    (place / "orders.txt").write_bytes(b"ann\n\xff\n")
    flow.source(FilesSource.text(str(place / "orders.txt"))).for_each(id)


def json_sink(flow: sw.Pipeline, place: Path) -> None:
    flow.from_collection([1, object(), 2]).sink(FilesSink.json_lines(str(place / "out")))


def row_sink(flow: sw.Pipeline, place: Path) -> None:
    flow.from_collection([Order("ann", 1), 7]).sink(FilesSink.csv(str(place / "out")))


def column_sink(flow: sw.Pipeline, place: Path) -> None:
    flow.from_collection([{"n": 1}, {"n": "two"}]).sink(FilesSink.parquet(str(place / "out")))


def partitions(flow: sw.Pipeline, place: Path) -> None:
    flow.from_collection([{"n": 1}]).sink(FilesSink.parquet(str(place / "out"), partition_by=["country"]))


def constraint(flow: sw.Pipeline, place: Path) -> None:
    with closing(sqlite3.connect(place / "shop.db")) as database:
        database.execute("CREATE TABLE orders (user TEXT NOT NULL, amount INTEGER)")
    flow.from_collection([("ann", 1), (None, 2)]).sink(SqlSink(place / "shop.db", "orders", ["user", "amount"]))


def unknown_type(flow: sw.Pipeline, place: Path) -> None:
    flow.from_collection([("ann", object())]).sink(SqlSink(place / "shop.db", "orders", ["user", "amount"]))


def to_text(flow: sw.Pipeline, place: Path) -> None:
    flow.from_collection([1, 2]).sink(FilesSink.text(str(place / "out"), to_text=broken))


def generated(flow: sw.Pipeline, place: Path) -> None:
    flow.generate(broken, count=2).for_each(id)


BY_CONNECTORS = [csv, json_lines, text, json_sink, row_sink, column_sink, partitions, constraint, unknown_type]
BY_FUNCTIONS = [to_text, generated]


@pytest.mark.parametrize("build", [*BY_CONNECTORS, *BY_FUNCTIONS], ids=lambda build: build.__name__)
def test_a_record_that_is_rejected_each_time_ends_the_job(
    tmp_path: Path, build: Callable[[sw.Pipeline, Path], None]
) -> None:
    flow = sw.Pipeline("rejected")
    build(flow, tmp_path)

    async def run() -> None:
        options = {"checkpoint_interval": "10ms", "restart": "exponential:1ms:1ms:6", "log_level": "critical"}
        async with await flow.start(**options) as job:
            await asyncio.wait_for(job.result(), PATIENT_S)

    kind = RejectedRecordError if build in BY_CONNECTORS else ValueError
    with pytest.raises(kind) as failed:
        asyncio.run(run())
    assert any("6 times without progress" in note for note in failed.value.__notes__)
