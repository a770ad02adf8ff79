"""Test VTC by profiled cost h(input, output), by hand ([VTC-artifact], req_queue.py)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.charging.predicted import profiled_cost_ms
from fairbench.schedulers.local.vtc_predict import PredictiveVTC
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_requests import Calls

SMALL = st.integers(1, 40)


def desk(**params) -> Desk:
    return Desk(PredictiveVTC(PredictiveVTC.Params(cost="profiled", **params)))


def produce(at: Desk, request, tokens: int) -> None:
    for _ in range(tokens):
        at.scheduler.on_tokens(request.client, 1)
        at.scheduler.on_request_tokens(request, 1)


def test_the_cost_of_a_request_equals_that_of_the_artifact():
    """An input token takes about 0.21 ms. In a full batch, 256 input and 256 output take 0.5 s."""
    assert profiled_cost_ms(0, 0) == 1.14601454
    assert profiled_cost_ms(1, 0) - profiled_cost_ms(0, 0) == pytest.approx(0.21001891)
    assert profiled_cost_ms(256, 256) == pytest.approx(554.79, abs=0.01)


def test_without_a_prediction_admission_charges_the_input_and_each_token_its_part():
    at, call = desk(predictor="none"), Calls()
    request = call("a", tail=30, max_new=10)
    at.arrive(request)
    at.run_pass()
    assert at.scheduler.counters == {"a": profiled_cost_ms(30, 0)}
    produce(at, request, 3)
    assert at.scheduler.counters["a"] == pytest.approx(profiled_cost_ms(30, 3))


def test_a_later_token_costs_more_than_an_earlier_one():
    at, call = desk(predictor="none"), Calls()
    request = call("a", tail=30, max_new=10)
    at.arrive(request)
    at.run_pass()
    seen = []
    for _ in range(4):
        before = at.scheduler.counters["a"]
        produce(at, request, 1)
        seen.append(at.scheduler.counters["a"] - before)
    assert seen == sorted(seen)
    assert seen[0] < seen[-1]


@given(st.lists(SMALL, min_size=1, max_size=5), st.sampled_from(["oracle", "average", "none"]))
def test_in_the_end_all_clients_have_been_charged_their_true_cost(outputs, predictor):
    at, call = desk(predictor=predictor), Calls()
    for tokens in outputs:
        request = call("a", tail=7, max_new=max(outputs))
        at.arrive(request)
        before = at.scheduler.counters["a"]
        at.run_pass()
        produce(at, request, tokens)
        at.scheduler.on_finish(request)
        charged = at.scheduler.counters["a"] - before
        assert charged == pytest.approx(profiled_cost_ms(7, tokens))
