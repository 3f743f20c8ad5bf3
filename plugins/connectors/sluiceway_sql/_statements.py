"""SQL, as the database at hand wants it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["PARAMSTYLES", "Dialect"]

PARAMSTYLES: Final = ("qmark", "numeric", "named", "format", "pyformat")

_WITH_ON_CONFLICT: Final = ("sqlite", "postgresql", "cockroachdb")


def _standard_quote(name: str) -> str:
    """Return a name in double quotes, as the standard has it."""
    return '"' + name.replace('"', '""') + '"'


def _standard_quote_doubled(name: str) -> str:
    """Return a name in double quotes, with percent signs doubled, which would begin a parameter."""
    return _standard_quote(name).replace("%", "%%")


@dataclass(frozen=True)
class Dialect:
    """Differences between databases, and between drivers.

    Attributes:
        name: ``sqlite``, ``postgresql``, or any other; an empty text: it is not known.
        paramstyle: how the driver wants parameters: one of :data:`PARAMSTYLES`.
        quoting: puts a name into quotes, as it goes into a statement; None: as the standard has it.
    """

    name: str
    paramstyle: str
    quoting: Callable[[str], str] | None = None

    @property
    def column(self) -> Callable[[str], str]:
        """Makes a column in a statement of its name."""
        if self.quoting is not None:
            return self.quoting
        return _standard_quote_doubled if self.paramstyle in ("format", "pyformat") else _standard_quote

    def identifier(self, name: str) -> str:
        """Return a table in a statement. Parts with dots between are a schema and what is in it."""
        return ".".join(map(self.column, name.split(".")))

    def columns(self, names: Sequence[str]) -> str:
        """Columns, with commas between."""
        return ", ".join(map(self.column, names))

    def mark(self, index: int) -> str:
        """Return the placeholder of the parameter with this index in the row."""
        match self.paramstyle:
            case "qmark":
                return "?"
            case "numeric":
                return f":{index + 1}"
            case "named":
                return f":p{index}"
            case _:  # drivers with pyformat take sequences, too
                return "%s"

    def parameters(self, row: Sequence[Any]) -> Sequence[Any] | Mapping[str, Any]:
        """Return a row as the driver wants it."""
        return {f"p{i}": value for i, value in enumerate(row)} if self.paramstyle == "named" else row

    @property
    def has_on_conflict(self) -> bool:
        """Return whether one statement can insert or update."""
        return self.name in _WITH_ON_CONFLICT

    def insert(self, table: str, columns: Sequence[str]) -> str:
        """Insert a row."""
        marks = ", ".join(map(self.mark, range(len(columns))))
        return f"INSERT INTO {self.identifier(table)} ({self.columns(columns)}) VALUES ({marks})"

    def upsert(self, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
        """Insert a row, or update the one with its key; where :attr:`has_on_conflict`."""
        rest = [self.column(name) for name in columns if name not in key]
        changes = ", ".join(f"{name} = excluded.{name}" for name in rest)
        then = f"UPDATE SET {changes}" if changes else "NOTHING"
        return f"{self.insert(table, columns)} ON CONFLICT ({self.columns(key)}) DO {then}"

    def update(self, table: str, columns: Sequence[str], key: Sequence[str]) -> tuple[str, list[int]]:
        """Update the row with a key, and which parts of the row its parameters are, in order.

        Where there is nothing but the key, the key is set to what it is.
        """
        changed = [name for name in columns if name not in key] or list(key)
        order = [columns.index(name) for name in (*changed, *key)]
        marks = [self.mark(i) for i in range(len(order))]
        settings = ", ".join(f"{self.column(n)} = {m}" for n, m in zip(changed, marks, strict=False))
        conditions = self._conditions(key, len(changed))
        return f"UPDATE {self.identifier(table)} SET {settings} WHERE {conditions}", order

    def find(self, table: str, key: Sequence[str]) -> str:
        """Find out if there is a row with a key."""
        return f"SELECT 1 FROM {self.identifier(table)} WHERE {self._conditions(key, 0)}"

    def _conditions(self, key: Sequence[str], first: int) -> str:
        """Equality with a key whose parameters begin at this index."""
        return " AND ".join(f"{self.column(name)} = {self.mark(i)}" for i, name in enumerate(key, first))
