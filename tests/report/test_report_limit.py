"""Test the line and the figure that state how near a run came to its limit."""

import re
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config.resolve import resolve
from fairbench.report.comparison_table import comparison_columns
from fairbench.report.limit_lines import (
    has_limit,
    limit_line,
    limit_lines,
    limit_sentences,
    losses,
    lost_against,
)
from fairbench.report.pages.run_page import time_spent_figure
from fairbench.report.pages.sweep_page import lost_paragraphs
from fairbench.report.pair_table import MOST_ROWS, contrast_text, main_metrics
from fairbench.report.result_lines import results_of
from fairbench.results.comparison import contrast
from fairbench.sim.run import simulate
from fairbench_logs.diagnosis.text import replay_line
from fairbench_logs.planning.search import mean_limit
from fairbench_papers.board import BoardLine, make_board
from tests.results.comparison_helpers import summary
from tests.results.test_results_contrast import sides

SHARES = {
    "time_prefill_ratio": 0.1, "time_decode_ratio": 0.6, "time_recomputed_ratio": 0.15,
    "time_small_prefill_ratio": 0.02, "time_small_decode_ratio": 0.05,
    "time_retracted_ratio": 0.0, "time_unfinished_ratio": 0.0, "time_idle_waiting_ratio": 0.004,
    "time_idle_ratio": 0.076,
}  # fmt: skip
LIMITED = SHARES | {
    "limit_ratio": 0.7, "least_makespan_s": 70.0, "limit_cause": "work", "dp": 4
}  # fmt: skip


def test_the_line_names_the_losses_largest_first():
    assert limit_line(LIMITED) == (
        "70.0% of what 4 replicas could do; lost GPU time: 15% prefixes computed again, 8% idle, "
        "7% small batches"
    )
    assert limit_line(LIMITED | {"dp": 1}).startswith("70.0% of what 1 replica could do")


@pytest.mark.parametrize(
    ("cause", "words"),
    [("arrivals", "the arrivals take"), ("longest program", "one program takes")],
)
def test_the_line_does_not_claim_a_share_that_the_work_does_not_set(cause, words):
    line = limit_line(LIMITED | {"limit_cause": cause})
    assert line.startswith(
        f"{words} 70.0 s at least; 70.0% of GPU time was needed; lost GPU time: 15% "
    )


@pytest.mark.parametrize("key", sorted(LIMITED.keys() - {"dp", "limit_cause"}))
def test_an_old_or_edited_summary_has_no_line(key):
    assert has_limit(LIMITED)
    assert not has_limit({**LIMITED, key: None})
    assert not has_limit({name: value for name, value in LIMITED.items() if name != key})


@pytest.fixture(scope="module")
def result():
    return simulate(resolve({"workload": "chat", "num_programs": 30, "request_rate": 50.0}))


def test_a_run_prints_its_line(result):
    lines = dict(results_of(result.summary))
    assert lines["limit"] == limit_line(result.summary)


def test_the_figure_is_a_waterfall_from_nothing_to_the_whole(result):
    svg = time_spent_figure(result.summary).svg
    found = re.findall(r'<rect x="([\d.]+)"[^>]*? width="([\d.]+)"', svg)
    bars = [tuple(map(float, one)) for one in found]
    assert len(bars) >= 3
    for (x, width), (after, _) in pairwise(bars):
        assert after == pytest.approx(x + width, abs=0.7)
    assert "answers, at the least" in svg


def shared(**parts):
    """Return a summary with these shares of the GPU time. The rest is needed for answers."""
    rest = {f"time_{key}_ratio": part for key, part in parts.items()}
    none = dict.fromkeys(SHARES, 0.0) | rest
    return LIMITED | none | {"time_decode_ratio": 1 - sum(parts.values())}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            shared(recomputed=0.17, idle=0.03),
            shared(recomputed=0.09),
            "d2lpm loses 11% of GPU time to fair-finish: 8% prefixes computed again, 3% idle",
        ),
        (
            shared(idle=0.01),
            shared(idle_waiting=0.2, small_decode=0.1, small_prefill=0.02),
            "fair-finish loses 31% of GPU time to d2lpm: 20% idle while others waited, 12% small "
            "batches; it saves 1% idle",
        ),
        (shared(idle=0.3), shared(idle=0.301), ""),
        (shared(recomputed=0.1), shared(idle=0.1), ""),
        (shared(idle=0.3), shared() | {"time_idle_ratio": None}, ""),
    ],
)
def test_the_difference_of_two_schedulers_is_split_by_cause(first, second, said):
    assert lost_against([first], [second], ["d2lpm", "fair-finish"]) == said


