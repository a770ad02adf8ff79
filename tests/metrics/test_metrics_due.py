"""Test due service, the service that a client should have received, by hand-computed numbers."""

import numpy as np
import pytest

from fairbench.metrics.contention import unhindered, waiting_share, with_admissions
from fairbench.metrics.due import calls_of, shortfall
from fairbench.metrics.fairness import fair_shares
from fairbench.metrics.reasons import NOT_CONTENDED, QUEUE_ESTIMATED
from fairbench.metrics.records import FINISHED, REFUSED, UNFINISHED, Window
from tests.metrics.metrics_helpers import NAN, facts, log, programs, requests, summary_of

# Every call in these tests has 10 input and 3 output tokens, worth 10 + 2 * 3 = 16. A call that is
# served immediately takes 1 s to the first token and 1 s for each other, 3 s in all.
COST = 16


def call(program, depth, arrival_s, waits_s=0.0, client=0, **changes):
    """Return a call that is admitted after ``waits_s`` and then served as if alone."""
    at_s = arrival_s + waits_s
    return {
        "program_id": program,
        "client": client,
        "depth": depth,
        "arrival_s": arrival_s,
        "admitted_s": at_s,
        "first_token_s": at_s + 1,
        "finish_s": at_s + 3,
        "input_tokens": 10,
        "extend_tokens": 10,
        "output_tokens": 3,
        "max_new_tokens": 3,
    } | changes


NEVER_SERVED = {
    "admitted_s": NAN,
    "first_token_s": NAN,
    "finish_s": NAN,
    "extend_tokens": 0,
    "output_tokens": 0,
    "status": UNFINISHED,
}


def program(number, calls, client=0, **changes):
    return {
        "program_id": number,
        "client": client,
        "requests": calls,
        "demand_requests": calls,
        "demand_input_tokens": 10 * calls,
        "demand_output_tokens": 3 * calls,
    } | changes


def booked(table):
    """Return the service log that a worker would have written for these calls."""
    rows = []
    for c in table:
        if not np.isnan(c.get("admitted_s", NAN)):
            own = {"client": c["client"]}
            middle_s = c["first_token_s"]
            one = {"start_s": c["admitted_s"], "end_s": middle_s, "output_tokens": 1}
            rows.append(own | one | {"input_tokens": 10, "extend_tokens": 10})
            two = {"start_s": middle_s, "end_s": c["finish_s"], "steps": 2, "output_tokens": 2}
            rows.append(own | two)
    return log(*rows)


def judged(calls, table, end_s, horizon_s=100.0, clients=2):
    """Return the shares in a window that begins with the run."""
    made = facts(clients=clients, horizon_s=horizon_s)
    return fair_shares(requests(*calls), programs(*table), booked(calls), made, Window(0, end_s))


# In an idle cluster, no service is due while a user thinks for 10 s.

IDLE = [call(0, depth, 13.0 * depth) for depth in range(4)]
IDLE += [call(1, depth, 1 + 13.0 * depth, client=1) for depth in range(4)]
IDLE_PROGRAMS = [program(0, 4, finish_s=42.0), program(1, 4, 1, arrival_s=1.0, finish_s=43.0)]


def test_on_an_idle_cluster_all_due_service_is_served():
    got = judged(IDLE, IDLE_PROGRAMS, end_s=31)
    # Turns at 0, 13 and 26 s ended by 30 s. The fourth was due at 39 s, after the window.
    assert got.service.tolist() == [3 * COST, 3 * COST]
    assert got.demand.tolist() == [3 * COST, 3 * COST]
    assert not got.contended


def test_an_idle_cluster_is_not_contended():
    made = facts(window=Window(0, 31), horizon_s=43.0)
    table = requests(*IDLE), programs(*IDLE_PROGRAMS), booked(IDLE)
    summary = summary_of(*table, made)
    for key in ("min_entitlement_ratio", "jain_index_entitlement"):
        assert summary[key] is None
        assert summary["notes"][key] == NOT_CONTENDED
    for client in summary["clients"]:
        assert client["entitlement_ratio"] is None
        assert client["demand_tok_s"] == client["service_rate_tok_s"] == 3 * COST / 31
    assert summary["jain_index"] == 1
    assert summary["demand_limited"] is True


def test_a_call_that_runs_when_the_window_ends_is_no_shortfall():
    got = judged(IDLE, IDLE_PROGRAMS, end_s=28)
    # At 28 s, the third turn of client 0 has two of its tokens (the first at 27 s). That of client
    # 1 has no output, although its input was processed.
    assert got.service.tolist() == [2 * COST + 10 + 2, 2 * COST + 10]
    assert got.demand.tolist() == got.service.tolist()


# A client starves in a closed loop, because under LPM the other's prefixes are always longer.
# Alone, its four calls would have begun at 0, 3, 6 and 9 s, and ended by 12 s. As each waits for 9
# s, they end at 12, 24, 36 and 48 s.

