"""Test that reports on hundreds of clients show a Lorenz curve, ratios and only the worst ten."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.catalogue import columns_of
from fairbench.metrics.metric import Display
from fairbench.report.client_table import (
    CROWD,
    Lorenz,
    counts_by_ratio,
    crowd_lines,
    lorenz,
    many_keys,
    shown_clients,
    worst_clients,
)
from fairbench.report.pages.run_page import _lorenz, _ratios, client_grid
from fairbench.report.result_lines import notes_of
from fairbench.report.run_table import repeat_lines, summary_text
from fairbench.results.significance import combine_summaries
from tests.report.test_report_table import CLIENT, SUMMARY
from tests.strategies import examples


def crowd(count=300, **changes):
    rows = [
        CLIENT
        | {
            "client": f"client-{number}",
            "misbehaving": number >= count - 10,
            "service_rate_tok_s": float(number),
            "entitlement_ratio": number / count,
        }
        | changes
        for number in range(count)
    ]
    return copy.deepcopy(SUMMARY) | {"clients": rows}


def test_lorenz_curves_equal_hand_computed_values():
    curve = lorenz([3.0, 1.0, 0.0, 4.0])
    assert curve == Lorenz([0, 0.25, 0.5, 0.75, 1], [0, 0, 0.125, 0.5, 1])
    assert curve.gini == pytest.approx(1 - 0.25 * (0 + 0.125 + 0.625 + 1.5))
    assert curve.of_smallest(0.625) == pytest.approx((0.125 + 0.5) / 2)
    assert lorenz([5.0, 5.0, 5.0]).gini == pytest.approx(0)
    assert lorenz([0.0] * 9 + [7.0]).gini == pytest.approx(0.9)
    assert lorenz([0.0, 0.0]) is None


def test_with_weights_entitlements_are_equal():
    assert lorenz([1.0, 4.0, 2.0], [1.0, 4.0, 2.0]).gini == pytest.approx(0)
    # a client of weight 2 equals two of weight 1
    split = lorenz([1.5, 1.5, 1.0], [1.0, 1.0, 1.0])
    whole = lorenz([3.0, 1.0], [2.0, 1.0])
    assert whole.gini == pytest.approx(split.gini)
    # by weight, the client with the larger amount has less
    split = lorenz([1.0, 1.0, 1.0, 2.0])
    assert lorenz([3.0, 2.0], [3.0, 1.0]).gini == pytest.approx(split.gini)
    assert lorenz([2.0, 3.0], [1.0, 3.0]).of_smallest(0.75) == pytest.approx(3 / 5)


@examples(30)
@given(st.lists(st.floats(0.01, 1e6), min_size=2, max_size=40))
def test_gini_is_the_mean_difference_of_two_clients_over_twice_the_mean(amounts):
    pairs = [abs(one - other) for one in amounts for other in amounts]
    expected = sum(pairs) / len(pairs) / (2 * sum(amounts) / len(amounts))
    assert lorenz(amounts).gini == pytest.approx(expected, abs=1e-9)


def test_every_ratio_is_in_exactly_one_range():
    found = dict(counts_by_ratio([0.0, 0.1, 0.25, 0.6, 0.89, 0.9, 0.99, 1.0, 1.7]))
    assert list(found.values()) == [2, 1, 1, 1, 1, 3]
    assert next(iter(found)) == "0% to 25%"
    assert list(found)[-1] == "99% and more"


def test_the_worst_clients_are_well_behaved_and_least_served():
    summary = crowd()
    for number, ratio in ((7, None), (8, 0.001), (295, 0.0)):
        summary["clients"][number]["entitlement_ratio"] = ratio
    summary["clients"][0]["programs"] = 0  # the client has no demand
    names = [row["client"] for row in worst_clients(summary, 4)]
    assert names == ["client-8", "client-1", "client-2", "client-3"]


def test_without_a_shortage_the_worst_clients_are_the_slowest():
    summary = crowd(40, entitlement_ratio=None)
    summary["clients"][3]["p99_s"] = 99.0
    summary["clients"][5]["p99_s"] = None
    assert [row["client"] for row in worst_clients(summary, 2)] == ["client-5", "client-3"]


@pytest.mark.parametrize("count", [CROWD, 300, 1000])
def test_the_table_of_many_clients_fits_a_page(count, tmp_path):
    summary = crowd(count)
    text = summary_text(summary, path=tmp_path)
    rows = [line for line in text.splitlines() if line.startswith("client-")]
    assert len(rows) == 10
    assert len(text.splitlines()) < 60
    assert f"clients     {count:,}, 10 of them heavy" in text
    assert "Gini index" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_few_clients_have_a_row_each(tmp_path):
    text = summary_text(crowd(CROWD - 1), path=tmp_path)
    assert sum(line.startswith("client-") for line in text.splitlines()) == CROWD - 1


def test_lines_give_the_numbers_of_each_client():
    lines = dict(crowd_lines(crowd(100)))
    total = 99 * 100 / 2
    half = 49 * 50 / 2
    assert f"/ {100 * half / total:.1f} /" in lines["smallest"]
    assert lines["largest"] == f"client-99 had {99 / total:.1%} of the service"
    assert lines["clients"] == "100, 10 of them heavy"


def test_with_several_runs_the_clients_worst_by_their_means_are_shown():
    runs = [crowd(40), crowd(40)]
    runs[1]["clients"][0]["entitlement_ratio"] = 0.9
    for seed, run in enumerate(runs):
        run |= {"seed": seed, "complete": True, "censored": []}
        run |= {column.key: None for column in columns_of(Display.REPEATS, 99)}
    combined = combine_summaries(runs)
    lines = list(repeat_lines(combined))
    rows = [line.strip() for line in lines if line.strip().startswith("client-")]
    assert len(rows) == 10
    assert rows[0].startswith("client-1,")
    assert "  clients: the 10 of 40 clients that are worst off" in lines
    assert all("  -" in line or "  0" in line for line in lines[2:] if "fair share" in line)
    assert not any("INCOMPLETE" in line for line in lines)
    ended = list(repeat_lines(combined | {"complete": False}))
    assert any(line.startswith("INCOMPLETE: ") for line in ended)
    few = combine_summaries([run | {"clients": run["clients"][:5]} for run in runs])
    assert shown_clients(few) == (few["clients"], "")


def test_notes_that_differ_only_in_numbers_are_one_line():
    reasons = {f"clients.client-{n}.p99_s": f"the {n} refused of {n + 30}" for n in range(1, 15)}
    summary = crowd(40) | {"notes": reasons, "service_gap_bound": 1}
    lines = list(notes_of(summary))
    assert lines == [("notes", "p99_s of 14 clients: the 1 refused of 31, for example")]


def test_notes_of_many_clients_appear_once():
    keys = ["jain_index", "client-1.p50_s", "client-2.p50_s", "client-2.p99_s", "x.y"]
    assert many_keys(keys, crowd(40)) == [
        "jain_index",
        "p50_s of 2 clients",
        "p99_s of 1 clients",
        "x.y",
    ]


def test_figures_show_each_range_and_both_curves():
    ratios = [0.1, 0.5, 0.95, 1.0, 1.0]
    svg = _ratios(ratios).svg
    assert svg.count("<rect") == 6
    assert "99% and more" in svg
    curve = lorenz([1.0, 2.0, 3.0])
    svg = _lorenz(curve, lorenz([2.0, 2.0, 2.0])).svg
    assert svg.count("<polyline") == 3
    assert "fair share (0.00)" in svg


def test_the_grid_of_a_page_can_show_a_selection_of_clients():
    summary = crowd()
    assert len(client_grid(summary, worst_clients(summary)).rows) == 10


def loads(*demands, **changes):
    """Return clients with these demands. None is marked heavy, and P99s grow with demand."""
    run = crowd(len(demands), misbehaving=False, entitlement_ratio=None, **changes)
    for row, demand in zip(run["clients"], demands, strict=True):
        row |= {"demand_tok_s": demand, "p99_s": demand / 10}
    return run


@pytest.mark.parametrize(
    ("demands", "last"),
    [
        ([10.0] * 39 + [4000.0], {"client-39"}),
        ([900.0] + [10.0] * 39 + [700.0], {"client-0", "client-40"}),
        ([10.0 + number for number in range(40)], set()),
        ([1.0] * 60 + [5.0], set()),  # five times the others, but a small part of the load
        ([10.0] * 15 + [31.0], {"client-15"}),  # 3.1 times the mean of the others
        ([10.0] * 15 + [29.0], set()),
    ],
)
def test_the_worst_off_never_begin_with_a_client_that_floods(demands, last):
    run = loads(*demands)
    listed = [row["client"] for row in worst_clients(run, len(demands))]
    assert set(listed[len(listed) - len(last) :]) == last or not last
    assert not last & {row["client"] for row in worst_clients(run)}
    if not last:
        assert listed[0] == f"client-{len(demands) - 1}"
    run["clients"][5]["misbehaving"] = True  # a flag says who is heavy
    assert worst_clients(run)[0]["p99_s"] == max(demands) / 10


def test_a_flood_over_several_runs_is_last_too():
    run = loads(*[10.0] * 39, 4000.0)
    for row in run["clients"]:
        row |= {key: {"mean": row[key]} for key in ("demand_tok_s", "p99_s")}
    assert worst_clients(run, 40)[-1]["client"] == "client-39"
