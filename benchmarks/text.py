"""Text whose words are as often as Zipf found them: few often, many seldom."""

from __future__ import annotations

from itertools import accumulate
from random import Random

__all__ = ["zipf_lines"]

_SYLLABLES = [c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou"]
_WORDS_A_LINE = 10


def zipf_lines(lines: int, *, distinct: int = 50_000, seed: int = 1) -> list[str]:
    """The same lines for the same arguments: ten words each, the n-th most frequent word 1/n times the first."""
    random = Random(seed)
    vocabulary: dict[str, None] = {}
    while len(vocabulary) < distinct:
        vocabulary["".join(random.choices(_SYLLABLES, k=random.randint(1, 5)))] = None
    weights = list(accumulate(1 / rank for rank in range(1, distinct + 1)))
    words = random.choices(list(vocabulary), cum_weights=weights, k=lines * _WORDS_A_LINE)
    return [" ".join(words[i : i + _WORDS_A_LINE]) for i in range(0, len(words), _WORDS_A_LINE)]
