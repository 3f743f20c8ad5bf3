"""CAST: the conversions that Arrow and DuckDB make alike."""

from __future__ import annotations

from typing import Any, Final

import narwhals as nw
import pyarrow as pa
from sqlglot import exp

from sluiceway.api.table.sql.positions import RefusedError, check_parts
from sluiceway.api.table.sql.types import BOOLEAN, DATE, TEXT, Typed, as_double, has_decimal, parsed, widened

__all__ = ["cast"]

_Type = exp.DataType.Type
_TARGETS: Final[dict[Any, tuple[Any, Any]]] = {
    _Type.TINYINT: (pa.int8(), nw.Int8),
    _Type.SMALLINT: (pa.int16(), nw.Int16),
    _Type.INT: (pa.int32(), nw.Int32),
    _Type.BIGINT: (pa.int64(), nw.Int64),
    _Type.FLOAT: (pa.float32(), nw.Float32),
    _Type.DOUBLE: (pa.float64(), nw.Float64),
    _Type.TEXT: (TEXT, nw.String),
    _Type.VARCHAR: (TEXT, nw.String),
    _Type.BOOLEAN: (BOOLEAN, nw.Boolean),
    _Type.DATE: (DATE, nw.Date),
    _Type.TIMESTAMP: (pa.timestamp("us"), nw.Datetime("us")),
    _Type.TIMESTAMPNTZ: (pa.timestamp("us"), nw.Datetime("us")),
    _Type.TIMESTAMPTZ: (pa.timestamp("us", "UTC"), nw.Datetime("us", "UTC")),
}
_NAMES: Final = (
    "TINYINT, SMALLINT, INTEGER, BIGINT, FLOAT, DOUBLE, VARCHAR, BOOLEAN, DATE, TIMESTAMP and TIMESTAMPTZ"
)
# Conversions by kind: those that never fail, and below those that fail for some values.
_ALWAYS: Final = {
    *(("integer", to) for to in ("double", "text", "boolean")),
    *(("boolean", to) for to in ("integer", "text", "boolean")),
    *((kind, kind) for kind in ("double", "text", "date")),
    ("date", "timestamp"),
    ("timestamp", "date"),
}
_MAY_FAIL: Final = {
    ("integer", "integer"),
    ("double", "integer"),
    *(("text", to) for to in ("integer", "double", "date", "timestamp")),
}


def cast(node: exp.Cast, given: Typed) -> Typed:
    """Return an expression in another type.

    Raises:
        RefusedError: no such type, a conversion on which engines differ, or one that may fail where it would be
            computed for rows for which its result is not asked.
    """
    to = node.to
    if to.this not in _TARGETS:
        raise RefusedError(node, f"CAST converts to {_NAMES}, not to {to.sql('duckdb')}")
    check_parts(to, frozenset({"this", "nested"}))
    kind, dtype = _TARGETS[to.this]
    if given.kind == "null":
        return Typed(nw.lit(None, dtype=dtype), kind, node, constant=True)
    target = Typed(given.expr, kind, node)
    if isinstance(given.value, str) and target.kind in ("date", "timestamp", "instant"):
        return parsed(given, target)
    pair = (given.kind, target.kind)
    if given.kind in ("timestamp", "instant") and given.type == kind:
        return given
    wide = _from_wide_number(given.type, target.kind)
    if (pair in _MAY_FAIL and not _widens(given.type, kind)) or (wide and target.kind == "integer"):
        _check_place(node, given)
    elif pair not in _ALWAYS and pair not in _MAY_FAIL and not wide and not _is_coarser(given, target):
        raise RefusedError(node, f"CAST does not convert {given} to {to.sql('duckdb')}: engines differ on it")
    if target.kind == "double" and (pa.types.is_integer(given.type) or has_decimal([given])):
        given = as_double(given)
    expr = widened(given).expr
    if pair == ("double", "integer"):
        # Arrow casts no number with a fraction to an integer.
        expr = _to_even(expr)
    if pair == ("timestamp", "date"):
        return Typed(expr.dt.date(), DATE, node, constant=given.constant)
    return Typed(expr.cast(dtype), kind, node, constant=given.constant)


def _widens(given: Any, kind: Any) -> bool:
    return bool(pa.types.is_signed_integer(given) and given.bit_width <= kind.bit_width)


def _is_coarser(given: Typed, target: Typed) -> bool:
    """Return whether both are times, and those of the first have no digits behind microseconds."""
    return given.kind == target.kind and given.kind in ("timestamp", "instant") and given.type.unit != "ns"


def _from_wide_number(given: Any, target: str) -> bool:
    if pa.types.is_uint64(given):
        return target in ("integer", "double")
    return target == "double" and pa.types.is_decimal(given)


def _check_place(node: exp.Cast, given: Typed) -> None:
    branch = node.find_ancestor(exp.Case, exp.If, exp.Coalesce, exp.Nullif)
    if isinstance(branch, exp.If) and isinstance(branch.parent, exp.Case):
        branch = branch.parent
    if branch is not None and not given.constant:
        raise RefusedError(
            node,
            f"CAST of {given} to {node.to.sql('duckdb')} can fail, and {branch.key.upper()} computes it for all "
            "rows: cast in a sub-query whose WHERE leaves the rows that can be cast",
        )


def _to_even(expr: nw.Expr) -> nw.Expr:
    """Return the nearest whole number, the even one of two that are equally near, as DuckDB does."""
    low = expr.floor()
    part = expr - low
    odd = (low / 2).floor() * 2 != low
    return nw.when((part > 0.5) | ((part == 0.5) & odd)).then(low + 1).otherwise(low)
