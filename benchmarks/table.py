"""The rows as a table for people, as Markdown for README.md, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Plan, Row

__all__ = ["Measured", "as_json", "as_markdown", "as_text", "from_json", "replace_between_markers"]

BEGIN = "<!-- benchmarks: begin; written by `make bench-readme` -->"
END = "<!-- benchmarks: end -->"

_HEAD = ("", "median", "min", "max", "unit", "aim", "floor", "")
_NUMBERS = frozenset({"median", "min", "max", "aim", "floor"})


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that was measured.

    Attributes:
        facts: about the machine.
        warnings: reasons not to trust the figures.
        plan: what was asked for.
        rows: of each benchmark, by its name, in the order in which they were measured.
        loads: the machine's load when each began.
        is_interrupted: whether more was to be measured.
    """

    facts: dict[str, Any]
    warnings: Sequence[str]
    plan: Plan
    rows: Mapping[str, Sequence[Row]]
    loads: Mapping[str, float]
    is_interrupted: bool = False

    def all_rows(self) -> list[Row]:
        return [row for rows in self.rows.values() for row in rows]


def as_text(measured: Measured) -> str:
    """One table, with what is needed to judge it above and the notes beside it."""
    rows = measured.all_rows()
    lines = [", ".join(f"{name} {value}" for name, value in measured.facts.items())]
    lines.append(
        "load at the start of each: " + ", ".join(f"{name} {load}" for name, load in measured.loads.items())
    )
    lines.append(
        f"medians of {measured.plan.runs} runs; x loop: speed as a share of a plain loop's, results discarded"
    )
    lines += [f"WARNING: {warning}" for warning in measured.warnings]
    if measured.plan.quick:
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


def as_json(measured: Measured) -> dict[str, Any]:
    """Everything that was measured; :func:`from_json` reads it."""
    return {
        "machine": measured.facts,
        "warnings": list(measured.warnings),
        "loads": dict(measured.loads),
        "runs": measured.plan.runs,
        "quick": measured.plan.quick,
        "rows": [
            {
                **row.details,
                "benchmark": benchmark,
                "name": row.name,
                "against": row.against,
                "unit": row.unit,
                "median": row.median if row.values else None,
                "values": list(row.values),
                "aim": row.aim,
                "floor": row.floor,
                "verdict": row.verdict,
                "note": row.note,
            }
            for benchmark, rows in measured.rows.items()
            for row in rows
        ],
    }


def from_json(written: dict[str, Any]) -> Measured:
    """Read what :func:`as_json` made, without the rows' details."""
    rows: dict[str, list[Row]] = {}
    for row in written["rows"]:
        bounds = {name: row[name] for name in ("aim", "floor", "note", "against")}
        rows.setdefault(row["benchmark"], []).append(Row(row["name"], row["unit"], tuple(row["values"]), **bounds))
    plan = Plan(runs=written["runs"], quick=written["quick"])
    return Measured(written["machine"], written["warnings"], plan, rows, written["loads"])


# ---- Markdown ---------------------------------------------------------------------------------------------------


def as_markdown(measured: Measured) -> str:
    """A table for each benchmark, below a sentence that says where and how it was measured.

    The other sides of a comparison stand beside one another, each with its own column.
    """
    loads = measured.loads.values()
    facts = ", ".join(f"{name} {value}" for name, value in measured.facts.items() if name != "load")
    said = [
        f"Medians and extremes of {measured.plan.runs} runs, taken in turn; {facts}; "
        f"load at the start of the benchmarks {min(loads)} to {max(loads)}."
    ]
    if measured.plan.quick:
        said.append("**The sizes are those of `--quick`: the figures mean nothing.**")
    said += [f"**Warning: {warning}.**" for warning in measured.warnings]
    parts = [" ".join(said)]
    for benchmark, rows in measured.rows.items():
        parts.append(f"`{benchmark}`:\n\n" + "\n".join(_markdown_rows(rows)))
    return "\n\n".join(parts)


def _markdown_rows(rows: Sequence[Row]) -> list[str]:
    columns = list(dict.fromkeys(row.against for row in rows if row.against))
    head = ["", *(f"against {column}" for column in columns)]
    plain = any(not row.against for row in rows)
    if plain:
        head.append("")
    head.append("")
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, of_name in by_name.items():
        cell_of = {row.against: _figure(row) for row in of_name}
        cells = [name, *(cell_of.get(column, "") for column in columns)]
        if plain:
            cells.append(cell_of.get("", ""))
        cells.append(of_name[0].note)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _figure(row: Row) -> str:
    if not row.values:
        return ""
    unit = "" if row.unit in ("x loop", "x speed") else f" {row.unit}"
    if len(row.values) == 1:
        return f"{row.median:.3g}{unit}"
    return f"{row.median:.3g}{unit} ({min(row.values):.3g} to {max(row.values):.3g})"


def replace_between_markers(file: Path, text: str) -> None:
    """Put ``text`` between the two markers of a file.

    Raises:
        ValueError: the file does not have both markers, once each and in order.
    """
    content = file.read_text()
    before, found, rest = content.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended or content.count(BEGIN) + content.count(END) != 2:
        raise ValueError(f"{file} must have the lines {BEGIN!r} and {END!r} once each, in that order")
    file.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _cells(row: Row) -> tuple[str, ...]:
    if not row.values:
        return (row.title, *[""] * 7)
    numbers = [f"{v:.3g}" for v in (row.median, min(row.values), max(row.values))]
    bounds = ["" if b is None else f"{b:g}" for b in (row.aim, row.floor)]
    return (row.title, *numbers, row.unit, *bounds, row.verdict)
