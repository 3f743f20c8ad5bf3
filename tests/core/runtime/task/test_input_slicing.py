"""Parts of batches: long steps are cut where that makes them shorter."""

from __future__ import annotations

import random

import pytest

from sluiceway.runtime.task.input_slicing import InputSlicer

_BATCH = 4096


def _sizes(fixed_s: float, of_each_s: float, *, noise: float = 0.0, made: int = 1, steps: int = 300) -> list[int]:
    """Return the sizes of steps that take so long by themselves, and for each record."""
    chance, slicer, sizes = random.Random(4), InputSlicer(_BATCH), []
    for _ in range(steps):
        sizes.append(size := min(slicer.size, _BATCH))
        slicer.learn(size, size * made, (fixed_s + of_each_s * size) * (1 + noise * chance.random()))
    return sizes


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("fixed_s", [0.0, 0.02, 0.05, 0.09, 0.15, 3.0])
def test_steps_that_take_long_whatever_their_size_get_full_batches(fixed_s: float, noise: float) -> None:
    sizes = _sizes(fixed_s, 0.0, noise=noise)
    assert sum(sizes[-100:]) > 75 * _BATCH


@pytest.mark.parametrize(("of_each_s", "least", "most"), [(1e-4, 128, 1000), (1e-2, 2, 10), (0.2, 1, 2)])
def test_steps_whose_records_take_long_are_cut(of_each_s: float, least: int, most: int) -> None:
    sizes = _sizes(0.0, of_each_s)[10:]
    assert least <= min(sizes) <= max(sizes) <= most


@pytest.mark.parametrize("fixed_s", [0.01, 0.05, 0.15, 1.0])
def test_records_take_no_longer_than_what_is_fixed_or_a_tenth_of_a_second(fixed_s: float) -> None:
    last = max(_sizes(fixed_s, 1e-3)[10:])
    assert max(0.1, 2 * fixed_s) / 8 < fixed_s + 1e-3 * last < 1.4 * max(0.1, 2 * fixed_s)


def test_records_that_make_many_are_cut_however_short_the_step() -> None:
    assert max(_sizes(0.0, 1e-9, made=1000)[10:]) <= 2 * _BATCH // 1000


def test_a_fixed_part_that_begins_later_cuts_for_a_few_steps_alone() -> None:
    slicer = InputSlicer(_BATCH)
    for took in [0.001] * 20 + [0.3] * 20:
        slicer.learn(min(slicer.size, _BATCH), 1, took)
    assert slicer.size >= _BATCH
