"""Sizes of splits that keep all readers of a source busy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["MAX_SPLIT", "fitting_size", "least_size"]

MAX_SPLIT: Final = 32 * 1024 * 1024

# Smaller splits are not worth a request to the enumerator and the opening of a file, which costs a network round
# trip if files are not on a local disk.
_MIN_LOCAL: Final = 1024 * 1024
_MIN_REMOTE: Final = 8 * 1024 * 1024

# Readers finish at most one split apart: an eighth of a reader's share, if all splits take the same time.
_SPLITS_PER_READER: Final = 8


def fitting_size(sizes: Iterable[int], readers: int, least: int) -> int:
    """Return about how many bytes a split should have.

    Args:
        sizes: of the files that can be split, in bytes.
        readers: how many share them. With one the size is the largest one, as there is nobody to share with.
        least: no split should have fewer bytes.
    """
    if readers == 1:
        return MAX_SPLIT
    share = sum(sizes) // (readers * _SPLITS_PER_READER)
    return min(max(share, least), MAX_SPLIT)


def least_size(*, local: bool) -> int:
    """Return how many bytes of a split are worth it; ``local``: if opening a file is as cheap as on a disk."""
    return _MIN_LOCAL if local else _MIN_REMOTE
