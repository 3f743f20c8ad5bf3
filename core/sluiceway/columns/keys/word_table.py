"""Hash table from rows of words to dense numbers, in numpy: open addressing, a batch of rows at a time.

A word has 64 bits, or 128 where one look at the memory is to get more of a key. Rows of one word that are integers
close together are found without hashing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from sluiceway.columns.keys.direct_index import DirectIndex

__all__ = ["LONG", "WordTable"]

LONG: Final = np.dtype("V16")
"""Type of words of 128 bits, which numpy copies as fast as those of 64. They are hashed and compared by halves."""

_SMALLEST: Final = 10
"""Binary logarithm of the slots of an empty table."""

_SLOTS_A_ROW: Final = 4
"""Slots for each row, at least: a row that is not in its first slot costs several times as much as one that is."""

_ROWS_A_ROOM: Final = 16
"""Unknown rows for each row that a table gets room for at once: they may as well repeat one key."""

_NEW: Final = 0.5
"""Share of new rows among those just found, below which the others are looked up again."""

_TRIES: Final = 8
"""Sets of multipliers that are tried when a table is enlarged, at most."""

_SEARCHES: Final = 2
"""Sets that are tried for hardly any displaced rows: successive numbers, the usual keys, may have none."""

_FEW: Final = 0.05
_AS_RANDOM: Final = 0.15
"""Mean displacement of a row from its first place: hardly any, and somewhat more than that of random places."""


_MULTIPLIERS: Final = 128
"""Multipliers of a set: those of more words are used again."""


@lru_cache(maxsize=_TRIES)
def _multipliers(attempt: int) -> tuple[Any, ...]:
    """Return odd multipliers, two for each 64 bits of a row.

    They differ from process to process as the hashes of texts do: who chooses the keys does not know which of them
    collide. Numbers do not depend on them.
    """
    return tuple(
        np.uint64((hash(("sluiceway", str(number), attempt)) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) | 1)
        for number in range(_MULTIPLIERS)
    )


def _halves(word: Any) -> Sequence[Any]:
    """Return the words of 64 bits in a word, as arrays."""
    if word.dtype != LONG:
        return (word,)
    bits = word.view(np.uint64)
    return bits[::2], bits[1::2]


def _picked(words: Sequence[Any], rows: Any) -> list[Any]:
    """Return the words of some rows."""
    return [None if word is None else word[rows] for word in words]


def _differ(mine: Any, theirs: Any) -> Any:
    """Return for each row whether its word differs.

    Args:
        mine: the words; None: they are 0.
        theirs: the others.
    """
    bits = theirs.view(np.uint64)
    found = bits != (0 if mine is None else mine.view(np.uint64))
    # The results of both halves side by side, as one number.
    return found if theirs.dtype != LONG else found.view(np.uint16) != 0


class WordTable:
    """Hash table that numbers rows of words from 0, in the order of their first appearance.

    The numbers do not depend on how the rows were cut into batches. A row that lacks a word has 0 in its place, so
    words may be added later. Not for use from several threads.

    Args:
        width: words of a row, of 64 bits each.
    """

    def __init__(self, width: int = 1) -> None:
        self.size = 0
        self._bits = _SMALLEST
        self._attempt = 0
        self._multipliers = _multipliers(0)
        self._slots = np.full(1 << self._bits, -1, np.int32)
        self._words = [np.zeros(0, np.uint64) for _ in range(width)]
        # In the place of the slots, as long as all rows are of one word and close together.
        self._direct: DirectIndex | None = None
        self._tried_at = 0  # rows that the table had when this was looked at

    def __len__(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        direct = 0 if self._direct is None else self._direct.nbytes
        return int(self._slots.nbytes + direct + sum(words.nbytes for words in self._words))

    def words(self) -> list[Any]:
        """Return the words of all rows, by number; views that are valid until the next change."""
        return [words[: self.size] for words in self._words]

    def find(self, words: Sequence[Any]) -> tuple[Any, Any]:
        """Return the number of each row, and the indices of the rows that got a new number, ascending.

        Args:
            words: arrays of uint64 or LONG of one length, one for each word, of the same type in each call; None:
                this word is 0 in all rows, and has been in another call.
        """
        for word in words[len(self._words) :]:
            assert word is not None
            self._words.append(np.zeros(len(self._words[0]) if self._words else 0, word.dtype))
        if not next(len(word) for word in words if word is not None):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        if self._direct is None and self._are_numbers and self.size >= max(1, 2 * self._tried_at):
            self._go_direct()
        if self._direct is not None:
            direct = self._find_direct(words[0]) if self._are_numbers else None
            if direct is not None:
                return direct
            self._direct = None
            self._rebuild()
        slots = self._slots
        numbers, rows = self._look(words)
        new = []
        while len(rows):
            # As many as the table has room for: rows that repeat one key do not enlarge it.
            # Enlarging moves rows to other slots, so it happens between two pieces alone.
            piece = rows[: self._room(len(rows))]
            # Where the first slot has another key, the search goes on behind it.
            displaced = numbers[piece] >= 0 if self._slots is slots else False
            numbers[piece], added = self._probe(_picked(words, piece), len(piece), displaced)
            new.append(piece[added])
            rows = rows[len(piece) :]
            if len(rows) and len(added) < len(piece) * _NEW:
                # The keys of the piece are in many of the others.
                slots = self._slots
                numbers[rows], left = self._look(_picked(words, rows))
                rows = rows[left]
        return numbers, np.concatenate(new) if new else rows

    def _look(self, words: Sequence[Any]) -> tuple[Any, Any]:
        """Look rows up in their first slots, where most known ones are.

        Returns:
            what the slots have, and the indices of the rows that are not it, ascending.
        """
        # An empty slot is -1, which clip makes a place that exists; its row is wrong already.
        numbers = self._slots.take(self._places(words)).astype(np.int64)
        wrong = numbers < 0
        if self.size:
            for mine, theirs in zip(words, self._words, strict=True):
                wrong |= _differ(mine, theirs.take(numbers, mode="clip"))
        return numbers, np.flatnonzero(wrong)

    @property
    def _are_numbers(self) -> bool:
        """True if rows are single integers."""
        return len(self._words) == 1 and self._words[0].dtype != LONG

    def _go_direct(self) -> bool:
        """Give up the slots if the rows are close together; False: they are not."""
        self._tried_at = self.size
        self._direct = DirectIndex.of(self._words[0][: self.size])
        if self._direct is None:
            return False
        self._bits = _SMALLEST
        self._slots = np.full(1 << self._bits, -1, np.int32)
        return True

    def _find_direct(self, words: Any) -> tuple[Any, Any] | None:
        assert self._direct is not None
        found = self._direct.find(words, self.size)
        if found is not None and len(new := found[1]):
            end = self.size + len(new)
            self._reserve(end)
            self._words[0][self.size : end] = words[new]
            self.size = end
        return found

    def _room(self, rows: int) -> int:
        """Return how many rows may be added, after the table has been enlarged where that are few.

        Args:
            rows: how many are to be found, and may be new.
        """
        least = max(256, self.size // 8, rows // _ROWS_A_ROOM)
        if (len(self._slots) // _SLOTS_A_ROW) - self.size < least:
            while (1 << self._bits) // _SLOTS_A_ROW - self.size < least:
                self._bits += 1
            self._rebuild()
        return len(self._slots) // _SLOTS_A_ROW - self.size

    def _probe(self, words: Sequence[Any], count: int, displaced: Any) -> tuple[Any, Any]:
        """Find rows and add those that are nowhere.

        Args:
            words: of the rows.
            count: how many these are.
            displaced: by row, or for all, whether the row is known not to be in its first place, which is taken.
        """
        base = self.size
        # Rows of this batch are compared like those of the table: they are behind them for now.
        self._reserve(base + count)
        kept, slots = self._words, self._slots
        mask = len(slots) - 1
        for mine, theirs in zip(words, kept, strict=True):
            theirs[base : base + count] = np.zeros((), theirs.dtype) if mine is None else mine
        # Linear probing: each round takes one slot for each row that has no number yet.
        numbers = np.empty(count, np.int64)
        rows = np.arange(base, base + count)
        places = (self._places(words) + displaced) & mask
        claimed_rows, claimed_places = [], []
        while len(rows):
            empty = np.flatnonzero(slots.take(places) < 0)
            if len(empty):
                # The first row of a key wins, as it is written last.
                wanted, claims = places[empty], rows[empty]
                slots[wanted[::-1]] = claims[::-1]
                won = slots.take(wanted) == claims
                claimed_rows.append(claims[won])
                claimed_places.append(wanted[won])
            found = slots.take(places)
            right = np.ones(len(rows), bool)
            for theirs in kept:
                right &= ~_differ(theirs.take(rows), theirs.take(found))
            done = np.flatnonzero(right)
            numbers[rows[done] - base] = found[done]
            wrong = np.flatnonzero(~right)
            rows = rows[wrong]
            places = (places[wrong] + 1) & mask
        if not claimed_rows:
            return numbers, np.zeros(0, np.int64)
        # Rows that won a slot become rows of the table, in the order of their first appearance. Slots and numbers
        # have had places of the batch so far.
        new, at = np.concatenate(claimed_rows), np.concatenate(claimed_places)
        order = new.argsort(kind="stable")
        new, at = new[order], at[order]
        added = len(new)
        of_row = np.zeros(count, np.int64)
        of_row[new - base] = np.arange(base, base + added)
        for theirs in kept:
            theirs[base : base + added] = theirs[new]
        slots[at] = np.arange(base, base + added, dtype=np.int32)
        fresh = np.flatnonzero(numbers >= base)
        numbers[fresh] = of_row[numbers[fresh] - base]
        self.size = base + added
        return numbers, new - base

    def retain(self, live: Any) -> Any:
        """Forget rows and number the others anew, in the same order.

        Args:
            live: array of bool by number.

        Returns:
            the new number by old number; -1 for those forgotten.
        """
        kept = np.flatnonzero(live)
        renumbered = np.full(self.size, -1, np.int64)
        renumbered[kept] = np.arange(len(kept))
        self._words = [words[kept] for words in self._words]
        self.size = len(kept)
        # From the smallest size on, so that slots take no more memory than the rows that are left need.
        self._bits, self._direct = _SMALLEST, None
        if not (self.size and self._are_numbers and self._go_direct()):
            self._rebuild()
        return renumbered

    def _places(self, words: Sequence[Any]) -> Any:
        hashed, used = None, 0
        # Words that are 0, or lack, change nothing; the others keep their multipliers.
        for word, kept in zip(words, self._words, strict=True):
            for half in () if word is None else _halves(word):
                product = half * self._multipliers[used % _MULTIPLIERS]
                if used:
                    # A product has nothing of the highest bits but in its own highest ones: keys that differ in
                    # these alone, in several words, would share a few places, whatever the multipliers are.
                    high = half >> np.uint64(32)
                    high *= self._multipliers[(used + 1) % _MULTIPLIERS]
                    product += high
                hashed = product if hashed is None else np.add(hashed, product, out=hashed)
                used += 2
            if word is None:
                used += kept.itemsize // 4
        assert hashed is not None
        hashed >>= np.uint64(64 - self._bits)
        return hashed.view(np.int64)

    def _reserve(self, rows: int) -> None:
        has = len(self._words[0])
        if rows > has:
            capacity = max(rows, has + has // 2, 1024)
            for index, words in enumerate(self._words):
                grown = np.zeros(capacity, words.dtype)
                grown[: self.size] = words[: self.size]
                self._words[index] = grown

    def _rebuild(self) -> None:
        while self.size * (_SLOTS_A_ROW + 2) > 1 << self._bits:
            self._bits += 1
        # Of successive numbers some multipliers make long runs of taken slots: one process in five would be
        # several times slower, and a few would hardly go on.
        for tried in range(_TRIES):
            most = _FEW if tried < _SEARCHES else _AS_RANDOM
            # The last try takes what it gets: the table works with any multipliers, only slower.
            if self._fill(int(most * self.size) + 64 if tried < _TRIES - 1 else None):
                break
            self._attempt = (self._attempt + 1) % _TRIES
            self._multipliers = _multipliers(self._attempt)

    def _fill(self, most: int | None) -> bool:
        """Put the rows into their slots; False: they would be displaced by more than ``most`` slots together."""
        self._slots = slots = np.full(1 << self._bits, -1, np.int32)
        mask, displaced = len(slots) - 1, 0
        step = 1 << 17
        for start in range(0, self.size, step):
            numbers = np.arange(start, min(start + step, self.size), dtype=np.int32)
            places = self._places([words[start : start + len(numbers)] for words in self._words])
            while len(numbers):
                # Early rows, which are frequent ones more often, get the first places: they are written last.
                empty = np.flatnonzero(slots.take(places) < 0)[::-1]
                slots[places[empty]] = numbers[empty]
                placed = slots.take(places) == numbers
                numbers = numbers[~placed]
                places = (places[~placed] + 1) & mask
                displaced += len(numbers)
                if most is not None and displaced > most:
                    return False
        return True
