"""Keys, their hash, their group and their subtask."""

import datetime as dt
import enum
import ipaddress
import json
import os
import subprocess
import sys
import uuid
from collections import Counter, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sluiceway.errors import UnstableKeyError
from sluiceway.keygroups import (
    CACHE_LIMIT,
    KeyGroupRange,
    SubtaskCache,
    check_key,
    key_group,
    stable_hash,
    subtask_for_key_group,
)


class Pair(NamedTuple):
    a: Any
    b: Any


class Level(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    TO = "to"


class OldWord(str, enum.Enum):  # noqa: UP042 - hashes like a str, too
    TO = "to"


class Colour(enum.Enum):
    RED = 1
    GREEN = 2
    CRIMSON = 1  # noqa: PIE796


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Place:
    row: int
    column: int
    note: str = field(default="", compare=False)


class Cell(msgspec.Struct, frozen=True):
    row: int
    column: int


# ---- ranges ------------------------------------------------------------------------------------------------


def test_every_group_belongs_to_exactly_the_subtask_whose_range_it_is_in():
    for max_parallelism in range(1, 41):
        for parallelism in range(1, max_parallelism + 1):
            owned = []
            for subtask in range(parallelism):
                start, end = KeyGroupRange.of_subtask(subtask, parallelism, max_parallelism)
                assert end > start, "nobody goes without"
                for group in range(start, end):
                    assert subtask_for_key_group(group, parallelism, max_parallelism) == subtask
                    owned.append(group)
            assert owned == list(range(max_parallelism))


@given(st.integers(1, 2**15), st.data())
def test_ranges_are_consistent_for_large_numbers_too(max_parallelism, data):
    parallelism = data.draw(st.integers(1, max_parallelism))
    group = data.draw(st.integers(0, max_parallelism - 1))
    subtask = subtask_for_key_group(group, parallelism, max_parallelism)
    start, end = KeyGroupRange.of_subtask(subtask, parallelism, max_parallelism)
    assert start <= group < end


# ---- the same everywhere -----------------------------------------------------------------------------------

MADE_OF_BUILTINS = [
    "",
    "a",
    "be",
    "Übermut",
    "\ud800",
    0,
    1,
    -1,
    -2,
    2**61 - 1,
    -(2**200),
    0.1,
    1.5e300,
    float("inf"),
    float("-inf"),
    complex(1, 2),
    b"",
    b"\x00\xff",
    None,
    (),
    ("a", 1),
    ("a", ("b", None), b"c"),
    frozenset({"x", "y", 3}),
]

OTHERS = [
    Decimal("3.14"),
    Fraction(1, 3),
    Colour.RED,
    Right.READ | Right.WRITE,
    dt.datetime(2024, 2, 29, 12, 30, 0, 1),
    dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC),
    dt.date(1, 1, 1),
    dt.time(23, 59, 59, 999999),
    dt.timedelta(days=-3, microseconds=1),
    uuid.UUID("12345678-1234-5678-1234-567812345678"),
    ipaddress.ip_address("10.0.0.1"),
    ipaddress.ip_address("fe80::1"),
    Place(1, 2, "not compared"),
    Cell(1, 2),
]

# fmt: off
GOLDEN_BUILTINS = [
    1826626647, 1058891890, 3917513319, 1942501393, 3436043269, 3514564467, 2786111171, 1392657840,
    3002485468, 3514564467, 4090954194, 2981032169, 2604357375, 3009496124, 4100412468, 2622916192,
    3509073724, 1691693951, 985228334, 560745302, 502677925, 2856094225, 1216847854,
]
GOLDEN_OTHERS = [
    223092394, 2060411235, 2251948544, 1636990869, 2183595844, 3971813460, 705823964, 4068573241,
    2382049576, 3232586074, 136605662, 1852825548, 2839673446, 123371959,
]
# fmt: on


KEYS = [
    *("", 1, b"x", True, None, 1.5, (), (1, "a"), (1, (2, "b"))),
    *((1, float("nan")), float("nan"), [], (1, []), object()),
]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_checked_as_its_hash_would_be(key):
    def outcome(function):
        try:
            function(key)
        except Exception as error:
            return type(error), str(error)
        return None

    assert outcome(check_key) == outcome(stable_hash)


