"""Test the printed summary of a run."""

import copy
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.report.client_table import described
from fairbench.report.numbers import index, more_than, number, percent
from fairbench.report.pages.run_page import client_grid
from fairbench.report.run_table import summary_text
from fairbench.report.table import MAX_WIDTH
from fairbench.results.significance import combine_summaries

CLIENT = {
    "client": "client-0",
    "misbehaving": True,
    "programs": 312,
    "requests": 9_000,
    "service_rate_tok_s": 12_345.6,
    "actual_service_tok_s": 2_345.6,
    "entitlement_ratio": 0.961,
    "p50_s": 12.34,
    "p95_s": 60.14,
    "p99_s": 80.19,
    "latency_n": 299,
    "cache_hit_rate": 0.931,
}
SUMMARY = {
    "simulated": True,
    "timing_profile": "a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10",
    "scheduler": "d2lpm",
    "router": "d2lpm",
    "local": "dlpm",
    "workload": "tot",
    "scenario": "s1",
    "dp": 4,
    "seed": 0,
    "pool_tokens": 412_745,
    "mem_fraction_static": 0.83,
    "duration": 1_080.6,
    "service_rate_tok_s": 30_856.0,
    "output_throughput": 1.0,
    "output_rate_tok_s": 4_408.0,
    "extend_rate_tok_s": 4_396.0,
    "window_start_s": 60.0,
    "window_end_s": 300.0,
    "demand_limited": False,
    "jain_index": 0.8765,
    "jain_index_maxmin": 0.955,
    "jain_index_actual": 0.91,
    "jain_index_entitlement": 0.99,
    "jain_index_paper_window": 0.9,
    "paper_window_start_s": 17.0,
    "paper_window_end_s": 1108.0,
    "min_entitlement_ratio": 0.9,
    "victim_p50_s": 10.0,
    "victim_p95_s": 20.0,
    "victim_p99_s": 30.0,
    "victim_n": 120,
    "max_service_gap": 82_545.0,
    "service_gap_bound": 825_450.0,
    "service_gap_bound_s": 120.0,
    "bound_source": "D2LPM Theorem 5.1",
    "time_to_50pct_s": 211.4,
    "time_to_90pct_s": 305.0,
    "time_to_100pct_s": None,
    "num_requests": 27_000,
    "num_programs": 900,
    "completed": 26_990,
    "failed": 0,
    "unfinished": 7,
    "refused": 3,
    "clients": [CLIENT, CLIENT | {"client": "client-1", "misbehaving": False}],
    "censored": [],
    "notes": {},
}


def text(summary, **options):
    return summary_text(summary, path=Path("results/runs/x"), **options)


def test_the_contents_of_the_summary_of_a_run():
    assert text(SUMMARY) == (Path(__file__).parent / "summary.txt").read_text()


def weighted():
    """Return the same run with a client of weight 2.5."""
    clients = [CLIENT | {"weight": 2.5}, SUMMARY["clients"][1] | {"weight": 1.0}]
    return SUMMARY | {"clients": clients}


def test_weights_have_a_column_if_some_differ_from_1():
    plain, shown = text(SUMMARY).splitlines(), text(weighted()).splitlines()
    (heading,) = (line for line in shown if line.startswith("client "))
    assert heading.split()[2:4] == ["weight", "programs"]
    rows = [line.split() for line in shown if line.startswith("client-")]
    assert [row[2] for row in rows] == ["2.50", "1.00"]
    assert not any("weight" in line for line in plain)
    (jain,) = (line for line in shown if line.startswith("Jain"))
    assert "of service over weight (max-min fair" in jain
    assert "between two waiting clients, each over its weight;" in " ".join(" ".join(shown).split())
    grid = client_grid(weighted())
    at = grid.headings.index("weight")
    assert [row[at].text for row in grid.rows] == ["2.50", "1.00"]
    assert "weight" not in client_grid(SUMMARY).headings


def test_with_several_seeds_a_weight_follows_the_name():
    runs = [weighted() | {"seed": seed, "complete": True} for seed in (0, 1)]
    rows = combine_summaries(runs)["clients"]
    named = [described(row["client"], row) for row in rows]
    assert named == ["client-0 (heavy, weight 2.50)", "client-1 (weight 1.00)"]
    plain = combine_summaries([SUMMARY | {"complete": True}])["clients"]
    assert [described("x", row) for row in plain] == ["x (heavy)", "x"]


