"""State of many keys in blocks: the same rows as one by one, and back without going by rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluiceway.errors import CorruptStreamError, SerializationError
from sluiceway.keygroups import in_key_groups, key_group, key_groups
from sluiceway.serializers import (
    KEY_SERIALIZER,
    Row,
    Serializer,
    are_plain,
    block_kind,
    decode_block,
    decode_blocks,
    decode_rows,
    encode_block,
    encode_rows,
    serializer_for,
)

INTS = st.integers(-(2**63), 2**64 - 1)
SCALARS = (
    st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=5)
)
PLAIN = SCALARS | st.lists(SCALARS, max_size=3).map(tuple)


def same(some: Any, other: Any) -> bool:
    """Equal, and of the same types."""
    return repr(some) == repr(other)


@given(st.lists(st.tuples(PLAIN, PLAIN)))
@example([(None, ("00", "00"))])
def test_blocks_of_anything_plain_are_the_rows_of_their_keys(pairs: list[tuple[Any, Any]]) -> None:
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    assert are_plain(keys)
    pickle = serializer_for(None)
    block = encode_block(3, b"n", block_kind(pickle, values) is True, keys, values)
    assert block is not None
    row = Row(1, b"", b"k", [b"v"])
    data = encode_rows([row], [block])
    [first, *ones] = decode_rows(data)
    assert first == row
    assert [(one.table, one.namespace, one.key) for one in ones] == [
        (3, b"n", KEY_SERIALIZER.dumps(key)) for key in keys
    ]
    # By value: pickle writes two equal strings in another way than one string twice.
    assert same([pickle.loads(one.value) for one in ones], values)
    rows, [again] = decode_blocks(data)
    assert rows == [row]
    assert same(decode_block(again, pickle), (keys, values))


@pytest.mark.parametrize("number", [1, 20, 70_000])
def test_blocks_of_tuples_and_others(number: int) -> None:
    pickle = serializer_for(None)
    for values in ([(1, "a")] * number, [(1,)] * (number - 1) + [2], [2] + [()] * number, [b"\x90"] * number):
        block = encode_block(0, b"", True, list(range(len(values))), values)
        assert block is not None
        assert same(decode_block(block, pickle)[1], values)


@given(st.lists(INTS))
def test_blocks_of_a_declared_type_are_as_its_serializer_writes_them(values: list[int]) -> None:
    serializer = serializer_for(int)
    assert block_kind(serializer, values) is False
    block = encode_block(0, b"", False, values, values)
    assert block is not None
    assert [row.value for row in decode_rows(encode_rows([], [block]))] == list(map(serializer.dumps, values))
    assert same(decode_block(block, serializer), (values, values))


def test_a_declared_tuple_comes_back_as_one() -> None:
    serializer, values = serializer_for(tuple[str, int]), [("a", 1), ("b", 2)]
    assert block_kind(serializer, values) is False
    block = encode_block(0, b"", False, [1, 2], values)
    assert block is not None
    assert same(decode_block(block, serializer), ([1, 2], values))


@pytest.mark.parametrize("value", [[1], {}, (1, [2]), ((1,),), 1j, type("Text", (str,), {})("x")])
def test_what_can_be_changed_or_is_of_another_class_is_not_plain(value: Any) -> None:
    assert not are_plain([1, value])
    assert not are_plain([("a", 1), ("b", value)])
    assert not are_plain([("a", 1), value])


class Pair(NamedTuple):
    left: str
    right: int


def test_pairs_are_plain_whatever_else_is_among_them() -> None:
    pairs = [("a", 1), ("b", 2)]
    for others in ([], [("c", None)], [(True, 2)], [("c",)], [("c", 3, 4)], [3], [()], [None]):
        assert are_plain([*pairs, *others])
        assert are_plain([*others, *pairs])
    assert not are_plain([*pairs, Pair("c", 3)])
    assert not are_plain([Pair("c", 3), *pairs])
    assert not are_plain([*pairs, ["c", 3]])


def test_what_the_declared_type_does_not_allow_is_no_block() -> None:
    assert block_kind(serializer_for(int), [1, "x"]) is None
    assert block_kind(KEY_SERIALIZER, [1]) is None


@pytest.mark.parametrize("value", [2**64, "\ud800"])
def test_what_msgpack_cannot_hold_is_no_block(value: Any) -> None:
    assert encode_block(0, b"", True, [1], [value]) is None
    assert encode_block(0, b"", True, [value], [1]) is None


@pytest.mark.parametrize("pickled", [True, False])
def test_what_reads_values_of_another_type_is_asked_for_each(pickled: bool) -> None:
    class Doubling(Serializer):
        name = "doubling"

        def dumps(self, value: Any) -> bytes:
            raise NotImplementedError

        def loads(self, data: bytes) -> Any:
            return serializer_for(None if pickled else int).loads(data) * 2

    block = encode_block(0, b"", pickled, ["a", "b"], [1, 2])
    assert block is not None
    assert decode_block(block, Doubling()) == (["a", "b"], [2, 4])


def test_a_value_of_another_type_is_refused() -> None:
    block = encode_block(0, b"", False, [1], ["x"])
    assert block is not None
    with pytest.raises(SerializationError, match=r"^3 bytes cannot be read as int, each: "):
        decode_block(block, serializer_for(int))


def test_damage_in_blocks_is_found() -> None:
    block = encode_block(0, b"", True, [1], ["x"])
    assert block is not None
    good = bytearray(encode_rows([], [block]))
    good[-1] ^= 1
    with pytest.raises(CorruptStreamError, match="state rows are damaged"):
        decode_blocks(bytes(good))


KEYS = (
    st.lists(st.text(max_size=4), min_size=64)
    | st.lists(INTS, min_size=64)
    | st.lists(st.sampled_from([2**61 - 1, -1, 0, 2**61, 2**70, "\ud800", None, 1.5, True, (1, "x")]), min_size=64)
    | st.lists(st.text(max_size=4) | INTS)
)


@given(KEYS, st.integers(1, 1 << 15))
def test_key_groups_of_many_are_those_of_each(keys: list[Any], most: int) -> None:
    groups = [key_group(key, most) for key in keys]
    assert list(key_groups(keys, most)) == groups
    order, shares = in_key_groups(keys, most)
    assert order == sorted(range(len(keys)), key=groups.__getitem__)
    assert [group for group, _, _ in shares] == list(dict.fromkeys(groups))
    for group, start, end in shares:
        assert [groups[place] for place in order[start:end]] == [group] * groups.count(group)


def test_key_groups_of_many_need_no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluiceway.keygroups._numpy_module", lambda: None)
    keys = [f"key{i}" for i in range(100)]
    groups = [key_group(key, 128) for key in keys]
    assert list(key_groups(keys, 128)) == groups
    assert in_key_groups(keys, 128)[0] == sorted(range(100), key=groups.__getitem__)
