"""Translation of the expressions of a query to Narwhals', with SQL's rules for NULL and types."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

import narwhals as nw
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from sluiceway.api.table.sql.casts import cast
from sluiceway.api.table.sql.functions import FUNCTIONS, extract, like, shifted, truncated
from sluiceway.api.table.sql.positions import RefusedError, check_parts
from sluiceway.api.table.sql.types import (
    BOOLEAN,
    DOUBLE,
    INTEGER,
    ORDERED,
    TEXT,
    Typed,
    as_boolean,
    as_double,
    as_text,
    comparable_decimals,
    has_decimal,
    literal,
    number_pair,
    too_many_digits,
    unified,
    widened,
)
from sluiceway.columns.schemas import shown

__all__ = ["Scope", "column_path", "named_like", "no_table", "translate"]

_MOST_DIGITS: Final = 1000
"""Digits of a whole number that is read to see if it is a BIGINT: zeros may be in front."""


@dataclass(frozen=True)
class Scope:
    """Columns that expressions may name.

    Attributes:
        name: name of the table; None: it has none.
        schema: its columns.
    """

    name: str | None
    schema: pa.Schema

    def has_table(self, of: exp.Expr) -> bool:
        """Return whether what stands before a dot is the table."""
        return self.name is not None and named_like(of.name, [self.name]) is not None


def translate(node: exp.Expr, scope: Scope) -> Typed:
    """Return an expression of Narwhals for one of SQL.

    Raises:
        RefusedError: something has no translation, or there is no such column.
    """
    kind = type(node)
    if kind in FUNCTIONS:
        return _call(node, scope)
    handler = _HANDLERS.get(kind)
    if handler is None:
        raise RefusedError(node, _unknown(node))
    allowed, method = handler
    check_parts(node, allowed)
    made = method(node, scope)
    return made if made.node is node else replace(made, node=node)


def named_like(wanted: str, names: list[str], *, quoted: bool = False) -> str | None:
    """Return a name as it is written, or the only one that differs in case alone; None: there is none."""
    if wanted in names:
        return wanted
    near = [] if quoted else [name for name in names if name.casefold() == wanted.casefold()]
    return near[0] if len(near) == 1 else None


def no_table(of: exp.Expr, scope: Scope) -> RefusedError:
    """Return the refusal of a name before a dot."""
    column = named_like(of.name, scope.schema.names, quoted=bool(of.args.get("quoted")))
    if column is not None:
        kind = scope.schema.field(column).type
        more = ": name the fields that are wanted" if pa.types.is_struct(kind) else ""
        return RefusedError(of, f"{column!r} is no table, but a column of type {kind}{more}")
    known = f"; it is {scope.name!r}" if scope.name else ""
    return RefusedError(of, f"there is no table {of.name!r} here{known}")


# ---- names and constants ----------------------------------------------------------------------------------


def column_path(node: exp.Column, scope: Scope) -> tuple[str, ...]:
    """Return the name of a column and those of the fields in it that are meant, as the table has them.

    Raises:
        RefusedError: there is no such column or field.
    """
    first, *fields = node.parts
    if fields and scope.has_table(first):
        first, *fields = fields
    elif fields:
        struct = named_like(first.name, scope.schema.names, quoted=bool(first.args.get("quoted")))
        if struct is None or not pa.types.is_struct(scope.schema.field(struct).type):
            raise no_table(first, scope)
    path = [_found(first, scope.schema.names, f"the columns are {shown(scope.schema)}")]
    kind: Any = scope.schema.field(path[0]).type
    for field in fields:
        if not pa.types.is_struct(kind):
            raise RefusedError(first, f"{'.'.join(path)!r} is a column of type {kind}, which has no fields")
        names = [kind.field(i).name for i in range(kind.num_fields)]
        path.append(_found(field, names, f"the fields of {'.'.join(path)} are {', '.join(names)}"))
        kind = kind.field(kind.get_field_index(path[-1])).type
    return tuple(path)


def _column(node: exp.Expr, scope: Scope) -> Typed:
    assert isinstance(node, exp.Column)
    if isinstance(node.this, exp.Star):
        raise RefusedError(node, "a star stands alone between the commas of SELECT")
    name, *fields = column_path(node, scope)
    expr, kind = nw.col(name), scope.schema.field(name).type
    for field in fields:
        expr, kind = expr.struct.field(field), kind.field(kind.get_field_index(field)).type
    return Typed(expr, kind, node)


def _found(name: Any, names: list[str], known: str) -> str:
    found = named_like(name.name, names, quoted=bool(name.args.get("quoted")))
    if found is not None:
        return found
    near = get_close_matches(name.name, names, 1)
    known = f"did you mean {near[0]}? {known[0].upper()}{known[1:]}" if near else known
    raise RefusedError(name, f"there is no column {name.name!r}; {known}")


def _literal(node: exp.Expr, scope: Scope) -> Typed:
    text = node.name
    if node.args["is_string"]:
        return literal(node, text, TEXT)
    if text.isdecimal():
        # Python reads no text of more than 4,300 digits as a number.
        if len(text) > _MOST_DIGITS or int(text) >= 1 << 63:
            raise RefusedError(node, f"{text} is no BIGINT: write {text}e0 for a DOUBLE")
        return literal(node, int(text), INTEGER)
    try:
        return literal(node, float(text), DOUBLE)
    except ValueError:
        raise RefusedError(node, f"{text} is no number, as 1e3 is") from None


def _boolean(node: exp.Expr, scope: Scope) -> Typed:
    return literal(node, bool(node.this), BOOLEAN)


def _null(node: exp.Expr, scope: Scope) -> Typed:
    return Typed(nw.lit(None), pa.null(), node, constant=True)


def _paren(node: exp.Expr, scope: Scope) -> Typed:
    return translate(node.this, scope)


# ---- numbers and texts ------------------------------------------------------------------------------------


def _both(node: exp.Expr, scope: Scope) -> tuple[Typed, Typed]:
    return translate(node.this, scope), translate(node.expression, scope)


def _of(node: exp.Expr, expr: nw.Expr, kind: Any, *given: Typed) -> Typed:
    return Typed(expr, kind, node, constant=all(one.constant for one in given))


def _numbers(node: exp.Expr, scope: Scope) -> tuple[Typed, Typed]:
    one, other = _both(node, scope)
    for given in (one, other):
        if given.kind not in ("integer", "double", "null") and not has_decimal([given]):
            raise RefusedError(given.node, f"arithmetic takes numbers, not {given}: CAST(... AS DOUBLE) converts")
    if has_decimal((one, other)) and "null" not in (one.kind, other.kind):
        return number_pair(one, other, "arithmetic")
    if one.kind == other.kind == "null":
        return literal(one.node, None, INTEGER), literal(other.node, None, INTEGER)
    one, other = unified([one, other], "arithmetic")
    return one, other


def _arithmetic(
    method: Callable[[nw.Expr, nw.Expr], nw.Expr], kernel: Callable[[Any, Any], Any]
) -> Callable[[Any, Scope], Typed]:
    def make(node: exp.Expr, scope: Scope) -> Typed:
        right, left = node.expression, node.this
        if isinstance(right, exp.Interval) and isinstance(node, exp.Add | exp.Sub):
            return shifted(node, translate(left, scope), right, back=isinstance(node, exp.Sub))
        if isinstance(left, exp.Interval) and isinstance(node, exp.Add):
            return shifted(node, translate(right, scope), left, back=False)
        one, other = _numbers(node, scope)
        kind = _with_their_digits(node, kernel, one, other) if has_decimal((one, other)) else one.type
        return _of(node, method(one.expr, other.expr), kind, one, other)

    return make


def _with_their_digits(node: exp.Expr, kernel: Callable[[Any, Any], Any], one: Typed, other: Typed) -> Any:
    """Return the type that Arrow's arithmetic gives two decimals: it has all digits of the result."""
    try:
        return kernel(pa.nulls(0, one.type), pa.nulls(0, other.type)).type
    except pa.ArrowInvalid:
        raise too_many_digits(node, (one, other)) from None


