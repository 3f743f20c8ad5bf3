"""Records into rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeAlias

from sluiceway.errors import RejectedRecordError

__all__ = ["Row", "Rows"]

Row: TypeAlias = tuple[Any, ...]

_SHOWN: Final = 200


class Rows:
    """Converter to rows with these columns, of mappings and objects by name, of other sequences by position.

    Args:
        columns: their names.
        where: for messages.
    """

    def __init__(self, columns: Sequence[str], where: str) -> None:
        self._columns = tuple(columns)
        self._where = where
        self._by_type: dict[type, Callable[[Any], Row]] = {}

    def of(self, values: Iterable[Any]) -> list[Row]:
        """Return a row for each record.

        Raises:
            ConnectorError: one of them is no row.
        """
        by_type = self._by_type
        rows = []
        for value in values:
            make = by_type.get(type(value))
            if make is None:
                make = by_type[type(value)] = self._maker(value)
            try:
                rows.append(make(value))
            except (KeyError, AttributeError) as error:
                missing = error.args[0] if isinstance(error, KeyError) else error.name
                raise RejectedRecordError(
                    f"{self._where}: the record {value!r:.{_SHOWN}} has no {missing!r}; the columns are "
                    f"{', '.join(self._columns)}"
                ) from error
        return rows

    def _maker(self, value: Any) -> Callable[[Any], Row]:
        columns, width = self._columns, len(self._columns)
        if isinstance(value, Mapping):
            return _tuples(itemgetter(*columns), width)
        is_object = dataclasses.is_dataclass(value) or hasattr(value, "__struct_fields__")
        if is_object or hasattr(type(value), "_fields") or hasattr(type(value), "model_fields"):
            return _tuples(attrgetter(*columns), width)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            return self._by_position
        raise RejectedRecordError(
            f"{self._where}: the record {value!r:.{_SHOWN}} ({type(value).__name__}) is no row: a dict, a "
            f"dataclass, a named tuple, or a tuple or list of {width} values ({', '.join(columns)}) is"
        )

    def _by_position(self, value: Sequence[Any]) -> Row:
        if len(value) != len(self._columns):
            raise RejectedRecordError(
                f"{self._where}: the record {value!r:.{_SHOWN}} has {len(value)} values; the columns are "
                f"{', '.join(self._columns)}"
            )
        return tuple(value)


def _tuples(getter: Callable[[Any], Any], width: int) -> Callable[[Any], Row]:
    """Return a getter of tuples: of one name, itemgetter alone gives the bare value."""
    return getter if width > 1 else lambda value: (getter(value),)
