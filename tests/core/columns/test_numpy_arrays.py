"""Arrow arrays of numpy arrays, and back, against ``pyarrow.array()`` and ``Array.to_numpy()``."""

from __future__ import annotations

import gc
import math
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from sluiceway.columns.numpy_arrays import array_of, numpy_of, zeros_for_nulls

KINDS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?")
ARRAYS = st.sampled_from(KINDS).flatmap(lambda kind: numpy_strategies.arrays(kind, st.integers(0, 40)))


def same(one: Any, other: Any) -> bool:
    """Return if two numpy arrays are equal to the last bit, and of one type."""
    return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())


@given(values=ARRAYS, masked=st.booleans(), data=st.data())
def test_arrays_are_those_of_pyarrow(values: Any, masked: bool, data: st.DataObject) -> None:
    mask = data.draw(numpy_strategies.arrays("?", len(values))) if masked else None
    made, expected = array_of(values, mask), pa.array(values, mask=mask)
    made.validate(full=True)
    assert made.type == expected.type
    assert made.null_count == expected.null_count
    assert same(made.is_valid().to_numpy(zero_copy_only=False), expected.is_valid().to_numpy(zero_copy_only=False))
    filled = zeros_for_nulls(made)
    assert same(numpy_of(filled), values if mask is None else np.where(mask, values.dtype.type(0), values))


@given(values=ARRAYS, data=st.data())
def test_slices_and_rows_apart_are_right(values: Any, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(values)))
    end = data.draw(st.integers(begin, len(values)))
    step = data.draw(st.sampled_from([1, 2, 3, -1, -2]))
    assert same(numpy_of(pa.array(values)[begin:end]), values[begin:end])
    assert same(numpy_of(array_of(values)[begin:end][1:]), values[begin:end][1:])
    apart = values[begin:end][::step]
    assert same(numpy_of(array_of(apart)), np.ascontiguousarray(apart))


@pytest.mark.parametrize("kind", KINDS)
def test_empty_arrays_and_arrays_of_nulls(kind: str) -> None:
    none = np.zeros(0, kind)
    assert array_of(none).to_pylist() == []
    assert same(numpy_of(array_of(none)), none)
    assert same(numpy_of(pa.nulls(0, array_of(none).type)), none)
    nulls = pa.nulls(11, array_of(none).type)[2:]
    assert same(numpy_of(zeros_for_nulls(nulls)), np.zeros(9, kind))


def test_nan_is_a_value() -> None:
    made = array_of(np.array([math.nan, 1.0, 2.0]), np.array([False, False, True]))
    assert made.null_count == 1
    assert math.isnan(made[0].as_py())


def test_memory_is_shared_and_kept() -> None:
    values = np.arange(1000)
    made = array_of(values)
    view = numpy_of(made[10:])
    values[10] = -1
    assert made[10].as_py() == view[0] == -1
    assert not view.flags.writeable
    del values, made
    gc.collect()
    assert view.tolist() == [-1, *range(11, 1000)]


def test_bools_and_rows_apart_are_copied() -> None:
    bools, numbers = np.array([True, False, True]), np.arange(10)
    of_bools, of_numbers = array_of(bools), array_of(numbers[::2])
    back = numpy_of(of_bools)
    bools[:], numbers[:] = False, 0
    back[:] = False
    assert of_bools.to_pylist() == [True, False, True]
    assert of_numbers.to_pylist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("array", [pa.array([1, None]), pa.array([True, None]), pa.array([None, 1.5])[:1]])
def test_nulls_are_refused(array: Any) -> None:
    with pytest.raises(TypeError, match="with 1 nulls"):
        numpy_of(array)
    assert len(numpy_of(array[:0])) == 0


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a"]),
        pa.array([1]).cast(pa.timestamp("us")),
        pa.array([1]).dictionary_encode(),
        pa.array([None]),
        pa.array([1]).cast(pa.decimal128(20, 0)),
    ],
)
def test_other_types_of_arrow_are_refused(array: Any) -> None:
    with pytest.raises(TypeError, match="takes integers, floats or bools without nulls, not "):
        numpy_of(array)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (np.zeros((2, 3)), "2x3 float64"),
        (np.array(1), " int64"),
        (np.zeros(2, ">i8"), "2 >i8"),
        (np.zeros(2, "M8[us]"), "2 datetime64"),
        (np.array(["a"]), "1 <U1"),
        (np.array([None]), "1 object"),
    ],
)
def test_other_arrays_of_numpy_are_refused(values: Any, shown: str) -> None:
    with pytest.raises(TypeError, match="takes one dimension of integers, floats or bools, not ") as error:
        array_of(values)
    assert shown in str(error.value)


def test_arrays_go_between_processes() -> None:
    made = array_of(np.arange(5), np.array([True, False, False, False, True]))
    assert pickle.loads(pickle.dumps(made, 5)).equals(made)
    rows = pa.RecordBatch.from_arrays([made, array_of(np.arange(5) > 2)], ["a", "b"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    assert pa.ipc.open_stream(sink.getvalue()).read_next_batch().equals(rows)
