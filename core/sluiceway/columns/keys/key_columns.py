"""Key columns as words, which a hash table compares, and as the bytes whose hash says the key group.

The hash of a row is :func:`sluiceway.keygroups.stable_hash` of the key that the same row has as a record: the
value of the one column, or a tuple of those of several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute

from sluiceway.columns.keys.word_table import LONG
from sluiceway.columns.numpy_arrays import array_of, numpy_of, zeros_for_nulls
from sluiceway.errors import UnstableKeyError
from sluiceway.keygroups import encoded, stable_hash
from sluiceway.util.arrow_types import with_leaves

__all__ = [
    "LONGEST",
    "counts_of",
    "counts_type",
    "decimal_halves",
    "key_hashes",
    "numbers_of",
    "plain",
    "refuse_fractions",
    "valid_of",
    "without_negative_zeros",
    "words_of",
]

LONGEST: Final = 63
"""Bytes of a text that are compared as words; keys with a longer one are found in another way."""

_compute: Any = pyarrow.compute

Word = tuple[int, Any]
"""Place of a word among those of its column, and the words of all rows: an array of uint64, of texts of LONG."""


def plain(column: Any) -> Any:
    """Return an array without chunks, dictionary or run-length encoding."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    while pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_run_end_encoded(column.type):
        column = _compute.run_end_decode(column)
    return column


def valid_of(column: Any) -> Any:
    """Return an array of bool that is False where the column is null; None where nothing is."""
    if not column.null_count:
        return None
    return numpy_of(column.is_valid())


def numbers_of(column: Any) -> Any:
    """Return the values of a column of a type with a fixed width as a numpy array; those of nulls are 0 or False.

    None for other types. Times are their counts of units since the epoch.
    """
    kind = column.type
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        column = counts_of(column)
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None
    return numpy_of(zeros_for_nulls(column))


def without_negative_zeros(column: Any) -> Any:
    """Return a column with 0.0 in place of -0.0: they are one key, shown alike whichever came first."""
    if not pa.types.is_floating(column.type):
        return column
    valid = valid_of(column)
    numbers = numbers_of(column) + 0.0  # by numpy, as Arrow does not add half floats
    return array_of(numbers, mask=None if valid is None else ~valid)


def counts_of(column: Any) -> Any:
    """Return a column in the types of :func:`counts_type`, without a copy."""
    kind = counts_type(column.type)
    return column if kind.equals(column.type) else column.view(kind)


def counts_type(kind: Any) -> Any:
    """Return a type with integers in place of times, also inside of structs, lists and maps; extensions as stored.

    Python's times have no nanoseconds, and end with the year 9999. Of an extension's values in Python, Arrow need
    not make its columns again.
    """
    return with_leaves(kind, _count_type)


