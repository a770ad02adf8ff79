"""Test small charts: positions of marks, ticks, and values that are only bounds."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.censored_latency import Sample
from fairbench.report.pages.chart import (
    LEFT,
    RIGHT,
    WIDTH,
    Dot,
    DotRow,
    Scale,
    Series,
    dot_chart,
    line_chart,
    log_range,
)
from fairbench.report.pages.run_page import _distribution


def points(svg):
    """Return the points of each line."""
    return [
        [tuple(map(float, pair.split(","))) for pair in found.split()]
        for found in re.findall(r'<polyline points="([^"]*)"', svg)
    ]


def test_scales_equal_hand_computed_positions():
    linear = Scale(0, 10, 100, 200)
    assert [linear.pixel_of(value) for value in (0, 5, 10)] == [100, 150, 200]
    log = Scale(1, 100, 0, 200, log=True)
    assert [log.pixel_of(value) for value in (1, 10, 100)] == [0, 100, 200]
    assert (log.pixel_of(0.1), log.pixel_of(1e9)) == (0, 200)  # exactly on the edge


def test_ticks_equal_hand_computed_values():
    assert Scale(0, 10, 0, 1).ticks() == [0, 2, 4, 6, 8, 10]
    assert Scale(0, 1, 0, 1).ticks() == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert Scale(0.5, 30, 0, 1, log=True).ticks() == [0.5, 1, 2, 5, 10, 20]
    assert Scale(250, 1050, 0, 1, log=True).ticks() == [300, 500, 700, 1000]
    assert Scale(0.001, 90, 0, 1, log=True).ticks() == [0.001, 0.01, 0.1, 1, 10]


@given(st.floats(1e-3, 1e9), st.floats(1e-3, 1e9))
def test_ticks_are_few_and_within_the_range(one, length):
    for scale in (
        Scale(one, one + length, 0, 1),
        Scale(*log_range([one, one + length]), 0, 1, True),
    ):
        ticks = scale.ticks()
        assert ticks == sorted(set(ticks))
        assert len(ticks) <= 14
        slack = 0.01 * (scale.high - scale.low)
        assert all(scale.low - slack <= tick <= scale.high + slack for tick in ticks)


def test_lines_go_from_corner_to_corner():
    svg = line_chart(
        "t", [Series("a", [0, 5, 10], [0, 0.5, 1])], x_label="", y_label="", percent=True
    )
    ((start, middle, end),) = points(svg)
    assert (start[0], end[0]) == (LEFT, WIDTH - RIGHT)
    assert middle == pytest.approx(((start[0] + end[0]) / 2, (start[1] + end[1]) / 2))
    assert end[1] < start[1]  # the line rises
    assert ">100%<" in svg


def test_every_line_looks_different():
    svg = line_chart("t", [Series(n, [1, 2], [0, 1]) for n in "abcdef"], x_label="", y_label="")
    drawn = re.findall(r"<polyline [^>]*(style=.*?)/>", svg)
    assert len(set(drawn)) == 6
    assert len({re.search(r"dasharray[^/]*", look + "dasharray")[0] for look in drawn}) == 6


def marks(svg):
    """Return x and the shape of every mark."""
    found = re.findall(
        r'<g class="mark" transform="translate\((\S+) \S+\)" style="(.*?)">(.*?)</g>', svg
    )
    return [(float(x), style, shape) for x, style, shape in found]


def test_a_bound_is_an_open_mark_with_an_arrow_towards_possible_values():
    rows = [DotRow("tot", [Dot(0, 1.0), Dot(0, 10.0, ">"), Dot(1, 0.1, "<")])]
    exact, lower, upper, *keys = marks(
        dot_chart("t", {"lpm": 0, "vtc": 1}, rows, x_label="x", reference=1.0)
    )
    assert upper[0] < exact[0] < lower[0]
    assert "fill:none" in lower[1]
    assert "fill:none" not in exact[1]
    assert len(lower[2]) > len(exact[2])
    assert lower[2] != upper[2]
    assert len(keys) == 2  # a mark in the legend


def test_a_distribution_counts_unfinished_programs():
    sample = Sample(np.array([3.0, 1.0]), np.array([9.0]), refused=1)
    assert _distribution(sample) == ([1.0, 3.0], [0.25, 0.5])


def test_a_long_distribution_is_thinned_but_keeps_its_ends():
    x, y = _distribution(Sample(np.arange(1.0, 10_001.0), np.array([]), 0))
    assert len(x) == 150
    assert (x[0], x[-1], y[0], y[-1]) == (1.0, 10_000.0, 1e-4, 1.0)
