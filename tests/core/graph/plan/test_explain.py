from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluiceway.errors import UnknownNameError
from sluiceway.functions import OutputTag
from sluiceway.graph import EXPLAIN_FORMATS, InputRef, explain
from sluiceway.graph.plan.layout import lay_out
from sluiceway.graph.plan.model import Plan
from sluiceway.streamgraph import ChainingStrategy, StreamGraph

LATE = OutputTag("late", str)


def split(line: str) -> list[str]:
    return line.split()


def user(word: str) -> str:
    return word


@pytest.fixture
def graph(program: Any, numbers: Any) -> StreamGraph:
    """One of everything: chains, a tree, side outputs, a loop, groups, keys, an awkward name."""
    lines = program.source(numbers(1, str, bounded=False), name="lines", location="job.py:3")
    words = program.process(program.flat_map(lines, fn=split), uid="splitter")
    counts = program.reduce(words, fn=max, key=user, uid="counts", name='count <"words"> & co')
    program.sink(counts)
    program.sink(program.tagged(words, LATE), name="late records")
    program.sink(program.tagged(words, OutputTag("bad")), slot_sharing_group="io", parallelism=2)
    head = program.iterate(program.by("broadcast", counts), buffer_timeout_ms=50)
    body = program.map(head, fn=lambda value: value, chaining=ChainingStrategy.HEAD)
    head.feedback.append(InputRef(body))
    program.sink(body)
    made: StreamGraph = program.graph(3)
    return made


class TestFormats:
    def test_an_unknown_one_lists_the_known(self, graph: StreamGraph) -> None:
        with pytest.raises(UnknownNameError, match=r"no plan format 'htlm'\. Did you mean 'html'.*'mermaid'"):
            explain(graph, "htlm")

    @pytest.mark.parametrize("name", EXPLAIN_FORMATS)
    def test_are_the_same_every_time(self, graph: StreamGraph, name: str) -> None:
        assert explain(graph, name) == explain(graph, name)
        assert explain(graph, name).endswith("\n")

    @pytest.mark.parametrize("name", EXPLAIN_FORMATS)
    def test_show_even_an_empty_graph(self, name: str) -> None:
        assert "empty" in explain(StreamGraph("empty", (), ()), name) or name == "mermaid"


class TestText:
    def test_the_whole(self, program: Any, numbers: Any) -> None:
        lines = program.source(numbers(1, str), uid="lines")
        words = program.flat_map(lines, fn=split, uid="words")
        program.sink(program.reduce(words, fn=max, key=user, uid="counts"), uid="out")
        assert explain(program.graph(4)) == (
            "Pipeline 'test': 4 steps in 3 tasks, 4 slots\n"
            "\n"
            "Task 1: parallelism 1 (max 128)\n"
            "  source(Numbers)  bounded, gives str, uid lines\n"
            "    => task 2: rebalance, as plain values\n"
            "\n"
            "Task 2: parallelism 4 (max 128)\n"
            "  flat_map(split)  gives str, uid words\n"
            "    => task 3: hash by user, as plain values\n"
            "\n"
            "Task 3: parallelism 4 (max 128)\n"
            "  reduce(max)      state, gives str, uid counts\n"
            "    sink(Drain)    uid out\n"
        )

    def test_everything_else(self, graph: StreamGraph) -> None:
        text = explain(graph, "text")
        for part in (
            "unbounded, gives str",
            "(derived)",
            "slot-sharing group 'io'",
            "from side output 'late'",
            "rebalance, side output 'bad'",
            "forward, feedback",
            "broadcast",
            "starts a chain",
            "sends within 50 ms",
            'count <"words"> & co',
        ):
            assert part in text
        assert text.isascii()


class TestMermaid:
    def test_the_whole(self, program: Any, numbers: Any) -> None:
        source = program.source(numbers(1, str), name='"a" <b>')
        head = program.iterate(source)
        head.feedback.append(InputRef(program.map(head)))
        program.sink(head)
        assert explain(program.graph(), "mermaid") == (
            "flowchart LR\n"
            '  subgraph task1["task 1: parallelism 1 (max 128)"]\n'
            '    n0[("#quot;a#quot; #lt;b#gt;<br/>bounded, gives str")]\n'
            "  end\n"
            '  subgraph task2["task 2: parallelism 1 (max 128)"]\n'
            '    n1["iterate<br/>gives str"]\n'
            '    n2["map(same)"]\n'
            '    n3["sink(Drain)"]\n'
            "  end\n"
            '  n0 -- "forward<br/>as plain values" --> n1\n'
            '  n2 -. "forward, feedback<br/>encoded by content" .-> n1\n'
            "  n1 --> n2\n"
            "  n1 --> n3\n"
        )

    @given(name=st.text(max_size=20))
    @settings(max_examples=50, deadline=None)
    def test_no_name_gets_out_of_its_quotes(self, new_program: Any, name: str) -> None:
        program = new_program()
        program.sink(program.source(name="x" + name))
        text = explain(program.graph(), "mermaid")
        assert text.count("\n") == 6
        line = text.splitlines()[2]
        assert re.fullmatch(r'    n0\[\("[^"]*"\)\]', line)
        assert "<" not in line.replace("<br/>", "")


