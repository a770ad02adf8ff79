"""Test that columns return what was put in, for any values and ends of blocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairbench.engine.logs import ROWS_PER_BLOCK, IntegerTable

# limits of narrower types, and values that a float could not hold
EDGES = [edge + off for b in (7, 15, 31, 53, 62) for edge in (2**b, -(2**b)) for off in (-1, 0, 1)]
VALUES = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 300) | st.sampled_from(EDGES)


@given(st.lists(st.tuples(VALUES, VALUES), max_size=20), st.integers(1, 7))
def test_every_value_comes_back_in_the_order_of_the_rows(rows, rows_per_block):
    table = IntegerTable(("a", "b"))
    table._block_bytes = 16 * rows_per_block
    for number, row in enumerate(rows, start=1):
        table.append(*row)
        assert len(table) == number
    for name, expected in zip("ab", ([a for a, _ in rows], [b for _, b in rows]), strict=True):
        column = table.column(name)
        assert column.dtype == np.int64
        assert column.tolist() == expected


def test_rows_follow_after_a_column_was_read():
    table = IntegerTable(("a",))
    table.append(1)
    assert table.column("a").tolist() == [1]
    table.append(-1)
    assert table.column("a").tolist() == [1, -1]


def test_full_blocks_are_kept_in_the_narrowest_integers():
    table = IntegerTable(("status", "time"))
    for number in range(ROWS_PER_BLOCK):
        table.append(number % 3, number * 10**9)
    status, time = table.blocks.parts
    assert [part.dtype for part in status] == [np.int8]
    assert [part.dtype for part in time] == [np.int64]
    assert not table._block
