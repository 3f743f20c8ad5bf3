"""Routing of rows: each row to the consumer of the record with the same key."""

from __future__ import annotations

import datetime as dt
from array import array
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.columns.routing import ColumnKey
from sluiceway.elements import Batch
from sluiceway.errors import UnstableKeyError
from sluiceway.keygroups import key_group, subtask_for_key_group
from sluiceway.network.partitioners import HashPartitioner, RebalancePartitioner, ShufflePartitioner

_NUMBERS = st.integers(-(2**63), 2**63 - 1)
_KINDS = st.sampled_from(
    [
        (pa.int64(), _NUMBERS),
        (pa.string(), st.text(max_size=4)),
        (pa.binary(), st.binary(max_size=3)),
        (pa.bool_(), st.booleans()),
        (pa.float64(), st.floats(allow_nan=False)),
        (pa.date32(), st.dates()),
        (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
        (pa.decimal128(9, 2), st.integers(-(10**6), 10**6).map(lambda n: Decimal(n) / 100)),
        (pa.dictionary(pa.int32(), pa.string()), st.sampled_from("abc")),
    ]
)


@st.composite
def _tables(draw: Any) -> Any:
    rows = draw(st.integers(1, 30))
    kinds = draw(st.lists(_KINDS, min_size=1, max_size=3))
    columns = [
        pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind) for kind, values in kinds
    ]
    return pa.RecordBatch.from_arrays(columns, names=[f"k{i}" for i in range(len(columns))])


@given(_tables(), st.integers(2, 5))
def test_each_row_goes_where_the_record_with_its_key_goes(data: Any, consumers: int) -> None:
    names = tuple(data.schema.names)
    key = ColumnKey(names)
    partitioner = HashPartitioner(key, 128)
    partitioner.setup(0, consumers, 0)
    stamps = array("q", range(data.num_rows))
    parts = dict(partitioner.partition(Batch.of_columns(data, stamps)))
    rows = data.to_pylist()
    for consumer in range(consumers):
        groups = [key_group(key(row), 128) for row in rows]
        wanted = [i for i, of in enumerate(groups) if subtask_for_key_group(of, consumers, 128) == consumer]
        part = parts.get(consumer)
        if part is None:
            assert not wanted
        else:
            assert list(part.timestamps or ()) == wanted
            assert list(part.values) == [rows[i] for i in wanted]


def test_a_key_that_is_no_number_is_refused() -> None:
    partitioner = HashPartitioner(ColumnKey(("k",)), 128)
    partitioner.setup(0, 2, 0)
    with pytest.raises(UnstableKeyError, match="NaN"):
        partitioner.partition(Batch.of_columns(pa.RecordBatch.from_pydict({"k": [1.5, float("nan")]})))


@pytest.mark.parametrize("kind", [RebalancePartitioner, ShufflePartitioner])
def test_rows_that_go_to_any_consumer_go_to_one_each(kind: Any) -> None:
    partitioner = kind()
    partitioner.setup(0, 3, 7)
    data = pa.RecordBatch.from_pydict({"n": list(range(10))})
    parts = partitioner.partition(Batch.of_columns(data, array("q", range(10))))
    assert sorted(row["n"] for _, part in parts for row in part.values) == list(range(10))
    assert all([row["n"] for row in part.values] == list(part.timestamps) for _, part in parts)
    assert len({consumer for consumer, _ in parts}) == len(parts)
