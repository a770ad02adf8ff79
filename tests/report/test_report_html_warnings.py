"""Test the warnings of a report."""

import pytest

from fairbench.report.pages.warnings import counted_warnings, run_warnings

FINE = {
    "complete": True,
    "notes": {},
    "censored": [],
    "jain_index": 0.9,
    "jain_index_actual": 0.9,
    "refused": 0,
    "failed": 0,
    "unfinished": 0,
    "num_requests": 1_000,
    "window_start_s": 10.0,
    "window_end_s": 110.0,
    "victim_p95_s": 15.0,
    "victim_p99_s": 20.0,
    "victim_n": 400,
    "demand_limited": False,
    "queue_empty_share": 0.01,
    "max_service_gap": 5.0,
    "service_gap_bound": 50.0,
}


def test_a_good_run_gives_no_warning():
    assert list(run_warnings(FINE)) == []


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"complete": False}, "Incomplete"),
        ({"notes": {"lateness": "1% were late"}}, "Lateness: 1% were late."),
        ({"notes": {"errors": "3 x HTTP 500"}}, "Errors: 3 x HTTP 500."),
        ({"jain_index": None, "notes": {"jain_index": "why"}}, "of service is undefined: why."),
        ({"jain_index_actual": None}, "of computed service is undefined"),
        ({"refused": 7}, "7 of 1,000 requests failed or were refused"),
        ({"unfinished": 7}, "7 of 1,000 requests were unfinished"),
        ({"victim_p99_s": 100.5}, "The measured window (100 s) is shorter than the P99"),
        (
            {"victim_p95_s": 100.5, "victim_n": 299},
            "The measured window (100 s) is shorter than the P95",
        ),
        ({"victim_n": 59}, "A P95 needs about 60 latencies, and a client has only 59."),
        ({"demand_limited": True, "queue_empty_share": 0.4}, "No request waited for 40.0%"),
        ({"queue_empty_share": 0.51, "lone_tpot_ratio": 4.1}, "Backlog hidden: queues"),
        ({"max_service_gap": 50.5}, "exceeds the bound"),
    ],
)
def test_each_note_is_one_sentence(changes, wanted):
    (warning,) = run_warnings({**FINE, **changes})
    assert wanted in warning


@pytest.mark.parametrize("n", [60, 299])
def test_too_few_latencies_for_a_p99_are_judged_by_the_p95(n):
    slow = {**FINE, "victim_n": n, "victim_p99_s": 100.5}
    assert list(run_warnings(slow)) == list(counted_warnings([FINE, slow])) == []


def test_a_summary_without_a_p95_keeps_its_p99_and_the_warning():
    old = {key: value for key, value in FINE.items() if key != "victim_p95_s"} | {"victim_n": 120}
    assert list(run_warnings(old)) == [
        "A P99 needs about 300 latencies, and a client has only 120."
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"queue_empty_share": 0.5, "lone_tpot_ratio": 9.0},
        {"queue_empty_share": 0.9, "lone_tpot_ratio": 4.0},
        {"queue_empty_share": 0.9, "lone_tpot_ratio": None},
        {"queue_empty_share": None, "lone_tpot_ratio": 9.0},
    ],
)
def test_without_signs_of_it_no_hidden_backlog_is_reported(changes):
    assert list(run_warnings({**FINE, **changes})) == []


def test_undefined_and_unknown_values_are_shown():
    changes = {"victim_p99_s": None, "max_service_gap": None, "demand_limited": None}
    assert list(run_warnings({**FINE, **changes})) == []


def test_a_lower_bound_is_marked_as_such():
    changes = {"victim_p99_s": 150.0, "censored": ["victim_p99_s"]}
    (warning,) = run_warnings({**FINE, **changes})
    assert "(> 150 s)" in warning


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"complete": False}, "ended early"),
        ({"refused": 7}, "had requests that failed"),
        ({"notes": {"lateness": "1% were late"}}, "sent requests late"),
        ({"victim_p99_s": 100.5}, "have a window shorter than the P99"),
        ({"victim_p95_s": 100.5, "victim_n": 60}, "have a window shorter than the P95"),
        ({"victim_n": 59}, "have fewer than 60 latencies for a P95"),
        ({"queue_empty_share": 0.51, "lone_tpot_ratio": 4.1}, "hide their backlog"),
        ({"max_service_gap": 50.5}, "have a service gap above the bound"),
    ],
)
def test_warnings_of_several_runs_are_counted(changes, wanted):
    (warning,) = counted_warnings([FINE, {**FINE, **changes}, {**FINE, **changes}])
    assert warning.startswith(f"2 of 3 runs {wanted}")
    assert list(counted_warnings([FINE, FINE])) == []
