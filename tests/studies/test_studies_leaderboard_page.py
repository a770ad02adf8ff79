"""The leaderboard's page says what its file of runs does."""

import pytest

from fairbench_studies.leaderboard import table as board


def test_its_places_are_those_of_the_file():
    found = [board.values(name) for name in (board.SHARE, board.SERVICE, board.LATENCY)]
    page = board.PAGE.read_text(encoding="utf-8")
    assert board.put(page, {"places": board.by_place(*found)}) == page
    assert page.count("% / ") == len(found[0]) * len(found[0]["fcfs"])


@pytest.mark.slow
def test_its_ranks_are_those_of_the_command():
    page = board.PAGE.read_text(encoding="utf-8")
    assert board.put(page, {"ranks": board.ranks()}) == page
    assert "| 1 | `fair-finish` |" in page


def test_a_changed_file_changes_the_page():
    before, after = (f"<!-- a -->\n{what}\n<!-- /a -->\n" for what in ("old", "new"))
    assert board.put(before, {"a": "new"}) == after