def test_golden_values():
    """What a checkpoint relies on: if this fails, the encoding has changed, and that must not happen."""
    assert [stable_hash(key) for key in MADE_OF_BUILTINS] == GOLDEN_BUILTINS
    assert [stable_hash(key) for key in OTHERS] == GOLDEN_OTHERS


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_the_same_in_another_process_with_another_hash_seed(seed):
    program = """
import sys, json, datetime as dt, enum, uuid
from dataclasses import dataclass
from sluiceway.keygroups import stable_hash
class Colour(enum.Enum):
    RED = 1
@dataclass(frozen=True)
class Place:
    row: int
    column: int
keys = [*eval(sys.argv[1]), Colour.RED, Place(1, 2), dt.date(1, 1, 1)]
print(json.dumps([[stable_hash(key) for key in keys], hash("a")]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, repr(MADE_OF_BUILTINS).replace("inf", "1e999")],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    there, hash_of_a = json.loads(done.stdout)
    assert there == [stable_hash(key) for key in [*MADE_OF_BUILTINS, Colour.RED, Place(1, 2), dt.date(1, 1, 1)]]
    assert hash_of_a != hash("a"), "the two processes were meant to have different seeds"


def test_known_ways_of_computing_it_agree():
    """The documented encoding, written out once more by hand."""
    import struct
    import zlib

    def mixed(data):
        h = zlib.crc32(data)
        h ^= h >> 16
        h = h * 0x85EBCA6B % 2**32
        h ^= h >> 13
        h = h * 0xC2B2AE35 % 2**32
        return h ^ h >> 16

    assert stable_hash("Übermut") == mixed(b"s" + "Übermut".encode())
    assert stable_hash(7) == mixed(b"n" + struct.pack("<Q", 7))
    assert stable_hash(-7) == mixed(b"n" + struct.pack("<Q", 2**61 - 1 - 7))
    assert stable_hash(0.5) == mixed(b"n" + struct.pack("<Q", pow(2, -1, 2**61 - 1)))
    assert stable_hash(b"raw") == mixed(b"braw")
    assert stable_hash(None) == mixed(b"0")
    two = b"n" + struct.pack("<Q", 2)
    assert stable_hash(("x", 2)) == mixed(b"t" + struct.pack("<I", 2) + b"sx" + struct.pack("<I", 9) + two)


# ---- equal keys agree --------------------------------------------------------------------------------------


class NoOffset(dt.tzinfo):
    def utcoffset(self, when):
        return None


EQUAL = [
    [0, 0.0, -0.0, False, Decimal(0), Decimal("-0.00"), Fraction(0), 0j],
    [1, 1.0, True, Decimal(1), Decimal("1.000"), Fraction(1), complex(1), Level.ONE],
    [-1, -1.0, Decimal(-1), Fraction(-1)],
    [0.5, Decimal("0.5"), Fraction(1, 2), complex(0.5)],
    [10**30, Decimal("1E+30"), Fraction(10**30)],
    [2.0**1000, 2**1000, Fraction(2**1000)],
    [float("inf"), Decimal("Infinity")],
    [float("-inf"), Decimal("-Infinity")],
    ["to", Word.TO, OldWord.TO],
    [(1, "a"), Pair(1, "a"), namedtuple("Other", "x y")(1, "a"), (1.0, "a"), (True, "a")],
    [frozenset([1, 2, 3]), frozenset([3, 2.0, True])],
    [Place(1, 2), Place(1, 2, "other"), Place(True, 2.0)],
    [Cell(1, 2), Cell(1, 2)],
    [Colour.RED, Colour.CRIMSON],
    [
        dt.datetime(2024, 6, 1, 12, tzinfo=dt.UTC),
        dt.datetime(2024, 6, 1, 14, tzinfo=ZoneInfo("Europe/Berlin")),
        dt.datetime(2024, 6, 1, 7, 30, tzinfo=dt.timezone(dt.timedelta(hours=-4, minutes=-30))),
    ],
    [  # the hour that comes twice: equality within a zone does not look at fold
        dt.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
        dt.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    ],
    [
        dt.datetime(2024, 6, 1, 12),
        dt.datetime(2024, 6, 1, 12, fold=1),
        dt.datetime(2024, 6, 1, 12, tzinfo=NoOffset()),
    ],
    [dt.time(12, tzinfo=dt.UTC), dt.time(14, tzinfo=dt.timezone(dt.timedelta(hours=2)))],
    [dt.timedelta(minutes=90), dt.timedelta(hours=1.5)],
    [uuid.UUID(int=5), uuid.UUID(int=5, is_safe=uuid.SafeUUID.safe)],
]


@pytest.mark.parametrize("group", EQUAL, ids=lambda group: repr(group[0])[:30])
def test_equal_keys_agree(group):
    for key in group:
        assert key == group[0]
        assert hash(key) == hash(group[0])
        assert stable_hash(key) == stable_hash(group[0])
        assert stable_hash((key, "x")) == stable_hash((group[0], "x"))


numbers = st.one_of(
    st.integers(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.fractions(),
    st.decimals(allow_nan=False),
    st.complex_numbers(allow_nan=False, allow_infinity=False),
)


@given(numbers)
def test_a_number_agrees_with_its_equals_of_other_types(number):
    for other in (int, float, Fraction, Decimal, complex):
        try:
            same = other(number)
        except (TypeError, ValueError, OverflowError):
            continue
        if same == number:
            assert stable_hash(same) == stable_hash(number)


keys = st.recursive(
    st.one_of(
        st.none(),
        st.integers(-3, 3),
        st.booleans(),
        st.sampled_from([0.0, 1.0, -1.0, 0.5]),
        st.text("ab", max_size=2),
        st.binary(max_size=1),
        st.datetimes(timezones=st.none() | st.timezones()),
        st.dates(),
    ),
    lambda inner: st.lists(inner, max_size=2).map(tuple) | st.frozensets(inner, max_size=2),
    max_leaves=5,
)


@given(keys, keys)
@settings(max_examples=300)
def test_equality_of_keys_and_hashes_goes_together(left, right):
    if left == right:
        assert stable_hash(left) == stable_hash(right)
    else:
        assume(hash(left) != hash(right))
        assert stable_hash(left) != stable_hash(right)  # by chance once in 2**32


def test_keys_that_only_look_alike_differ():
    lookalikes = [
        "1",
        b"1",
        1,
        ("1",),
        ("1", ""),
        (b"1",),
        frozenset({"1"}),
        (),
        frozenset(),
        None,
        "",
        b"",
        ((),),
        Colour.RED,
        Right.READ,
        Place(1, 2),
        Cell(1, 2),
        (1, 2),
        (2, 1),
        ("ab", "c"),
        ("a", "bc"),
        dt.datetime(1970, 1, 2),
        dt.datetime(1970, 1, 2, tzinfo=dt.UTC),
        dt.date(1, 1, 1),
        dt.timedelta(microseconds=1),
        dt.time(0, 0, 0, 1),
        dt.time(0, 0, 0, 1, tzinfo=dt.UTC),
        uuid.UUID(int=1),
        ipaddress.ip_address("fe80::1"),
        ipaddress.ip_address("fe80::1%eth0"),
        0.5,
        -0.5,
        2j,
        -2j,
    ]
    assert len({stable_hash(key) for key in lookalikes}) == len(lookalikes)


def test_a_fraction_without_an_inverse_has_a_hash():
    modulus = 2**61 - 1
    assert 0 <= stable_hash(Fraction(1, modulus)) < 2**32
    assert stable_hash(Fraction(1, modulus)) != stable_hash(Fraction(2, modulus))


def test_numpy_scalars_agree_with_python():
    np = pytest.importorskip("numpy")
    for scalar in (np.int64(1), np.uint8(1), np.float64(1), np.float32(1), np.bool_(True), np.complex64(1)):
        assert stable_hash(scalar) == stable_hash(1)
    assert stable_hash(np.float32(0.5)) == stable_hash(0.5)
    assert stable_hash((np.str_("to"), np.bytes_(b"be"))) == stable_hash(("to", b"be"))
    with pytest.raises(UnstableKeyError, match=r"Use key\.item\(\)"):
        stable_hash(np.timedelta64(1, "s"))
    with pytest.raises(UnstableKeyError, match="NaN"):
        stable_hash(np.float64("nan"))


# ---- well mixed --------------------------------------------------------------------------------------------

SERIES = {
    "numbers": lambda i: i,
    "hundreds": lambda i: i * 100,
    "powers of two apart": lambda i: i << 20,
    "negative": lambda i: -i,
    "halves": lambda i: i / 2,
    "names": lambda i: f"user{i}",
    "padded names": lambda i: f"device-{i:08d}",
    "pairs": lambda i: (i % 10, f"k{i // 10}"),
    "bytes": lambda i: i.to_bytes(4, "big"),
    "uuids": lambda i: uuid.UUID(int=i),
    "seconds": lambda i: dt.datetime(2024, 1, 1) + dt.timedelta(seconds=i),
}


@pytest.mark.parametrize("buckets", [16, 100, 128])
@pytest.mark.parametrize("name", SERIES)
def test_regular_keys_spread_over_the_groups(name, buckets):
    n = 6400
    counts = Counter(key_group(SERIES[name](i), buckets) for i in range(n))
    chi2 = sum((counts[b] - n / buckets) ** 2 for b in range(buckets)) / (n / buckets)
    # Six standard deviations: a fair die gets there once in millions of years, a bad one at once.
    assert chi2 < (buckets - 1) + 6 * (2 * (buckets - 1)) ** 0.5


def test_hashes_have_32_bits():
    hashes = [stable_hash(i) for i in range(5000)]
    assert all(0 <= h < 2**32 for h in hashes)
    for bit in range(32):
        assert 2000 < sum(h >> bit & 1 for h in hashes) < 3000


# ---- the cache ---------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=3) | st.integers(-5, 5) | st.booleans()), st.integers(1, 8))
def test_the_cache_knows_the_owner_of_a_keys_group(keys, parallelism):
    expected = [subtask_for_key_group(key_group(key, 16), parallelism, 16) for key in keys]
    cache = SubtaskCache(parallelism, 16)
    assert [cache[key] for key in keys] == expected
    assert [cache[key] for key in keys] == expected
    assert len(cache) == len(set(keys))


@pytest.mark.parametrize("kind", [str, int, float, lambda n: (n, "x"), lambda n: f"\ud800{n}"])
def test_keys_that_are_learnt_have_the_owners_that_they_have_one_by_one(kind):
    keys = [kind(n % 700) for n in range(1000)]
    cache, expected = SubtaskCache(3, 128), SubtaskCache(3, 128)
    assert cache.learn(keys) == (kind in (str, int))
    assert cache.misses == (700 if kind in (str, int) else 0)
    assert [cache[key] for key in keys] == [expected[key] for key in keys]
    assert cache.misses == expected.misses == 700
    assert dict(cache) == dict(expected)


def test_keys_that_are_learnt_do_not_fill_the_memory():
    cache = SubtaskCache(3, 128, limit=1000)
    for start in range(0, 5000, 600):
        assert cache.learn(range(start, start + 600))
        assert 600 <= len(cache) <= 1000
    assert not cache.learn(range(1001)), "more than the cache may hold"
    assert not cache.learn([["no hash"]])


def test_endless_keys_do_not_fill_the_memory():
    cache = SubtaskCache(4, 128)
    for key in range(CACHE_LIMIT + 3000):
        assert cache[key] < 4
        assert len(cache) <= CACHE_LIMIT
    assert 0 < len(cache) < CACHE_LIMIT, "it was emptied once and is in use again"


def test_the_cache_computes_once_and_is_bounded():
    asked = []

    class Counted:
        def __init__(self, number):
            self.number = number

        def __eq__(self, other):
            return isinstance(other, Counted) and self.number == other.number

        def __hash__(self):
            return hash(self.number)

        def __stable_key__(self):
            asked.append(self.number)
            return self.number

    cache = SubtaskCache(128, 128, limit=10)
    assert cache[Counted(1)] == cache[Counted(1)] == key_group(1, 128)
    assert asked == [1]
    for number in range(100):
        assert cache[number] == key_group(number, 128)
        assert len(cache) <= 10
    with pytest.raises(UnstableKeyError):
        cache[float("nan")]
    with pytest.raises(UnstableKeyError):
        cache[object()]
