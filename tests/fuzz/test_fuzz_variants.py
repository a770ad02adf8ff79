"""Test that the same records in another form give the same numbers."""

from tests.fuzz.fuzz_variants import attempts


def test_the_same_records_written_otherwise_are_the_same():
    ends, wrong = attempts(60, seed=1)
    assert wrong == []
    assert ends["right"] > 20
