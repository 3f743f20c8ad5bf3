"""Plan for a browser or a notebook: one fragment of HTML with a drawing, light or dark as its surroundings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from html import escape
from typing import Final

from sluiceway.graph.plan.layout import HEADER, INDENT, MAX_NAME, PADDING, Box, Layout, Line, clipped, lay_out
from sluiceway.graph.plan.model import Plan, given_text, uid_text
from sluiceway.graph.plan.settings import errors_text, settings_text
from sluiceway.streamgraph import StreamGraph

__all__ = ["explain_html"]

_LIGHT: Final = (
    "--bg:#ffffff;--fg:#1f2430;--soft:#667085;--box:#f6f8fb;--rim:#c3ccd9;--head:#e4ebf5;--line:#5b7db1"
)
_DARK: Final = "--bg:#16191f;--fg:#e6e9ef;--soft:#98a2b3;--box:#1e232c;--rim:#3b4454;--head:#2a3344;--line:#7fa6df"
_MONO: Final = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"

# Notebooks say on an element around the output whether they are dark; elsewhere the system decides.
_STYLE: Final = f"""
.sluiceway-plan{{{_LIGHT};background:var(--bg);color:var(--fg);font:13px/1.5 system-ui,sans-serif;padding:8px}}
@media (prefers-color-scheme:dark){{.sluiceway-plan{{{_DARK}}}}}
[data-jp-theme-light="true"] .sluiceway-plan,.vscode-light .sluiceway-plan{{{_LIGHT}}}
[data-jp-theme-light="false"] .sluiceway-plan,.vscode-dark .sluiceway-plan{{{_DARK}}}
.sluiceway-plan .drawing{{overflow-x:auto}}
.sluiceway-plan svg{{display:block;max-width:none}}
.sluiceway-plan svg text{{fill:var(--fg);font:12px {_MONO}}}
.sluiceway-plan svg .small{{fill:var(--soft);font-size:10px}}
.sluiceway-plan svg .label{{fill:var(--soft);font-size:10px;stroke:var(--bg);stroke-width:3px;paint-order:stroke}}
.sluiceway-plan svg .box{{fill:var(--box);stroke:var(--rim)}}
.sluiceway-plan svg .head{{fill:var(--head)}}
.sluiceway-plan svg .line{{fill:none;stroke:var(--line);stroke-width:1.5}}
.sluiceway-plan svg .loop{{stroke-dasharray:5 4}}
.sluiceway-plan svg .twig{{fill:none;stroke:var(--soft)}}
.sluiceway-plan svg .tip{{fill:var(--line)}}
.sluiceway-plan table{{border-collapse:collapse;color:var(--fg);margin-top:4px}}
.sluiceway-plan th,.sluiceway-plan td{{border:1px solid var(--rim);padding:2px 8px;text-align:left;background:var(--bg)}}
.sluiceway-plan td{{font:12px {_MONO}}}
.sluiceway-plan .total{{color:var(--soft)}}
""".strip()  # noqa: E501


def explain_html(graph: StreamGraph) -> str:
    """Return the plan as an HTML fragment in plain ASCII, without scripts and without anything to load."""
    plan = Plan(graph)
    # Several plans can be on one page, and a marker is found by an id.
    tip = "tip-" + hashlib.blake2b(repr(graph.edges).encode(), digest_size=6).hexdigest()
    parts = [
        f'<div class="sluiceway-plan"><style>{_STYLE}</style>',
        f'<div><b>{escape(graph.job_name)}</b> <span class="total">{escape(plan.summary())}</span></div>',
        f'<div class="drawing">{"".join(_drawing(lay_out(plan), graph.job_name, tip))}</div>',
        f"<details><summary>Steps</summary>{''.join(_table(plan))}</details></div>",
    ]
    # Whatever encoding the page is read with, it shows the same.
    return "\n".join(parts).encode("ascii", "xmlcharrefreplace").decode() + "\n"


def _drawing(layout: Layout, job_name: str, tip: str) -> Iterator[str]:
    width, height = _px(layout.width), _px(layout.height)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}"><title>Plan of {escape(job_name)}</title>'
        f'<defs><marker id="{tip}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
        ' orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    for line in layout.lines:
        kind = "line loop" if line.edge.feedback else "line"
        yield f'<path class="{kind}" d="{_path(line)}" marker-end="url(#{tip})"/>'
    for box in layout.boxes:
        yield from _box(box)
    for line in layout.lines:
        x, y = line.label_at
        anchor = "middle" if line.edge.feedback else "end"
        yield (
            f'<text class="label" x="{_px(x)}" y="{_px(y)}" text-anchor="{anchor}">'
            f"<title>{escape(line.about)}</title>{escape(line.label)}</text>"
        )
    yield "</svg>"


def _box(box: Box) -> Iterator[str]:
    x, y, w, h = box.x, box.y, box.width, box.height
    yield (
        f'<g><title>{escape(box.vertex.name)}</title><rect class="box" x="{_px(x)}" y="{_px(y)}"'
        f' width="{_px(w)}" height="{_px(h)}" rx="6"/>'
        f'<path class="head" d="M{_px(x + 0.5)} {_px(y + HEADER - 6)}v{_px(12 - HEADER)}q0 -5.5 5.5 -5.5'
        f'h{_px(w - 12)}q5.5 0 5.5 5.5v{_px(HEADER - 12)}z"/>'
        f'<text class="small" x="{_px(x + PADDING)}" y="{_px(y + 14)}">{escape(box.title)}</text></g>'
    )
    for placed in box.rows:
        node, depth = placed.row.node, placed.row.depth
        left = x + PADDING + INDENT * depth
        lines = [node.name, node.description, *settings_text(node.step), *errors_text(node), uid_text(node)]
        about = "\n".join(filter(None, [*lines, node.location]))
        yield f"<g><title>{escape(about)}</title>"
        if depth:
            yield f'<path class="twig" d="M{_px(left - 10)} {_px(placed.y - 11)}v7h7"/>'
        name = escape(clipped(node.name, MAX_NAME))
        yield f'<text x="{_px(left)}" y="{_px(placed.y)}">{name}</text>'
        if placed.told:
            told = escape(placed.told)
            yield f'<text class="small" x="{_px(left)}" y="{_px(placed.y + 13)}">{told}</text>'
        yield "</g>"


def _path(line: Line) -> str:
    """Return the path of a line: straight where it is level or a loop, else a curve with level ends."""
    (x, y), *rest = line.points
    parts = [f"M{_px(x)} {_px(y)}"]
    for to_x, to_y in rest:
        if line.edge.feedback or to_y == y:
            parts.append(f"L{_px(to_x)} {_px(to_y)}")
        else:
            middle = _px((x + to_x) / 2)
            parts.append(f"C{middle} {_px(y)} {middle} {_px(to_y)} {_px(to_x)} {_px(to_y)}")
        x, y = to_x, to_y
    return "".join(parts)


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _table(plan: Plan) -> Iterator[str]:
    titles = ("Task", "Step", "Description", "Parallelism", "Uid", "Type", "Settings", "Written at")
    yield f"<table><tr>{''.join(f'<th>{title}</th>' for title in titles)}</tr>"
    for node in plan.graph.nodes:
        task = plan.number(plan.job.vertex_of(node.id).id)
        cells = (
            str(task),
            node.name,
            node.description or "",
            f"{node.parallelism} (max {node.max_parallelism})",
            uid_text(node).removeprefix("uid "),
            given_text(node) or "",
            ", ".join([*settings_text(node.step), *errors_text(node)]),
            node.location,
        )
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    yield "</table>"
