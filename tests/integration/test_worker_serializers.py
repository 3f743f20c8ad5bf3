"""Records of every kind between worker processes: what comes out is what went in."""

import datetime as dt
import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from importlib.util import find_spec
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pytest

import sluiceway as sw
from sluiceway.serializers import Serializer, register_serializer, registry

N = 200


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


@dataclass
class Order:
    user: str
    amount: Decimal
    at: dt.datetime
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float


class Pair(NamedTuple):
    a: int
    b: str


class Packet(msgspec.Struct):
    id: uuid.UUID
    body: bytes


NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)

Model: Any = None
if find_spec("pydantic") is not None:
    from pydantic import create_model

    Model = create_model("Model", __module__=__name__, user=(str, ...), at=(dt.datetime, NOON))
KINDS: dict[str, Callable[[int], Any]] = {
    "plain": lambda i: (str(i), i, i % 2 == 0, -0.0, None, b"\xff"),
    "long": lambda i: 2**70 + i,
    "dataclass": lambda i: Order(f"user {i}", Decimal(i) / 8, NOON + dt.timedelta(i), ["a"] * (i % 3)),
    "slots": lambda i: Point(i, i / 2),
    "named tuple": lambda i: Pair(i, str(i)),
    "struct": lambda i: Packet(uuid.UUID(int=i), b"\x00"),
    "zone": lambda i: NOON.astimezone(ZoneInfo("Europe/Berlin")) + dt.timedelta(i),
    "date": lambda i: dt.date(2026, 1, 1) + dt.timedelta(i),
    "time": lambda i: dt.time(1, 2, 3, i),
    "duration": lambda i: dt.timedelta(microseconds=i),
    "decimal": lambda i: Decimal(i).scaleb(-3),
    "uuid": lambda i: uuid.UUID(int=i),
    "enum": lambda i: Color.BLUE if i % 2 else Color.RED,
    "containers": lambda i: {"points": [Point(i, 0.5)], "pair": (Pair(i, "b"), {Color.RED})},
    "tuple": lambda i: (str(i), Point(i, 0.5), [Pair(i, "c")]),
}


def as_text(value: Any) -> str:
    """A record with the types of all that is in it, made where the record is."""
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}[{', '.join(map(as_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{as_text(k)}: {as_text(v)}' for k, v in value.items())}}}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if kind == "numpy.ndarray":
        return f"{kind} {value.dtype} {value.tolist()!r}"
    if kind.endswith(".Model"):
        return f"{kind} {value!r} {sorted(value.model_fields_set)}"
    return f"{kind} {value.to_pydict() if kind.startswith('pyarrow') else value!r}"


def through_workers(kinds: dict[str, Callable[[int], Any]]) -> dict[str, list[str]]:
    flow = sw.Pipeline("kinds", parallelism=2)
    collected = {}
    for name, make in kinds.items():
        made = flow.from_collection(range(N)).map(make).rebalance()
        collected[name] = made.map(as_text).collect()
    flow.run(workers=2)
    return {name: sorted(found) for name, found in collected.items()}


def test_every_kind_of_record_keeps_its_types() -> None:
    kinds = dict(KINDS)
    expected = {name: sorted(as_text(make(i)) for i in range(N)) for name, make in kinds.items()}
    assert through_workers(kinds) == expected


def test_so_do_those_of_libraries() -> None:
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    if Model is None:
        pytest.skip("pydantic is not installed")
    kinds: dict[str, Callable[[int], Any]] = {
        "model": lambda i: Model(user=f"user {i}") if i % 2 else Model(user="", at=NOON),
        "array": lambda i: np.array([i, i / 2]),
        "scalar": lambda i: np.float32(i / 2),
        "table": lambda i: pa.table({"i": [i], "s": [str(i)]}),
        "batch": lambda i: pa.RecordBatch.from_pydict({"i": [i, None]}),
    }
    expected = {name: sorted(as_text(make(i)) for i in range(N)) for name, make in kinds.items()}
    assert through_workers(kinds) == expected


class Carried(Fraction):
    """A fraction that has been through the serializer."""


class Ratios(Serializer):
    name = "ratio"

    def dumps(self, value: Any) -> bytes:
        return str(value).encode()

    def loads(self, data: bytes) -> Any:
        return Carried(data.decode())

    def for_type(self, type_hint: Any) -> Serializer | None:
        return self if type_hint is Fraction else None


def test_a_registered_serializer_is_used_on_edges_of_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FORMATS", {})
    register_serializer(Ratios())

    def half(n: int) -> Fraction:
        return Fraction(n, 2)

    flow = sw.Pipeline("halves", parallelism=2)
    halves = flow.from_collection(range(N)).map(half)
    declared = halves.rebalance().map(as_text).collect()
    unknown = halves.map(lambda ratio: ratio).rebalance().map(as_text).collect()
    flow.run(workers=2)
    # What stays in its worker is handed over as it is.
    assert 0 < sum("Carried" in text for text in declared) < N
    assert not any("Carried" in text for text in unknown)
    assert sorted(text.split(" ", 1)[1].replace("Carried", "Fraction") for text in declared) == sorted(
        text.split(" ", 1)[1] for text in unknown
    )
