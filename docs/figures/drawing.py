"""Pictures in the documentation's style: light and dark, readable aloud, the same text for the same program."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["Drawing"]

STYLE = """
    .card { fill: #ffffff; }
    .box { fill: #f1f6f6; stroke: #5b8a8a; stroke-width: 1.5; }
    .band { fill: #e3efee; }
    .band2 { fill: #f1f6f6; }
    .mark { fill: #00796b; }
    .late { fill: #b25e00; }
    .line { stroke: #37474f; stroke-width: 1.8; fill: none; }
    .thin { stroke: #90a4ae; stroke-width: 1; fill: none; }
    .dash { stroke: #90a4ae; stroke-width: 1.2; fill: none; stroke-dasharray: 5 4; }
    .water { stroke: #1565c0; stroke-width: 2.4; fill: none; }
    .head { fill: #37474f; }
    .waterhead { fill: #1565c0; }
    text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; font-size: 14px; }
    text { fill: #1c2b30; }
    .small { font-size: 12px; fill: #455a64; }
    .title { font-weight: 600; }
    .amber { fill: #9a4f00; font-size: 12px; }
    .blue { fill: #0d47a1; font-size: 12px; }
    .white { fill: #ffffff; font-size: 11px; }
    .mid { text-anchor: middle; }
    .end { text-anchor: end; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #1e2129; }
      .box { fill: #262c35; stroke: #6fb1a8; }
      .band { fill: #263a3c; }
      .band2 { fill: #242a33; }
      .mark { fill: #4db6ac; }
      .late { fill: #ffb74d; }
      .line { stroke: #cfd8dc; }
      .thin, .dash { stroke: #607d8b; }
      .water { stroke: #64b5f6; }
      .head { fill: #cfd8dc; }
      .waterhead { fill: #64b5f6; }
      text { fill: #eceff1; }
      .small { fill: #b0bec5; }
      .amber { fill: #ffcc80; }
      .blue { fill: #90caf9; }
      .white { fill: #102027; }
    }
"""

ARROWS = """  <defs>
    <marker id="head" markerWidth="9" markerHeight="9" refX="7" refY="4" orient="auto">
      <path class="head" d="M0,0 L8,4 L0,8 z"/>
    </marker>
    <marker id="waterhead" markerWidth="9" markerHeight="9" refX="7" refY="4" orient="auto">
      <path class="waterhead" d="M0,0 L8,4 L0,8 z"/>
    </marker>
  </defs>"""


class Drawing:
    """A picture that grows by what is drawn on it; later things lie on top.

    Args:
        width, height: in pixels.
        title: a few words.
        description: what there is to see, for those who cannot.
    """

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'aria-labelledby="title desc">',
            f'  <title id="title">{escape(title)}</title>',
            f'  <desc id="desc">{escape(description)}</desc>',
            f"  <style>{STYLE}  </style>",
            ARROWS,
        ]
        self.box(0, 0, width, height, "card", radius=10)

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box", radius: int = 0) -> None:
        """A rectangle from its upper left corner."""
        round_ = f' rx="{radius}"' if radius else ""
        size = f'width="{_number(width)}" height="{_number(height)}"'
        self._lines.append(f'  <rect class="{kind}" x="{_number(x)}" y="{_number(y)}" {size}{round_}/>')

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        """One line of text; ``mid`` or ``end`` in ``kind`` says which part of it is at ``x``."""
        of_kind = f' class="{kind}"' if kind else ""
        self._lines.append(f'  <text{of_kind} x="{_number(x)}" y="{_number(y)}">{escape(text)}</text>')

    def line(self, points: Sequence[tuple[float, float]], kind: str = "line", arrow: str = "") -> None:
        """A line through all the points; ``arrow`` is the kind of its head, if it has one."""
        path = " L".join(f"{_number(x)},{_number(y)}" for x, y in points)
        marker = f' marker-end="url(#{arrow})"' if arrow else ""
        self._lines.append(f'  <path class="{kind}" d="M{path}"{marker}/>')

    def dot(self, x: float, y: float, label: str = "", kind: str = "mark", radius: int = 11) -> None:
        """A record, with a word of at most three letters in it."""
        self._lines.append(f'  <circle class="{kind}" cx="{_number(x)}" cy="{_number(y)}" r="{radius}"/>')
        if label:
            self.text(x, y + 4, label, "white mid")

    def __str__(self) -> str:
        return "\n".join([*self._lines, "</svg>", ""])


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
