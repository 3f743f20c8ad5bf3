"""Numbers and key groups of keys in columns, against a dict and the key groups of records."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
from decimal import Decimal
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluiceway import Pipeline
from sluiceway.columns.keys import dictionary_coding, key_ids, word_table
from sluiceway.columns.keys.key_ids import KeyIds, check_key_type, key_groups_of_rows
from sluiceway.errors import StateError, UnstableKeyError
from sluiceway.keygroups import key_group
from sluiceway.table import agg

TEXTS = st.one_of(st.text(max_size=3), st.text("ab\0", max_size=20), st.text(min_size=60, max_size=80))
COLUMNS = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5),
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, 0.5, 1e300, 5e-324]),
    pa.float32(): st.floats(allow_nan=False, width=32),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.binary(): st.binary(max_size=20),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.decimal128(20, 2): st.decimals(-(10**15), 10**15, places=2),
    pa.decimal256(40, 1): st.decimals(-(10**15), 10**15, places=1),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "Europe/Berlin"): st.datetimes(timezones=st.just(dt.UTC)),
    pa.time64("us"): st.times(),
    pa.duration("us"): st.timedeltas(dt.timedelta(-(10**5)), dt.timedelta(10**5)),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["a", "b", ""]),
    pa.null(): st.none(),
}


@st.composite
def keyed_batches(draw):
    types = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=3))
    row = st.tuples(*(COLUMNS[kind] | st.none() for kind in types))
    pool = draw(st.lists(row, min_size=1, max_size=12))
    batches = draw(st.lists(st.lists(st.sampled_from(pool), max_size=20), max_size=5))
    return types, [[pa.array([row[i] for row in rows], kind) for i, kind in enumerate(types)] for rows in batches]


def keys_of(columns):
    values = [column.to_pylist() for column in columns]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


@given(keyed_batches(), st.sampled_from([1, 128, 1000]), st.data())
def test_numbers_and_groups_are_those_of_records(batches, max_parallelism, data):
    with mock.patch.object(dictionary_coding, "_FEWEST_ROWS", data.draw(st.sampled_from([1, 1_024]))):
        check_numbers_and_groups(*batches, max_parallelism, data)


def check_numbers_and_groups(types, batches, max_parallelism, data):
    plain = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in types]
    ids, model, coding = KeyIds(plain, max_parallelism), {}, dictionary_coding.DictionaryCoding()
    for columns in batches:
        # A slice, so that offsets count.
        padded = [pa.concat_arrays([column, column]).slice(len(column)) for column in columns]
        expected = [model.setdefault(key, len(model)) for key in keys_of(columns)]
        assert ids.find(padded).tolist() == expected
        groups = [key_group(key, max_parallelism) for key in keys_of(columns)]
        assert key_groups_of_rows(padded, max_parallelism).tolist() == groups
        assert key_groups_of_rows(padded, max_parallelism, coding).tolist() == groups
        assert keys_of(ids.columns()) == list(model)
        assert ids.groups().tolist() == [key_group(key, max_parallelism) for key in model]
        if data.draw(st.booleans()):
            live = np.array([data.draw(st.booleans()) for _ in model], bool)
            renumbered = ids.retain(live)
            model = {key: int(renumbered[number]) for key, number in model.items() if live[number]}
            assert list(model.values()) == list(range(len(ids)))


def test_a_dictionary_counts_only_where_rows_have_its_values():
    ids = KeyIds([pa.string()])
    values = pa.array(["unused", "c", "a", "b", "a"])
    codes = pa.array([3, 2, 3, 4, 1, 2], pa.int8())
    assert ids.find([pa.DictionaryArray.from_arrays(codes, values)]).tolist() == [0, 1, 0, 1, 2, 1]
    assert ids.columns()[0].to_pylist() == ["b", "a", "c"]
    # More values than rows, nulls among the codes, and among the values.
    assert ids.find([pa.DictionaryArray.from_arrays(codes, values).slice(2, 2)]).tolist() == [0, 1]
    nulls = pa.DictionaryArray.from_arrays(pa.array([0, None, 0, 1]), pa.array(["a", None]))
    assert ids.find([nulls]).tolist() == [1, 3, 1, 3]
    assert ids.columns()[0].to_pylist() == ["b", "a", "c", None]
    numbers = pa.array([1.0, math.nan])
    unused = pa.DictionaryArray.from_arrays(pa.array([0, 0, 0]), numbers)
    assert KeyIds([pa.float64()]).find([unused]).tolist() == [0, 0, 0]
    used = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), numbers)
    with pytest.raises(UnstableKeyError, match="NaN"):
        KeyIds([pa.float64()]).find([used])


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("sign", ["int", "uint"])
def test_codes_of_any_width_are_taken(bits, sign):
    codes = pa.array([2, 1, 2, 0] * 300, getattr(pa, f"{sign}{bits}")())
    texts = pa.DictionaryArray.from_arrays(codes, pa.array(["a", "b", "c"]))
    assert KeyIds([pa.string()]).find([texts]).tolist() == [0, 1, 0, 2] * 300
    numbers = pa.array([7, 7, 8, 7] * 300)
    assert KeyIds([pa.string(), pa.int64()]).find([texts, numbers]).tolist() == [0, 1, 2, 3] * 300


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("length", [9, 30, 90])
def test_repeated_texts_are_coded_and_others_ever_less_often_tried(kind, length, monkeypatch):
    tried = []
    coded = dictionary_coding.DictionaryCoding.of

    def of(self, column):
        found = coded(self, column)
        tried.append(found is not None)
        return found

    monkeypatch.setattr(dictionary_coding.DictionaryCoding, "of", of)
    ids, model = KeyIds([kind]), {}
    rng = random.Random(7)
    for different in [2_000] * 12 + [3] * 12:
        texts = [f"{rng.randrange(different):0{length}}" for _ in range(2_000)]
        numbers = ids.find([pa.array(texts).cast(kind)]).tolist()
        assert numbers == [model.setdefault(text, len(model)) for text in texts]
    assert ids.columns()[0].cast(pa.string()).to_pylist() == list(model)
    assert [number for number, found in enumerate(tried) if found] == [0, 2, 5, 10, *range(19, 24)]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("others", [[], [pa.array(["a" * 80] * 4)]])
def test_both_zeros_are_one_key_that_is_shown_without_a_sign(kind, others):
    for zeros in ([-0.0, 0.0, 7.0, 1.5], [0.0, -0.0, 7.0, 1.5]):
        numbers = np.array(zeros, kind.to_pandas_dtype())
        column = pa.array(numbers, kind, mask=numbers == 7.0)
        ids = KeyIds([kind, *(each.type for each in others)])
        assert ids.find([column, *others]).tolist() == [0, 0, 1, 2]
        shown = ids.columns()[0]
        assert repr(shown.cast(pa.float64()).to_pylist()) == "[0.0, None, 1.5]"
        assert shown.type == kind


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_more_text_than_an_array_can_have_is_refused_with_advice(kind, monkeypatch):
    monkeypatch.setattr(key_ids, "_MOST_BYTES", 1_000)
    ids, wide = KeyIds([kind]), KeyIds([pa.large_string()])
    texts = [f"{number:0100}" for number in range(11)]
    for text in texts[:10]:
        ids.find([pa.array(["short", text]).cast(kind).slice(1)])
    assert len(ids.columns()[0]) == 10
    ids.find([pa.array(texts[10:]).cast(kind)])
    with pytest.raises(StateError, match=rf"1,000 bytes in a column of type {kind}.*Raise the parallelism"):
        ids.columns()
    wide.find([pa.array(texts, pa.large_string())])
    assert len(wide.columns()[0]) == 11


def test_the_step_with_too_much_text_is_named(monkeypatch):
    monkeypatch.setattr(key_ids, "_MOST_BYTES", 1_000)
    rows = Pipeline().table(pa.table({"k": [f"{number:0100}" for number in range(30)]}))
    with pytest.raises(StateError, match="Raise the parallelism") as raised:
        rows.key_by("k").aggregate(n=agg.count()).to_arrow(parallelism=1)
    assert "in step 'aggregate(n)'" in "".join(raised.value.__notes__)


@st.composite
def integers_in_batches(draw):
    """Integers close together, above and below those before, far away, at the ends of 64 bits, and null."""
    batches = []
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.sampled_from([0, -50, 3_000, 5_000, -9_000, 10**6, 2**63 - 5_000, -(2**63)]))
        step = draw(st.sampled_from([1, 3, 50]))
        numbers = [start + step * n for n in draw(st.lists(st.integers(0, 90), max_size=60))]
        batches.append(numbers + draw(st.sampled_from([[], [], [], [None]])))
    return batches


@given(integers_in_batches(), st.lists(st.integers(0, 2**400), min_size=6, max_size=6))
@example([[0, 1], [5, 6, 5, 2], [-3, 9, 6, -3], [3_000, 5_000, 7], [None, 8], [10**6, 6]], [0] * 6)
@example([[2**63 - 1, 2**63 - 4], [2**63 - 4, 2**63 - 9], [-(2**63), 2**63 - 1]], [0] * 6)
@example([[-5, 0, 0], [4, -7, 4], [-5, 6, 5, 6], [7, 5_000], [7, 8]], [0, 0b1010, 0, 0b101101, 0, 0])
def test_integers_close_together_and_far_apart_are_numbered_alike(batches, kept):
    ids, model = KeyIds([pa.int64()], 128), {}
    for batch, of_bits in zip(batches, kept, strict=False):
        assert ids.find([pa.array(batch, pa.int64())]).tolist() == [model.setdefault(k, len(model)) for k in batch]
        assert keys_of(ids.columns()) == list(model)
        if of_bits:
            live = np.array([of_bits >> number & 1 for number in range(len(model))], bool)
            renumbered = ids.retain(live)
            model = {key: int(renumbered[number]) for key, number in model.items() if live[number]}


def test_serial_numbers_are_found_without_a_hash_table_in_memory_that_follows_their_number():
    table = word_table.WordTable()
    for start in range(0, 300_000, 1_000):
        numbers, new = table.find([np.arange(start, start + 1_000).astype(np.uint64)])
        assert numbers.tolist() == list(range(start, start + 1_000))
        assert len(new) == 1_000
    assert (table._slots < 0).all()
    assert table.nbytes < 300_000 * (8 * 4 + 12)
    # One far away, as an attacker sends it, does not enlarge the array.
    assert table.find([np.array([1 << 40, 7], np.uint64)])[0].tolist() == [300_000, 7]
    assert (table._slots >= 0).any()
    assert table.nbytes < 300_000 * (8 * 4 + 12)
    live = np.arange(300_001) < 300_000
    table.retain(live)
    assert (table._slots < 0).all()
    assert table.find([np.array([7, 299_999], np.uint64)])[0].tolist() == [7, 299_999]


def test_a_million_keys_are_numbered_in_the_order_of_arrival():
    ids = KeyIds([pa.int64()], 128)
    keys = np.random.default_rng(1).permutation(200_000) * 3
    for start in range(0, len(keys), 30_000):
        found = ids.find([pa.array(keys[start : start + 30_000])])
        assert (found == np.arange(start, start + len(found))).all()
    assert (ids.find([pa.array(keys[::-1])]) == np.arange(len(keys))[::-1]).all()


KINDS = {
    "numbers": [pa.int64()],
    "short": [pa.string()],
    "long": [pa.string()],
    "mixed": [pa.string()],
    "pairs": [pa.int64(), pa.string()],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("power", [0, 1, 3, 8])
def test_large_batches_are_numbered_by_first_appearance(kind: str, power: int) -> None:
    """Such a batch is taken in pieces, between which the table is enlarged."""
    random = np.random.default_rng(power)
    ids, model = KeyIds(KINDS[kind]), {}
    for rows in (20_000, 7, 20_000, 9_000):
        numbers = (random.random(rows) ** power * 30_000).astype(np.int64) if power else np.arange(rows) + len(ids)
        texts = [f"{n:x}" * (1 + n % (1 if kind == "short" else 12)) + "\0" * (n % 3) for n in numbers.tolist()]
        spread: list[Any] = (numbers << 33).tolist()
        keys: list[Any] = {"numbers": spread, "pairs": list(zip(spread, texts, strict=True))}.get(kind, texts)
        if kind == "mixed":
            keys = [None if n % 7 == 3 else key for n, key in zip(numbers.tolist(), keys, strict=True)]
        columns = [pa.array(keys)] if kind != "pairs" else [pa.array(spread), pa.array(texts)]
        assert ids.find(columns).tolist() == [model.setdefault(key, len(model)) for key in keys]
    assert keys_of(ids.columns()) == list(model)


def test_texts_that_differ_in_one_byte_or_in_their_length_are_told_apart() -> None:
    texts = [b"a" * length for length in range(64)]
    texts += [
        b"a" * at + other + b"a" * (length - at - 1)
        for length in range(64)
        for at in range(length)
        for other in (b"\0", b"\xff")
    ]
    ids = KeyIds([pa.binary()])
    assert ids.find([pa.array(texts[:64])]).tolist() == list(range(64))
    assert ids.find([pa.array(texts)]).tolist() == list(range(len(texts)))
    # The same from the middle of a buffer, and with nulls before and behind.
    among = pa.array([b"x" * 70, *texts[::-1], None]).slice(1)
    assert ids.find([among]).tolist() == [*range(len(texts))[::-1], len(texts)]


@pytest.mark.parametrize("column", [pa.array([1.0, float("nan")]), pa.array([1, float("nan")], pa.float32())])
def test_nan_is_no_key(column):
    with pytest.raises(UnstableKeyError, match="NaN is not equal to itself"):
        KeyIds([column.type], 128).find([column])
    with pytest.raises(UnstableKeyError, match="NaN"):
        key_groups_of_rows([column], 128)
    with pytest.raises(UnstableKeyError, match="NaN"):
        KeyIds([pa.string(), column.type], 128).find([pa.array(["x" * 100] * 2), column])


def test_decimal_keys_of_another_column_type_have_the_groups_of_their_values():
    assert key_groups_of_rows([pa.array([Decimal("1.50"), None])], 128).tolist() == [
        key_group(Decimal("1.5"), 128),
        key_group(None, 128),
    ]


def test_nanoseconds_are_keys_where_they_are_whole_microseconds():
    whole = pa.array([1_000, 2_000], pa.timestamp("ns"))
    groups = [key_group(dt.datetime(1970, 1, 1, microsecond=us), 128) for us in (1, 2)]
    assert key_groups_of_rows([whole], 128).tolist() == groups
    with pytest.raises(UnstableKeyError, match="Cut it before"):
        key_groups_of_rows([pa.array([1_001], pa.timestamp("ns"))], 128)


def test_times_in_keys_with_decimals_are_those_that_python_has_no_value_for():
    beside = [pa.array([Decimal("1.5")]), pa.array([b"abc"], pa.binary(3))]
    for far, near in (
        (pa.array([1_000], pa.timestamp("ns")), pa.array([1], pa.timestamp("us"))),
        (pa.array([10**12], pa.timestamp("s")), pa.array([10**18], pa.timestamp("us"))),
    ):
        for other in beside:
            groups = key_groups_of_rows([other, far], 128).tolist()
            assert groups == key_groups_of_rows([other, near], 128).tolist()


@pytest.mark.parametrize("others", [[], [pa.array(["x" * 100])]])
def test_fractions_of_microseconds_are_refused_before_a_group_is_asked_for(others):
    columns = [pa.array([1_001], pa.time64("ns")), *others]
    with pytest.raises(UnstableKeyError, match="Cut it before"):
        KeyIds([column.type for column in columns], 128).find(columns)
    assert KeyIds([columns[0].type], takes_nan=True).find(columns[:1]).tolist() == [0]


def test_times_in_keys_with_long_texts_are_compared_as_those_in_short_ones():
    """One key may have a long text, after others without: the same times are then equal in another way."""
    before = [dt.datetime(2025, 10, 26, hour, 30, tzinfo=dt.UTC) for hour in (0, 1)]  # 2:30 in Berlin, twice
    columns = [
        pa.array(before * 2, pa.timestamp("us", "Europe/Berlin")),
        pa.array([10**15, 10**15 + 1] * 2, pa.timestamp("s")),  # beyond Python's years
        pa.array([1_000, 2_000] * 2, pa.timestamp("ns")),
    ]
    for column in columns:
        for text in ("x", "x" * 100):
            numbered = KeyIds([pa.string(), column.type], 128)
            assert numbered.find([pa.array([text] * 4), column]).tolist() == [0, 1, 0, 1]
            assert numbered.find([pa.array(["y" * 100, text]), column.slice(0, 2)]).tolist() == [2, 1]
            assert len(numbered.groups()) == 3


def test_lists_are_no_keys():
    with pytest.raises(UnstableKeyError, match=r"column 'tags' is of type list<item: string>"):
        check_key_type("tags", pa.list_(pa.string()))
    check_key_type("user", pa.dictionary(pa.int8(), pa.string()))


@pytest.mark.parametrize("keys", [np.arange(20_000), np.arange(20_000) * 1_000, np.arange(20_000) << 40])
def test_multipliers_by_which_keys_collide_are_replaced(keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the multiplier 1 nearly all of these keys have one place."""
    made = word_table._multipliers
    monkeypatch.setattr(word_table, "_multipliers", lambda n: made(n) if n else (np.uint64(1),) * 128)
    table = word_table.WordTable()
    words = keys.astype(np.uint64)
    zeros = np.zeros_like(words)  # a second word, as integers close together are not hashed
    for start in range(0, len(words), 700):
        numbers, new = table.find([words[start : start + 700], zeros[start : start + 700]])
        assert numbers.tolist() == list(range(start, start + len(numbers)))
        assert len(new) == len(numbers)
    assert table.find([words, zeros])[0].tolist() == list(range(len(words)))
    taken = np.flatnonzero(table._slots >= 0)
    firsts = table._places([each[table._slots[taken]] for each in table.words()])
    assert ((taken - firsts) % len(table._slots)).mean() < 2