def with_nulls(summary):
    """Return the summary of a run in which no request arrived."""
    empty = copy.deepcopy(summary)
    for row in (empty, *empty["clients"]):
        for key, value in row.items():
            if isinstance(value, float) and key != "duration":  # a run always has a duration
                row[key] = None
    return empty


PRINTABLE = st.characters(exclude_categories=("C", "Z"), include_characters=" ")


@given(
    names=st.lists(st.text(PRINTABLE, min_size=1, max_size=60), min_size=1, max_size=5),
    large=st.integers(1, 10**6),
    nulls=st.booleans(),
    weights=st.booleans(),
    width=st.integers(60, MAX_WIDTH),
)
def test_no_line_is_too_wide(names, large, nulls, weights, width):
    summary = copy.deepcopy(SUMMARY)
    summary["clients"] = [
        CLIENT
        | ({"weight": 1e-6 * large} if weights else {})
        | {"client": name, "programs": large, "service_rate_tok_s": float(large), "p99_s": 9_999.0}
        for name in names
    ]
    summary["notes"] = {f"clients.{name}.p99_s": f"reason {name}" for name in names}
    summary["censored"] = [f"clients.{name}.p99_s" for name in names]
    shown = text(with_nulls(summary) if nulls else summary, width=width)
    assert all(cell_len(line) <= width for line in shown.split("\n"))
    assert "…" not in "".join(NAMELESS.findall(shown))


def test_clients_with_equal_beginnings_stay_distinct():
    summary = copy.deepcopy(SUMMARY)
    teams = [f"acme-corporation/machine-learning/user-{number}" for number in range(3)]
    summary["clients"] = [CLIENT | {"client": name} for name in teams]
    lines = [line.split()[0] for line in text(summary).split("\n") if "…" in line]
    assert lines == [f"acme-cor…/user-{number}" for number in range(3)]


NAMELESS = re.compile(r"(?<=  )[\d.,>%-]*…")  # a cut number


def test_an_undefined_value_is_a_dash_and_its_reason_a_note():
    summary = with_nulls(SUMMARY)
    summary["notes"] = {
        "jain_index": "no client was served",
        "jain_index_actual": "no client was served",
        "clients.client-1.p50_s": "no program arrived",
        "std_itl_ms": "not in the records",
        "time_to_90pct_s": "fewer than 90% finished",
    }
    shown = text(summary)
    assert "None" not in shown
    assert "nan" not in shown
    assert "jain_index, jain_index_actual: no client was served" in shown
    assert "client-1.p50_s: no program arrived" in shown
    assert "std_itl" not in shown  # the table does not show this value, so it needs no note
    assert "fewer than" not in shown  # shown as a lower bound
    assert "not defined; no bound\n" in shown
    assert not re.search(r"- (s|tok/s)\b", shown)


def test_unfinished_programs_took_longer_than_the_run():
    assert "after 211 / > 1,080 / > 1,080 s" in text(SUMMARY | {"time_to_90pct_s": None})


def test_a_missing_bound_has_its_reason_beside_it_and_not_among_the_notes():
    reason = "fcfs bounds no service difference"
    none = {"service_gap_bound": None, "service_gap_bound_s": None, "bound_source": None}
    for summary in (
        SUMMARY | none | {"notes": dict.fromkeys(none, reason)},
        {key: value for key, value in SUMMARY.items() if key != "bound_source"}
        | {"service_gap_bound": None, "notes": {"service_gap_bound": reason}},
    ):
        shown = text(summary)
        gap = "at most 82,545 computed tokens between two waiting clients"
        assert f"{gap}; no bound: {reason}" in " ".join(shown.split())
        assert " ".join(shown.split()).count(reason) == 1
        assert "\nnotes" not in shown


def test_a_bound_in_tokens_without_its_time_keeps_the_note():
    notes = {"service_gap_bound_s": "no client was served"}
    shown = text(SUMMARY | {"service_gap_bound_s": None, "notes": notes})
    assert "; D2LPM Theorem 5.1 allows at most 825,450 computed tokens completion" in " ".join(
        shown.split()
    )
    assert "notes  service_gap_bound_s: no client was served" in shown


