"""Step of look-ups of columns by coroutine functions."""

from __future__ import annotations

from typing import Any, ClassVar

from sluiceway.elements import Columns
from sluiceway.steps.asynchronous import AsyncStep

__all__ = ["ColumnLookupStep"]


class ColumnLookupStep(AsyncStep, frozen=True):
    """Rows with the columns that a coroutine function finds for the values of one of them.

    Attributes:
        name: the column.
        found: the columns that the function returns, with that column first, a ``pyarrow.Schema``.
        schema: the columns that come out, a ``pyarrow.Schema``.
        outer: whether a row that nothing is found for has nulls; else it is left out.
        listed: whether the function takes a list of values; else a ``pyarrow.Array``.
    """

    name: str = ""
    found: Any = None
    schema: Any = None
    outer: bool = False
    listed: bool = False
    kind: ClassVar[str] = "lookup_async"
    skips: ClassVar[bool] = False

    def output_type(self, *entering: Any) -> Any:
        """Columns: rows that nobody can change."""
        return Columns

    @property
    def columns(self) -> str:
        """Columns for plans: ``user: string, price: double``."""
        return ", ".join(f"{field.name}: {field.type}" for field in self.schema)

    def returned_type(self) -> Any:
        """None: tables of several kinds are taken."""
        return None

    def wanted_types(self, port: int = 0) -> list[Any]:
        """None: the function takes values of a column."""
        return []
