"""Layout of a drawn plan: layers from left to right, few crossings. Pure geometry."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from sluiceway.graph.job_graph import JobEdge, JobVertex
from sluiceway.graph.plan.model import Plan, Row, edge_text, facts, format_of

__all__ = ["Box", "Layout", "Line", "PlacedRow", "clipped", "lay_out"]

# All in pixels. Characters are as wide as those of monospaced fonts at 12 and 10 px, which the HTML uses.
NAME_CHAR: Final = 7.25
SMALL_CHAR: Final = 6.1
HEADER: Final = 26
PADDING: Final = 10
INDENT: Final = 14
ROW: Final = 20
FACTS: Final = 14
BETWEEN: Final = 22
MARGIN: Final = 12
MIN_GAP: Final = 48
MAX_NAME: Final = 40
MAX_LABEL: Final = 34
LOOP: Final = 16
_SWEEPS: Final = 6


@dataclass(slots=True)
class PlacedRow:
    """Step inside its box.

    Attributes:
        row: the step.
        y: its baseline.
        told: text below its name; may be empty.
    """

    row: Row
    y: float
    told: str


@dataclass(slots=True)
class Box:
    """Box of a task.

    Attributes:
        vertex: the task.
        title: its first line.
        rows: its steps.
        x: left side.
        y: upper side.
        width: in pixels, as the others.
        height: in pixels.
    """

    vertex: JobVertex
    title: str
    rows: list[PlacedRow]
    x: float
    y: float
    width: float
    height: float


@dataclass(slots=True)
class Line:
    """Edge between boxes.

    Attributes:
        edge: the edge.
        points: its path; the first is at its source, the last at its target.
        label: its text.
        about: the same at full length, with the encoding of its records.
        label_at: end of the label, at its baseline; for feedback, its middle.
    """

    edge: JobEdge
    points: list[tuple[float, float]]
    label: str
    about: str
    label_at: tuple[float, float]


@dataclass(slots=True)
class Layout:
    """Plan with coordinates.

    Attributes:
        boxes: the tasks.
        lines: the edges between them.
        width: of the whole.
        height: of the whole.
    """

    boxes: list[Box]
    lines: list[Line]
    width: float
    height: float


def clipped(text: str, limit: int) -> str:
    """Return ``text``, or its beginning and an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"


def lay_out(plan: Plan) -> Layout:
    """Find a place for everything."""
    return _Drawing(plan).run()


# What stands in a layer: a box (its vertex id), or the passage of a long edge (its id and the layer).
_Item = int | tuple[str, int]


