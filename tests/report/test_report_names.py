"""Test that names are cut to the width of a column, and stay distinct as far as possible."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.report.table import cut_apart


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["ann", "bob"], ["ann", "bob"]),
        (["12345678", "123456789"], ["12345678", "1234…789"]),
        (["acme-corp/ann", "zeta-corp/ann"], ["acme…ann", "zeta…ann"]),
        (["acme-corp/ml/ann", "acme-corp/ml/bob", "dan"], ["acme…ann", "acme…bob", "dan"]),
        (["aaaaaa-1-zzz", "aaaaaa-2-zzz", "baaaaa-1-zzz"], ["aaaa…zzz", "aaaa…zzz", "baaa…zzz"]),
        (["a-1-bbbbbb-c", "a-1-bbbbbb-d", "a-2-bbbbbb-c"], ["a-1-…b-c", "a-1-…b-d", "a-2-…b-c"]),
        ([], []),
    ],
)
def test_names_are_cut_where_they_differ_least(names, shown):
    assert list(cut_apart(names, 8).values()) == shown


@given(st.lists(st.text(max_size=30)), st.integers(2, 20))
def test_no_name_is_longer_than_the_column(names, width):
    shown = cut_apart(names, width)
    assert set(shown) == set(names)
    for name, text in shown.items():
        assert len(text) <= width
        assert text == name or "…" in text
