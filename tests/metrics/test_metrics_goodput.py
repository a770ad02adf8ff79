"""Test goodput by hand, against a brute-force oracle, and by its properties."""

from dataclasses import replace
from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.fairness import max_min
from fairbench.metrics.goodput import client_goodput, slack_of
from fairbench.metrics.records import FINISHED, REFUSED, UNFINISHED, Client
from fairbench.metrics.tables import Tables
from fairbench.targets import Target, Targets
from tests.metrics.metrics_helpers import NAN, facts, log, programs, requests, summary_of
from tests.strategies import examples

QUICK = Targets(ttft=Target(1.0), tpot=Target(0.1), e2el=Target(5.0))


class Costs:
    """Costs: a prefill takes 0.1 s and 1 ms per token, and a decode step 20 ms."""

    def frontend_s(self, input_tokens):
        return 0.0

    def prefill_s(self, cached_tokens, new_tokens):
        return 0.1 + 0.001 * new_tokens

    def decode_step_s(self, requests, context_tokens):
        return 0.02


def request(arrival=0.0, ttft=0.5, decode=1.0, output=11, **more):
    first = arrival + ttft
    usual = {"arrival_s": arrival, "first_token_s": first, "finish_s": first + decode}
    return usual | {"output_tokens": output, "input_tokens": 100, "extend_tokens": 60} | more


@pytest.mark.parametrize(
    ("made", "slack"),
    [
        (request(), 0.0),  # ten gaps of 0.1 s: exactly in time
        # 0.25 s of the 1 s for gaps are left, and 0.5 s of the TTFT target
        (request(decode=0.75), 0.25),
        (request(ttft=0.9, decode=0.5), 0.1),
        (request(ttft=1.25), -0.25),
        (request(decode=1.5), -0.5),
        # ten seconds are allowed for the gaps, but e2el is limited to 5 s
        (request(ttft=0.25, decode=5.25, output=101), -0.5),
        (request(ttft=0.5, decode=0.0, output=1), 0.5),  # one token has no gaps
        (request(status=UNFINISHED, finish_s=NAN), NAN),
        (request(status=REFUSED, first_token_s=NAN, finish_s=NAN), NAN),
    ],
)
def test_the_slack_of_a_request_is_that_of_its_tightest_target(made, slack):
    got = slack_of(requests(made), QUICK, None)
    assert got[0] == pytest.approx(slack, nan_ok=True)


def test_multiples_refer_to_the_latencies_of_the_request_alone():
    # Alone, the request takes 0.2 s to the first token and 0.02 s for each of the ten others, 0.4 s
    # in all.
    for targets, slack in (
        (Targets(ttft=Target(3, True)), 0.6 - 0.5),
        (Targets(tpot=Target(4, True)), 0.8 - 1.0),
        (Targets(e2el=Target(5, True)), 2.0 - 1.5),
    ):
        assert slack_of(requests(request()), targets, Costs())[0] == pytest.approx(slack)


def promised(*targets, classes=("", "")):
    """Return the usual facts, for clients with these targets."""
    clients = tuple(
        Client(f"c{i}", False, 1.0, one, name)
        for i, (one, name) in enumerate(zip(targets, classes, strict=True))
    )
    return replace(facts(), clients=clients)


def small_run():
    """Return two clients of three programs, one request each. The last program starves."""
    made = requests(
        request(1.0, program_id=0),
        request(2.0, program_id=1, ttft=3.0),  # too late
        request(98.0, program_id=2, decode=2.0, output=51),  # ends after the window
        request(1.0, program_id=3, client=1),
        request(1.0, program_id=4, client=1, status=REFUSED, first_token_s=NAN, finish_s=NAN,
                output_tokens=0, extend_tokens=0),
        request(1.0, program_id=5, client=1, status=UNFINISHED, first_token_s=NAN, finish_s=NAN,
                output_tokens=0, recompute_tokens=7),
    )  # fmt: skip
    one = {"demand_input_tokens": 100, "demand_output_tokens": 11}
    made_by = programs(
        *({"program_id": n, "arrival_s": a, **one} for n, a in enumerate((1.0, 2.0))),
        {"program_id": 2, "arrival_s": 98.0, **one, "demand_output_tokens": 51},
        *({"program_id": n, "client": 1, "arrival_s": 1.0, **one} for n in (3, 4)),
        {"program_id": 5, "client": 1, "arrival_s": 1.0, "status": UNFINISHED,
         "demand_requests": 4, "demand_input_tokens": 400, "demand_output_tokens": 44},
    )  # fmt: skip
    return made, made_by