class _Drawing:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._edges = [e for e in plan.job.edges if not e.feedback]
        self._loops = [e for e in plan.job.edges if e.feedback]
        self._boxes = {v.id: self._box(v) for v in plan.job.vertices}
        self._entering: dict[int, list[JobEdge]] = {v: [] for v in self._boxes}
        self._leaving: dict[int, list[JobEdge]] = {v: [] for v in self._boxes}
        for edge in plan.job.edges:
            self._entering[edge.target].append(edge)
            self._leaving[edge.source].append(edge)
        self._layer = self._layers()
        self._passages: dict[str, list[_Item]] = {}
        self._columns: list[list[_Item]] = []
        self._at: dict[_Item, float] = {}  # the middle of each item, from top to bottom

    def run(self) -> Layout:
        self._fill_columns()
        self._reduce_crossings()
        lefts, rights, bottom = self._place()
        lines = [self._line(e, lefts, rights) for e in self._edges]
        for number, edge in enumerate(self._loops):
            y = bottom + LOOP * (number + 1)
            lines.append(self._loop(edge, y, lefts, rights))
        height = bottom + (LOOP * len(self._loops) + 6 if self._loops else 0) + MARGIN
        width = (rights[-1] if rights else 0.0) + MARGIN + (LOOP if self._loops else 0)
        return Layout(list(self._boxes.values()), lines, width, height)

    def _box(self, vertex: JobVertex) -> Box:
        title = f"task {self._plan.number(vertex.id)}  {self._plan.task_text(vertex)}"
        rows, y, width = [], float(HEADER), SMALL_CHAR * len(title)
        for row in self._plan.rows(vertex):
            told = [*filter(None, [row.node.description]), *facts(row.node)]
            if row.entry is not None and row.entry.tag is not None:
                told.insert(0, f"from side output {row.entry.tag.name!r}")
            text = clipped(", ".join(told), MAX_NAME + 8)
            rows.append(PlacedRow(row, y + 14, text))
            y += ROW + (FACTS if text else 0)
            indent = INDENT * row.depth
            width = max(width, indent + NAME_CHAR * len(clipped(row.node.name, MAX_NAME)))
            width = max(width, indent + SMALL_CHAR * len(text))
        return Box(vertex, title, rows, 0, 0, width + 2 * PADDING, y + 6)

    def _layers(self) -> dict[int, int]:
        layer: dict[int, int] = {}
        for vertex in self._plan.job.vertices:
            before = [layer[e.source] + 1 for e in self._entering[vertex.id] if not e.feedback]
            layer[vertex.id] = max(before, default=0)
        for vertex in self._plan.job.vertices:  # a source stands right before what reads it
            after = [layer[e.target] for e in self._leaving[vertex.id] if not e.feedback]
            if after and not layer[vertex.id]:
                layer[vertex.id] = min(after) - 1
        return layer

    def _fill_columns(self) -> None:
        self._columns = [[] for _ in range(max(self._layer.values(), default=-1) + 1)]
        for vertex_id, layer in self._layer.items():
            self._columns[layer].append(vertex_id)
        for edge in self._edges:
            way: list[_Item] = []
            for layer in range(self._layer[edge.source] + 1, self._layer[edge.target]):
                way.append((edge.id, layer))
                self._columns[layer].append(way[-1])
            self._passages[edge.id] = way

    def _reduce_crossings(self) -> None:
        """Sort every column by the average place of its neighbours, in both directions."""
        # The barycentre heuristic (K. Sugiyama et al., IEEE Transactions on Systems, Man, and Cybernetics 11(2),
        # 1981).
        before: dict[_Item, list[_Item]] = {}
        after: dict[_Item, list[_Item]] = {}
        for edge in self._edges:
            way: list[_Item] = [edge.source, *self._passages[edge.id], edge.target]
            for one, other in itertools.pairwise(way):
                after.setdefault(one, []).append(other)
                before.setdefault(other, []).append(one)
        place = {item: i for column in self._columns for i, item in enumerate(column)}
        for sweep in range(_SWEEPS):
            forward = sweep % 2 == 0
            neighbours = before if forward else after
            for column in self._columns if forward else reversed(self._columns):
                weight = {
                    item: sum(place[n] for n in neighbours[item]) / len(neighbours[item])
                    if item in neighbours
                    else place[item]
                    for item in column
                }
                column.sort(key=weight.__getitem__)
                place.update((item, i) for i, item in enumerate(column))

    def _place(self) -> tuple[list[float], list[float], float]:
        """Set the boxes' places; returns the left and right sides of the columns, and where all of it ends."""
        gaps = [0.0] * len(self._columns)
        for edge in self._edges:
            layer = self._layer[edge.target]
            gaps[layer] = max(gaps[layer], SMALL_CHAR * len(self._label(edge)))
        heights = [sum(self._height(i) for i in c) + BETWEEN * (len(c) - 1) for c in self._columns]
        tallest = max(heights, default=0.0)
        lefts, rights, x = [], [], float(MARGIN + (LOOP if self._loops else 0))
        for layer, column in enumerate(self._columns):
            if layer:
                x += gaps[layer] + MIN_GAP + (LOOP if self._loops else 0)
            y = MARGIN + (tallest - heights[layer]) / 2
            width = 0.0
            for item in column:
                self._at[item] = y + self._height(item) / 2
                if isinstance(item, int):
                    box = self._boxes[item]
                    box.x, box.y = x, y
                    for row in box.rows:
                        row.y += y
                    width = max(width, box.width)
                y += self._height(item) + BETWEEN
            lefts.append(x)
            rights.append(x + width)
            x += width
        return lefts, rights, MARGIN + tallest

    def _height(self, item: _Item) -> float:
        return self._boxes[item].height if isinstance(item, int) else 2.0

    def _leaves(self, edge: JobEdge) -> tuple[float, float]:
        box = self._boxes[edge.source]
        row = next(r for r in box.rows if r.row.node.id == edge.source_node)
        return box.x + box.width, row.y - 4

    def _arrives(self, edge: JobEdge) -> tuple[float, float]:
        box = self._boxes[edge.target]
        entering = sorted(self._entering[edge.target], key=lambda e: (e.feedback, self._comes_from(e)))
        return box.x, box.y + box.height * (entering.index(edge) + 1) / (len(entering) + 1)

    def _comes_from(self, edge: JobEdge) -> float:
        way = self._passages.get(edge.id)
        return self._at[way[-1]] if way else self._leaves(edge)[1]

    def _line(self, edge: JobEdge, lefts: list[float], rights: list[float]) -> Line:
        start, end = self._leaves(edge), self._arrives(edge)
        points = [start]
        column = self._layer[edge.source]
        if rights[column] > start[0]:
            points.append((rights[column], start[1]))
        for item in self._passages[edge.id]:
            column += 1
            points += [(lefts[column], self._at[item]), (rights[column], self._at[item])]
        label = self._label(edge)
        # The last bit is straight, and the label stands on it, clear of loops that come down there.
        label_end = end[0] - 10 - (LOOP if self._loops else 0)
        points += [(label_end - SMALL_CHAR * len(label) - 6, end[1]), end]
        return Line(edge, points, label, self._about(edge), (label_end, end[1] - 4))

    def _loop(self, edge: JobEdge, y: float, lefts: list[float], rights: list[float]) -> Line:
        start, end = self._leaves(edge), self._arrives(edge)
        right, left = rights[self._layer[edge.source]] + LOOP, lefts[self._layer[edge.target]] - LOOP
        points = [start, (right, start[1]), (right, y), (left, y), (left, end[1]), end]
        return Line(edge, points, self._label(edge), self._about(edge), ((left + right) / 2, y - 4))

    def _label(self, edge: JobEdge) -> str:
        return clipped(edge_text(edge.edge, self._plan.graph.node(edge.target_node)), MAX_LABEL)

    def _about(self, edge: JobEdge) -> str:
        graph = self._plan.graph
        return f"{edge_text(edge.edge, graph.node(edge.target_node))}, {format_of(graph, edge.edge)}"
