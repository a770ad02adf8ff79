import json
from dataclasses import replace

import numpy as np
import pytest

from fairbench.core import ServiceBound
from fairbench.metrics.records import REFUSED, UNFINISHED, Client, Window
from fairbench.metrics.totals import time_to_finish
from tests.metrics.metrics_helpers import facts, log, programs, requests, summary_of

# Client 0 (heavy) and client 1 in a run of 20 s, window [0, 10). All numbers below follow from
# these rows.
PROGRAMS = programs(
    {"program_id": 0, "client": 0, "finish_s": 8, "demand_input_tokens": 500},
    {
        "program_id": 1,
        "client": 1,
        "arrival_s": 1,
        "finish_s": 5,
        "demand_input_tokens": 40,
        "demand_output_tokens": 5,
    },
    {"program_id": 2, "client": 1, "arrival_s": 2, "demand_input_tokens": 50, "status": UNFINISHED},
    {"program_id": 3, "client": 0, "arrival_s": 3, "status": REFUSED},
)
REQUESTS = requests(
    {
        "client": 0,
        "admitted_s": 2,
        "first_token_s": 4,
        "finish_s": 8,
        "input_tokens": 100,
        "cached_tokens": 60,
        "extend_tokens": 40,
        "output_tokens": 5,
    },
    {
        "program_id": 1,
        "client": 1,
        "arrival_s": 1,
        "admitted_s": 4,
        "first_token_s": 5,
        "finish_s": 5,
        "input_tokens": 40,
        "cached_tokens": 0,
        "extend_tokens": 40,
        "output_tokens": 1,
    },
    {"program_id": 2, "client": 1, "arrival_s": 2, "input_tokens": 50, "status": UNFINISHED},
    {"program_id": 3, "client": 0, "arrival_s": 3, "worker": -1, "status": REFUSED},
)
LOG = log(
    {
        "client": 0,
        "start_s": 2,
        "end_s": 4,
        "input_tokens": 100,
        "extend_charged_tokens": 40,
        "extend_tokens": 40,
        "output_tokens": 1,
    },
    {
        "client": 1,
        "start_s": 4,
        "end_s": 5,
        "input_tokens": 40,
        "extend_charged_tokens": 40,
        "extend_tokens": 40,
        "output_tokens": 1,
    },
    {"client": 0, "start_s": 5, "end_s": 8, "steps": 4, "output_tokens": 4},
)
FACTS = facts(window=Window(0, 10), horizon_s=20.0, bound=ServiceBound("actual", 50, "Theorem 4.1"))


@pytest.fixture(scope="module")
def made():
    return summary_of(REQUESTS, PROGRAMS, LOG, FACTS)


EXPECTED = {
    "duration": 20,
    "num_programs": 4,
    "num_requests": 4,
    "completed": 2,
    "failed": 0,
    "refused": 1,
    "unfinished": 1,
    "total_input_tokens": 140,
    "total_output_tokens": 6,
    "request_throughput": 2 / 20,
    "output_throughput": 6 / 20,
    "extend_throughput": 80 / 20,
    "cache_hit_rate": 60 / 140,
    "mean_ttft_ms": 4000,  # 4 s for each
    "std_ttft_ms": 0,
    "mean_tpot_ms": 1000,  # (8 - 4) / 4; the other program has one token
    "mean_itl_ms": 1000,
    "p99_itl_ms": None,
    "mean_e2el_ms": 6000,  # 8 s and 4 s
    "median_e2el_ms": 6000,
    "std_e2el_ms": 2000,
    "p99_e2el_ms": 7960,  # 4 + 0.99 * 4
    "time_to_50pct_s": 8,  # 2 of 4 programs, finished at 5 and 8
    "time_to_90pct_s": None,
    "time_to_100pct_s": None,
    "window_start_s": 0,
    "window_end_s": 10,
    "service_rate_tok_s": (110 + 42) / 10,  # 100 + 2*5 and 40 + 2*1
    "actual_service_tok_s": (50 + 42) / 10,
    "output_rate_tok_s": 6 / 10,
    "extend_rate_tok_s": 80 / 10,
    "queue_empty_share": 0,
    # in the whole window, some client waits: from 0 to 2, from 1 to 4, and from 2 to the end
    "demand_limited": False,
    "jain_index": 152**2 / (2 * (110**2 + 42**2)),
    "jain_index_actual": 92**2 / (2 * (50**2 + 42**2)),
    # 152 tokens were delivered. Due were 110 and (with the 50 never read) 92, so 76 each.
    "jain_index_maxmin": 1,
    "jain_index_entitlement": 152**2 / (2 * (110**2 + 42**2)),
    "min_entitlement_ratio": 42 / 76,
    # Client 0 waits in [0, 2), client 1 in [1, 4) and [2, 20). Together they wait in [1, 2), when
    # nothing is booked.
    "max_service_gap": 0,
    "service_gap_bound": 2 * (100 + 2 * 1000 + 50),
    "service_gap_bound_s": 4300 / ((50 + 42) / 10),
    # Client 1 is unfinished, so it is active until 20; client 0 is active until 8. The window [1,
    # 8) leaves out the last token.
    "jain_index_paper_window": (108 + 42) ** 2 / (2 * (108**2 + 42**2)),
    "paper_window_start_s": 1,
    "paper_window_end_s": 8,
    # client 1's programs took 4 s and more than 18 s: 4 + 0.5 * 14 and so on
    "victim_p50_s": 11,
    "victim_p95_s": 4 + 0.95 * 14,
    "victim_p99_s": 4 + 0.99 * 14,
    "victim_n": 2,
}


