"""Flame graph as an SVG picture that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final
from zlib import crc32

from sluiceway.monitoring.stack_samples import FlameNode

__all__ = ["flame_svg"]

_WIDTH: Final = 1200
_ROW: Final = 18
_HEAD: Final = 34
_CHARACTER: Final = 6.6
_NARROWEST: Final = 0.4
_MOST_ROWS: Final = 160


def flame_svg(root: FlameNode, title: str) -> str:
    """Draw a flame graph with the outermost functions on top.

    The whole name of a function and its share are in the tooltip of its bar. Functions of the engine are grey.
    """
    bars = list(_bars(root))
    height = _HEAD + _ROW * (1 + max((row for _, row, _, _ in bars), default=0)) + 6
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="21" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    lines += [_bar(node, row, x, width, root.value) for node, row, x, width in bars]
    if not root.value:
        lines.append(f'<text x="8" y="{_HEAD + 13}">no samples</text>')
    return "\n".join([*lines, "</svg>", ""])


def _bars(root: FlameNode) -> Iterator[tuple[FlameNode, int, float, float]]:
    """Yield each function that is wide enough, with row, left edge and width."""
    if not root.value:
        return
    scale = _WIDTH / root.value
    todo = [(root, -1, 0.0)]
    while todo:
        node, row, x = todo.pop()
        if row >= 0:
            yield node, row, x, node.value * scale
        for child in node.children:
            if child.value * scale >= _NARROWEST and row + 1 < _MOST_ROWS:
                todo.append((child, row + 1, x))
            x += child.value * scale


def _bar(node: FlameNode, row: int, x: float, width: float, total: int) -> str:
    y = _HEAD + row * _ROW
    fits = int((width - 6) / _CHARACTER)
    short = node.name.partition(" (")[0]
    text = short if len(short) <= fits else f"{short[: fits - 1]}\u2026" if fits > 3 else ""
    label = f'<text x="{x + 3:.1f}" y="{y + 13}">{escape(text)}</text>' if text else ""
    return (
        f"<g><title>{escape(node.name)}: {node.value} samples, {node.value / total:.1%}</title>"
        f'<rect x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.3):.1f}" height="{_ROW - 1}" rx="2" '
        f'fill="{_colour(node.name)}"/>{label}</g>'
    )


def _colour(name: str) -> str:
    if name.startswith("sluiceway"):
        return "#d9dde3"
    hue = crc32(name.encode()) % 55  # the same function has the same colour in each picture
    return f"hsl({hue} 85% 68%)"