STARVED = [call(0, depth, 12.0 * depth, waits_s=9.0) for depth in range(4)]
OTHERS = [
    call(1 + number, depth, 3.0 * depth, client=1) for number in range(8) for depth in range(4)
]
OTHER_PROGRAMS = [program(1 + number, 4, 1, finish_s=12.0) for number in range(8)]
STARVED_PROGRAM = program(0, 4, finish_s=48.0)


def test_a_starved_client_in_a_closed_loop_is_due_its_delayed_requests():
    got = judged([*STARVED, *OTHERS], [STARVED_PROGRAM, *OTHER_PROGRAMS], end_s=24.5)
    # Two of its three calls were complete. Without the waits, it would have made all four.
    assert got.service.tolist() == [2 * COST, 8 * 4 * COST]
    assert got.demand.tolist() == [4 * COST, 8 * 4 * COST]
    assert got.contended
    # Its 64 tokens are less than half of the 32 + 512 served, so it was entitled to all of them.
    assert got.entitlement.tolist() == [64, 544 - 64]
    assert got.ratio.tolist() == pytest.approx([1 / 2, 512 / 480])


def test_due_service_does_not_depend_on_the_end_of_the_run():
    cut_off = [*STARVED[:2], call(0, 2, 24.0) | NEVER_SERVED]
    table = [program(0, 4, requests=3, status=UNFINISHED), *OTHER_PROGRAMS]
    got = judged([*cut_off, *OTHERS], table, end_s=24.5, horizon_s=24.5)
    # The third call was just made, and was due at 6 s. The fourth was never made, but counts,
    # because the other clients had requested all four by the same age.
    assert got.demand.tolist() == [4 * COST, 8 * 4 * COST]
    assert got.ratio[0] == 1 / 2


def test_service_is_due_to_a_client_that_is_never_served():
    table = [program(0, 4, requests=1, status=UNFINISHED), *OTHER_PROGRAMS]
    calls = [call(0, 0, 0.0) | NEVER_SERVED, *OTHERS]
    got = judged(calls, table, end_s=24.5, horizon_s=24.5)
    assert got.demand.tolist() == [4 * COST, 8 * 4 * COST]
    assert got.ratio[0] == 0


def test_requests_after_the_window_are_not_due():
    table = [program(0, 4, requests=1, status=UNFINISHED), *OTHER_PROGRAMS]
    calls = [call(0, 0, 0.0) | NEVER_SERVED, *OTHERS]
    short = shortfall(requests(*calls), programs(*table), facts(horizon_s=24.0), 4.5)
    # The whole first call is due (it ends at 3 s). Of the second, whose first token was due at 4 s,
    # only the part is due that others had requested at the same age, counted in calls and not in
    # tokens.
    assert short.tolist() == [2 * COST, 0]


def test_a_thinking_user_does_not_count_as_starved():
    """The run ends while users think. None of their calls waits or was delayed before."""
    calls = [*IDLE[:2], *IDLE[4:]]
    table = [program(0, 4, requests=2, status=UNFINISHED), IDLE_PROGRAMS[1]]
    got = judged(calls, table, end_s=24.5, horizon_s=24.5)
    assert got.demand.tolist() == [2 * COST, 2 * COST]
    assert not got.contended


# A flood: at 0 s, client 0 sends ten calls of one token and client 1 sends two. One call a second
# is served.


def flood(number, client, answered_s):
    at_s = NAN if answered_s is None else answered_s - 1.0
    return call(number, 0, 0.0, client=client) | {
        "admitted_s": at_s,
        "first_token_s": at_s + 1,
        "finish_s": at_s + 1,
        "output_tokens": 0 if answered_s is None else 1,
        "max_new_tokens": 1,
        "status": UNFINISHED if answered_s is None else FINISHED,
    }


@pytest.mark.parametrize(
    ("answered", "ratios"),
    [
        # First come, first served: all 6 calls of the window are the flood's, 12 tokens each or 72
        # in all. Of these, 24 were due to client 1, which leaves 48.
        ([1, 2, 3, 4, 5, 5.5, None, None, None, None, None, None], [72 / 48, 0]),
        # Max-min fair: client 1 gets both of its calls.
        ([1, 3, 5, 5.5, None, None, None, None, None, None, 2, 4], [1, 1]),
    ],
)
def test_a_flood_is_entitled_to_the_rest_that_others_leave(answered, ratios):
    calls = [flood(number, int(number >= 10), at_s) for number, at_s in enumerate(answered)]
    table = [
        program(one["program_id"], 1, one["client"], demand_output_tokens=1, status=one["status"])
        for one in calls
    ]
    served = log(
        *(
            {
                "client": one["client"],
                "start_s": one["admitted_s"],
                "end_s": one["finish_s"],
                "input_tokens": 10,
                "output_tokens": 1,
            }
            for one in calls
            if one["status"] == FINISHED
        )
    )
    made = facts(horizon_s=6.0)
    got = fair_shares(requests(*calls), programs(*table), served, made, Window(0, 6))
    assert got.demand.tolist() == [120, 24]
    assert got.ratio.tolist() == pytest.approx(ratios)
    assert got.contended


