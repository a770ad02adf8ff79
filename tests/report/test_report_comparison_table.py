"""Test the table of a comparison: its marks and its width."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.report.comparison_table import comparison_columns, comparison_text
from fairbench.report.numbers import WRITERS
from fairbench.results.comparison import SchedulerResults, compare
from tests.results.comparison_helpers import stored
from tests.strategies import examples


def rows(text):
    """Return the words of each line that begins with a scheduler, by scheduler."""
    lines = [line.split() for line in text.split("\n") if re.match(r"  \w", line)]
    return {line[0]: line[1:] for line in lines}


def cells(folder, **by_scheduler):
    """Return runs of one seed each. They replay a trace, so their values are exact."""
    runs = [
        stored(folder, {"scheduler": name}, **{"trace": "t.csv"} | values)
        for name, values in by_scheduler.items()
    ]
    return compare(runs, {})


def test_with_one_seed_nothing_is_marked(tmp_path):
    drawn = {"trace": "", "victim_p50_s": 9.0}
    text = comparison_text(cells(tmp_path, lpm=drawn, vtc=drawn | {"victim_p50_s": 1.0}))
    assert "nothing is marked" in text
    assert not re.search(r"\d[*!]", text)


def test_one_seed_of_random_traffic_is_not_marked_as_a_replay(tmp_path):
    drawn = {"synthetic": "times and lengths are drawn from measured windows"}
    text = comparison_text(cells(tmp_path, lpm=drawn, vtc=drawn | {"victim_p50_s": 1.0}))
    assert "nothing is marked" in text


def test_the_best_and_the_worst_of_a_configuration_are_marked(tmp_path):
    text = comparison_text(
        cells(
            tmp_path,
            lpm={"service_rate_tok_s": 10_000.0, "victim_p50_s": 9.0},
            vtc={"service_rate_tok_s": 20_000.0, "victim_p50_s": 5.0},
            dlpm={"service_rate_tok_s": 30_000.0, "victim_p50_s": 7.0},
        )
    )
    found = {name: (row[2], row[5]) for name, row in rows(text).items()}
    assert found == {
        "lpm": ("10,000!", "9.00!"),
        "vtc": ("20,000", "5.00*"),
        "dlpm": ("30,000*", "7.00"),
    }


def test_equal_printed_values_are_marked_alike(tmp_path):
    text = comparison_text(
        cells(
            tmp_path,
            lpm={"victim_p50_s": 5.001, "jain_index_actual": 0.5001},
            vtc={"victim_p50_s": 5.002, "jain_index_actual": 0.5002},
            dlpm={"victim_p50_s": 6.0, "jain_index_actual": 0.5003},
        )
    )
    assert {name: (row[4], row[5]) for name, row in rows(text).items()} == {
        "lpm": ("0.500", "5.00*"),
        "vtc": ("0.500", "5.00*"),
        "dlpm": ("0.500", "6.00!"),
    }


def test_bounds_are_written_as_bounds(tmp_path):
    text = comparison_text(
        cells(
            tmp_path,
            lpm={"victim_p99_s": 8.0, "censored": ["victim_p99_s"]},
            vtc={"victim_p99_s": 9.0, "censored": ["victim_p99_s"]},
            dlpm={"victim_p99_s": 7.0},
        )
    )
    assert {name: " ".join(row[6:-1]) for name, row in rows(text).items()} == {
        "lpm": "> 8.00!",
        "vtc": "> 9.00!",
        "dlpm": "7.00*",
    }


@pytest.mark.parametrize(
    ("cohorts", "tail", "value"), [((300, 301), 99, "9.00"), ((299, 301), 95, "6.00")]
)
def test_one_high_percentile_is_shown_that_every_run_has(tmp_path, cohorts, tail, value):
    latencies = {"victim_p95_s": 6.0, "victim_p99_s": 9.0}
    lpm, vtc = ({**latencies, "victim_n": n} for n in cohorts)
    text = comparison_text(cells(tmp_path, lpm=lpm, vtc=vtc))
    assert f"P{tail}" in text
    assert f"P{194 - tail}" not in text  # neither for latencies nor for the sharing incentive
    assert [row[6] for row in rows(text).values()] == [value, value]


def test_demand_limited_configurations_are_marked(tmp_path):
    text = comparison_text(cells(tmp_path, lpm={}, vtc={"demand_limited": True}))
    assert "\nchat s1 dp 1 ~\n" in text
    assert "~ Queues were empty for more than 5% of the time, so service partly" in text
    assert "~" not in comparison_text(cells(tmp_path / "other", lpm={}))


def test_a_hidden_backlog_is_named(tmp_path):
    hidden = {"queue_empty_share": 0.8, "lone_tpot_ratio": 9.0}
    text = " ".join(comparison_text(cells(tmp_path, lpm={}, vtc=hidden)).split())
    assert "Hidden backlog in chat s1 dp 1 vtc: the scheduler has nothing to order" in text
    assert "idden" not in comparison_text(cells(tmp_path / "other", lpm={}))


def test_simulated_and_measured_runs_are_distinguished(tmp_path):
    text = comparison_text(cells(tmp_path / "1", lpm={}))
    assert "\n\nsimulated on gpu/model/tp1/x, seed 0\n" in text
    measured = cells(tmp_path / "2", lpm={"simulated": False, "timing_profile": None})
    assert "\n\nmeasured on real servers, seed 0\n" in comparison_text(measured)
    both = compare([*(one.runs[0].run for one in measured), stored(tmp_path, {})], {})
    assert "measured on real servers; simulated on gpu/model/tp1/x, seed 0\n" in comparison_text(
        both
    )


def test_intervals_are_below_the_means(tmp_path):
    runs = [
        stored(tmp_path, {"seed": seed}, victim_p50_s=value)
        for seed, value in enumerate((5.1, 4.9))
    ]
    lines = comparison_text(compare(runs, {})).split("\n")
    assert "2 seeds: mean and 95% interval (Student's t)" in lines[2]
    at = next(number for number, line in enumerate(lines) if line.startswith("  d2lpm"))
    assert " 5.00 " in lines[at]
    assert lines[at + 1].split() == ["3.73-6.27"]  # all other values are equal in both seeds


def test_an_unfinished_sweep_counts_seeds_and_marks_no_unequal_seeds(tmp_path):
    finished = [("lpm", 0, 9.0), ("vtc", 0, 5.0), ("dlpm", 0, 1.0), ("dlpm", 1, 2.0)]
    runs = [
        stored(tmp_path, {"scheduler": name, "seed": seed}, victim_p50_s=value)
        for name, seed, value in finished
    ]
    points = {
        run.manifest["spec_identity"]: f"chat s1 dp 1, {name}, seed {seed}"
        for run, (name, seed, _) in zip(runs, finished, strict=True)
    }
    points |= {name: f"chat s1 dp 1, {name}, seed 1" for name in ("lpm", "vtc")}
    text = comparison_text(compare(runs, {}, points))
    assert "Only 4 of 6 points are finished. Configurations whose" in text
    assert not re.search(r"\d[*!]", text)
    lines = text.split("\n")
    counts = {
        line.split()[0]: set(lines[at + 1].split())
        for at, line in enumerate(lines)
        if re.match(r"  \w", line)
    }
    assert counts == {"lpm": {"(1/2)"}, "vtc": {"(1/2)"}, "dlpm": {"0.00-7.85"}}
    single = [(run, name) for run, name in zip(runs, ("lpm", "", "", "dlpm"), strict=True) if name]
    other = compare([run for run, _ in single], {})
    assert comparison_text(other).startswith("No scheduler has a significantly lower P")


def interval(mean):
    spread = {"mean": mean, "low": mean * 0.9, "high": mean * 1.1, "runs": 3}
    single = {"mean": mean, "low": None, "high": None, "runs": 1}
    return st.sampled_from([None, spread, spread | {"lower_bound": True}, single])


def combined(mean):
    profile = "a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10"
    shared = {"simulated": True, "timing_profile": profile, "seeds": [0, 1, 2]}
    return st.fixed_dictionaries(
        {column.key: interval(mean) for column in comparison_columns()}
    ).map(lambda metrics: shared | metrics)


@examples(40)
@given(st.floats(1e-3, 1e7).flatmap(combined), st.text("abc.=", min_size=1, max_size=90))
def test_the_table_fits_and_cuts_no_number(metrics, label):
    text = comparison_text([SchedulerResults("tot s1 dp 16", label, (), metrics)])
    assert max(map(len, text.split("\n"))) <= 100
    assert "…" not in text
    for column in comparison_columns():
        found = metrics[column.key]
        if found and column.dropped is None and "lower_bound" not in found:
            assert WRITERS[column.form](found["mean"]) in text


@pytest.mark.parametrize("colour", [True, False])
def test_colours_appear_only_if_requested(tmp_path, colour):
    text = comparison_text(cells(tmp_path, lpm={}, vtc={"victim_p50_s": 9.0}), colour=colour)
    assert ("\x1b[" in text) == colour


def test_runs_on_real_servers_are_named_and_have_no_sharing_incentive(tmp_path):
    measured = {"simulated": False, "served": "sglang 0.5.23, m", "timing_profile": None}
    found = cells(tmp_path, vtc=measured, lpm={**measured, "served": "sglang 0.5.23, own lpm"})
    text = comparison_text(found)
    basis = "measured on sglang 0.5.23, m; measured on sglang 0.5.23, own lpm, seed 0"
    assert basis in text.split("\n")
    assert "haring" not in text
    assert [row[0] for row in rows(text).values()] == ["30.0", "30.0"]
    notes = found[0].runs[0].summary["notes"]
    assert notes["sharing_incentive_p99"].startswith("only for simulated runs")
    emulated = {"simulated": False, "emulated": True}
    text = comparison_text(cells(tmp_path / "emulated", vtc=emulated))
    assert "\n\nemulated on gpu/model/tp1/x, seed 0\n" in text
