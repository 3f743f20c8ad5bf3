"""Batches of records of which no type is declared."""

import math
import pickle
from collections import namedtuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.elements import Batch
from sluiceway.errors import CorruptStreamError, SerializationError
from sluiceway.network.element_codec import decode_element, edge_serializer, encode_batch
from sluiceway.serializers import content
from sluiceway.serializers.content import ContentSerializer

Pair = namedtuple("Pair", "a b")


class Text(str):
    """A string, but not exactly one."""


class Number(int):
    """A number, but not exactly one."""


SERIALIZER = ContentSerializer()
MANY = 300  # enough for the encoding of many plain records


def there_and_back(values: list[Any]) -> list[Any]:
    frame = b"".join(encode_batch(Batch(values), edge_serializer(None)))
    batch = decode_element(memoryview(frame), edge_serializer(None), "test")
    assert isinstance(batch, Batch)
    return batch.values


def exactly(value: Any) -> Any:
    """A value with its types, so that 1, 1.0 and True differ, and 0.0 and -0.0; nan is equal to itself."""
    if isinstance(value, (tuple, list)):
        return type(value), [exactly(part) for part in value]
    return type(value), repr(value)


SCALARS = st.one_of(
    st.text(max_size=5),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.binary(max_size=5),
    st.builds(Text, st.text(max_size=2)),
    st.builds(Number, st.integers()),
    st.builds(bytearray, st.binary(max_size=3)),
)
RECORDS = st.one_of(
    SCALARS,
    st.tuples(SCALARS, SCALARS),
    st.builds(Pair, SCALARS, SCALARS),
    st.lists(SCALARS, max_size=2),
    st.tuples(SCALARS, st.tuples(SCALARS)),
)


@given(first=RECORDS, others=st.lists(RECORDS, max_size=6), times=st.sampled_from([1, MANY]))
@settings(max_examples=60, deadline=None)
def test_every_type_is_kept(first: Any, others: list[Any], times: int) -> None:
    values = [first] * times + others
    assert exactly(there_and_back(values)) == exactly(values)


@pytest.mark.parametrize(
    "odd",
    [
        True,
        1.0,
        -0.0,
        math.nan,
        2**70,
        -(2**70),
        Text("a"),
        Number(1),
        Pair("a", 1),
        ["a", 1],
        None,
        b"a",
        "\ud800",
    ],
)
def test_one_odd_record_among_many_plain_ones_is_kept(odd: Any) -> None:
    values = [("a", 1)] * MANY + [odd, ("a", odd)]
    assert exactly(there_and_back(values)) == exactly(values)


def test_many_plain_records_are_written_without_a_memo() -> None:
    values = [(f"word {i}", i) for i in range(MANY)]
    data = SERIALIZER.dumps(values)
    assert SERIALIZER.loads(data) == values
    assert len(data) < len(pickle.dumps(values, 5))


def test_an_optional_record_first_does_not_make_a_batch_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_Limited", lambda *_: pytest.fail("these are not plain"))
    values = [None] + [{"a": i} for i in range(MANY)]
    assert there_and_back(values) == values


def test_what_many_records_share_is_not_written_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "a long text " * 10_000
    values = [("first", 1)] + [(long, 1)] * (MANY // 3) + [("other", 1)] * MANY
    data = SERIALIZER.dumps(values)
    assert len(data) < 2 * len(long)
    assert SERIALIZER.loads(data) == values
    monkeypatch.setattr(content, "_Limited", lambda *_: pytest.fail("it is seen in the first record"))
    assert SERIALIZER.loads(SERIALIZER.dumps(values[1:])) == values[1:]


def test_a_record_within_itself_is_kept() -> None:
    endless: list[Any] = []
    endless.append(endless)
    back = there_and_back([1] * MANY + [endless])
    assert back[-1][0] is back[-1]


def test_what_cannot_be_pickled_is_refused_with_the_reason() -> None:
    with pytest.raises(SerializationError, match="cannot be pickled"):
        SERIALIZER.dumps([1] * MANY + [memoryview(b"")])


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x7f abc", b"\x80\x05 no pickle", b"\xff\xff"])
def test_an_unknown_or_broken_encoding_is_corrupt(body: bytes) -> None:
    with pytest.raises(CorruptStreamError, match=r"channel 7: a frame of \d+ bytes with tag 1 is broken"):
        decode_element(memoryview(b"\x01" + body), edge_serializer(None), "channel 7")