def test_a_run_without_programs_is_noted_once():
    notes = {f"clients.{name}.p50_s": "no program arrived in the window" for name in "abc"}
    shown = text(with_nulls(SUMMARY) | {"num_programs": 0, "notes": notes})
    assert shown.split("\n")[3:] == [
        "",
        "No program arrived, so there is nothing to compare.",
        "",
        "files  results/runs/x",
        "",
    ]


@pytest.mark.parametrize("width", [60, 70, 80, 85, 100])
def test_a_narrow_terminal_lists_hidden_columns_below(width):
    lines = text(SUMMARY, width=width).split("\n")
    shown = [line.split() for line in lines if line.startswith("client  ")]
    assert len(shown) == (1 if width == 100 else 2)
    assert all(found[:2] == ["client", "behaviour"] for found in shown)
    names = [name for found in shown for name in found[2:]]
    assert sorted(names) == sorted(["programs", "tok/s", "tok/s", "share", *"sssn", "hit"])
    assert sum(line.startswith("client-1") for line in lines) == len(shown)


def test_a_percentile_among_the_unfinished_is_a_lower_bound():
    censored = ["clients.client-1.p95_s", "victim_p95_s"]
    shown = text(SUMMARY | {"censored": censored}).split("\n")
    rows = {line.split()[0]: line for line in shown if line.startswith(("client-", "well-"))}
    assert "> 60.1 " in rows["client-1"]  # the value is 60.14, so "more than 60.2" might be false
    assert ">" not in rows["client-0"]
    assert "P95 > 20.0 s, P99 30.0 s? (n = 120;" in rows["well-behaved"]


def test_the_gap_is_also_given_in_seconds_of_cluster_service():
    # If 825,450 tokens take 120 s, 82,545 take 12 s.
    shown = " ".join(text(SUMMARY).split())
    assert "82,545 computed tokens (12.0 s of the cluster's work) between two waiting" in shown
    assert "allows at most 825,450 computed tokens (120 s)" in shown


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"demand_limited": True, "queue_empty_share": 0.25},
            "(no request waited for 25.0% of the window; shares partly reflect demand)",
        ),
        (
            {"demand_limited": True, "queue_empty_share": 0.87},
            "(no request waited for 87.0% of the window; shares reflect demand)",
        ),
        (
            {"demand_limited": True, "queue_empty_share": None},
            "(waits of requests are not known; shares may reflect demand)",
        ),
        ({"latency": "ttft"}, "to the first token"),
        (
            {"queue_empty_share": 0.9, "lone_tpot_ratio": 12.0},
            "backlog hidden: queues were empty 90.0% of the time, but a token took 12.0 times",
        ),
        ({"latency": "program", "think_time": True}, "for a program, think time included"),
        ({"latency": "program", "think_time": False}, "for a program, without think time"),
        (
            {"min_entitlement_ratio": None, "notes": {"min_entitlement_ratio": NOT_CONTENDED}},
            "whole run not contended: no client was short of service",
        ),
        ({"failed": 2}, "3 refused, 2 failed"),
        ({"token_count_method": "4.6 characters a token"}, "data set: 4.6 characters a token"),
        ({"mem_fraction_static": 0.88}, "(mem_fraction_static 0.88)"),
        ({"mem_fraction_static": None}, "(set by --max-total-tokens)"),
        (
            {"mem_fraction_static": None, "pool_flag": "--num-gpu-blocks-override"},
            "(set by --num-gpu-blocks-override)",
        ),
        ({"simulated": False, "served": "SGLang with m"}, "measured on SGLang with m, dp 4"),
        ({"simulated": False, "emulated": True}, "emulated on a100"),
        (
            {"simulated": False, "emulated": True, "timing_profile": None, "served": "http://h"},
            "emulated on http://h",
        ),
    ],
)
def test_unusual_facts_are_noted(change, expected):
    assert expected not in text(SUMMARY)
    assert expected in " ".join(text(SUMMARY | change).split())


