"""Test that the leaderboard's page shows the numbers in its file of runs."""

import re
from itertools import combinations

import pytest

from fairbench_papers.board_report import TEXT_PX, Box
from fairbench_studies.kit.table_text import filled
from fairbench_studies.leaderboard import picture
from fairbench_studies.leaderboard import table as board


@pytest.mark.slow
def test_ranks_of_the_page_match_the_command():
    page = board.PAGE.read_text(encoding="utf-8")
    assert filled(page, {"leaderboard/ranks": board.ranks()}.get) == page
    assert "| 1 | `fair-finish` |" in page


@pytest.fixture(scope="module")
def points():
    return board.points(*(board.values(name) for name in (board.SHARE, board.SERVICE)))


def test_the_numbers_of_the_picture_are_the_lines_of_the_ranks(points):
    page = board.PAGE.read_text(encoding="utf-8")
    ranks = page.split("<!-- table: leaderboard/ranks -->")[1].split("<!-- end -->")[0]
    rows = [point.row for point in points if point.row in board.SHOWN]
    assert rows == re.findall(r"^\| [\d-]+ \| `(.*?)` \|", ranks, re.M) == list(board.SHOWN)


def test_every_mark_has_one_number_that_overlaps_no_other(points):
    numbers = []
    for view in (picture.WHOLE, picture.CLOSE):
        boxes = []
        for x, y, number, _ in picture.placed(points, view):
            wide = picture.DIGIT_POINTS * len(str(number))
            boxes.append(Box(x - wide / 2, y - TEXT_PX / 2, x + wide / 2, y + TEXT_PX / 2))
            numbers.append(number)
        assert not [pair for pair in combinations(boxes, 2) if pair[0].meets(pair[1])]
    outside = [n for n, point in enumerate(points, 1) if not picture.WHOLE.shows(point)]
    assert sorted(numbers + outside) == list(range(1, len(points) + 1))
    assert [points[number - 1].row for number in outside] == ["client-round-robin+rpm"]


def test_the_stored_picture_names_every_row(points):
    texts = re.findall(r">([^<>]+)</text>", picture.FIGURE.read_text(encoding="utf-8"))
    for number, point in enumerate(points, 1):
        assert picture.named(point) in texts
        assert str(number) in texts


def test_a_changed_file_changes_the_page():
    before, after = (f"<!-- table: a -->\n{what}\n<!-- end -->\n" for what in ("old", "new"))
    assert filled(before, {"a": "new\n"}.get) == after
