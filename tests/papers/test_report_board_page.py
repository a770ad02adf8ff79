"""Test the leaderboard page: its answer, its pictures, and labels that never overlap."""

import re
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from fairbench.report.pages.html import as_html
from fairbench.report.pages.page import Figure
from fairbench_papers.board import BoardLine, make_board
from fairbench_papers.board_report import (
    LETTER_PX,
    TEXT_PX,
    Labelled,
    PlotAxis,
    board_page,
    folded_name,
    rank_chart,
)
from tests.strategies import examples

RATE, SHARE, P95 = "service_rate_tok_s", "min_entitlement_best_ratio", "victim_p95_s"


def board(shares, **more):
    """Return a board whose rows, by name, have a share in each of three seeds."""
    rest = {RATE: 100.0, P95: 9.0, "sharing_incentive_p95": 1.0, "victim_n": 60}
    rest |= {"timing_profile": "gpu/m", "simulated": True, "censored": [], "upper_bounds": []}
    lines = [
        BoardLine(
            "tot s1 dp 2", name, seed, rest | {"notes": {}, SHARE: share} | more.get(name, {})
        )
        for name, values in shares.items()
        for seed, share in enumerate(values)
    ]
    return make_board(lines)


def figures(page):
    return [block for one in page.sections for block in one.blocks if isinstance(block, Figure)]


def test_the_title_names_the_best_row_and_the_cards_name_its_cost():
    page = board_page(board({"slow": (0.5, 0.51, 0.5), "fair": (0.9, 0.91, 0.9)}, fair={RATE: 90}))
    assert page.title == "fair has the highest minimum fair share of best total: 90%"
    assert [(one.label, one.value) for one in page.headlines] == [
        ("1. fair", "90%"),
        ("2. slow", "50%"),
    ]
    assert page.headlines[0].note.startswith("service 90.0 tok/s; P95 9.00 s")
    assert page.headlines[1].note == "baseline"


def test_rows_that_differ_only_by_noise_share_the_title():
    page = board_page(board({"a": (0.5, 0.9, 0.6), "b": (0.6, 0.7, 0.8)}))
    assert page.title == (
        "b or a has the highest minimum fair share of best total: 70%, no significant difference"
    )


def test_a_row_far_from_the_others_is_named_below_the_picture():
    rows = {f"s{n}": (0.8 + n / 100,) * 3 for n in range(9)} | {"awful": (0.01,) * 3}
    (first, _) = figures(board_page(board(rows)))
    assert "Outside the picture or undefined: 10 awful." in first.caption
    assert "Coloured, because no other row is better in both: 1 s8" in first.caption
    assert re.findall(r'anchor="middle">(\d)<', first.svg) == [str(n) for n in range(1, 10)]


def test_names_are_escaped_and_undefined_values_are_dashes():
    page = as_html(board_page(board({"<b>": (0.5,) * 3, "c": (0.4,) * 3}, c={P95: None})))
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


@examples(60)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=16))
def test_labels_do_not_overlap(places):
    marks = [Labelled(f"{n}", *at) for n, at in enumerate(places)]
    svg = rank_chart("title", marks, PlotAxis("x"), PlotAxis("y"))
    found = re.findall(r'class="dot"/><text x="([\d.]+)" y="([\d.]+)" [^>]*>(\d+)<', svg)
    assert [label for *_, label in found] == [one.label for one in marks]
    boxes = [(float(x), float(y), LETTER_PX * len(label)) for x, y, label in found]
    for (x, y, wide), (x2, y2, wide2) in combinations(boxes, 2):
        assert abs(x - x2) > (wide + wide2) / 2 - 0.1 or abs(y - y2) > TEXT_PX - 0.1


def test_a_long_name_wraps_after_a_space_or_a_plus():
    assert folded_name("client-round-robin+equinox", 20) == "client-round-robin+\nequinox"
    assert folded_name("llm-d+fcfs behind dlpm by concurrency", 20) == (
        "llm-d+fcfs behind\ndlpm by concurrency"
    )
    assert folded_name("fcfs", 20) == "fcfs"
    assert folded_name("x" * 45, 20) == "\n".join(["x" * 20, "x" * 20, "x" * 5])