def test_the_difference_is_a_mean_over_the_seeds():
    first = [shared(idle=part) for part in (0.1, 0.3)]
    second = [shared(idle=part) for part in (0.1, 0.1)]
    said = lost_against(first, second, ["vtc", "lpm"])
    assert said == "vtc loses 10% of GPU time to lpm: 10% idle"


def test_the_causes_of_two_real_runs_sum_to_the_whole(result):
    other = simulate(
        resolve({"workload": "chat", "num_programs": 30, "request_rate": 50.0, "scheduler": "fcfs"})
    )
    runs = [result.summary, other.summary]
    needed = [one["time_prefill_ratio"] + one["time_decode_ratio"] for one in runs]
    lost = [sum(losses(one).values()) for one in runs]
    assert needed[0] - needed[1] == pytest.approx(lost[1] - lost[0], abs=1e-9)


def sentences(**changes):
    return " ".join(limit_sentences(LIMITED | changes))


def test_the_sentences_state_assumption_service_and_latency():
    text = sentences(
        service_rate_tok_s=94_200.0,
        limit_fair_service_tok_s=100_212.0,
        victim_p95_s=30.0,
        victim_least_p95_s=5.77,
    )
    assert "in less than 70.0 s, even if each distinct prefix is computed once" in text
    assert "needed 70.0% of the GPU time" in text
    assert "94% of the 100,212 tok/s that any scheduler could give at max-min fair shares" in text
    assert "5.20 times their P95 alone on an idle cluster (5.77 s)" in text


@pytest.mark.parametrize(
    ("changes", "there", "absent"),
    [
        ({}, "The rest was lost: 15% prefixes", "max-min"),
        ({"limit_fair_service_tok_s": None, "service_rate_tok_s": 9.0}, "The rest", "max-min"),
        ({"victim_p95_s": 4.0, "victim_least_p95_s": 0.0}, "The rest", "idle cluster"),
        (
            {"victim_p95_s": 4.0, "victim_least_p95_s": 2.0, "censored": ["victim_p95_s"]},
            "is at least 2.00 times",
            "max-min",
        ),
        ({"limit_cause": "arrivals"}, "because the last requests arrive late", "max-min"),
        ({"limit_cause": "longest program"}, "because one program is that long", "max-min"),
    ],
)
def test_a_sentence_without_its_number_is_left_out(changes, there, absent):
    text = sentences(**changes)
    assert there in text
    assert absent not in text


def test_an_old_summary_has_no_sentence_and_no_mean():
    assert list(limit_sentences({**LIMITED, "limit_ratio": None})) == []
    assert list(replay_line("vtc", {})) == []
    assert mean_limit([]) is mean_limit([LIMITED, {"dp": 4}]) is None


def test_a_replay_says_how_near_it_came():
    (line,) = replay_line("fcfs", shared(recomputed=0.2) | {"limit_ratio": 0.55})
    assert line == (
        "The replay under fcfs reaches 55.0% of what 4 replicas could do; lost GPU time: 20% "
        "prefixes computed again."
    )
    (late,) = replay_line("fcfs", LIMITED | {"limit_cause": "arrivals"})
    assert late.startswith("Replayed under fcfs, the arrivals take 70.0 s at least;")
    (best,) = replay_line("fcfs", shared())
    assert best.endswith("replicas could do.")


def test_the_mean_over_seeds_has_a_line():
    runs = [shared(idle=part) | {"limit_ratio": 1 - part} for part in (0.2, 0.4)]
    assert (
        limit_line(mean_limit(runs)) == "70.0% of what 4 replicas could do; lost GPU time: 30% idle"
    )


def compared(folder, **runs):
    """Return sides of a comparison with these summaries, one seed each."""
    by = {name: {key: (one,) for key, one in made.items()} for name, made in runs.items()}
    return sides(folder, seeds=(0,), **by)


def test_a_comparison_says_who_loses_what(tmp_path):
    found = compared(tmp_path, d2lpm=shared(recomputed=0.2), fcfs=shared(recomputed=0.1))
    keys = main_metrics(found)
    text = " ".join(contrast_text([contrast(*found, keys)]).split())
    assert "d2lpm loses 10% of GPU time to fcfs: 10% prefixes computed again" in text
    assert [one.text for one in lost_paragraphs(found)] == [
        f"{found[0].place}: d2lpm loses 10% of GPU time to fcfs: 10% prefixes computed again."
    ]


