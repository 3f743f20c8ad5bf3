"""Dialect of queries: DuckDB's, with Flink's windows as functions in GROUP BY and around a table in FROM."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import TokenType

__all__ = ["WINDOWS", "WINDOW_COLUMNS", "WINDOW_EXAMPLE", "Dialect", "WindowedTable"]

WINDOWS: Final = {
    "TUMBLE": ("time", "size"),
    "HOP": ("time", "slide", "size"),
    "CUMULATE": ("time", "step", "size"),
    "SESSION": ("time", "gap"),
}
"""Arguments of the windows, by their names."""

WINDOW_COLUMNS: Final = ("window_start", "window_end", "window_time")
"""Columns of the results of windows: the bounds, and the event time."""


WINDOW_EXAMPLE: Final = "TUMBLE(time, INTERVAL '10' SECOND)"


class WindowedTable(exp.Expression):
    """Table of FROM in a window, as ``TUMBLE(TABLE orders, DESCRIPTOR(time), INTERVAL '10' SECOND)``.

    Its parts are the window as GROUP BY has it, the table, and the keys of a session behind PARTITION BY.
    """

    arg_types: ClassVar = {"this": True, "table": True, "keys": False, "alias": False}


class Dialect(DuckDB):
    """DuckDB's dialect, in which SESSION may be a function, and windows may be around a table."""

    class Parser(DuckDBParser):
        """Its parser."""

        FUNC_TOKENS = DuckDBParser.FUNC_TOKENS | {TokenType.SESSION}

        def _parse_table(self, *args: Any, **options: Any) -> exp.Expr | None:
            index = self._index
            wrapped = self._match(TokenType.TABLE) and self._match(TokenType.L_PAREN)
            windowed = self._parse_windowed()
            if windowed is None:
                self._retreat(index)
                return super()._parse_table(*args, **options)
            if wrapped:
                self._match_r_paren()
            windowed.set("alias", self._parse_table_alias())
            return windowed

        def _parse_windowed(self) -> WindowedTable | None:
            name = self._curr
            if name.text.upper() not in WINDOWS or self._next.token_type != TokenType.L_PAREN:
                return None
            self._advance(2)
            if not self._match(TokenType.TABLE):
                return None
            table = self._parse_table_parts()
            keys: list[exp.Expr | None] = []
            if self._match(TokenType.PARTITION_BY):
                keys.append(self._parse_column())
            while self._match(TokenType.COMMA) and not self._match_text_seq("DESCRIPTOR", advance=False) and keys:
                keys.append(self._parse_column())
            if not self._match_text_seq("DESCRIPTOR"):
                self.raise_error("Expecting DESCRIPTOR(time)")
            call = exp.Anonymous(this=name.text, expressions=[self._parse_wrapped(self._parse_column)])
            call.meta["start"] = name.start
            while self._match(TokenType.COMMA):
                call.append("expressions", self._parse_interval() or self._parse_bitwise())
            self._match_r_paren()
            return WindowedTable(this=call, table=table, keys=keys)