def described(program: Any, numbers: Any) -> StreamGraph:
    source = program.source(numbers(), name="meters", uid="a", description="Readings of all houses\nin <kWh>")
    program.sink(program.map(source, name="scaled", uid="b"), uid="c", description='For "the" dashboard')
    graph: StreamGraph = program.graph()
    return graph


def test_descriptions_stand_below_their_steps(program: Any, numbers: Any) -> None:
    assert explain(described(program, numbers)).splitlines()[2:] == [
        "Task 1: parallelism 1 (max 128)",
        "  meters           bounded, uid a",
        "    # Readings of all houses",
        "    # in <kWh>",
        "    scaled         uid b",
        "      sink(Drain)  uid c",
        '        # For "the" dashboard',
    ]


def test_descriptions_are_lines_of_a_flow_chart(program: Any, numbers: Any) -> None:
    chart = explain(described(program, numbers), "mermaid")
    assert "meters<br/>Readings of all houses<br/>in #lt;kWh#gt;<br/>bounded" in chart
    assert "sink(Drain)<br/>For #quot;the#quot; dashboard" in chart


def test_descriptions_are_told_to_programs(program: Any, numbers: Any) -> None:
    steps = json.loads(explain(described(program, numbers), "json"))["steps"]
    assert [step["description"] for step in steps] == [
        "Readings of all houses\nin <kWh>",
        None,
        'For "the" dashboard',
    ]


class TestJson:
    def test_the_whole(self, program: Any, numbers: Any) -> None:
        lines = program.source(numbers(1, str), uid="lines", location="job.py:1")
        program.sink(program.reduce(lines, fn=max, key=user, uid="counts"), uid="out")
        common = {
            "parallelism": 1,
            "max_parallelism": 128,
            "slot_sharing_group": "default",
        }
        step = {
            **common,
            "uid_given": True,
            "description": None,
            "co_location_group": None,
            "chaining": "always",
            "buffer_timeout_ms": 0,
            "boundedness": None,
            "location": None,
            "settings": {},
            "on_error": "fail",
            "max_dead_letters": None,
        }
        assert json.loads(explain(program.graph(), "json")) == {
            "version": 1,
            "job": "test",
            "chaining": True,
            "slots": {"default": 1},
            "tasks": [
                {**common, "id": 0, "name": "source(Numbers)", "uid": "lines", "steps": [0]},
                {**common, "id": 1, "name": "reduce(max) -> sink(Drain)", "uid": "counts", "steps": [1, 2]},
            ],
            "steps": [
                {
                    **step,
                    "id": 0,
                    "task": 0,
                    "uid": "lines",
                    "name": "source(Numbers)",
                    "kind": "source",
                    "stateful": True,
                    "boundedness": "bounded",
                    "output_type": "str",
                    "location": "job.py:1",
                },
                {
                    **step,
                    "id": 1,
                    "task": 1,
                    "uid": "counts",
                    "name": "reduce(max)",
                    "kind": "reduce",
                    "stateful": True,
                    "output_type": "str",
                },
                {
                    **step,
                    "id": 2,
                    "task": 1,
                    "uid": "out",
                    "name": "sink(Drain)",
                    "kind": "sink",
                    "stateful": False,
                    "output_type": None,
                },
            ],
            "edges": [
                {
                    "id": "lines>counts#0",
                    "source": 0,
                    "target": 1,
                    "port": 0,
                    "partitioner": "hash",
                    "key": "user",
                    "columns": None,
                    "side_output": None,
                    "feedback": False,
                    "chained": False,
                    "distribution": "all-to-all",
                    "serializer": {"name": "content", "version": 1, "encoding": "plain"},
                },
                {
                    "id": "counts>out#0",
                    "source": 1,
                    "target": 2,
                    "port": 0,
                    "partitioner": "forward",
                    "key": None,
                    "columns": None,
                    "side_output": None,
                    "feedback": False,
                    "chained": True,
                    "distribution": None,
                    "serializer": None,
                },
            ],
        }

    def test_side_outputs_and_feedback(self, graph: StreamGraph) -> None:
        plan = json.loads(explain(graph, "json"))
        assert [e["side_output"] for e in plan["edges"] if e["side_output"]] == ["late", "bad"]
        assert sum(e["feedback"] for e in plan["edges"]) == 1
        assert plan["slots"] == {"default": 3, "io": 2}