@pytest.mark.parametrize("key", EXPECTED)
def test_every_value_equals_its_hand_computation(made, key):
    expected = EXPECTED[key]
    assert made[key] == (expected if expected is None else pytest.approx(expected))


def test_the_rows_of_the_clients(made):
    zero, one = made["clients"]
    assert {key: one[key] for key in list(one)[:9]} == pytest.approx(
        {
            "client": "c1",
            "misbehaving": False,
            "programs": 2,
            "requests": 2,
            "service_rate_tok_s": 4.2,
            "actual_service_tok_s": 4.2,
            "demand_tok_s": 9.2,
            "entitlement_tok_s": 7.6,
            "entitlement_ratio": 42 / 76,
        }
    )
    assert (one["latency_n"], one["latency_unfinished"], one["latency_refused"]) == (2, 1, 0)
    assert one["cache_hit_rate"] == 0
    assert zero["cache_hit_rate"] == 0.6
    assert (zero["latency_n"], zero["latency_refused"], zero["p99_s"]) == (2, 1, None)


def test_lower_bounds_are_named(made):
    victims = [f"victim_p{percent}_s" for percent in (50, 95, 99)]
    assert made["censored"] == [*victims, *(f"clients.c1.p{p}_s" for p in (50, 95, 99))]


def nulls(summary):
    for key, value in summary.items():
        if value is None:
            yield key
    for client in summary["clients"]:
        yield from (f"clients.{client['client']}.{key}" for key in nulls({"clients": []} | client))


LATENCIES = [
    f"{statistic}_{name}_ms"
    for statistic in ("mean", "median", "std", "p50", "p99")
    for name in ("ttft", "tpot", "itl", "e2el")
]
CASES = {
    "usual": (REQUESTS, PROGRAMS, LOG, FACTS),
    "nothing happened": (requests(), programs(), log(), facts()),
    "stopped before the window": (
        REQUESTS,
        PROGRAMS,
        LOG,
        facts(window=Window(30, 40), horizon_s=20.0),
    ),
    "no time passed": (requests(), programs(), log(), facts(horizon_s=0.0)),
    "one client": (requests(), programs(), log(), facts(clients=1, bound_unavailable="fcfs")),
}


@pytest.mark.parametrize("case", CASES)
def test_json_has_every_key_and_a_reason_for_every_null(case):
    summary = summary_of(*CASES[case])
    assert not {*EXPECTED, *LATENCIES, "clients"} - summary.keys()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    of_the_header = {"bound_source", "limit", "stalls"}
    assert sorted(nulls(summary)) == sorted(summary["notes"].keys() - of_the_header)
    assert all(summary["notes"].values())


