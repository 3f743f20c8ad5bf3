"""Tables of Iceberg in a directory, with a catalog in a file of SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluiceway_lakehouse import IcebergSink, IcebergSource

__all__ = ["TABLE", "Tables"]

TABLE = "shop.sales"


@dataclass(frozen=True)
class Tables:
    """Tables below a directory."""

    place: Path

    @property
    def properties(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.place}/catalog.db",
            "warehouse": f"file://{self.place}/warehouse",
        }

    @property
    def options(self) -> dict[str, Any]:
        return {"catalog": "tests", "properties": self.properties}

    def sink(self, table: str = TABLE, **options: Any) -> IcebergSink:
        return IcebergSink(table, **self.options, **options)

    def source(self, table: str = TABLE, **options: Any) -> IcebergSource:
        return IcebergSource(table, **self.options, **options)

    @contextmanager
    def catalog(self) -> Iterator[Any]:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("tests", **self.properties)
        try:
            yield catalog
        finally:
            catalog.close()

    @contextmanager
    def opened(self, table: str = TABLE) -> Iterator[Any]:
        with self.catalog() as catalog:
            yield catalog.load_table(table)

    def read(self, table: str = TABLE) -> pa.Table:
        with self.opened(table) as of:
            return of.scan().to_arrow()

    def rows(self, table: str = TABLE) -> list[dict[str, Any]]:
        return [] if not self.exists(table) else self.read(table).to_pylist()

    def exists(self, table: str = TABLE) -> bool:
        with self.catalog() as catalog:
            return bool(catalog.table_exists(table))

    def snapshots(self, table: str = TABLE) -> int:
        if not self.exists(table):
            return 0
        with self.opened(table) as of:
            return len(of.snapshots())

    def create(self, schema: pa.Schema, table: str = TABLE, **properties: str) -> None:
        with self.catalog() as catalog:
            catalog.create_namespace_if_not_exists(table.rpartition(".")[0])
            catalog.create_table(table, schema, properties=properties)

    def append(self, rows: pa.Table | None = None, table: str = TABLE, **columns: Any) -> None:
        rows = pa.table(columns) if rows is None else rows
        if not self.exists(table):
            self.create(rows.schema, table)
        with self.opened(table) as of:
            of.append(rows)
