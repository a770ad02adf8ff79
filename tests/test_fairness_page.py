"""Test that the metrics compute the worked example of docs/concepts/fairness.md."""

from pathlib import Path

import numpy as np
import pytest

from fairbench.metrics.fairness import jain
from fairbench_studies.pages import fairness as plot

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "concepts" / "fairness.md").read_text(encoding="utf-8")


def test_the_table_of_the_page_is_that_of_the_metrics():
    demands, served, fair = plot.series().values()
    for client, *row in zip(plot.DEMANDS, demands, served, fair, strict=True):
        asked, got, due = row
        line = f"| `{client}` | {asked:,.0f} | {got:,.0f} | {due:,.0f} | {got / due:.0%} |"
        assert line in PAGE


def test_the_indices_of_the_page_match_the_metrics():
    _, served, fair = (np.array(values) for values in plot.series().values())
    indices = [jain(values) for values in (served, fair, served / fair)]
    assert indices == pytest.approx([0.566, 0.889, 0.667], abs=0.0005)
    assert all(f"{index:.3f}" in PAGE for index in indices)


def test_the_picture_of_the_page_is_current():
    assert plot.FIGURE.read_text(encoding="utf-8") == plot.drawn()