@pytest.mark.parametrize(
    ("first", "second", "is_shown"),
    [(0.8, 0.9, True), (0.8, 0.803, False), (None, 0.9, False), (None, None, False)],
)
def test_the_share_of_the_limit_is_a_main_metric_where_it_differs(
    first, second, is_shown, tmp_path
):
    found = compared(tmp_path, vtc={"limit_ratio": first}, lpm={"limit_ratio": second})
    assert ("limit_ratio" in main_metrics(found)) is is_shown
    assert len(main_metrics(found)) <= MOST_ROWS


def test_old_runs_compare_as_before(tmp_path):
    found = compared(tmp_path, vtc={"victim_p50_s": 2.0}, lpm={"victim_p50_s": 3.0})
    text = contrast_text([contrast(*found, ["victim_p50_s"])])
    assert "limit" not in text
    assert "limit" not in " ".join(one.heading for one in comparison_columns(found))
    assert list(lost_paragraphs(found)) == []


KNOWN = {
    "min_entitlement_best_ratio": 0.5, "victim_p95_s": 9.0, "sharing_incentive_p95": 1.0,
    "sharing_incentive_p99": 1.0,
}  # fmt: skip
UNKNOWN = {"limit_ratio": "the prompts are unknown"}


@pytest.mark.parametrize(
    ("values", "is_shown"), [((0.8, 0.9), True), ((0.8, None), True), ((None, None), False)]
)
def test_a_leaderboard_has_a_column_if_some_run_has_a_limit(values, is_shown):
    lines = [
        BoardLine("tot", name, 0, summary(**KNOWN, limit_ratio=value, notes=UNKNOWN))
        for name, value in zip(("vtc", "lpm"), values, strict=True)
    ]
    keys = [one.key for one in make_board(lines).metrics]
    assert ("limit_ratio" in keys) is is_shown


SHORT = {"limit_memory_ratio": 0.85, "limit_hit_rate": 0.431, "cache_hit_rate": 0.35}
LIVE = {key: LIMITED[key] for key in ("limit_ratio", "least_makespan_s", "limit_cause", "dp")}


@pytest.mark.parametrize(
    ("summary", "lines"),
    [
        (LIMITED, [limit_line(LIMITED)]),
        ({}, []),  # an old run
        ({"limit_ratio": None, "notes": {"limit_ratio": "no request finished"}}, []),
        (LIMITED | {"complete": False}, ["unknown, because the run is incomplete"]),
        ({"complete": False}, []),
        ({"notes": {"limit": "unknown, because of this"}}, ["unknown, because of this"]),
        (LIVE, ["70.0% of the least time, 70.0 s on 4 replicas"]),
        (LIVE | {"notes": {"limit": "unknown"}}, ["70.0% of the least time, 70.0 s on 4 replicas"]),
        (
            LIMITED | SHORT,
            [
                limit_line(LIMITED),
                "85.0% of what this KV memory and order of requests allow; cache hits 35.0%, at "
                "most 43.1%",
            ],
        ),
        (
            LIMITED | SHORT | {"cache_hit_rate": None},
            [
                limit_line(LIMITED),
                "85.0% of what this KV memory and order of requests allow; cache hits at most "
                "43.1%",
            ],
        ),
        (
            LIMITED | SHORT | {"limit_memory_ratio": LIMITED["limit_ratio"]},
            [
                limit_line(LIMITED),
                "cache hits 35.0%, at most 43.1% with this KV memory and order of requests",
            ],
        ),
    ],
)
def test_the_lines_of_a_limit_say_what_is_missing(summary, lines):
    assert list(limit_lines(summary)) == lines


def test_a_run_whose_memory_is_short_has_a_second_line():
    short = {"engine.max_total_tokens": 20_000}
    flags = {"workload": "judge", "num_programs": 3, "request_rate": 1.0, "settings": short}
    result = simulate(resolve(flags))
    first, second = limit_lines(result.summary)
    lines = list(results_of(result.summary))
    assert ("limit", first) in lines
    assert lines[lines.index(("limit", first)) + 1] == ("", second)
    assert result.summary["limit_ratio"] < result.summary["limit_memory_ratio"] <= 1
    assert result.summary["cache_hit_rate"] <= result.summary["limit_hit_rate"] < 1
    assert any("no eviction policy hits more" in text for text in limit_sentences(result.summary))


def test_scored_records_say_why_they_have_no_limit(tmp_path):
    log = tmp_path / "log.csv"
    header = "client,start,ttft,latency,input_tokens,output_tokens"
    log.write_text("\n".join([header, *(f"{one},0,0.1,1,9,5" for one in "abab")]))
    printed = CliRunner().invoke(app, ["score", str(log)]).output
    assert "unknown, because the records do not say which prompts share a prefix" in printed
