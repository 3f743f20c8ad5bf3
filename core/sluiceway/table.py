"""Streams in columns: rows with a schema, held in Arrow, that expressions work on a batch at a time.

A :class:`TableStream` comes from :meth:`sluiceway.Pipeline.table`, or from records by
:meth:`sluiceway.DataStream.to_columns`, and becomes records again by :meth:`TableStream.to_records`. Both kinds of
step stand in one pipeline, share tasks, checkpoints and event time.

Expressions are those of Narwhals: ``col``, ``lit`` and ``when`` here are its own functions. ``agg`` has the
aggregates of windows: ``agg.sum("price")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from sluiceway.api.table.keyed import KeyedTable, WindowedTable
from sluiceway.api.table.over import OverTable
from sluiceway.api.table.stream import Expression, TableStream, col, lit, when
from sluiceway.columns.aggregation import aggregates as agg
from sluiceway.columns.aggregation.aggregates import Aggregate, ColumnAggregate

__all__ = [
    "Aggregate",
    "ColumnAggregate",
    "Expression",
    "KeyedTable",
    "OverTable",
    "TableStream",
    "WindowedTable",
    "agg",
    "col",
    "lit",
    "when",
]

if not TYPE_CHECKING:  # a type checker would take it for leave to import anything

    def __getattr__(name: str) -> NoReturn:
        from sluiceway.util.name_hints import refuse_in_module

        refuse_in_module(__name__, name, __all__)
