"""Records as rows in columns."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sluiceway.columns.record_conversion import Encoder
from sluiceway.errors import ConnectorError, FunctionContractError, RejectedRecordError
from sluiceway.record_errors import shown

__all__ = ["RecordEncoder"]

_ATOMS = frozenset({bool, bytes, dict, float, int, list, set, str, tuple, type(None)})


class RecordEncoder:
    """Encoder of mappings, and of objects with an attribute for each column, as columns.

    Args:
        schema: the columns.
        where: the table, for messages.
    """

    def __init__(self, schema: pa.Schema, where: str) -> None:
        self._names = frozenset(schema.names)
        self._all = ", ".join(schema.names)
        self._where = where
        self._encoder = Encoder(schema, where)

    def encode(self, values: Sequence[Any]) -> pa.RecordBatch:
        """Return the columns of records, of which there is at least one.

        Raises:
            ConnectorError: one of them is no row, has another field, or a value that does not fit.
        """
        names = self._names
        for value in values:
            if isinstance(value, Mapping):
                if not value.keys() <= names:
                    raise self._unknown(value)
            elif type(value) in _ATOMS:
                raise RejectedRecordError(
                    f"{self._where}: {shown(value, 200)} ({type(value).__name__}) is no row: a dict, a "
                    f"dataclass or a named tuple with {self._all} is"
                )
        try:
            return self._encoder.encode(values)
        except (FunctionContractError, AttributeError) as error:
            raise RejectedRecordError(str(error).removeprefix("step ")) from error

    def _unknown(self, value: Mapping[Any, Any]) -> ConnectorError:
        extra = next(name for name in value if name not in self._names)
        near = difflib.get_close_matches(str(extra), self._names, 1)
        meant = f"; did you mean {near[0]!r}?" if near else "."
        return RejectedRecordError(
            f"{self._where} has no column {extra!r}{meant} Its columns are {self._all}; the record is "
            f"{shown(value, 200)}"
        )
