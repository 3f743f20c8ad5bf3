"""State that is read as a table and put again: it is what it was, or is refused."""

from __future__ import annotations

import datetime as dt
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.errors import ConfigurationError, StateError
from sluiceway.savepoint import edit, read, write
from sluiceway.windows.base import GLOBAL_WINDOW, TimeWindow

pytest.importorskip("pyarrow")

TTL = sw.StateTtlConfig("1h")
NAIVE = dt.datetime(2026, 1, 2, 3)
AWARE = NAIVE.replace(tzinfo=dt.UTC)


@dataclass
class Keyed:
    key: str
    points: int


@dataclass
class Both:
    key: str
    value_key: int
    value: int = 0


@dataclass
class Parted:
    key: int
    key_0: int


@dataclass
class Windowed:
    window_start: dt.datetime
    window_end: dt.datetime
    n: int = 0


@dataclass
class Indexed:
    index: int
    map_key: str


@dataclass
class Touched:
    touched_at: int
    expires_at: int


@dataclass
class Fields:
    pair: tuple[int, str] | None = None
    pairs: list[tuple[int, tuple[str, ...]]] | None = None
    at: dt.datetime | None = None
    price: Decimal | None = None
    limits: dict[str, dict[str, int]] | None = None


@dataclass
class Either:
    either: int | str = 0


class _Stop(Exception):
    pass


def held(location: str, descriptor: Any) -> list[Any]:
    """The namespaces and keys of a state, and its keys with their values."""
    found: list[Any] = []
    with suppress(_Stop), edit(location, location + "-seen") as savepoint:
        savepoint.transform("op", descriptor, lambda key, value: found.append((key, value)))
        raise _Stop
    places = [(tuple(row.namespace or ()), row.key) for row in sw.read_state(location, trusted=True)]
    return [sorted(found, key=repr), sorted(places, key=repr)]


