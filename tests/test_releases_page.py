"""Test that docs/reference/releases.md is what tests/release_record.py makes of the record."""

from tests.release_record import PAGE, page


def test_the_page_is_generated_from_the_record():
    assert PAGE.read_text(encoding="utf-8") == page()