def _divide(node: exp.Expr, scope: Scope) -> Typed:
    one, other = _numbers(node, scope)
    return _of(node, as_double(one).expr / as_double(other).expr, DOUBLE, one, other)


def _whole(node: exp.Expr, scope: Scope) -> Typed:
    """Return a quotient of whole numbers, or what it leaves. Division by zero is NULL."""
    one, other = _numbers(node, scope)
    if one.kind != "integer":
        sign = "//" if isinstance(node, exp.IntDiv) else "%"
        raise RefusedError(
            node, f"{sign} takes whole numbers, not {one} and {other}: CAST(... AS BIGINT) converts"
        )
    a, b = one.expr, other.expr
    if other.value is None or other.value == -1:
        # The least number by -1 does not fit, and would fail a job. Times -1 it wraps around.
        by = nw.when(b == -1).then(nw.lit(1, nw.Int64())).otherwise(b)
        low = nw.when(b == -1).then(a * -1).otherwise(a // by)
    else:
        low = a // b  # rounded down, and NULL for zero
    rest = a - low * b
    # SQL rounds towards zero, // down: one more if there is a rest and the signs differ.
    quotient = nw.when((rest != 0) & ((a < 0) != (b < 0))).then(low + 1).otherwise(low)
    return _of(node, quotient if isinstance(node, exp.IntDiv) else a - quotient * b, INTEGER, one, other)


def _negative(node: exp.Expr, scope: Scope) -> Typed:
    given = translate(node.this, scope)
    if has_decimal([given]):
        one, other = number_pair(given, literal(exp.Literal.number(1), -1, INTEGER), "-")
        return _of(node, one.expr * other.expr, _with_their_digits(node, pc.multiply, one, other), one)
    if given.kind not in ("integer", "double"):
        raise RefusedError(node.this, f"- takes a number, not {given}: CAST(... AS DOUBLE) converts")
    number = widened(given)
    value = None if number.value is None else -number.value
    # Minus one times: 0 - x would make a positive zero of zero.
    return Typed(number.expr * -1, number.type, node, value, constant=number.constant)


def _joined(node: exp.Expr, scope: Scope) -> Typed:
    one, other = (as_text(given, "||") for given in _both(node, scope))
    return _of(node, nw.concat_str(one.expr, other.expr, ignore_nulls=False), TEXT, one, other)


# ---- conditions -------------------------------------------------------------------------------------------


def _comparison(method: Callable[[nw.Expr, nw.Expr], nw.Expr]) -> Callable[[Any, Scope], Typed]:
    def make(node: exp.Expr, scope: Scope) -> Typed:
        return _compared(node, method, *_both(node, scope))

    return make


def _compared(node: exp.Expr, method: Callable[[nw.Expr, nw.Expr], nw.Expr], left: Typed, right: Typed) -> Typed:
    if left.kind == right.kind == "null":
        return literal(node, None, BOOLEAN)
    if has_decimal((left, right)):
        one, other = comparable_decimals(left, right)
        return _of(node, method(one.expr, other.expr), BOOLEAN, one, other)
    one, other = unified([left, right], "a comparison")
    equality = isinstance(node, exp.EQ | exp.NEQ | exp.In | exp.NullSafeEQ | exp.NullSafeNEQ | exp.Case)
    if one.kind not in ORDERED and not (one.kind == "boolean" and equality):
        raise RefusedError(node, f"{left} and {right} cannot be compared here")
    if left.kind == right.kind == "integer" and (left.value is None) != (right.value is None):
        # Arrow compares integers of two widths by itself; a source knows a column, and not what it is cast to.
        one, other = left, right
    return _of(node, method(one.expr, other.expr), BOOLEAN, one, other)


def _logic(method: Callable[[nw.Expr, nw.Expr], nw.Expr]) -> Callable[[Any, Scope], Typed]:
    def make(node: exp.Expr, scope: Scope) -> Typed:
        word = node.key.upper()
        one, other = (as_boolean(given, word) for given in _both(node, scope))
        return _of(node, method(one.expr, other.expr), BOOLEAN, one, other)

    return make


def _not(node: exp.Expr, scope: Scope) -> Typed:
    given = as_boolean(translate(node.this, scope), "NOT")
    return _of(node, ~given.expr, BOOLEAN, given)


def _is(node: exp.Expr, scope: Scope) -> Typed:
    given, wanted = translate(node.this, scope), node.expression
    if isinstance(wanted, exp.Null):
        return _of(node, given.expr.is_null(), BOOLEAN, given)
    if isinstance(wanted, exp.Boolean):
        known = as_boolean(given, "IS").expr
        return _of(node, (known if wanted.this else ~known).fill_null(False), BOOLEAN, given)
    raise RefusedError(node, "IS takes NULL, TRUE, FALSE or DISTINCT FROM, with or without NOT")


def _distinct(node: exp.Expr, scope: Scope) -> Typed:
    left, right = _both(node, scope)
    equal = _compared(node, lambda a, b: a == b, left, right)
    one, other = left.expr.is_null(), right.expr.is_null()
    same = (one & other) | (~one & ~other & equal.expr.fill_null(False))
    return _of(node, ~same if isinstance(node, exp.NullSafeNEQ) else same, BOOLEAN, left, right)


def _in(node: exp.Expr, scope: Scope) -> Typed:
    given = translate(node.this, scope)
    members = [translate(one, scope) for one in node.expressions]
    if not members:
        query = node.args.get("query") or node
        raise RefusedError(query, "IN takes the values themselves, and no query: that would be a join")
    conditions = [_compared(node, lambda a, b: a == b, given, one) for one in members]
    constants = [one for one in members if one.value is not None]
    if given.kind in ("integer", "text") and len(constants) == len(members) and not given.constant:
        subject, *values = unified([given, *members], "IN")
        if subject.kind in ("integer", "text"):
            # is_in() is false for NULL, for which IN is unknown.
            within = subject.expr.is_in([one.value for one in values])
            return _of(node, nw.when(~subject.expr.is_null()).then(within), BOOLEAN, given)
    return _of(node, functools.reduce(lambda a, b: a | b, (c.expr for c in conditions)), BOOLEAN, given, *members)


def _between(node: exp.Expr, scope: Scope) -> Typed:
    given = translate(node.this, scope)
    low = _compared(node, lambda a, b: a >= b, given, translate(node.args["low"], scope))
    high = _compared(node, lambda a, b: a <= b, given, translate(node.args["high"], scope))
    return _of(node, low.expr & high.expr, BOOLEAN, low, high)


def _like(node: exp.Expr, scope: Scope, escape: str | None = None) -> Typed:
    text, pattern = _both(node, scope)
    made = like(node, text, pattern, escape, fold=isinstance(node, exp.ILike))
    return replace(made, expr=~made.expr) if node.args.get("negate") else made


def _escape(node: exp.Expr, scope: Scope) -> Typed:
    escape = node.expression
    if not (isinstance(escape, exp.Literal) and escape.is_string and len(escape.name) == 1):
        raise RefusedError(node, "ESCAPE takes one character in quotes")
    if not isinstance(node.this, exp.Like | exp.ILike):
        raise RefusedError(node, "ESCAPE belongs to LIKE and ILIKE")
    check_parts(node.this, _PAIR | {"negate"})
    return _like(node.this, scope, escape.name)


# ---- choices ----------------------------------------------------------------------------------------------


def _case(node: exp.Expr, scope: Scope) -> Typed:
    subject = None if node.this is None else translate(node.this, scope)
    conditions, results = [], []
    for branch in node.args["ifs"]:
        check_parts(branch, frozenset({"this", "true"}))
        given = translate(branch.this, scope)
        if subject is not None:
            given = _compared(node, lambda a, b: a == b, subject, given)
        conditions.append(as_boolean(given, "WHEN"))
        results.append(translate(branch.args["true"], scope))
    return _chosen(node, scope, conditions, results, node.args.get("default"))


def _if(node: exp.Expr, scope: Scope) -> Typed:
    condition = as_boolean(translate(node.this, scope), "IF")
    return _chosen(node, scope, [condition], [translate(node.args["true"], scope)], node.args.get("false"))


def _chosen(
    node: exp.Expr, scope: Scope, conditions: list[Typed], results: list[Typed], default: exp.Expr | None
) -> Typed:
    other = _null(node, scope) if default is None else translate(default, scope)
    *results, other = unified([*results, other], node.key.upper())
    # From the last branch to the first, as each is the alternative to the one before.
    expr = other.expr
    for condition, result in zip(reversed(conditions), reversed(results), strict=True):
        expr = nw.when(condition.expr).then(result.expr).otherwise(expr)
    return _of(node, expr, other.type, *conditions, *results, other)


def _cast(node: exp.Expr, scope: Scope) -> Typed:
    assert isinstance(node, exp.Cast)
    return cast(node, translate(node.this, scope))


def _extract(node: exp.Expr, scope: Scope) -> Typed:
    return extract(node, node.this.name.upper(), translate(node.expression, scope))


def _truncate(node: exp.Expr, scope: Scope) -> Typed:
    return truncated(node, node.args["unit"].name.upper(), translate(node.this, scope))


def _call(node: exp.Expr, scope: Scope) -> Typed:
    call = FUNCTIONS[type(node)]
    check_parts(node, frozenset({*call.parts, *call.ignored}), call.name)
    args: list[Typed] = []
    for part in call.parts:
        given = node.args.get(part)
        several = given if isinstance(given, list) else [given]
        args += [translate(one, scope) for one in several if one is not None]
    return call.make(node, args)


def _unknown(node: exp.Expr) -> str:
    if isinstance(node, exp.Window):
        return (
            "OVER looks at other rows, and has no translation: of a stream in columns, key_by(...).over(rows=n) "
            "has aggregates of the last rows, key_by(...).running(...) of all so far, and agg.top_k the greatest "
            "values of a window"
        )
    if isinstance(node, exp.AggFunc):
        query = node.find_ancestor(exp.Select)
        lacks_group = query is not None and query.args.get("group") is None
        hint = ", as GROUP BY user, or GROUP BY TRUE for all rows" if lacks_group else ""
        return f"{node.sql_name()} combines rows: it stands in SELECT or HAVING of a query with GROUP BY{hint}"
    if isinstance(node, exp.Query | exp.Subquery | exp.Exists):
        return "a query belongs into FROM or WITH: in an expression it would be a join"
    if isinstance(node, exp.Interval):
        return "an interval is only added to a timestamp or subtracted from one"
    if isinstance(node, exp.Placeholder | exp.Parameter):
        return "a query has no parameters: write the value in its place"
    if isinstance(node, exp.Explode):
        return "UNNEST stands in SELECT, or in FROM as in CROSS JOIN UNNEST(tags) AS t(tag)"
    if isinstance(node, exp.TryCast):
        return "TRY_CAST has no translation; CAST fails the job if a value cannot be converted"
    if isinstance(node, exp.Func):
        name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
        if name.upper() in ("TUMBLE", "HOP", "CUMULATE"):
            return f"{name.upper()} stands in GROUP BY; window_start and window_end are columns of its result"
        known = sorted({call.name for call in FUNCTIONS.values()} | {"CAST", "DATE_TRUNC", "EXTRACT", "IF"})
        near = get_close_matches(name.upper(), known, 1)
        hint = f"; did you mean {near[0]}?" if near else "."
        return f"the function {name.upper()} has no translation{hint} Those that have: {', '.join(known)}"
    return f"{node.sql('duckdb')!r} has no translation: select() takes any expression of Narwhals"


_ONE: Final = frozenset({"this"})
_PAIR: Final = frozenset({"this", "expression"})
_Handler = Callable[[Any, Scope], Typed]
# Each has the parts of sqlglot's node that it translates: check_parts() refuses others.
_HANDLERS: Final[dict[type[exp.Expr], tuple[frozenset[str], _Handler]]] = {
    exp.Column: (frozenset({"this", "table", "db", "catalog"}), _column),
    exp.Literal: (frozenset({"this", "is_string"}), _literal),
    exp.Boolean: (_ONE, _boolean),
    exp.Null: (frozenset(), _null),
    exp.Paren: (_ONE, _paren),
    exp.Add: (_PAIR, _arithmetic(lambda a, b: a + b, pc.add)),
    exp.Sub: (_PAIR, _arithmetic(lambda a, b: a - b, pc.subtract)),
    exp.Mul: (_PAIR, _arithmetic(lambda a, b: a * b, pc.multiply)),
    exp.Div: (_PAIR, _divide),
    exp.IntDiv: (_PAIR, _whole),
    exp.Mod: (_PAIR, _whole),
    exp.Neg: (_ONE, _negative),
    exp.DPipe: (_PAIR | {"safe"}, _joined),
    exp.EQ: (_PAIR, _comparison(lambda a, b: a == b)),
    exp.NEQ: (_PAIR, _comparison(lambda a, b: a != b)),
    exp.LT: (_PAIR, _comparison(lambda a, b: a < b)),
    exp.LTE: (_PAIR, _comparison(lambda a, b: a <= b)),
    exp.GT: (_PAIR, _comparison(lambda a, b: a > b)),
    exp.GTE: (_PAIR, _comparison(lambda a, b: a >= b)),
    exp.And: (_PAIR, _logic(lambda a, b: a & b)),
    exp.Or: (_PAIR, _logic(lambda a, b: a | b)),
    exp.Not: (_ONE, _not),
    exp.Is: (_PAIR, _is),
    exp.NullSafeEQ: (_PAIR, _distinct),
    exp.NullSafeNEQ: (_PAIR, _distinct),
    exp.In: (frozenset({"this", "expressions", "query"}), _in),
    exp.Between: (frozenset({"this", "low", "high"}), _between),
    exp.Like: (_PAIR | {"negate"}, _like),
    exp.ILike: (_PAIR | {"negate"}, _like),
    exp.Escape: (_PAIR, _escape),
    exp.Case: (frozenset({"this", "ifs", "default"}), _case),
    exp.If: (frozenset({"this", "true", "false"}), _if),
    exp.Cast: (frozenset({"this", "to"}), _cast),
    exp.Extract: (_PAIR, _extract),
    exp.TimestampTrunc: (frozenset({"this", "unit"}), _truncate),
}
