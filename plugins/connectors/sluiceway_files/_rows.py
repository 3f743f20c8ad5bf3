"""Records of text formats as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sluiceway.errors import FunctionContractError, RejectedRecordError
from sluiceway_files._lined import OnError

__all__ = ["RowsEncoder"]


class RowsEncoder:
    """Encoder of records as columns, which leaves out those that do not fit or fails with their line.

    Args:
        schema: of the columns.
        on_error: what to do with a record that does not fit.
        name: of the file, for messages.

    Attributes:
        skipped: number of records and lines left out.
    """

    _step: Final = "files"

    def __init__(self, schema: Any, on_error: OnError, name: str) -> None:
        import pyarrow

        from sluiceway.columns.record_conversion import Encoder

        self._schema = schema
        self._is_nested = any(pyarrow.types.is_nested(kind) for kind in schema.types)
        self._encoder = Encoder(schema, self._step)
        self._skips = on_error == "skip"
        self._name = name
        self.skipped = 0

    def encode(self, records: list[Any], lines: list[int]) -> Any:
        """Return the columns of records, given the number of each one's line."""
        import pyarrow

        if not records:
            return pyarrow.RecordBatch.from_pylist([], self._schema)
        if self._is_nested:  # Arrow takes objects for no struct
            records = [_plain_fields(record, self._schema) for record in records]
        try:
            return self._encoder.encode(records)
        except FunctionContractError:
            pass
        fitting = []
        for record, line in zip(records, lines, strict=True):
            try:
                self._encoder.encode([record])
                fitting.append(record)
            except FunctionContractError as error:
                self.reject(line, str(error).removeprefix(f"step {self._step!r}: "), error)
        return self.encode(fitting, [])

    def reject(self, line: int, reason: str, error: Exception) -> None:
        """Count a line as left out. Raises ConnectorError if it is to fail the job."""
        if not self._skips:
            raise RejectedRecordError(
                f"{self._name}, line {line}: {reason}. on_error='skip' leaves such lines out"
            ) from error
        self.skipped += 1


def _plain_fields(value: Any, fields: Iterable[Any]) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {field.name: _plain(value.get(field.name), field.type) for field in fields}
    return {field.name: _plain(getattr(value, field.name), field.type) for field in fields}


def _plain(value: Any, kind: Any) -> Any:
    """Return a value with dicts for objects, and pairs for maps, as Arrow takes them."""
    from pyarrow import types

    if value is None or not types.is_nested(kind):
        return value
    if types.is_struct(kind):
        return _plain_fields(value, [kind.field(at) for at in range(kind.num_fields)])
    if types.is_map(kind):
        return [(key, _plain(item, kind.item_type)) for key, item in value.items()]
    of_list: Any = kind  # neither a class nor a schema that text is decoded to has unions
    return [_plain(item, of_list.value_type) for item in value]