def _count_type(kind: Any) -> Any:
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return counts_type(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else kind


def words_of(column: Any, *, takes_nan: bool = False) -> Iterator[Word] | None:
    """Return the words of a key column, equal for equal keys; None where it needs another way.

    Word 0 tells nulls from others, and is only there where nulls are.

    Args:
        column: as :func:`plain` returns it.
        takes_nan: True if NaN is a value equal to itself. Otherwise it raises UnstableKeyError.
    """
    kind = column.type
    if pa.types.is_null(kind):
        return iter([(0, np.ones(len(column), np.uint64))])
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _text_words(column)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _text_words(column)
    if pa.types.is_decimal128(kind):
        return _decimal_words(column)
    numbers = numbers_of(column)
    return None if numbers is None else _number_words(column, numbers, takes_nan=takes_nan)


def _number_words(column: Any, numbers: Any, *, takes_nan: bool) -> Iterator[Word]:
    valid = valid_of(column)
    if valid is not None:
        yield 0, (~valid).astype(np.uint64)
    if numbers.dtype.kind == "f":
        numbers = numbers.astype(np.float64) + 0.0  # -0.0 is 0.0
        if takes_nan:
            numbers[np.isnan(numbers)] = np.nan
        else:
            _refuse_nan(numbers)
        yield 1, numbers.view(np.uint64)
    elif numbers.dtype == np.int64:
        yield 1, numbers.view(np.uint64)
    else:
        yield 1, numbers.astype(np.uint64)


def _refuse_nan(numbers: Any) -> None:
    if np.isnan(numbers).any():
        stable_hash(float("nan"))  # raises, with the message for records


def _decimal_words(column: Any) -> Iterator[Word]:
    valid = valid_of(column)
    halves = decimal_halves(column)
    if valid is not None:
        yield 0, (~valid).astype(np.uint64)
        halves = np.where(valid[:, None], halves, np.uint64(0))
    yield 1, np.ascontiguousarray(halves[:, 0])
    yield 2, np.ascontiguousarray(halves[:, 1])


def decimal_halves(column: Any) -> Any:
    """Return the low and the high 64 bits of each value of a decimal128 column; of nulls anything."""
    data = column.buffers()[1]
    if data is None:
        return np.zeros((len(column), 2), np.uint64)
    rows = np.frombuffer(data, "<u8").reshape(-1, 2)
    return rows[column.offset : column.offset + len(column)]


def text_bytes(column: Any) -> tuple[Any, Any, Any]:
    """Return the start and the length of each text, of nulls 0, and the bytes of all, with zeros behind them.

    Words of sixteen bytes may be read at the start of each and up to LONGEST bytes behind it.
    """
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    if offsets is None or not len(column):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(_BEHIND, np.uint8)
    borders: Any = np.frombuffer(offsets, np.int64 if large else np.int32)
    borders = borders[column.offset : column.offset + len(column) + 1]
    low, high = int(borders[0]), int(borders[-1])
    # A copy, of the bytes of the slice alone, for the room behind them.
    padded = np.empty(high - low + _BEHIND, np.uint8)
    padded[high - low :] = 0
    if data is not None and high > low:
        padded[: high - low] = np.frombuffer(data, np.uint8)[low:high]
    borders = borders.astype(np.int64) - low
    starts, lengths = borders[:-1], np.diff(borders)
    valid = valid_of(column)
    if valid is not None:
        lengths *= valid
    return starts, lengths, padded


def eight_bytes_at(padded: Any) -> Any:
    """Return a view of bytes as words that begin at each of them, but the last seven."""
    return np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))


_MASKS: Final = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)

_FIRST: Final = 15
"""Bytes of a text in its first word, below its length; the others have sixteen."""

_BEHIND: Final = LONGEST + 16
"""Bytes behind those of texts."""

# By the length of a text: the length in its place in the first word, and masks of the text's bytes in each word.
_BY_LENGTH: Final = np.arange(LONGEST + 1)
_LENGTHS: Final = _BY_LENGTH.astype(np.uint64) << np.uint64(56)


def _long_masks(begin: int, size: int) -> Any:
    """Return by length of a text the mask of a long word with those of its bytes that begin there."""
    counts = np.clip(_BY_LENGTH - begin, 0, size)
    return np.stack([_MASKS[np.minimum(counts, 8)], _MASKS[np.maximum(counts, 8) - 8]], axis=1).view(LONG).ravel()


_LONG_MASKS: Final = [_long_masks(0, _FIRST)] + [_long_masks(begin, 16) for begin in range(_FIRST, LONGEST, 16)]


def _text_words(column: Any) -> Iterator[Word] | None:
    starts, lengths, padded = text_bytes(column)
    longest = int(lengths.max()) if len(lengths) else 0
    if longest > LONGEST:
        return None
    return _short_text_words(column, starts, lengths, padded, longest)


def _short_text_words(column: Any, starts: Any, lengths: Any, padded: Any, longest: int) -> Iterator[Word]:
    valid = valid_of(column)
    if valid is not None:
        yield 0, (~valid).astype(np.uint64)
    at: Any = np.ndarray((len(padded) - 15,), LONG, padded, strides=(1,))
    for number, begin in enumerate([0, *range(_FIRST, longest, 16)]):
        words = at[begin:][starts]
        halves = words.view(np.uint64)
        halves &= _LONG_MASKS[number].take(lengths).view(np.uint64)
        if not begin:
            halves[1::2] |= _LENGTHS.take(lengths)
        yield 1 + number, words


# ---- hashes -----------------------------------------------------------------------------------------------------


def _crc_table() -> Any:
    # The polynomial of zlib.crc32(), reflected: hashes equal those that are computed key by key.
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(0xEDB88320), table >> 1).astype(np.uint32)
    return table


_TABLE: Final = _crc_table()


def _tables_of_eight() -> list[Any]:
    # Slicing by eight: table n has the CRC of a byte with n bytes of zeros behind it.
    tables = [_TABLE]
    for _ in range(7):
        before = tables[-1]
        tables.append(before >> 8 ^ _TABLE[before & 0xFF])
    return tables


_EIGHT: Final = _tables_of_eight()