def put_again(place: Path, descriptor: Any, rows: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the content of a state of rows of key, namespace, map key and value, before and after a round trip.

    Raises:
        ConfigurationError: the round trip is refused.
        StateError: likewise.
    """
    of_map = {"map_key": 2} if isinstance(descriptor, sw.MapStateDescriptor) else {}
    with write(str(place / "first")) as savepoint:
        savepoint.put("op", descriptor, rows, key=0, namespace=1, value=3, **of_map)  # type: ignore[arg-type]
    first = savepoint.location
    with edit(first, str(place / "second")) as savepoint:
        savepoint.put("op", descriptor, read(first)["op"][descriptor.name])
    return held(first, descriptor), held(savepoint.location, descriptor)


SCALARS = st.none() | st.integers(-3, 3) | st.booleans() | st.sampled_from(["", "a", "1", "null", "[1]", "é"])
KEYS = st.recursive(
    SCALARS | st.binary(max_size=1), lambda part: st.tuples(part) | st.tuples(part, part), max_leaves=4
)
INTS, TEXTS = st.integers(-(2**63), 2**63 - 1), st.sampled_from(["", "a", "1"])
TIMES = st.sampled_from([NAIVE, AWARE])
OF_TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, INTS),
    (str, TEXTS),
    (int | str, INTS | TEXTS),
    (dt.datetime, TIMES),
    (tuple[int, str], st.tuples(INTS, TEXTS)),
    (tuple[int | None, tuple[str, int]], st.tuples(st.none() | INTS, st.tuples(TEXTS, INTS))),
    (tuple[int | None, str | None] | None, st.none() | st.tuples(st.none() | INTS, st.none() | TEXTS)),
    (dict[str, list[int]], st.dictionaries(TEXTS, st.lists(INTS, max_size=2), max_size=2)),
    (Keyed, st.builds(Keyed, TEXTS, INTS)),
    (Both, st.builds(Both, TEXTS, INTS, INTS)),
    (Parted, st.builds(Parted, INTS, INTS)),
    (Windowed, st.builds(Windowed, TIMES, TIMES, INTS)),
    (Indexed, st.builds(Indexed, INTS, TEXTS)),
    (Touched, st.builds(Touched, INTS, INTS)),
    (
        Fields,
        st.builds(
            Fields,
            st.none() | st.tuples(INTS, TEXTS),
            st.none() | st.just([(1, ("a", "b")), (2, ())]),
            st.none() | TIMES,
            st.none() | st.just(Decimal("1.50")),
            st.none() | st.just({"a": {"b": 1}}),
        ),
    ),
    (Either, st.builds(Either, INTS | TEXTS)),
    (
        None,
        st.one_of(
            SCALARS,
            st.tuples(SCALARS, SCALARS),
            st.lists(SCALARS, max_size=2),
            st.dictionaries(st.sampled_from(["a", "value", "key", "value_0"]), SCALARS, max_size=2),
            st.sampled_from([1.5, 2**70, NAIVE, AWARE, AWARE.date(), Decimal("1.5"), {1}, b"x", [(1, 2)]]),
        ),
    ),
]


@st.composite
def states(draw: Any) -> tuple[Any, list[Any]]:
    type_, values = draw(st.sampled_from(OF_TYPES))
    ttl = draw(st.sampled_from([None, TTL]))
    kind = draw(st.sampled_from(["value", "list", "map"]))
    names: Any = None
    if kind == "map":
        name_type, names = draw(
            st.sampled_from([(str, TEXTS), (int, INTS), (tuple[int, str], st.tuples(INTS, TEXTS)), (None, KEYS)])
        )
        descriptor: Any = sw.MapStateDescriptor("s", type_, key_type=name_type, ttl=ttl)
    else:
        descriptor = (sw.ListStateDescriptor if kind == "list" else sw.ValueStateDescriptor)("s", type_, ttl=ttl)
    spaces = draw(st.sampled_from([st.none(), st.sampled_from([None, TimeWindow(0, 5)]), st.just(GLOBAL_WINDOW)]))
    rows = draw(
        st.lists(
            st.tuples(
                draw(st.sampled_from([TEXTS, INTS, KEYS])), spaces, st.none() if names is None else names, values
            ),
            min_size=1,
            max_size=4,
            unique_by=lambda row: repr(row[:3]).replace("True", "1").replace("False", "0"),
        )
    )
    if kind == "list":
        rows.sort(key=repr)
    return descriptor, rows


@settings(max_examples=100, deadline=None)
@given(states())
def test_a_state_is_what_it_was_or_is_refused(state: tuple[Any, list[Any]]) -> None:
    descriptor, rows = state
    with tempfile.TemporaryDirectory() as place:
        try:
            before, after = put_again(Path(place), descriptor, rows)
        except (ConfigurationError, StateError):
            return
    assert after == before


@pytest.mark.parametrize(
    ("descriptor", "rows"),
    [
        (sw.ValueStateDescriptor("s", int), [((("a", 1), 2), None, None, 5)]),
        (sw.ValueStateDescriptor("s", Keyed), [("k", None, None, Keyed("x", 1))]),
        (sw.ValueStateDescriptor("s", Keyed), [(("k", 1), None, None, Keyed("x", 1))]),
        (sw.ValueStateDescriptor("s", Both), [("k", None, None, Both("x", 1, 2))]),
        (sw.ValueStateDescriptor("s", Parted), [("k", None, None, Parted(1, 2))]),
        (sw.ValueStateDescriptor("s", Parted), [(("k",), None, None, Parted(1, 2))]),
        (sw.ValueStateDescriptor("s", Windowed), [("k", None, None, Windowed(AWARE, AWARE))]),
        (sw.ValueStateDescriptor("s", Windowed), [("k", TimeWindow(0, 5), None, Windowed(NAIVE, NAIVE))]),
        (
            sw.ListStateDescriptor("s", Indexed),
            [("k", None, None, Indexed(7, "a")), ("k", None, None, Indexed(3, ""))],
        ),
        (sw.MapStateDescriptor("s", Indexed, key_type=str), [("k", None, "m", Indexed(7, "a"))]),
        (sw.MapStateDescriptor("s", int, key_type=tuple[int, str]), [("k", None, (1, "a"), 5)]),
        (sw.ValueStateDescriptor("s", Touched, ttl=TTL), [("k", None, None, Touched(1, 2))]),
        (sw.ValueStateDescriptor("s", dt.datetime), [("k", None, None, NAIVE), ("l", None, None, NAIVE)]),
        (
            sw.ValueStateDescriptor("s", Fields),
            [("k", None, None, Fields((1, "a"), [(1, ("b",))], AWARE, Decimal("1.50"), {"a": {"b": 1}}))],
        ),
        (sw.ValueStateDescriptor("s"), [("k", None, None, (1, ("a", 2))), ("l", None, None, (3, ("b", 4)))]),
    ],
)
def test_columns_are_taken_back(tmp_path: Path, descriptor: Any, rows: list[Any]) -> None:
    before, after = put_again(tmp_path, descriptor, rows)
    assert after == before


@pytest.mark.parametrize(
    ("descriptor", "rows", "says"),
    [
        (sw.ValueStateDescriptor("s", int), [("a", None, None, 1), (1, None, None, 2)], "'key' .* Set key= to"),
        (
            sw.ValueStateDescriptor("s", int | str),
            [("a", None, None, "1"), ("b", None, None, 2)],
            "column 'value' for state 's' of operator",
        ),
        (
            sw.ValueStateDescriptor("s", Either),
            [("a", None, None, Either("1"))],
            "column 'either' .* Set value= to",
        ),
        (sw.ValueStateDescriptor("s"), [("a", None, None, {"value": 1})], "column 'value' .* Set value= to"),
        (
            sw.ValueStateDescriptor("s"),
            [("a", None, None, (1, 2)), ("b", None, None, None)],
            "set value= to a func",
        ),
        (
            sw.ValueStateDescriptor("s", dt.datetime),
            [(0, None, None, NAIVE), (1, None, None, AWARE)],
            "Set value= to",
        ),
        (
            sw.ValueStateDescriptor("s", int),
            [("a", GLOBAL_WINDOW, None, 1)],
            "column 'namespace' .* set namespace= to",
        ),
    ],
)
def test_columns_that_are_in_doubt_are_refused(
    tmp_path: Path, descriptor: Any, rows: list[Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        put_again(tmp_path, descriptor, rows)


def test_whole_lists_are_not_taken_for_their_elements(tmp_path: Path) -> None:
    descriptor = sw.ListStateDescriptor("s")
    with write(str(tmp_path / "first")) as savepoint:
        savepoint.put("op", descriptor, [("k", 1), ("k", 2)], key=0, value=1)
    table = read(savepoint.location)["op"]["s"]
    second = edit(savepoint.location, str(tmp_path / "second"))
    with (
        pytest.raises(ConfigurationError, match=r"column 'value' .* whole lists.* Set value= to"),
        second as savepoint,
    ):
        savepoint.put("op", descriptor, table.nested)


def test_pickled_bytes_are_not_taken_for_fields(tmp_path: Path) -> None:
    descriptor = sw.MapStateDescriptor("s", Keyed)
    with pytest.raises(ConfigurationError, match=r"column 'value' .* pickled bytes.* Set value= to"):
        put_again(tmp_path, descriptor, [("k", None, "m", Keyed("x", 1))])


def test_a_field_with_the_name_of_the_key_is_not_guessed(tmp_path: Path) -> None:
    descriptor = sw.ValueStateDescriptor("s", Keyed)
    rows = [{"key": "k", "points": 1}]
    first = write(str(tmp_path / "first"))
    with pytest.raises(ConfigurationError, match="call the field's column 'value_key'"), first as savepoint:
        savepoint.put("op", descriptor, rows)
    with write(str(tmp_path / "second")) as savepoint:
        savepoint.put("op", descriptor, rows, key="key")
    assert held(savepoint.location, descriptor)[0] == [("k", Keyed("k", 1))]