# the parts


def test_the_latency_of_a_lone_call_is_read_from_the_fastest_calls():
    table = requests(
        call(0, 0, 0.0, waits_s=5.0),  # 6 s to the first token
        call(1, 0, 0.0),  # 1 s, for as many tokens
        call(2, 0, 0.0, first_token_s=2.0, finish_s=8.0, extend_tokens=30, output_tokens=4),
        call(3, 0, 0.0, extend_tokens=20) | NEVER_SERVED | {"input_tokens": 20},
    )
    alone = unhindered(table, np.array([3.0, 3, 4, 3]), 50.0)
    # No call with 20 tokens was answered, but calls with 30 took 2 s. For the pace, the third
    # fastest takes 2 s.
    assert alone.first_token_s.tolist() == [1, 1, 2, 2]
    assert alone.per_token_s == 2
    assert alone.latency_s.tolist() == [5, 5, 8, 6]
    assert alone.lost_s.tolist() == [3, 0, 0, 44]


def test_a_refused_call_is_contention():
    calls = [*IDLE, call(2, 0, 5.0) | NEVER_SERVED | {"status": REFUSED}]
    table = [*IDLE_PROGRAMS, program(2, 1, arrival_s=5.0, status=REFUSED)]
    got = judged(calls, table, end_s=31)
    assert got.contended
    assert got.demand.tolist() == [4 * COST, 3 * COST]


def test_foreign_calls_without_known_order_are_due_when_they_were_sent():
    calls = [one | {"depth": 0} for one in [*STARVED, *OTHERS]]
    got = judged(calls, [STARVED_PROGRAM, *OTHER_PROGRAMS], end_s=24.5)
    assert got.demand[0] == 2 * COST


def test_requests_queued_at_a_router_count_as_waiting():
    held = call(0, 0, 0.0) | NEVER_SERVED | {"worker": -1}
    table = requests(held, call(1, 0, 0.0, client=1))
    assert waiting_share(table, facts(horizon_s=10.0), Window(0, 10)).tolist() == [1, 0]


def test_admissions_that_were_not_reported_are_estimated():
    unreported = [
        call(number, 0, 0.0, waits_s=wait_s) | {"admitted_s": wait_s + 1.0}
        for number, wait_s in enumerate((0.0, 0.5, 7.0))
    ]
    table = with_admissions(requests(*unreported))
    # The least wait is 1 s. A wait of up to twice that counts as none, so the first two did not
    # wait.
    assert table.admitted_s.tolist() == [0, 0, 6]
    reported = requests(*IDLE)
    assert with_admissions(reported) is reported


def test_the_queue_of_an_endpoint_is_estimated_and_marked_as_such():
    unreported = [one | {"admitted_s": one["first_token_s"]} for one in IDLE]
    made = facts(window=Window(0, 31), horizon_s=43.0)
    table = requests(*unreported), programs(*IDLE_PROGRAMS), booked(unreported)
    summary = summary_of(*table, made)
    assert summary["queue_empty_share"] == 1
    assert summary["demand_limited"] is True
    assert summary["notes"]["queue_empty_share"] == QUEUE_ESTIMATED
    assert summary["min_entitlement_ratio"] is None


def test_no_call_is_due_more_tokens_than_it_may_produce():
    """A program demands 30 tokens. Its last call may produce only 3 of the 27 that are missing."""
    calls = [call(0, 0, 0.0), call(0, 1, 3.0) | NEVER_SERVED]
    table = programs(program(0, 2, demand_output_tokens=30, status=UNFINISHED))
    found, unmade = calls_of(requests(*calls), table, facts(clients=1))
    assert found.output_tokens.tolist() == [3, 3]
    assert unmade == []


@pytest.mark.parametrize(("end_s", "short"), [(64.0, COST), (64.5, 2 * COST)])
def test_a_call_that_was_never_sent_is_due_after_the_usual_age_and_not_at_it(end_s, short):
    """The second call of a usual program is due at the age of 14 s: 13 s, and 1 s to its token."""
    calls = [call(0, 0, 0.0), call(0, 1, 13.0), call(1, 0, 50.0) | NEVER_SERVED]
    table = [program(0, 2, finish_s=16.0), program(1, 2, arrival_s=50.0, finish_s=NAN)]
    table[1] |= {"requests": 1, "status": UNFINISHED}
    made = facts(clients=1, horizon_s=100.0)
    assert shortfall(requests(*calls), programs(*table), made, end_s) == pytest.approx([short])
