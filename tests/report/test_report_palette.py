"""Test that colours, marks and dashes differ, and agree between figures and pages."""

from itertools import combinations

import numpy as np
import pytest

from fairbench.report.palette import SCHEDULERS, SERIES, scheduler_series, style_sheet
from fairbench.schedulers.registry import PAIRS
from fairbench_papers.style import LABELS, client_style, scheduler_style

# The colour seen by a viewer who lacks one kind of cones, on linear RGB (Machado, Oliveira and
# Fernandes 2009, severity 1).
NO_CONES = {
    "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritan": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def to_rgb(colour):
    """Return ``#rrggbb`` as three numbers from 0 to 1."""
    return tuple(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))


def linear(colour):
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """Convert linear RGB to CIELAB, in which a perceived distance of 2.3 is just noticeable."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.clip(xyz @ np.clip(rgb, 0, 1), 1e-9, None) / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def apart(one, other, colours, cones):
    """Return the distance of two swatches for a viewer who lacks some cones."""
    see = np.array(NO_CONES[cones]) if cones else np.eye(3)
    a, b = (lab(see @ linear(getattr(swatch, colours))) for swatch in (one, other))
    return np.linalg.norm(a - b)


@pytest.mark.parametrize(("colours", "least"), [("colour", 16), ("on_dark", 11)])
@pytest.mark.parametrize("cones", [None, *NO_CONES])
def test_colours_stay_apart_for_colour_blind_readers(colours, least, cones):
    assert min(apart(*pair, colours, cones) for pair in combinations(SERIES, 2)) > least


@pytest.mark.parametrize("colours", ["colour", "on_dark"])
@pytest.mark.parametrize("cones", [None, *NO_CONES])
@pytest.mark.parametrize("other", sorted(SCHEDULERS.keys() - {"fair-finish"}))
def test_fair_finish_differs_clearly_from_every_other_scheduler(colours, cones, other):
    assert apart(SCHEDULERS["fair-finish"], SCHEDULERS[other], colours, cones) > 24


def test_marks_and_dashes_are_distinct_in_grey():
    for name in ("marker", "shape", "dashes"):
        assert len({getattr(one, name) for one in SERIES}) == len(SERIES)


def test_every_scheduler_has_its_own_look_in_figures():
    assert set(SCHEDULERS) == set(LABELS) <= set(PAIRS)
    styles = [scheduler_style(name) for name in SCHEDULERS]
    for values in zip(*styles, strict=True):
        assert len(set(values)) == len(styles)
    assert scheduler_style("mine").label == "mine"
    assert client_style(0).colour == SERIES[0].colour


def test_pages_give_schedulers_the_colours_of_the_figures():
    names = ["d2lpm", "dlpm", "dlpm dlpm.quantum=5000", "mine"]
    numbers = scheduler_series(names)
    assert [SERIES[number] for number in numbers[:2]] == [SCHEDULERS["d2lpm"], SCHEDULERS["dlpm"]]
    assert len(set(numbers)) == len(names)
    assert scheduler_series([f"s{n}" for n in range(9)]) == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    for number, swatch in enumerate(SERIES):
        assert f"--c{number}: {swatch.colour};" in style_sheet()
        assert f"--c{number}: {swatch.on_dark};" in style_sheet()