@cache
def _pair_tables() -> list[Any]:
    """Return the tables of the four pairs of bytes of a word, made on first use: a megabyte.

    Half as many look-ups as with tables of bytes: measured, 6 to 9 ns a word instead of 20.
    """
    low, high = np.arange(1 << 16) & 0xFF, np.arange(1 << 16) >> 8
    return [_EIGHT[7 - place][low] ^ _EIGHT[6 - place][high] for place in (0, 2, 4, 6)]


_START: Final = np.uint32(0xFFFFFFFF)
_MODULUS: Final = (1 << 61) - 1
_INFINITE: Final = 0x7FFFFFFFFFFFFFFF


def _add_byte(register: Any, byte: Any) -> Any:
    return register >> np.uint32(8) ^ _TABLE[(register ^ byte) & np.uint32(0xFF)]


def _add_word(register: Any, words: Any) -> Any:
    """Return the registers after eight bytes each: those of ``words``, the lowest first.

    Args:
        register: one for each word, or one for all.
        words: an array of uint64.
    """
    # The register has 32 bits: it is mixed with the first four of the eight bytes.
    mixed = words ^ register.astype(np.uint64)
    tables, pairs = _pair_tables(), mixed.astype("<u8", copy=False).view("<u2").reshape(-1, 4)
    result = tables[0].take(pairs[:, 0])
    used = int(np.bitwise_or.reduce(mixed)) if len(mixed) else 0
    for number in range(1, 4):
        if used >> 16 * number & 0xFFFF:
            result ^= tables[number].take(pairs[:, number])
    # Entry 0 of each table is 0: pairs that are 0 in all words are left out, as in numbers of keys below 65,536.
    return result


class _Part:
    """Encoding of a key column, without nulls: its lengths, and how it is added to a register of the CRC."""

    def __init__(self, length: Any) -> None:
        self.length = length

    def add(self, register: Any) -> Any:
        raise NotImplementedError


class _WordPart(_Part):
    """A tag, a word, and for times the ninth byte, of the sign."""

    def __init__(self, tag: bytes, words: Any, ninth: Any = None) -> None:
        super().__init__(9 if ninth is None else 10)
        self._tag, self._words, self._ninth = tag[0], words, ninth

    def add(self, register: Any) -> Any:
        register = _add_word(_add_byte(register, np.uint32(self._tag)), self._words)
        return register if self._ninth is None else _add_byte(register, self._ninth)


class _TextPart(_Part):
    def __init__(self, tag: bytes, column: Any) -> None:
        self._starts, lengths, self._bytes = text_bytes(column)
        super().__init__(lengths + 1)
        self._tag = tag[0]

    def add(self, register: Any) -> Any:
        register = _add_byte(register, np.uint32(self._tag)).astype(np.uint64)
        lengths = self.length - 1
        at = eight_bytes_at(self._bytes)
        # The first 1 to 8 bytes, so many that whole words follow. Zeros before them do not change a register that
        # is 0; so the register is mixed with the bytes that it would meet, and what it has more is added behind.
        head = ((lengths - 1 & 7) + 1) * (lengths > 0)
        bits = (head << 3).view(np.uint64)
        words = ((at[self._starts] ^ register) & _MASKS.take(head)) << (np.uint64(64) - bits)
        register = _add_word(np.uint64(0), words) ^ (register >> bits).astype(np.uint32)
        # Rows that have no more bytes leave the loop.
        rows = np.flatnonzero(lengths > 8)
        places, ends = self._starts[rows] + head[rows], self._starts[rows] + lengths[rows]
        while len(rows):
            register[rows] = _add_word(register[rows], at[places])
            places += 8
            left = places < ends
            rows, places, ends = rows[left], places[left], ends[left]
        return register


def _residues(numbers: Any) -> Any:
    """Return numbers modulo the prime of :mod:`sluiceway.keygroups`, or its constants for infinities."""
    if numbers.dtype.kind == "b":
        return numbers.astype(np.uint64)
    if numbers.dtype.kind in "ui" and len(numbers) and numbers.min() >= 0 and numbers.max() < _MODULUS:
        return numbers.astype(np.uint64)  # a division costs as much as the hash
    if numbers.dtype.kind == "u":
        return numbers.astype(np.uint64) % np.uint64(_MODULUS)
    if numbers.dtype.kind == "i":
        return (numbers.astype(np.int64) % np.int64(_MODULUS)).view(np.uint64)
    numbers = numbers.astype(np.float64)
    _refuse_nan(numbers)
    finite = np.isfinite(numbers)
    fraction, exponent = np.frexp(np.where(finite, numbers, 0.0))
    whole = np.abs(np.ldexp(fraction, 53)).astype(np.uint64)
    # 2**61 is 1, so a power of two turns the 61 bits round.
    turn = ((exponent.astype(np.int64) - 53) % 61).astype(np.uint64)
    turned = (whole << turn & np.uint64(_MODULUS)) | whole >> (np.uint64(61) - turn)
    turned = np.where((numbers < 0) & (turned != 0), np.uint64(_MODULUS) - turned, turned)
    infinite = np.where(numbers > 0, np.uint64(_INFINITE), np.uint64(0xFFFFFFFFFFFFFFFF))
    return np.where(finite, turned, infinite)


