"""Test which axes the names of a sweep's cells have, and the lines over each axis."""

import pytest

from fairbench.results.comparison import SchedulerResults
from fairbench.results.sweeps import axes_of


def cells(*names):
    """Return cells from ``PLACE | SCHEDULER`` texts."""
    return [SchedulerResults(*name.split(" | "), (), {}) for name in names]


def lines(*names):
    """Return the axes as ``{axis: {"PLACE | SCHEDULER": values}}``."""
    return {
        axis.name: {
            f"{line.place} | {line.scheduler}": [value for value, _ in line.points]
            for line in axis.lines
        }
        for axis in axes_of(cells(*names))
    }


def test_replicas_are_an_axis_with_a_line_for_each_scheduler():
    names = [f"tot s1 dp {dp} | {one}" for dp in (4, 1, 2) for one in ("vtc", "d2lpm")]
    assert lines(*names) == {"dp": {"tot s1 | vtc": [1, 2, 4], "tot s1 | d2lpm": [1, 2, 4]}}


def test_a_load_is_an_axis_in_each_configuration():
    names = [f"{work} s1 dp 2 request_rate={r} | vtc" for work in ("tot", "chat") for r in (2.5, 1)]
    assert lines(*names) == {
        "request_rate": {"tot s1 dp 2 | vtc": [1, 2.5], "chat s1 dp 2 | vtc": [1, 2.5]}
    }


def test_a_parameter_is_an_axis_and_other_schedulers_are_constant():
    names = [f"chat none dp 1 | dlpm dlpm.quantum={value}" for value in (500, 1e-05, 8000)]
    assert lines(*names, "chat none dp 1 | lpm") == {
        "dlpm.quantum": {
            "chat none dp 1 | dlpm": [1e-05, 500, 8000],
            "chat none dp 1 | lpm": [1e-05, 8000],
        }
    }


def test_two_axes_have_lines_each():
    names = [f"tot s1 dp {dp} clients={n} | vtc" for dp in (1, 2) for n in (4, 8, 16)]
    found = lines(*names)
    assert found["dp"] == {f"tot s1 clients={n} | vtc": [1, 2] for n in (4, 8, 16)}
    assert found["clients"] == {f"tot s1 dp {dp} | vtc": [4, 8, 16] for dp in (1, 2)}


@pytest.mark.parametrize(
    "names",
    [
        ["tot s1 dp 1 clients=4 x=60.0 | vtc", "tot s1 dp 1 clients=8 x=90.0 | vtc"],
        ["tot s1 prefill 1 decode 2 | vtc", "tot s1 prefill 2 decode 4 | vtc"],
        ["a b dp 1 | x x.one=1 x.two=3", "a b dp 1 | x x.one=2 x.two=9"],
    ],
)  # fmt: skip
def test_keys_that_vary_together_are_one_axis(names):
    (axis,) = lines(*names).values()
    assert [len(values) for values in axis.values()] == [2]


@pytest.mark.parametrize(
    "names",
    [
        ["tot s1 dp 1 | vtc", "tot s2 dp 1 | vtc"],
        ["tot s1 dp 1 | vtc vtc.lift=paper", "tot s1 dp 1 | vtc vtc.lift=code"],
        ["tot s1 dp 1 request_rate=inf | vtc", "tot s1 dp 1 request_rate=2.0 | vtc"],
        ["tot s1 dp 1 x=true | vtc", "tot s1 dp 1 x=false | vtc"],
        ["tot s1 dp 1 | vtc", "chat s1 dp 2 | vtc"],
        ["tot s1 dp 1 | vtc"],
    ],
)
def test_words_and_single_values_are_no_axis(names):
    assert lines(*names) == {}


@pytest.mark.parametrize(
    ("values", "is_log", "ticks"),
    [
        ([1, 2, 4], False, [1, 2, 4]),
        ([1, 2, 4, 8], True, [1, 2, 4, 8]),
        ([0, 1, 50], False, []),
        ([0, 25, 50], False, [0, 25, 50]),
        ([1, 1.01, 100], True, []),
    ],
)
def test_values_far_apart_are_logarithmic_and_close_ones_have_no_tick_each(values, is_log, ticks):
    (axis,) = axes_of(cells(*(f"tot s1 dp 1 x={value} | vtc" for value in values)))
    assert (axis.is_log, axis.ticks) == (is_log, ticks)


def test_a_constant_line_is_as_long_as_the_lines_of_its_own_configuration():
    names = [f"chat s1 dp 1 | dlpm dlpm.quantum={value}" for value in (10, 20)]
    names += [f"tot s1 dp 1 | dlpm dlpm.quantum={value}" for value in (300, 400)]
    found = lines(*names, "chat s1 dp 1 | lpm", "tot s1 dp 1 | lpm")["dlpm.quantum"]
    assert found["chat s1 dp 1 | lpm"] == [10, 20]
    assert found["tot s1 dp 1 | lpm"] == [300, 400]
