"""Steps that parts of a query become, and constants in them."""

from __future__ import annotations

from collections.abc import Callable

import narwhals as nw
import pyarrow as pa
from sqlglot import exp

from sluiceway.api.table.sql.positions import RefusedError
from sluiceway.api.table.sql.types import Typed
from sluiceway.api.table.stream import TableStream
from sluiceway.errors import ConfigurationError, GraphError

__all__ = ["for_each_row", "per_row", "step"]


def for_each_row(given: Typed, schema: pa.Schema) -> nw.Expr:
    """Return an expression that has a value for each row of a table."""
    return (per_row(given, schema) if given.constant else given).expr


def per_row(constant: Typed, schema: pa.Schema) -> Typed:
    """Return a constant as a value for each row: alone it would be one row, however many there are."""
    # True for each row, null or not.
    some = nw.col(schema.names[0]).is_null()
    return Typed(nw.when(some | ~some).then(constant.expr), constant.type, constant.node)


def step(node: exp.Expr, add: Callable[[], TableStream]) -> TableStream:
    """Return the result of a step. Raises RefusedError: it does not take its columns."""
    try:
        return add()
    except (GraphError, ConfigurationError) as error:
        raise RefusedError(node, str(error).partition(": ")[2]) from None