@pytest.mark.parametrize(
    ("n", "shown"),
    [
        (300, "P50 10.0 s, P95 20.0 s, P99 30.0 s (n = 300)"),
        (299, "P50 10.0 s, P95 20.0 s, P99 30.0 s? (n = 299; ? needs about 300 for a P99)"),
        (60, "P50 10.0 s, P95 20.0 s, P99 30.0 s? (n = 60; ? needs about 300 for a P99)"),
        (
            59,
            "P50 10.0 s, P95 20.0 s?, P99 30.0 s? (n = 59; ? needs about 60 for a P95 and about "
            "300 for a P99)",
        ),
    ],
)
def test_a_percentile_of_too_few_latencies_is_marked(n, shown):
    found = " ".join(text(SUMMARY | {"victim_n": n}).split())
    assert f"well-behaved {shown}" in found


def test_a_run_too_short_for_a_p99_names_the_needed_duration():
    # 1.1 x 300 / 120 times the 300 s at which the window ends
    assert "for a reliable P99: --duration 900, 3 times as long" in text(SUMMARY)
    assert "for a reliable P99" not in text(SUMMARY | {"complete": False})
    # The window is the whole run, whose end no flag sets, so --duration would change nothing.
    assert "for a reliable P99" not in text(SUMMARY | {"duration": SUMMARY["window_end_s"]})
    # ended by --num-programs
    assert "for a reliable P99" not in text(SUMMARY | {"window_end_s": 291.47})
    assert "for a P99:" not in text(SUMMARY | {"victim_n": 300})
    assert "for a P99:" not in text(SUMMARY | {"trace": "t.csv"})


@pytest.mark.parametrize(
    ("cohorts", "heading", "value"),
    [((300, 400), "P99 s", "80.2"), ((300, 0), "P99 s", "80.2"), ((300, 299), "P95 s", "60.1")],
)
def test_a_table_of_clients_has_one_percentile_that_every_client_has(cohorts, heading, value):
    rows = [CLIENT | {"latency_n": n} for n in cohorts]
    grid = client_grid(SUMMARY | {"clients": rows})
    assert [text for text in grid.headings if text.startswith("P9")] == [heading]
    at = grid.headings.index(heading)
    assert [row[at].text for row in grid.rows] == [value, value]


def test_an_interrupted_run_is_marked():
    assert "INCOMPLETE" not in text(SUMMARY)
    assert "INCOMPLETE: the run was interrupted" in text(SUMMARY, complete=False)


def test_a_run_without_a_success_is_not_marked_interrupted():
    refused = SUMMARY | {"notes": {"complete": "no request succeeded"}}
    assert "INCOMPLETE: no request succeeded" in text(refused, complete=False)


def test_colours_appear_only_if_requested():
    assert "\x1b[" not in text(SUMMARY)
    assert "\x1b[" in text(SUMMARY, colour=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((None, "-"), (0.0, "0.00"), (1.234, "1.23"), (12.34, "12.3"), (12_345.6, "12,346")),
        *((-1.234, "-1.23"), (-12.34, "-12.3"), (-12_345.6, "-12,346"), (7, "7"), (-7, "-7")),
    ],
)
def test_numbers_are_formatted(value, expected):
    assert number(value) == expected


def test_shares_and_indices_are_formatted():
    assert (percent(0.1234), percent(None)) == ("12.3%", "-")
    assert (index(1.0), index(None)) == ("1.000", "-")


@given(st.floats(0, 1e9))
def test_a_lower_bound_is_never_rounded_up(value):
    for digits in (None, 0, 1):
        shown = float(more_than(value, digits).removeprefix("> ").replace(",", ""))
        assert value - 1 < shown <= value


@pytest.mark.parametrize(
    ("n", "said"),
    [
        (290, "--duration 400, 14% longer"),
        (250, "--duration 400, 32% longer"),
        (200, "--duration 500, 2 times as long"),
        (60, "--duration 1700, 6 times as long"),
        (300, None),
    ],
)
def test_a_longer_run_is_said_as_it_is(n, said):
    shown = text(SUMMARY | {"victim_n": n, "window_end_s": 300.0, "duration": 350.0})
    assert ("for a reliable P99" in shown) is (said is not None)
    assert said is None or said in shown
