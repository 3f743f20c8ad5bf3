"""Checks of columns and expressions where they are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import narwhals as nw
import pyarrow as pa

from sluiceway.api.arguments import describe
from sluiceway.api.location import caller_location
from sluiceway.columns.aggregation.aggregates import Aggregate
from sluiceway.columns.schemas import has_unions, shown
from sluiceway.columns.transforms import Drop, MapBatches, Transform, problem_of
from sluiceway.errors import GraphError, SluicewayError

__all__ = ["aggregate_fields", "check_expressions", "check_named", "check_names", "result_schema"]

_LARGE_NUMBERS: Final = (
    '. A number of the program is an int64: write a larger one as lit("18446744073709551615").cast(nw.UInt64())'
)


def check_names(method: str, names: Iterable[object], schema: pa.Schema) -> tuple[str, ...]:
    """Return names of columns, after a look that they exist.

    Raises:
        TypeError: a name is no str, or there is none.
        GraphError: there is no such column.
    """
    checked: list[str] = []
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{method}() at {caller_location()} takes names of columns, not {describe(name)}")
        if name not in schema.names:
            raise GraphError(f"{method}() at {caller_location()}: {_no_column(name, schema)}")
        checked.append(name)
    if not checked:
        raise TypeError(f"{method}() at {caller_location()} takes at least one column")
    return tuple(checked)


def check_named(method: str, unnamed: tuple[object, ...]) -> None:
    """Raise TypeError for aggregates that were given without names."""
    if unnamed:
        raise TypeError(
            f"{method}() at {caller_location()} takes aggregates by name, as in "
            f'{method}(total=agg.sum("price")), and was given {describe(unnamed[0])} without one'
        )


def aggregate_fields(
    method: str, where: str, entering: pa.Schema, own: set[str], aggregates: Mapping[str, Any]
) -> list[Any]:
    """Return the columns of aggregates, after a look at them."""
    if not aggregates:
        raise TypeError(f'{where} takes at least one aggregate by name, as in {method}(total=agg.sum("price"))')
    fields = []
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise TypeError(
                f'{where} takes aggregates, as in {name}=agg.sum("price"), not {describe(aggregate)} for {name!r}'
            )
        if name in own:
            raise GraphError(f"{where}: the result has a column {name!r} already; give the aggregate another name")
        fields.append(pa.field(name, aggregate.bind(entering, where).result_type))
    return fields


def check_expressions(
    method: str, given: Sequence[Any], named: dict[str, Any], schema: pa.Schema
) -> tuple[nw.Expr, ...]:
    """Return expressions, of which each looks at one row at a time.

    Args:
        method: name of the method, for messages.
        given: expressions and names of columns.
        named: expressions, names of columns or plain values, by the names of their results.
        schema: the columns that come in.

    Raises:
        TypeError: something is no expression.
        GraphError: no such column, or an expression whose results would depend on batches.
    """
    checked = [_expression(method, one, schema) for one in given]
    checked += [_expression(method, one, schema, named=True).alias(name) for name, one in named.items()]
    if not checked:
        raise TypeError(f"{method}() at {caller_location()} takes at least one expression")
    return tuple(checked)


def _expression(method: str, given: Any, schema: pa.Schema, *, named: bool = False) -> nw.Expr:
    if isinstance(given, str):
        check_names(method, (given,), schema)
        return nw.col(given)
    if not isinstance(given, nw.Expr):
        if named and (given is None or isinstance(given, (bool, int, float))):
            return nw.lit(given)
        if callable(given):
            raise TypeError(
                f"{method}() at {caller_location()} takes expressions of columns, not a function of a record: "
                f'col("price") * 2 from sluiceway.table. For a function of a record, call to_records() before'
            )
        raise TypeError(f"{method}() at {caller_location()} takes expressions of columns, not {describe(given)}")
    problem = problem_of(given)
    if problem is not None:
        raise GraphError(
            f"{method}() at {caller_location()}: {problem}, so that the result would depend on how rows come in "
            "batches. For values over many rows use windows and aggregates"
        )
    return given


def _hint(error: Exception, transform: Transform) -> str:
    if not isinstance(transform, MapBatches):
        # Arrow makes int64 of a number of the program, also where a type is given with it.
        return _LARGE_NUMBERS if isinstance(error, OverflowError) else ""
    if transform.given == "arrow" and isinstance(error, AttributeError | TypeError):
        return (
            ". The function was called with a pyarrow.RecordBatch: for a frame annotate its argument, as in "
            "def keep(rows: pandas.DataFrame)"
        )
    return ""


def result_schema(method: str, transform: Transform, schema: pa.Schema) -> pa.Schema:
    """Return the columns that a transform makes, found by a run on no rows.

    Raises:
        GraphError: an expression names a column that does not exist, or does not work on its type; or a column
            has unions, of which Arrow makes no rows, and is not dropped.
    """
    unions = [field for field in schema if has_unions(field.type)]
    if unions and isinstance(transform, Drop):
        for name in transform.names:
            schema = schema.remove(schema.get_field_index(name))
        return schema
    if unions:
        raise GraphError(
            f"{method}() at {caller_location()}: column {unions[0].name!r} is {unions[0].type}; Arrow computes "
            "nothing with such rows; drop() it before, or make another column of it in map()"
        )
    try:
        made = transform.of_nothing(schema)
    except SluicewayError as error:
        raise GraphError(f"{method}() at {caller_location()}: {error}") from None
    except Exception as error:
        unknown = _unknown_column(error, schema)
        why = unknown or f"{_first_line(error)}; the columns are {shown(schema)}{_hint(error, transform)}"
        raise GraphError(f"{method}() at {caller_location()}: {why}") from None
    # Without rows an expression of columns makes none. One that makes a row is a constant, which would be one
    # row for each batch.
    if made.num_rows and method == "map_batches":
        raise GraphError(
            f"{method}() at {caller_location()}: the function returned {made.num_rows} rows for none, so that the "
            "result would depend on how rows come in batches"
        )
    if made.num_rows:
        raise GraphError(
            f"{method}() at {caller_location()}: only constants are selected, so that nothing says how many rows "
            "there are: add a column, or use with_columns()"
        )
    double = sorted({name for name in made.schema.names if made.schema.names.count(name) > 1})
    if double:
        raise GraphError(f"{method}() at {caller_location()}: two columns would have the name {double[0]!r}")
    return made.schema


def _unknown_column(error: Exception, schema: pa.Schema) -> str | None:
    if type(error).__name__ != "ColumnNotFoundError":
        return None
    text = str(error)
    quoted = [part for part in text.replace('"', "'").split("'")[1::2] if part not in schema.names]
    return _no_column(quoted[0], schema) if quoted else f"{_first_line(error)}; the columns are {shown(schema)}"


def _no_column(name: str, schema: pa.Schema) -> str:
    near = get_close_matches(name, schema.names, 1)
    hint = f"did you mean {near[0]!r}? The" if near else "the"
    return f"there is no column {name!r}; {hint} columns are {shown(schema)}"


def _first_line(error: Exception) -> str:
    """Return the first line of its message, with the list below it where the line ends in a colon."""
    lines = str(error).strip().splitlines()
    if lines and lines[0].endswith(":"):
        items = [line.strip(" -\t") for line in lines[1:4] if line.strip()]
        return f"{lines[0]} {', '.join(items)}"
    return lines[0] if lines else type(error).__name__
