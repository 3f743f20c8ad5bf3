"""Batches of columns as frames between processes."""

from __future__ import annotations

from array import array

import pyarrow as pa
import pytest

from sluiceway.elements import Batch
from sluiceway.errors import CorruptStreamError
from sluiceway.network.element_codec import decode_element, encode_batch, is_batch
from sluiceway.serializers.edges import edge_serializer

_DATA = pa.RecordBatch.from_pydict(
    {
        "n": [1, None, 3],
        "of": pa.array(["a", "b", "a"]).dictionary_encode(),
        "deep": [{"x": [1, 2]}, None, {"x": []}],
    }
)


def _sent(batch: Batch[object]) -> memoryview:
    return memoryview(b"".join(map(bytes, encode_batch(batch, edge_serializer(None)))))


@pytest.mark.parametrize("stamps", [None, array("q", [5, -6, 7])])
def test_a_batch_of_columns_arrives_as_it_was(stamps: array[int] | None) -> None:
    frame = _sent(Batch.of_columns(_DATA, stamps))
    assert is_batch(frame)
    came = decode_element(frame, edge_serializer(None), "channel 1")
    assert isinstance(came, Batch)
    assert came.columns is not None
    assert came.columns.equals(_DATA)
    assert came.timestamps == stamps


def test_of_a_slice_only_its_rows_are_sent() -> None:
    many = pa.RecordBatch.from_pydict({"n": list(range(100_000))})
    assert len(_sent(Batch.of_columns(many).part(5, 8))) < 1_000


@pytest.mark.parametrize("cut", [9, 30, 100, 400])
def test_a_frame_that_was_cut_is_an_error(cut: int) -> None:
    frame = _sent(Batch.of_columns(_DATA, array("q", [1, 2, 3])))
    with pytest.raises(CorruptStreamError):
        decode_element(frame[: len(frame) - cut], edge_serializer(None), "channel 1")


def test_a_frame_with_other_bytes_is_an_error_or_rows() -> None:
    frame = bytes(_sent(Batch.of_columns(_DATA)))
    for at in range(1, len(frame), 7):
        broken = frame[:at] + bytes((frame[at] ^ 0xFF,)) + frame[at + 1 :]
        try:
            came = decode_element(memoryview(broken), edge_serializer(None), "channel 1")
        except CorruptStreamError:
            continue
        assert isinstance(came, Batch)
