"""Columns: batches of rows in Arrow, as they travel, are routed and are converted from and to records.

A batch on an edge between two steps of a :class:`~sluiceway.table.TableStream` is an ordinary
:class:`~sluiceway.elements.Batch`, with the rows in ``batch.columns`` and timestamps in an ``array("q")``.
Modules here import pyarrow and numpy, so nothing imports them before a job has columns.
"""

from __future__ import annotations

from sluiceway.elements import Columns

__all__ = ["Columns"]