def test_with_weights_indices_and_rows_use_normalised_service():
    equal = facts(horizon_s=20.0, window=Window(0.0, 10.0))
    named = (Client("c0", True, 4.0), Client("c1", False))
    plain = summary_of(REQUESTS, PROGRAMS, LOG, equal)
    by_weight = summary_of(REQUESTS, PROGRAMS, LOG, replace(equal, clients=named))
    assert ["weight" in row for row in plain["clients"]] == [False, False]
    assert [row["weight"] for row in by_weight["clients"]] == [4.0, 1.0]
    for key, rate in (("jain_index", "service_rate"), ("jain_index_actual", "actual_service")):
        x, y = (row[f"{rate}_tok_s"] for row in by_weight["clients"])
        assert by_weight[key] == pytest.approx((x / 4 + y) ** 2 / (2 * ((x / 4) ** 2 + y**2)))
        assert plain[key] == pytest.approx((x + y) ** 2 / (2 * (x**2 + y**2)))
    unweighted = ("service_rate_tok_s", "actual_service_tok_s", "demand_tok_s")
    for before, after in zip(plain["clients"], by_weight["clients"], strict=True):
        assert {key: before[key] for key in unweighted} == {key: after[key] for key in unweighted}


def test_reasons_name_the_cause():
    notes = summary_of(*CASES["one client"])["notes"]
    assert notes["service_gap_bound"] == "fcfs"
    assert notes["max_service_gap"] == "no two clients were backlogged together"
    assert notes["victim_p50_s"] == "there is no well-behaved client"
    assert notes["jain_index"] == "no client was served in the window"
    late = summary_of(*CASES["stopped before the window"])["notes"]
    assert late["service_rate_tok_s"] == "the run ended before its window began"
    assert late["victim_p99_s"] == "client c1: no request arrived in the window"
    usual = summary_of(*CASES["usual"])["notes"]
    assert "the 1 refused of 2" in usual["clients.c0.p99_s"]


def test_a_victims_refusals_make_its_percentile_infinite_not_short():
    table = programs(
        {"client": 1, "finish_s": 3}, {"client": 1, "status": REFUSED}, {"client": 2, "finish_s": 9}
    )
    summary = summary_of(requests(), table, log(), facts(clients=3))
    assert summary["victim_p99_s"] is None
    assert summary["notes"]["victim_p99_s"].startswith(
        "client c1: it falls among the 1 refused of 2"
    )


@pytest.mark.parametrize(
    ("failed", "lost"), [(0, "refused"), (1, "failed or refused"), (2, "failed")]
)
def test_a_reason_calls_failed_requests_failed(failed, lost):
    rows = [{"client": 1, "finish_s": 3}, *({"client": 1, "status": REFUSED} for _ in range(2))]
    known = facts(clients=3, failed=failed)
    summary = summary_of(requests(*rows), programs(*rows), log(), known)
    assert f"the 2 {lost} of 3," in summary["notes"]["clients.c1.p99_s"]
    assert f"the 2 {lost} of 3," in summary["notes"]["victim_p99_s"]
    assert (summary["failed"], summary["refused"]) == (failed, 2 - failed)


def test_victims_are_averaged_over_the_well_behaved_clients_only():
    rows = [
        {"client": client, "finish_s": seconds}
        for client, seconds in [(0, 99), (1, 2), (1, 4), (2, 10)]
    ]
    summary = summary_of(requests(), programs(*rows), log(), facts(clients=3))
    assert summary["victim_p50_s"] == (3 + 10) / 2
    assert summary["victim_n"] == 1
    other = summary_of(requests(), programs(*rows), log(), facts(clients=3, misbehaving=2))
    assert other["victim_p50_s"] == (99 + 3) / 2


def test_a_run_stopped_inside_its_window_is_measured_up_to_its_end():
    summary = summary_of(REQUESTS, PROGRAMS, LOG, facts(window=Window(0, 1000), horizon_s=10.0))
    times = summary["window_start_s"], summary["window_end_s"]
    assert times == (0, np.nextafter(10, 11))  # programs that end at 10 are counted
    assert summary["service_rate_tok_s"] == pytest.approx(15.2)