_TO_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1000, "us": 1}


def _microseconds(kind: Any, numbers: Any) -> Any:
    if kind.unit != "ns":
        return numbers.astype(np.int64) * _TO_MICROSECONDS[kind.unit]
    if (numbers % 1000).any():
        raise UnstableKeyError(
            f"a column of type {kind} cannot be a key where it has fractions of a microsecond, which Python's "
            "times do not have. Cut it before: .dt.truncate(\"1us\"), in SQL DATE_TRUNC('microsecond', ...)"
        )
    return numbers // 1000


def refuse_fractions(column: Any) -> None:
    """Raise UnstableKeyError for times with fractions of a microsecond, of which there is no hash."""
    if getattr(column.type, "unit", None) == "ns":
        _microseconds(column.type, numbers_of(column))


def _part(column: Any) -> _Part:
    """Return the encoding of a column."""
    kind: Any = column.type
    if pa.types.is_null(kind):
        return _WordPart(b"0", None)
    if pa.types.is_decimal(kind):
        words = b"".join(bytes(8) if value is None else encoded(value)[1:] for value in column.to_pylist())
        return _WordPart(b"n", np.frombuffer(words, "<u8"))
    if pa.types.is_fixed_size_binary(kind):
        column, kind = column.cast(pa.binary()), pa.binary()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _TextPart(b"s", column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _TextPart(b"b", column)
    numbers = numbers_of(column)
    if numbers is None:
        raise UnstableKeyError(f"values of type {kind} cannot be keys")
    if not pa.types.is_temporal(kind):
        return _WordPart(b"n", _residues(numbers))
    if pa.types.is_date(kind):
        tag = b"y"
        days = numbers if pa.types.is_date32(kind) else numbers // 86_400_000
        signed = days.astype(np.int64) + 719_163  # the ordinal of 1970-01-01
    else:
        is_stamp = pa.types.is_timestamp(kind)
        tag = (
            (b"z" if getattr(kind, "tz", None) else b"l")
            if is_stamp
            else b"r"
            if pa.types.is_duration(kind)
            else b"m"
        )
        signed = _microseconds(kind, numbers)
    return _WordPart(tag, signed.view(np.uint64), np.where(signed < 0, np.uint32(255), np.uint32(0)))


def key_hashes(columns: Sequence[Any]) -> Any:
    """Return the stable hash of each row's key, as an array of uint32.

    Args:
        columns: arrays of one length, as :func:`plain` returns them.

    Raises:
        UnstableKeyError: a key is NaN, or of a type that has no stable hash.
    """
    parts = list(map(_part, columns))
    # One register for all rows, until the first column that differs from row to row.
    register: Any = _START
    if len(columns) == 1:
        register = _add(register, columns[0], parts[0], framed=False)
    else:
        register = np.uint32(crc32(b"t") ^ 0xFFFFFFFF)
        for column, part in zip(columns, parts, strict=True):
            register = _add(register, column, part, framed=True)
    # The finalizer of MurmurHash3, so that every bit counts in a modulus.
    hashes: Any = ~np.broadcast_to(register, (len(columns[0]),))
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes


def _add(register: Any, column: Any, part: Any, *, framed: bool) -> Any:
    valid = valid_of(column)
    nulls = register
    if framed and valid is not None:
        nulls = _add_length(register, 1)
    if pa.types.is_null(column.type):
        return _add_byte(nulls, np.uint32(ord("0")))
    if framed:
        register = _add_length(register, part.length)
    added = part.add(register)
    if valid is None:
        return added
    return np.where(valid, added, _add_byte(nulls, np.uint32(ord("0"))))


def _add_length(register: Any, length: Any) -> Any:
    for shift in (0, 8, 16, 24):
        register = _add_byte(
            register,
            np.uint32(length >> shift & 0xFF)
            if isinstance(length, int)
            else (length >> shift & 0xFF).astype(np.uint32),
        )
    return register
