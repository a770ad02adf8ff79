"""Test that the same records in another form give the same numbers."""

from tests.fuzz.fuzz_variants import attempts


def test_the_same_records_in_other_forms_give_the_same_numbers():
    ends, wrong = attempts(60, seed=1)
    assert wrong == []
    assert ends["right"] > 20
