"""Layout of saved aggregates: keys and accumulators as columns, and what may change between two runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.aggregates import BoundAggregate
from sluiceway.columns.aggregation.stored import INCLUDES, LAYOUT
from sluiceway.columns.numpy_arrays import array_of
from sluiceway.columns.widening import is_wider, mismatches, widened
from sluiceway.errors import IncompatibleStateError

__all__ = ["Layout", "in_blocks"]


class Layout:
    """Columns of the state and of the results of an aggregation.

    Args:
        keys: names and types of the key columns.
        aggregates: aggregates by the names of their results.
        step: name of the step, for messages.
        schema: types of the columns that the aggregates read; None: not known.
        windows: False if all rows of a key are aggregated together.
    """

    def __init__(
        self,
        keys: Mapping[str, Any],
        aggregates: Mapping[str, BoundAggregate],
        step: str,
        schema: Any = None,
        *,
        windows: bool = True,
    ) -> None:
        self.keys = dict(keys)
        self.aggregates = dict(aggregates)
        self.step = step
        self._kinds: dict[str, Any] | None = None
        self._has_types = schema is not None
        described: dict[str, Any] = {
            "windows": windows,
            "keys": {name: str(kind) for name, kind in self.keys.items()},
            "aggregates": {name: f"{a.aggregate}: {a.result_type}" for name, a in self.aggregates.items()},
        }
        if schema is not None:
            described["columns"] = {name: str(schema.field(name).type) for name in self.columns}
        self.metadata = json.dumps(described).encode()

    @property
    def columns(self) -> list[str]:
        """Names of the columns that the aggregates read, each once."""
        return list(dict.fromkeys(name for a in self.aggregates.values() for name in a.columns))

    @property
    def takes_arrivals(self) -> bool:
        """True if one of the aggregates reads the numbers of rows."""
        return any(bound.create().takes_arrivals for bound in self.aggregates.values())

    def read(self, metadata: bytes | None, rows: Any, count: int) -> Any:
        """Return saved rows in the columns of this layout: other columns, keys, aggregates, each in their order.

        Columns go by their places, as an aggregate may have the name of another column. Types of keys and columns
        may have become wider, and aggregates may be gone.

        Args:
            metadata: what was saved with the rows.
            rows: a record batch; first other columns, then keys, then accumulators.
            count: the number of the other columns.

        Raises:
            IncompatibleStateError: keys or aggregates have changed in another way; names the first difference.
        """
        # The usual case: nothing has changed since the rows were written.
        if metadata == self.metadata and self._has_types:
            return rows
        old, new = json.loads(metadata or b"{}"), json.loads(self.metadata)
        if list(old.get("keys", {})) != list(self.keys):
            was, is_now = (", ".join(each.get("keys", {})) or "not there" for each in (old, new))
            raise self._cannot(f"its keys were {was}, and are {is_now} now")
        columns = [rows.column(place) for place in range(count)]
        for place, (name, kind) in enumerate(self.keys.items(), count):
            key = rows.column(place)
            if not is_wider(key.type, kind):
                raise self._cannot(f"of its keys, {name!r} was {key.type}, and is {kind} now")
            columns.append(widened(key, kind))
        for name in self.aggregates:
            columns.append(self._accumulator(name, rows.columns[count + len(self.keys) :], old, new))
        if not self.aggregates and (
            before := old.get("aggregates")
        ):  # results of these keys have not been emitted
            first = next(iter(before))
            raise self._cannot(f"of its aggregates, {first!r} was {before[first]}, and is not there now")
        names = [*rows.schema.names[:count], *(f"key {name}" for name in self.keys), *self.aggregates]
        return pa.RecordBatch.from_arrays(columns, names)

    def _accumulator(
        self, name: str, accumulators: Sequence[Any], old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> Any:
        was, is_now = old.get("aggregates", {}).get(name, "not there"), new["aggregates"][name]
        changed = f"of its aggregates, {name!r} was {was}, and is {is_now} now"
        if not was.startswith(f"{self.aggregates[name].aggregate}: "):  # types may differ, as in wider ones
            raise self._cannot(changed)
        if self._kinds is None:
            self._kinds = {each: bound.create().state(0).type for each, bound in self.aggregates.items()}
        saved, kind = accumulators[list(old["aggregates"]).index(name)], self._kinds[name]
        if saved.type.equals(kind) or _is_same_sum(saved.type, kind):
            if column := self._read_otherwise(name, old):
                raise self._cannot(f"its aggregate {name!r} was {was}, and is {is_now} now{column}")
            found = saved
        elif is_wider(saved.type, kind):
            found = widened(saved, kind)
        else:
            if was == is_now:  # as that of a mean, or a count of different values
                before, after = next(mismatches(saved.type, kind))
                read = "".join(self._changed_columns(name, old, new).values())
                changed = f"its aggregate {name!r}, {is_now}, kept {before}, and keeps {after} now{read}"
            raise self._cannot(changed)
        return found

    def _read_otherwise(self, name: str, old: Mapping[str, Any]) -> str:
        """Return which column has other numbers for the same values now; empty: none has.

        Sums are kept as numbers without a scale, unit or sign, so the types of accumulators do not show it.
        """
        if self.aggregates[name].aggregate.kind == "count":
            return ""
        new = json.loads(self.metadata)
        before, after = old.get("columns", {}), new.get("columns", {})
        changed = self._changed_columns(name, old, new)
        return next((text for c, text in changed.items() if _numbers_of(before[c]) != _numbers_of(after[c])), "")

    def _changed_columns(self, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
        """Return the columns that an aggregate reads whose types have changed, with both types."""
        before, after = old.get("columns", {}), new.get("columns", {})
        return {
            column: f"; column {column!r} was {before[column]}, and is {after[column]} now"
            for column in self.aggregates[name].columns
            if column in before and column in after and before[column] != after[column]
        }

    def _cannot(self, changed: str) -> IncompatibleStateError:
        return IncompatibleStateError(
            f"step {self.step!r} cannot restore the windows that are open in its snapshot: {changed}. Undo the "
            "change until these windows have ended, or give the step another uid, so that it begins without them"
        )


def _numbers_of(kind: str) -> str:
    """Return a name of the types that have the same numbers for the same values; empty: one without numbers."""
    if found := re.fullmatch(r"decimal\d+\(\d+, (-?\d+)\)", kind):
        return f"decimals of scale {found[1]}"
    if found := re.fullmatch(r"(int|uint)\d+", kind):
        return found[1]
    if kind in ("halffloat", "float", "double"):
        return "float"
    return kind if re.match(r"(duration|timestamp|time|date)\d*\[", kind) else ""


def _is_same_sum(old: Any, new: Any) -> bool:
    """Return if both are sums of integers, in one part or several, or a mean of such."""
    if not (pa.types.is_struct(old) and pa.types.is_struct(new)):
        return False
    before, after = ({field.name: field.type for field in each} for each in (old, new))
    if before.keys() == after.keys() == {"sum", "count"}:
        return _is_same_sum(before["sum"], after["sum"])
    if after.keys() != {"total", "some"} or not pa.types.is_integer(after["total"]):
        return False
    return before.keys() == {"some", "limb0", "limb1"} or old.equals(new)


def in_blocks(rows: Any, groups: Any, layout: bytes, includes: int = 0) -> dict[int, bytes]:
    """Return rows of state as Arrow IPC streams, by key group.

    Args:
        rows: a record batch.
        groups: the key group of each row.
        layout: metadata of the layout that the rows are of.
        includes: how many changes of a slice its chunk includes.
    """
    metadata = {LAYOUT: layout, **({INCLUDES: str(includes)} if includes else {})}
    whole = rows.replace_schema_metadata(metadata)
    order = groups.argsort(kind="stable")
    whole = whole.take(array_of(order))
    present, starts = np.unique(groups[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    return {
        group: _written(whole.slice(start, end - start))
        for group, start, end in zip(present.tolist(), starts.tolist(), ends, strict=True)
    }


def _written(part: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, part.schema) as writer:
        writer.write_batch(part)
    written: bytes = sink.getvalue().to_pybytes()
    return written
