"""Test the positions of values in sorted order, which are found without a search for each value."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.bounds import sorted_positions

NUMBERS = st.lists(st.integers(-3, 9), max_size=12)


@given(NUMBERS, NUMBERS, st.booleans())
def test_positions_equal_those_of_single_searches(keys, values, ordered):
    found = np.unique(np.array(keys, dtype=np.int64))
    asked = np.array(sorted(values) if ordered else values, dtype=np.int64)
    assert sorted_positions(found, asked).tolist() == np.searchsorted(found, asked).tolist()