def test_a_small_run_equals_a_hand_computation():
    made, made_by = small_run()
    known = promised(QUICK, Targets(e2el=Target(10.0)), classes=("fast", "batch"))
    known = replace(known, horizon_s=200.0)
    json = summary_of(made, made_by, log(), known)
    # Client 0 met the targets in two of three programs, one of them in the window. Client 1 met
    # them in one of 1 + 1 + 4.
    assert json["goodput_ratio"] == 3 / 9
    assert json["goodput_min_ratio"] == 1 / 6
    assert json["goodput_req_s"] == 2 / 100
    assert json["goodput_tok_s"] == 2 * (100 + 22) / 100
    assert json["goodput_jain_index"] == 1.0  # 122 tokens each in the window
    # Until the end, 122 + 202 and 122 tokens are goodput; requested were 122 + 122 + 202 and 2 *
    # 122 + 488. Each client could have had 223 of the 446 tokens, so the second has 122 / 223.
    assert json["goodput_worst_share"] == pytest.approx(122 / 223)
    assert json["goodput_slack_p50_s"] == pytest.approx(0.5)  # mean of 0, 0.5 and 8.5
    assert json["goodput_late_p50_s"] == pytest.approx(2.0)
    wasted = (60 + 11) + 0 + (60 + 7)
    assert json["goodput_wasted_tokens"] == wasted
    assert json["goodput_wasted_ratio"] == pytest.approx(
        wasted / (wasted + (60 + 11) + (60 + 51) + (60 + 11))
    )
    rows = [{k: v for k, v in one.items() if k.startswith("goodput")} for one in json["clients"]]
    assert rows == [
        {"goodput_targets": "ttft:1000ms tpot:100ms e2el:5000ms", "goodput_class": "fast",
         "goodput_req_s": 0.01, "goodput_tok_s": 1.22, "goodput_ratio": 2 / 3},
        {"goodput_targets": "e2el:10000ms", "goodput_class": "batch",
         "goodput_req_s": 0.01, "goodput_tok_s": 1.22, "goodput_ratio": 1 / 6},
    ]  # fmt: skip
    classes = [(one["class"], one["goodput_ratio"]) for one in json["goodput_classes"]]
    assert classes == [("fast", 2 / 3), ("batch", 1 / 6)]


def test_without_targets_a_summary_has_no_goodput():
    made, made_by = small_run()
    json = summary_of(made, made_by, log(), facts())
    keys = {*json, *json["notes"], *(key for one in json["clients"] for key in one)}
    assert not [key for key in keys if "goodput" in key]


def test_clients_without_targets_are_not_counted():
    made, made_by = small_run()
    json = summary_of(made, made_by, log(), promised(QUICK, Targets()))
    assert json["goodput_ratio"] == json["goodput_min_ratio"] == 2 / 3
    assert "goodput_ratio" not in json["clients"][1]
    assert "goodput_classes" not in json


def test_an_undefined_value_has_a_reason():
    nothing = Targets(ttft=Target(1e-6))
    made, made_by = small_run()
    json = summary_of(made, made_by, log(), promised(nothing, nothing))
    assert json["goodput_ratio"] == json["goodput_tok_s"] == 0
    assert json["goodput_wasted_ratio"] == 1
    for key in ("goodput_jain_index", "goodput_worst_share", "goodput_slack_p50_s"):
        assert json[key] is None
        assert json["notes"][key] == "no request kept its targets"
    none = summary_of(requests(), programs(), log(), promised(QUICK, QUICK))
    assert none["goodput_ratio"] is None
    assert none["notes"]["clients.c0.goodput_ratio"] == "no request arrived in the window"


TIMES = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 4.0])
ROWS = st.lists(
    st.tuples(
        st.sampled_from([0, 1]),
        st.sampled_from([0.0, 20.0, 60.0, 99.0, 100.0, 120.0]),  # arrival
        TIMES,
        TIMES,
        st.sampled_from([1, 2, 11]),
        st.sampled_from([FINISHED, FINISHED, FINISHED, REFUSED, UNFINISHED]),
        st.integers(0, 2),  # requests that its program has yet to make
    ),
    max_size=8,
)
LIMITS = st.sampled_from([None, 0.1, 0.5, 1.0, 2.0, 5.0])
BOTH = st.tuples(LIMITS, LIMITS, LIMITS).map(
    lambda limits: Targets(*(None if one is None else Target(one) for one in limits))
)


