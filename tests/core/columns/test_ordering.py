"""Stable order by integers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.columns.keys.ordering import order_of

MAJOR = st.integers(0, 2**40) | st.integers(0, 2)
MINOR = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)


@given(st.lists(st.tuples(MAJOR, MINOR)))
def test_order_is_that_of_a_stable_sort(pairs):
    major, minor = (np.array([pair[at] for pair in pairs], np.int64) for at in (0, 1))
    assert order_of(major, minor).tolist() == sorted(range(len(pairs)), key=lambda at: pairs[at])
    assert order_of(major).tolist() == sorted(range(len(pairs)), key=lambda at: pairs[at][0])
