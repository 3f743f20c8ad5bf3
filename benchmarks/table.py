"""The rows as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.harness import Plan, Row

__all__ = ["as_json", "as_text"]

_HEAD = ("", "median", "min", "max", "unit", "aim", "floor", "")
_NUMBERS = frozenset({"median", "min", "max", "aim", "floor"})


def as_text(facts: dict[str, Any], warnings: Sequence[str], plan: Plan, rows: Sequence[Row]) -> str:
    """One table, with what is needed to judge it above and the notes beside it."""
    said = [f"{name} {value}" for name, value in facts.items()]
    lines = [", ".join(said), f"medians of {plan.runs} runs; x loop: speed as a share of a plain Python loop's"]
    lines += [f"WARNING: {warning}" for warning in warnings]
    if plan.quick:
        lines.append("WARNING: --quick: the sizes are too small for the figures to mean anything")
    cells = [_HEAD, *map(_cells, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEAD))]
    lines.append("")
    for row, note in zip(cells, ["", *(r.note for r in rows)], strict=True):
        padded = [
            cell.rjust(width) if head in _NUMBERS else cell.ljust(width)
            for head, cell, width in zip(_HEAD, row, widths, strict=True)
        ]
        lines.append("  ".join([*padded, note]).rstrip())
    return "\n".join(lines)


def as_json(facts: dict[str, Any], warnings: Sequence[str], plan: Plan, rows: Sequence[Row]) -> dict[str, Any]:
    """Everything that was measured."""
    return {
        "machine": facts,
        "warnings": list(warnings),
        "runs": plan.runs,
        "quick": plan.quick,
        "rows": [
            {
                "name": row.name,
                "unit": row.unit,
                "median": row.median if row.values else None,
                "values": list(row.values),
                "aim": row.aim,
                "floor": row.floor,
                "verdict": row.verdict,
                "note": row.note,
                **row.details,
            }
            for row in rows
        ],
    }


def _cells(row: Row) -> tuple[str, ...]:
    if not row.values:
        return (row.name, *[""] * 7)
    numbers = [f"{v:.3g}" for v in (row.median, min(row.values), max(row.values))]
    bounds = ["" if b is None else f"{b:g}" for b in (row.aim, row.floor)]
    return (row.name, *numbers, row.unit, *bounds, row.verdict)