class _Balance(HTMLParser):
    """Checks that every element that is opened is closed, in order."""

    VOID = frozenset({"br", "rect", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


class TestHtml:
    def test_is_sound_and_needs_nothing_else(self, graph: StreamGraph) -> None:
        html = explain(graph, "html")
        parser = _Balance()
        parser.feed(html)
        assert parser.open == []
        assert not parser.tags & {"script", "link", "img", "iframe"}
        assert set(re.findall(r"https?://[^\"]+", html)) == {
            "http://www.w3.org/2000/svg"
        }  # a namespace, not loaded
        assert html.isascii()

    def test_descriptions_are_in_the_box_its_tooltip_and_the_table(self, program: Any, numbers: Any) -> None:
        html = explain(described(program, numbers), "html")
        assert html.count("in &lt;kWh&gt;") == 3

    def test_the_drawing_is_xml_with_every_step_task_and_edge(self, graph: StreamGraph) -> None:
        svg = re.search(r"<svg.*</svg>", explain(graph, "html"), re.DOTALL)
        assert svg is not None
        root = ElementTree.fromstring(svg.group())
        texts = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text")]
        for node in graph.nodes:
            assert node.name in texts
        plan = Plan(graph)
        for vertex in plan.job.vertices:
            assert any(t.startswith(f"task {plan.number(vertex.id)} ") for t in texts)
        paths = [p for p in root.iter("{http://www.w3.org/2000/svg}path") if "marker-end" in p.attrib]
        assert len(paths) == len(plan.job.edges)
        assert sum(p.attrib["class"] == "line loop" for p in paths) == 1
        titles = "".join(t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}title"))
        assert "uid splitter" in titles
        assert "job.py:3" in titles

    def test_follows_light_and_dark(self, graph: StreamGraph) -> None:
        html = explain(graph, "html")
        assert "prefers-color-scheme:dark" in html
        assert '[data-jp-theme-light="false"] .sluiceway-plan' in html

    def test_two_plans_on_one_page_do_not_share_ids(self, graph: StreamGraph, new_program: Any) -> None:
        other = new_program()
        other.sink(other.source())
        ids = [set(re.findall(r' id="([^"]+)"', explain(g, "html"))) for g in (graph, other.graph())]
        assert ids[0]
        assert not ids[0] & ids[1]

    def test_foreign_text_is_escaped(self, program: Any) -> None:
        program.sink(program.source(name="<script>alert(1)</script>\u00e9"), location='"><b>')
        html = explain(program.graph(), "html")
        assert "<script>" not in html
        assert '"><b>' not in html
        assert "&#233;" in html


@st.composite
def recipes(draw: st.DrawFn) -> list[tuple[str, list[tuple[int, str]]]]:
    made: list[tuple[str, list[tuple[int, str]]]] = [("source", [])]
    for index in range(1, draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["source", "map", "map", "map", "loop"]))
        inputs = st.tuples(st.integers(0, index - 1), st.sampled_from(["forward", "rebalance", "broadcast"]))
        made.append((kind, draw(st.lists(inputs, min_size=1, max_size=3)) if kind != "source" else []))
    return made


@given(recipes())
@example([("source", [])] + [("map", [(0, "forward")])] * 5 + [("map", [(1, "forward")] * 2)] * 4)
@settings(max_examples=60, deadline=None)
def test_nothing_is_drawn_over_anything_else(new_program: Any, recipe: Any) -> None:
    program = new_program()
    steps: list[Any] = []
    for kind, inputs in recipe:
        refs = [program.by(p, steps[i]) for i, p in inputs]
        if kind == "source":
            steps.append(program.source())
        elif kind == "map":
            steps.append(program.map(*refs))
        else:
            head = program.iterate(*refs)
            steps.append(program.map(head))
            head.feedback.append(InputRef(steps[-1]))
    for step in steps:
        program.sink(step)
    layout = lay_out(Plan(program.graph()))
    boxes = layout.boxes
    for i, a in enumerate(boxes):
        assert a.x >= 0
        assert a.y >= 0
        assert a.x + a.width <= layout.width
        assert a.y + a.height <= layout.height
        for b in boxes[i + 1 :]:
            apart = a.x + a.width < b.x or b.x + b.width < a.x or a.y + a.height < b.y or b.y + b.height < a.y
            assert apart
        for row in a.rows:
            assert a.y < row.y < a.y + a.height
    place = {b.vertex.id: b for b in boxes}
    for line in layout.lines:
        source, target = place[line.edge.source], place[line.edge.target]
        assert line.points[0][0] == source.x + source.width
        assert line.points[-1][0] == target.x
        assert source.y < line.points[0][1] < source.y + source.height
        assert target.y < line.points[-1][1] < target.y + target.height
        assert all(0 <= x <= layout.width and 0 <= y <= layout.height for x, y in line.points)
        if not line.edge.feedback:
            xs = [x for x, _ in line.points]
            assert xs == sorted(xs)
    ends = [line.points[-1] for line in layout.lines]
    assert len(set(ends)) == len(ends)
    # Loops run below everything, each at its own height.
    floors = [max(y for _, y in line.points) for line in layout.lines if line.edge.feedback]
    assert all(floor > box.y + box.height for floor in floors for box in boxes)
    assert len(set(floors)) == len(floors)
    # Long edges pass beside the boxes in between.
    for line in layout.lines:
        if line.edge.feedback:
            continue
        for (x1, y1), (x2, y2) in zip(line.points, line.points[1:], strict=False):
            if y1 == y2:
                for box in boxes:
                    inside = box.y < y1 < box.y + box.height
                    assert not (inside and max(x1, box.x) < min(x2, box.x + box.width))