@pytest.mark.parametrize("kind", ["texts", "numbers"])
def test_keys_that_differ_in_the_highest_bits_of_several_words_have_places_of_their_own(kind: str) -> None:
    """Multiplied words that are 0 but for their highest byte have 256 sums, whatever the multipliers are."""
    found = itertools.product(range(64, 96), repeat=3)
    if kind == "texts":
        texts = [f"{'x' * 7}{chr(a)}{'x' * 14}{chr(b)}{'x' * 7}{chr(c)}" for a, b, c in found]
        columns: list[Any] = [pa.array(texts)]
    else:
        columns = [pa.array(np.array(each, np.int64) << 56) for each in zip(*found, strict=True)]
    keys = KeyIds([column.type for column in columns])
    keys.find(columns)
    table = keys._table
    assert table is not None
    places = table._places(table.words())
    assert len(np.unique(places)) > len(places) // 2


def test_columns_of_a_few_keys_are_those_of_all() -> None:
    ids = KeyIds([pa.int64(), pa.string()])
    for begin, end in ((0, 100), (100, 130), (130, 135), (135, 136)):
        numbers = list(range(begin, end))
        ids.find(
            [pa.array([n if n % 9 else None for n in numbers], pa.int64()), pa.array([f"k{n}" for n in numbers])]
        )
    some = np.array([135, 3, 101, 3, 131, 99, 0, 100])
    found = ids.columns(some)
    assert [column.to_pylist() for column in found] == [
        column.take(pa.array(some)).to_pylist() for column in ids.columns()
    ]
    assert [column.type for column in found] == [pa.int64(), pa.string()]
