"""Refusals of parts of a query, with their position in its text."""

from __future__ import annotations

from sqlglot import exp

__all__ = ["RefusedError", "check_parts", "start_of", "with_position"]


class RefusedError(Exception):
    """Part of a query that has no translation.

    Attributes:
        node: the part, or the nearest one that has a position.
        why: the reason, and what to write in its place.
        keyword: a word of the text before ``node`` that the refusal is about, in upper case, if there is one.
    """

    def __init__(self, node: exp.Expr, why: str, keyword: str | None = None) -> None:
        super().__init__(why)
        self.node = node
        self.why = why
        self.keyword = keyword


def start_of(node: exp.Expr) -> int | None:
    """Return the offset in the text at which a part begins, as far as its words have positions."""
    starts = [at for one in node.walk() if isinstance(at := one.meta.get("start"), int)]
    return min(starts, default=None)


def with_position(text: str, refusal: RefusedError) -> str:
    """Return the reason of a refusal after its line and column, and the line with a mark under it."""
    node: exp.Expr | None = refusal.node
    start = None
    while node is not None and start is None:
        start = start_of(node)
        node = node.parent
    start = start or 0
    if refusal.keyword is not None:
        found = text.upper().rfind(refusal.keyword, 0, start + len(refusal.keyword))
        start = start if found < 0 else found  # sqlglot has other names for some functions
    return at_offset(text, start, refusal.why)


def at_offset(text: str, start: int, why: str) -> str:
    """Return a reason after the line and column of an offset, and the line with a mark under it."""
    begin = text.rfind("\n", 0, start) + 1
    line, column = text.count("\n", 0, start) + 1, start - begin + 1
    shown = text[begin:].partition("\n")[0].rstrip().replace("\t", " ")
    return f"line {line}, column {column}: {why}\n  {shown}\n  {' ' * (column - 1)}^"


def check_parts(node: exp.Expr, allowed: frozenset[str], function: str | None = None) -> None:
    """Check that a part of a query has nothing but what is translated.

    Args:
        node: the part.
        allowed: sqlglot's names of what is translated.
        function: name of a function, whose arguments have names in sqlglot that are not in the query.

    Raises:
        RefusedError: it has more.
    """
    for name, value in node.args.items():
        if name in allowed or value is None or value is False or value == []:
            continue
        found = value[0] if isinstance(value, list) else value
        at = found if isinstance(found, exp.Expr) else node
        if function is not None:
            raise RefusedError(at, f"this argument of {function} has no translation")
        raise RefusedError(at, f"{name.strip('_').replace('_', ' ').upper()} has no translation here")
