"""What plans say of how records are encoded, and what check says against it."""

import abc
import datetime as dt
import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol, TypedDict

import msgspec
import pytest

from sluiceway.functions import OutputTag
from sluiceway.graph.check.pipeline import check
from sluiceway.graph.findings import Level
from sluiceway.graph.plan.explain import explain
from sluiceway.serializers import Serializer, register_serializer, registry
from sluiceway.serializers.edges import edge_format, edge_serializer


@dataclass
class Order:
    user: str
    at: dt.datetime


class Pair(NamedTuple):
    a: int
    b: str


class Packet(msgspec.Struct):
    a: int


class Odd:
    """Has its own say in how it is pickled."""

    def __reduce__(self) -> Any:
        return Odd, ()


class Text(str):
    """Derived from a built-in type."""


class Base(abc.ABC):
    @abc.abstractmethod
    def run(self) -> None: ...


class Shaped(Protocol):
    x: int


class Keyed(TypedDict):
    a: int


class Ratios(Serializer):
    name = "ratio"
    version = 3

    def dumps(self, value: Any) -> bytes:
        return str(value).encode()

    def loads(self, data: bytes) -> Any:
        return Fraction(data.decode())

    def for_type(self, type_hint: Any) -> Serializer | None:
        return self if type_hint is Fraction else None


@pytest.fixture
def ratios(monkeypatch: pytest.MonkeyPatch) -> Ratios:
    monkeypatch.setattr(registry, "_FORMATS", {})
    register_serializer(serializer := Ratios())
    return serializer


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (None, "encoded by content"),
        (Any, "encoded by content"),
        (object, "encoded by content"),
        ("Order", "encoded by content"),
        (Order | None, "as columns"),
        (Order | Pair, "as columns"),
        (int | dict[str, int], "encoded by content"),
        (Base, "encoded by content"),
        (Shaped, "encoded by content"),
        (tuple, "encoded by content"),
        (str, "as plain values"),
        (int | None, "as plain values"),
        (tuple[str, int], "as plain values"),
        (tuple[str, ...], "as plain values"),
        (tuple[str, float | None], "as plain values"),
        (Order, "as columns"),
        (Pair, "as columns"),
        (Packet, "as columns"),
        (dt.datetime, "as columns"),
        (tuple[str, Order], "as columns"),
        (list[Order], "as columns"),
        (dict[str, int], "pickled"),
        (list[int], "pickled"),
        (Keyed, "pickled"),
        (enum.Enum, "pickled"),
        (Odd, "pickled"),
        (Text, "pickled"),
        (tuple[str, Odd], "pickled"),
        (Fraction, "pickled"),
    ],
)
def test_what_is_expected_of_a_type(hint: Any, said: str) -> None:
    assert str(edge_format(hint)) == said


def test_libraries_types_are_columns() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    model = pydantic.create_model("Model", a=(int, ...))
    for hint in (
        numpy.ndarray,
        numpy.float64,
        pyarrow.Table,
        pyarrow.RecordBatch,
        model,
        tuple[str, numpy.ndarray],
    ):
        assert str(edge_format(hint)) == "as columns"


@pytest.mark.parametrize(
    ("hint", "problem"),
    [
        (Odd, "Odd says itself how it is pickled, by __reduce__()"),
        (Odd | None, "Odd says itself how it is pickled, by __reduce__()"),
        (list[Odd], "Odd says itself how it is pickled, by __reduce__()"),
        (Text, "Text has a __new__() of its own, or is derived from a built-in type"),
        (dict[str, Odd], None),
        (enum.Enum, None),
        (Order, None),
        (None, None),
    ],
)
def test_what_is_wrong_with_a_type(hint: Any, problem: str | None) -> None:
    assert edge_format(hint).problem == problem


def test_a_registered_serializer_takes_precedence(ratios: Ratios) -> None:
    made = edge_format(Fraction)
    assert (made.name, made.version, made.encoding, made.problem) == ("ratio", 3, "registered", None)
    assert str(made) == "by serializer ratio 3"
    formats = [ratios]
    assert edge_serializer(Fraction, formats).name == "ratio"
    assert edge_serializer(Order, formats).name == "content"
    assert edge_serializer(None, formats).name == "content"
    assert edge_serializer(Fraction).name == "content", "only what travels with the job counts"


def test_what_is_registered_travels_with_the_job(ratios: Ratios, program: Any) -> None:
    program.sink(program.source())
    assert program.job().serializers == (ratios,)


@pytest.fixture
def odd_program(program: Any, numbers: Any) -> Any:
    def make(n: int) -> Odd:
        return Odd()

    made = program.map(program.source(numbers(1, int), uid="s"), fn=make, uid="m", parallelism=2)
    program.sink(made, uid="a", parallelism=1)
    program.sink(made, uid="b", parallelism=1)
    return program


def test_check_warns_once_of_what_is_pickled_one_by_one(odd_program: Any) -> None:
    found = [finding for finding in check(odd_program.graph()) if finding.code == "pickled"]
    assert len(found) == 1
    (finding,) = found
    assert finding.level is Level.WARNING
    assert finding.node == "map(make)"
    assert "'map(make)'" in finding.message
    assert "sends Odd to 'sink(Drain)'" in finding.message
    assert "Odd says itself how it is pickled, by __reduce__()" in finding.message
    assert "or register a serializer for it" in finding.message


def test_check_says_nothing_of_chains_and_of_unknown_types(program: Any, numbers: Any) -> None:
    def make(n: int) -> Odd:
        return Odd()

    source = program.source(numbers(1, int), uid="s")
    program.sink(program.map(source, fn=make, uid="m"), uid="a")
    program.sink(program.map(source, fn=lambda n: Odd(), uid="l", parallelism=2), uid="b", parallelism=1)
    assert [finding for finding in check(program.graph()) if finding.code == "pickled"] == []


def test_side_outputs_are_judged_by_their_tag(program: Any, numbers: Any) -> None:
    source = program.source(numbers(1, int), uid="s")
    made = program.process(source, uid="p", parallelism=2)
    program.sink(program.tagged(made, OutputTag("odd", Odd)), uid="x", parallelism=1)
    assert "rebalance, side output 'odd', pickled" in explain(program.graph())
    assert len([f for f in check(program.graph()) if f.code == "pickled" and "sends Odd" in f.message]) == 1


def test_plans_show_it(odd_program: Any) -> None:
    graph = odd_program.graph()
    text = explain(graph, "text")
    assert "=> task 2: rebalance, as plain values" in text
    assert "=> task 3: rebalance, pickled" in text
    assert '"rebalance<br/>pickled"' in explain(graph, "mermaid")
    assert "<title>rebalance, pickled</title>rebalance</text>" in explain(graph, "html")
    said = [edge["serializer"] for edge in json.loads(explain(graph, "json"))["edges"]]
    assert said[0] == {"name": "content", "version": 1, "encoding": "plain"}
    assert said[1]["encoding"] == "pickle"


def test_plans_name_registered_serializers(ratios: Ratios, program: Any, numbers: Any) -> None:
    def halves(n: int) -> Iterator[Fraction]:
        yield Fraction(n, 2)

    made = program.flat_map(program.source(numbers(1, int), uid="s"), fn=halves, uid="m", parallelism=2)
    program.sink(made, uid="a", parallelism=1)
    assert "=> task 3: rebalance, by serializer ratio 3" in explain(program.graph(), "text")
    assert [f for f in check(program.graph()) if f.code == "pickled"] == []