def tables_of(rows):
    made, made_by = [], []
    for number, (client, arrival, ttft, decode, output, status, unmade) in enumerate(rows):
        never = {} if status == FINISHED else {"finish_s": NAN}
        made.append(request(arrival, ttft, decode, output, client=client, program_id=number,
                            status=status, **never))  # fmt: skip
        made_by.append({
            "program_id": number, "client": client, "arrival_s": arrival, "status": status,
            "demand_requests": 1 + unmade, "demand_input_tokens": 100 * (1 + unmade),
            "demand_output_tokens": output * (1 + unmade),
        })  # fmt: skip
    return requests(*made), programs(*made_by)


def oracle(rows, targets):
    """Compute the numbers of both clients together, row by row."""
    met = asked = in_window = computed = wasted = 0
    got, wanted = [0, 0], [0, 0]
    for client, arrival, ttft, decode, output, status, unmade in rows:
        limits = targets[client]
        kept = status == FINISHED
        kept &= limits.ttft is None or ttft <= limits.ttft.amount
        kept &= limits.tpot is None or output == 1 or decode <= limits.tpot.amount * (output - 1)
        kept &= limits.e2el is None or ttft + decode <= limits.e2el.amount
        if kept and arrival + ttft + decode < 100:
            in_window += 1
        if arrival < 100:
            asked += 1 + unmade
            met += kept
            computed += 60 + output
            wasted += 0 if kept else 60 + output
            got[client] += kept * (100 + 2 * output)
            wanted[client] += (1 + unmade) * (100 + 2 * output)
    fair = max_min(sum(got), wanted)
    shares = [g / f for g, f in zip(got, fair, strict=True) if f > 0]
    return {
        "goodput_ratio": met / asked if asked else None,
        "goodput_req_s": in_window / 100,
        "goodput_wasted_tokens": wasted,
        "goodput_wasted_ratio": wasted / computed if computed else None,
        "goodput_worst_share": min(shares, default=None),
    }


@examples(40)
@given(ROWS, BOTH, BOTH)
def test_every_number_equals_a_count_row_by_row(rows, first, second):
    if not any(first.given()) or not any(second.given()):
        return
    known = replace(promised(first, second), horizon_s=200.0)
    json = summary_of(*tables_of(rows), log(), known)
    for key, value in oracle(rows, (first, second)).items():
        assert json[key] == (value if value is None else pytest.approx(value)), key
    for key in ("goodput_ratio", "goodput_wasted_ratio", "goodput_jain_index"):
        assert json[key] is None or 0 <= json[key] <= 1


@examples(40)
@given(ROWS, BOTH, st.integers(1, 5))
def test_looser_targets_are_never_met_less_often(rows, targets, times):
    looser = Targets(**{name: Target(one.amount * times) for name, one in targets.given()})
    made, _ = tables_of(rows)
    tight, loose = (slack_of(made, one, None) for one in (targets, looser))
    assert not np.any((tight >= 0) & ~(loose >= 0))
    assert np.all((loose >= tight) | np.isnan(tight))


@examples(40)
@given(ROWS, BOTH, st.randoms(use_true_random=False))
def test_the_order_of_the_records_makes_no_difference(rows, targets, rng):
    shuffled = rng.sample(rows, len(rows))
    known = promised(targets, targets)
    counts = []
    for some in (rows, shuffled):
        made, made_by = tables_of(some)
        (one,) = client_goodput(Tables(["c0", "c1"], made, made_by, log()), known, [0])
        counts.append((one.met, one.asked, one.wasted, sorted(one.slack_s.tolist())))
    assert counts[0] == counts[1]
    assert not any(isnan(slack) for slack in counts[0][3])


def test_requests_beyond_the_announced_demand_count_as_demanded():
    made = requests(request(1.0), request(2.0, ttft=3.0), request(3.0, ttft=3.0))
    made_by = programs({"demand_requests": 1, "requests": 3, "arrival_s": 1.0})
    json = summary_of(made, made_by, log(), replace(promised(QUICK, QUICK), horizon_s=200.0))
    assert json["goodput_ratio"] == 1 / 3
