"""Rows of columns as bytes: what comes back, and what damaged bytes end in."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.columns.row_bytes import can_be_rows, decode_rows, encode_rows

LEAVES: dict[Any, Any] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(20, 2): st.decimals(-1000, 1000, places=2),
    pa.decimal256(50, 2): st.decimals(-1000, 1000, places=2),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("us", "Europe/Berlin"): st.integers(-(10**15), 10**15),
    pa.duration("ns"): st.integers(-(2**63), 2**63 - 1),
    pa.string(): st.text(max_size=5),
    pa.large_string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.large_binary(): st.binary(max_size=70),
}


def _struct(kinds: list[Any]) -> Any:
    return pa.struct([(f"f{place}", kind) for place, kind in enumerate(kinds)])


KINDS = st.recursive(
    st.sampled_from(sorted(LEAVES, key=str)),
    lambda inner: inner.map(pa.list_) | st.lists(inner, min_size=1, max_size=3).map(_struct),
    max_leaves=4,
)


def _values(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        found = st.fixed_dictionaries({field.name: _values(field.type) for field in kind})
    elif pa.types.is_list(kind):
        found = st.lists(_values(kind.value_type), max_size=3)
    else:
        found = LEAVES[kind]
    return found | st.none()


@st.composite
def columns(draw: Any) -> list[Any]:
    kinds, count = draw(st.lists(KINDS, min_size=1, max_size=4)), draw(st.integers(0, 6))
    found = []
    for kind in kinds:
        values = draw(st.lists(_values(kind), min_size=count + 1, max_size=count + 1))
        found.append(pa.array(values, kind).slice(draw(st.integers(0, 1)))[:count])
    return found


@settings(deadline=None)
@given(columns())
def test_what_was_written_is_read(given_columns: list[Any]) -> None:
    rows = encode_rows(given_columns)
    assert len(rows) == len(given_columns[0])
    kinds = [column.type for column in given_columns]
    assert all(map(can_be_rows, kinds))
    for found, column in zip(decode_rows(rows, kinds), given_columns, strict=True):
        assert found.equals(column)
        assert found.type == column.type
    # Each row is by itself, so that rows of different batches can be read together.
    again = [decode_rows([row], kinds) for row in rows]
    assert [[part[place] for part in again] for place in range(len(kinds))] == [
        [column.slice(at, 1) for at in range(len(rows))] for column in given_columns
    ]


@settings(deadline=None)
@given(columns(), st.data())
def test_damaged_rows_are_refused_or_read_as_something(given_columns: list[Any], data: Any) -> None:
    rows = encode_rows(given_columns)
    if not rows:
        return
    at = data.draw(st.integers(0, len(rows) - 1))
    row = bytearray(rows[at])
    place = data.draw(st.integers(0, max(0, len(row) - 1)))
    if data.draw(st.booleans()):
        del row[place:]
    elif row:
        row[place] ^= data.draw(st.integers(1, 255))
    rows[at] = bytes(row)
    try:
        for column in decode_rows(rows, [column.type for column in given_columns]):
            column.validate(full=True)
            len(column.to_pylist()) if not pa.types.is_temporal(column.type) else None
    except (ValueError, OverflowError):  # of a value that Python does not have
        pass


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (b"", pa.int8()),
        (b"\x01", pa.int8()),
        (b"\x02\x00", pa.int8()),
        (b"\x01\x00\x00", pa.int8()),
        (b"\xff\xff\xff\xffab", pa.string()),
        (b"\x02\x00\x00\x00\xff", pa.string()),
        (b"\xff\xff\xff\xff", pa.list_(pa.int8())),
        (b"\xff\xff\xff\xff", pa.list_(pa.null())),
        (b"\x02\x00\x00\x00\x09\x00\x00\x00\x01\x00\x00\x00", pa.list_(pa.string())),
    ],
)
def test_rows_that_end_early_are_refused(row: bytes, kind: Any) -> None:
    with pytest.raises(ValueError, match="a row of columns"):
        decode_rows([row], [kind])


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int32(), pa.string()),
        pa.map_(pa.string(), pa.int8()),
        pa.string_view(),
        pa.list_(pa.large_list(pa.int8())),
        pa.struct([("a", pa.list_(pa.int8(), 2))]),
    ],
)
def test_other_types_are_not_for_rows(kind: Any) -> None:
    assert not can_be_rows(kind)
