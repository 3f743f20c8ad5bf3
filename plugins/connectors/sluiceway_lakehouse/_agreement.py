"""Agreement of rows with a table, and their conversion, as the writers of all table formats have them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa

from sluiceway.elements import Columns
from sluiceway.errors import ConnectorError
from sluiceway_lakehouse._errors import MisfitError
from sluiceway_lakehouse._records import RecordEncoder
from sluiceway_lakehouse._schemas import Fit, new_columns, storable

__all__ = ["Agreement", "TableRows"]


class Agreement(ABC):
    """Agreement of rows with a table.

    Args:
        where: the table, for messages.
        rows: columns of rows in columns; None: rows are records.
        schema: columns of a table to create; None: the table exists.

    Attributes:
        has_times: whether the format has times of day.
    """

    has_times: ClassVar[bool]

    def __init__(self, where: str, rows: pa.Schema | None, schema: pa.Schema | None) -> None:
        self._where = where
        self._rows = rows
        self._schema = schema

    @abstractmethod
    def check(self, table: Any) -> None:
        """Raise MisfitError if the rows do not fit into the table; None: into one that would be created."""

    def new_schema(self) -> pa.Schema:
        """Return the columns of a table that is created. Raises MisfitError."""
        if self._schema is None:
            raise MisfitError(
                f"{self._where} does not exist, and what columns it is to have is not known: give schema=, a "
                "class with a field per column or a pyarrow.Schema"
            )
        try:
            return storable(self._schema, self._where, has_times=self.has_times)
        except ConnectorError as error:
            raise MisfitError(str(error)) from error

    def fit(self, table: pa.Schema) -> Fit:
        """Return the conversion of rows to the columns of the table. Raises MisfitError."""
        rows = next((one for one in (self._rows, self._schema) if one is not None), table)
        try:
            return Fit(rows, table, self._where, ". merge_schema=True adds new columns to the table")
        except ConnectorError as error:
            raise MisfitError(str(error)) from error

    def merged(self, table: pa.Schema) -> pa.Schema:
        """Return the columns of the table with those of the rows that it does not have. Raises MisfitError."""
        added = self.new_schema()
        fields = [added.field(name).with_nullable(True) for name in new_columns(added, table)]
        lower = {name.lower(): name for name in table.names}
        for field in fields:
            if field.name.lower() in lower:
                raise MisfitError(
                    f"{self._where} has a column {lower[field.name.lower()]!r}, from which {field.name!r} "
                    "differs in capital letters alone: rename() it"
                )
        return pa.schema([*table, *fields])


class TableRows:
    """Converter of what a sink is given, records or rows in columns, to the columns of a table.

    Args:
        fit: of the rows that are expected first; rows in other columns are fitted as they come.
        where: the table, for messages.
    """

    def __init__(self, fit: Fit, where: str) -> None:
        self._fit = fit
        self._where = where
        self._encoder = RecordEncoder(fit.rows, where)

    @property
    def table(self) -> pa.Schema:
        """Columns of the table."""
        return self._fit.table

    def convert(self, values: Sequence[Any]) -> pa.RecordBatch:
        """Return rows with the columns of the table. Raises ConnectorError: they do not fit."""
        data = values.data if type(values) is Columns else self._encoder.encode(values)
        if data.schema != self._fit.rows:
            self._fit = Fit(data.schema, self._fit.table, self._where)
        return self._fit.convert(data)
