"""Test the remarks that a plan prints below its answer."""

import pytest

from fairbench_logs.planning.table import margin_text, remarks_of

TTFT, SHARE = "ttft_p99<2s", "min_share>80%"


def target(slo, met=True, certain=True):
    return {"slo": slo, "met": met, "certain": certain}


def choice(scheduler="vtc", replicas=2, load=1.0, tried=((2, True),), targets=(), cost=None):
    return {
        "scheduler": scheduler,
        "gpu": "a100",
        "load": load,
        "replicas": replicas,
        "cost": cost,
        "tried": [{"replicas": dp, "enough": enough} for dp, enough in tried],
        "targets": list(targets or [target(TTFT), target(SHARE)]),
    }


def remarks(*choices, low=1, high=8, seeds=(0, 1), cheaper=()):
    answer = {"low": low, "high": high, "seeds": list(seeds), "cheaper": list(cheaper)}
    return list(remarks_of(answer | {"choices": list(choices)}))


def test_a_plain_answer_has_no_remarks():
    assert remarks(choice(tried=((1, False), (2, True)))) == []


@pytest.mark.parametrize(
    ("given", "bounds", "said"),
    [
        ({"replicas": 1}, {}, "vtc on a100: 1 replica suffices, the smallest number in the range"),
        ({"replicas": 4}, {"low": 4}, "vtc on a100: 4 suffice, the smallest number in the range"),
        (
            {"replicas": None, "targets": (target(TTFT, met=False, certain=False), target(SHARE))},
            {},
            "vtc on a100: 8 replicas do not meet ttft_p99<2s",
        ),
        (
            {"replicas": None, "targets": (target(TTFT, False), target(SHARE, False))},
            {"high": 1},
            "vtc on a100: 1 replica does not meet ttft_p99<2s and min_share>80%",
        ),
        (
            {"tried": ((1, False), (2, True), (3, False), (5, False), (6, True))},
            {},
            "vtc on a100: not monotone: 3 and 5 replicas do not suffice, though fewer do",
        ),
        (
            {"targets": (target(TTFT), target(SHARE, certain=False))},
            {},
            (
                "vtc on a100: on average min_share>80% is met, but not over the whole "
                "95% interval; more seeds (--num-runs) make the interval smaller, and "
                "--certain requires the whole interval"
            ),
        ),
    ],
)
def test_remarks_name_peculiarities_of_a_choice(given, bounds, said):
    assert remarks(choice(**given), **bounds) == [said]


def test_one_seed_has_no_interval_and_so_no_doubt():
    assert remarks(choice(targets=(target(TTFT, certain=False),)), seeds=(0,)) == []


def test_a_cheaper_cluster_is_compared_with_a_named_one():
    rows = choice("vtc", 3, cost=6.0), choice("fcfs", 2, cost=4.0)
    said = "cheaper than vtc on a100: fcfs on 2 x a100 for 4.00 an hour"
    assert remarks(*rows, cheaper=[1]) == [said]
    said = "no other choice is cheaper than vtc on a100"
    assert remarks(*rows) == [said]


def test_a_load_is_named_where_there_are_several():
    rows = [choice(name, load=load) for load in (1.0, 2.0) for name in ("vtc", "fcfs")]
    assert remarks(*rows, cheaper=[3]) == [
        "no other choice is cheaper than vtc on a100 at 1 times the load",
        "cheaper than vtc on a100 at 2 times the load: fcfs on 2 x a100",
    ]


@pytest.mark.parametrize(
    ("margin", "text"),
    [(0.06, "+6%"), (-0.55, "-55%"), (-1.0, "-100%"), (-84.74, "85.7x the limit")],
)
def test_a_margin_far_beyond_the_limit_is_a_multiple_of_the_limit(margin, text):
    assert margin_text(margin) == text


def test_a_plan_states_the_limit_of_each_choice():
    limit = {f"time_{key}_ratio": 0.0 for key in ("small_prefill", "small_decode", "retracted")}
    limit |= {f"time_{key}_ratio": 0.0 for key in ("unfinished", "idle_waiting", "idle")}
    limit |= {"time_prefill_ratio": 0.1, "time_decode_ratio": 0.45, "time_recomputed_ratio": 0.45}
    limit |= {"dp": 2, "limit_ratio": 0.55, "least_makespan_s": 9.0, "limit_cause": "work"}
    (line,) = remarks(choice(tried=((2, True),)) | {"limit": limit})
    assert line.endswith(
        ": limit: 55.0% of what 2 replicas could do; lost GPU time: 45% prefixes computed again"
    )
    assert remarks(choice() | {"limit": None}) == remarks(choice()) == []