def test_service_bounds_in_the_client_view_use_its_rate():
    bound = ServiceBound("client", 0, "[VTC] Theorem 4.4")
    summary = summary_of(
        REQUESTS, PROGRAMS, LOG, facts(window=Window(0, 10), horizon_s=20.0, bound=bound)
    )
    # 2 * max(100, 2 * 1000) tokens at 15.2 tokens/s
    assert summary["service_gap_bound_s"] == pytest.approx(4000 / 15.2)


def test_a_bound_counts_decoding_beyond_an_overcommitted_pool():
    # These requests ([VTC] eq. 8) hold at most 1,000 tokens in lockstep, and produce 2,083 without
    # an admission.
    table = requests(*({"admitted_s": 0, "output_tokens": n} for n in (250, 333, 500, 1000)))
    bound = ServiceBound("client", 0, "[VTC] Theorem 4.4")
    summary = summary_of(table, programs(), log(), facts(bound=bound, pool_tokens=1000))
    assert summary["service_gap_bound"] == 2 * 2 * 2083


def test_the_time_to_finish_is_over_programs_of_the_arrival_phase():
    table = programs(*({"arrival_s": i, "finish_s": 20 - i} for i in range(10)))
    # Arrivals 0..4 count, which finish at 16, 17, 18, 19, 20. 50% of 5 needs 3.
    window = Window(2, 5)
    assert [time_to_finish(table, window, p) for p in (50, 90, 100)] == [18, 20, 20]


def test_totals_of_an_empty_run_are_undefined():
    found = summary_of(requests(), programs(), log(), facts(clients=0, horizon_s=0.0))
    assert found["request_throughput"] is None
    assert found["notes"]["request_throughput"] == "the run lasted no time"


def test_inter_token_latency_weighs_gaps_and_tpot_weighs_requests():
    table = requests(
        {"first_token_s": 0, "finish_s": 3, "output_tokens": 4},  # 3 gaps of 1 s
        {"first_token_s": 0, "finish_s": 5, "output_tokens": 2},  # 1 gap of 5 s
        {"first_token_s": 0, "finish_s": 9, "output_tokens": 9, "status": UNFINISHED},
    )
    latency = summary_of(table, programs(), log(), facts())
    assert latency["mean_itl_ms"] == 2000  # 8 s / 4
    assert latency["mean_tpot_ms"] == 3000  # (1 + 5) / 2
    assert latency["p50_tpot_ms"] == 3000


ABSENT = {"window": Window(10, 20), "horizon_s": 30.0, "clients": 3}


def test_absent_clients_are_left_out_of_the_well_behaved_latency():
    early, refused = {"client": 2, "finish_s": 9}, {"client": 2, "status": REFUSED, "arrival_s": 5}
    mine = {"client": 1, "arrival_s": 10, "finish_s": 14}
    summary = summary_of(requests(), programs(early, refused, mine), log(), facts(**ABSENT))
    assert (summary["victim_p50_s"], summary["victim_n"]) == (4, 1)
    assert summary["notes"]["victim_p99_s"] == "without one client that had no work in progress"
    row = summary["clients"][2]
    assert (row["p50_s"], row["latency_n"]) == (None, 0)
    later = {"client": 2, "arrival_s": 20, "finish_s": 25}
    assert summary_of(requests(), programs(mine, later), log(), facts(**ABSENT))["victim_n"]


@pytest.mark.parametrize(
    "kept_waiting", [{"finish_s": 11}, {"finish_s": 25}, {"status": UNFINISHED}]
)
def test_an_always_waiting_client_is_not_absent(kept_waiting):
    # like a user who sends the next program when the previous one has ended
    rows = {"client": 1, "arrival_s": 10, "finish_s": 14}, {"client": 2, **kept_waiting}
    made = summary_of(requests(), programs(*rows), log(), facts(**ABSENT))
    assert made["victim_p50_s"] is None
    assert made["notes"]["victim_p50_s"] == "client c2: no request arrived in the window"
    assert made["victim_n"] == 0


def test_the_latency_is_undefined_if_all_clients_are_absent():
    rows = {"client": 1, "finish_s": 3}, {"client": 2, "finish_s": 4}
    made = summary_of(requests(), programs(*rows), log(), facts(**ABSENT))
    assert made["victim_p99_s"] is None
    assert made["notes"]["victim_p99_s"] == "client c1: no request arrived in the window"
