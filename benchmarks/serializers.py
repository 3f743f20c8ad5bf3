"""Batches of records there and back, as an edge between workers encodes them, against pickle.

The records are made anew for each run: pickle and others leave their traces in objects that they have seen.
"""

from __future__ import annotations

import datetime as dt
import pickle
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from importlib.util import find_spec
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from benchmarks.harness import Plan, Row
from sluiceway.serializers.edges import edge_serializer

__all__ = ["measure"]

BATCH = 1024
US_EACH_WAY = 0.1

Make = Callable[[Random], Any]


@dataclass
class Order:
    user: str
    amount: int
    price: float
    kind: str


@dataclass(frozen=True, slots=True)
class SlotsOrder:
    user: str
    amount: int
    price: float
    kind: str


class TupleOrder(NamedTuple):
    user: str
    amount: int
    price: float
    kind: str


class StructOrder(msgspec.Struct):
    user: str
    amount: int
    price: float
    kind: str


@dataclass
class Receipt:
    id: UUID
    at: dt.datetime
    total: Decimal
    order: Order


def _order(cls: Any) -> Make:
    return lambda draw: cls(
        user=f"user {draw.randrange(10**6)}",
        amount=draw.randrange(10**6),
        price=draw.random(),
        kind=draw.choice("abc"),
    )


def _receipt(draw: Random) -> Receipt:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=draw.random())
    return Receipt(UUID(int=draw.getrandbits(128)), at, Decimal(draw.randrange(10**6)) / 100, _order(Order)(draw))


WORDS = [f"word{i}" for i in range(200)]
KINDS: dict[str, Make] = {
    "(str, int)": lambda draw: (f"word{draw.randrange(10**6)}", draw.randrange(10**6)),
    "(repeated str, 1)": lambda draw: (draw.choice(WORDS), 1),
    "str": lambda draw: f"word{draw.randrange(10**6)}",
    "dataclass": _order(Order),
    "dataclass with slots": _order(SlotsOrder),
    "NamedTuple": _order(TupleOrder),
    "msgspec.Struct": _order(StructOrder),
    "(str, dataclass)": lambda draw: (f"key{draw.randrange(100)}", _order(Order)(draw)),
    "nested dataclass": _receipt,
    "datetime": lambda draw: dt.datetime(2026, 1, 1) + dt.timedelta(seconds=draw.random() * 1e6),
    "dict": lambda draw: {"user": f"user {draw.randrange(10**6)}", "amount": draw.randrange(10**6)},
}


def _of_libraries() -> Iterator[tuple[str, Make | None]]:
    if find_spec("pydantic"):
        from pydantic import BaseModel

        class ModelOrder(BaseModel):
            user: str
            amount: int
            price: float
            kind: str

        ModelOrder.__qualname__ = "ModelOrder"  # pickle looks for it by that name
        globals()["ModelOrder"] = ModelOrder
        yield "pydantic model", _order(ModelOrder)
    else:
        yield "pydantic model", None
    if find_spec("numpy"):
        import numpy as np

        yield "numpy array of 8", lambda draw: np.array([draw.random() for _ in range(8)])
        yield "numpy.float64", lambda draw: np.float64(draw.random())
    else:
        yield "numpy array of 8", None
        yield "numpy.float64", None


def measure(plan: Plan) -> Iterator[Row]:
    rounds = plan.size(20, 1)
    for kind, make in (*KINDS.items(), *_of_libraries()):
        if make is None:
            library = kind.partition(" ")[0].partition(".")[0]
            yield Row(f"sent: {kind}, against pickle", "x speed", (), note=f"{library} is not installed")
            continue
        yield from _rows(kind, make, plan.runs, rounds)


def _rows(kind: str, make: Make, runs: int, rounds: int) -> Iterator[Row]:
    serializer = edge_serializer(None)
    draw = Random(7)
    records = [make(draw) for _ in range(BATCH)]
    back = serializer.loads(serializer.dumps(records))
    if list(map(repr, back)) != list(map(repr, records)) or list(map(type, back)) != list(map(type, records)):
        raise AssertionError(f"{kind}: what came back is not what went in")
    ours: list[tuple[float, float]] = []
    pickles: list[tuple[float, float]] = []
    for _ in range(runs):
        one, other = [], []
        for _ in range(rounds):
            one.append(_us(serializer.dumps, serializer.loads, [make(draw) for _ in range(BATCH)]))
            other.append(_us(_pickle, pickle.loads, [make(draw) for _ in range(BATCH)]))
        ours.append((min(a for a, _ in one), min(b for _, b in one)))
        pickles.append((min(a for a, _ in other), min(b for _, b in other)))
    if kind == "(str, int)":
        yield Row(f"{kind}: encode one", "us", tuple(a for a, _ in ours), aim=US_EACH_WAY)
        yield Row(f"{kind}: decode one", "us", tuple(b for _, b in ours), aim=US_EACH_WAY)
    ratios = tuple(sum(theirs) / sum(own) for own, theirs in zip(ours, pickles, strict=True))
    (a, b), (c, d) = (tuple(map(statistics.median, zip(*times, strict=True))) for times in (ours, pickles))
    note = f"{a:.2f} + {b:.2f} us for one record there and back, pickle {c:.2f} + {d:.2f}"
    yield Row(
        f"sent: {kind}, against pickle", "x speed", ratios, note=note, details={"us": ours, "pickle_us": pickles}
    )


def _pickle(records: list[Any]) -> bytes:
    return pickle.dumps(records, 5)


def _us(dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any], records: list[Any]) -> tuple[float, float]:
    began = time.perf_counter()
    data = dumps(records)
    between = time.perf_counter()
    loads(data)
    ended = time.perf_counter()
    return (between - began) / len(records) * 1e6, (ended - between) / len(records) * 1e6
