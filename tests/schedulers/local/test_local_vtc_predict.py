"""Test predictive VTC by hand: prediction charged, excess added, rest refunded ([VTC] Alg. 3)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.local.vtc_predict import PredictiveVTC
from fairbench_studies.validation.slora.forms import ArtifactForm, EarlyArtifactForm, in_form
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_requests import Calls

FORMS = {
    "paper": PredictiveVTC,
    "artifact": in_form(ArtifactForm, PredictiveVTC),
    "artifact-2023": in_form(EarlyArtifactForm, PredictiveVTC),
}


def desk(form="paper", **params) -> Desk:
    return Desk(FORMS[form](PredictiveVTC.Params(**params)))


def produce(at: Desk, request, *runs: int) -> None:
    """Report decode runs of a request to the scheduler, as an engine does."""
    for tokens in runs:
        at.scheduler.on_tokens(request.client, tokens)
        at.scheduler.on_request_tokens(request, tokens)


def serve(at: Desk, request, tokens: int) -> int:
    """Serve a request with ``tokens`` of output. Return the charges of its client."""
    before = at.scheduler.counters.get(request.client, 0)
    at.arrive(request)
    at.run_pass()
    produce(at, request, tokens)
    at.scheduler.on_finish(request)
    return at.scheduler.counters[request.client] - before


def test_an_exact_prediction_is_charged_at_admission_and_never_again():
    at, call = desk(), Calls()
    request = call("a", tail=30, max_new=10)
    at.arrive(request)
    at.run_pass()
    assert at.scheduler.counters == {"a": 30 + 2 * 10}
    produce(at, request, 1, 4, 5)
    at.scheduler.on_finish(request)
    assert at.scheduler.counters == {"a": 50}


def test_unproduced_predictions_are_refunded_at_the_end():
    at, call = desk(), Calls()
    request = call("a", tail=30, max_new=10)
    at.arrive(request)
    at.run_pass()
    produce(at, request, 4)
    assert at.scheduler.counters == {"a": 50}
    at.scheduler.on_finish(request)
    assert at.scheduler.counters == {"a": 30 + 2 * 4}


def test_tokens_beyond_the_prediction_are_charged_one_by_one():
    at, call = desk(predictor="average"), Calls()
    first, second = call("a", tail=5, max_new=9), call("a", tail=5, max_new=9)
    assert serve(at, first, 4) == 5 + 2 * 4  # a prediction of 0, as in plain VTC
    at.arrive(second)
    at.run_pass()
    assert at.scheduler.counters == {"a": 13 + 5 + 2 * 4}
    produce(at, second, 3)
    assert at.scheduler.counters == {"a": 26}
    produce(at, second, 3)  # 6 tokens for a prediction of 4
    assert at.scheduler.counters == {"a": 26 + 2 * 2}


def test_the_average_starts_with_the_first_output_and_then_weighs_each_new_one_a_fifth():
    """[VTC-artifact], vtc_pred_len_req_queue.py: 10, then (4 * 10 + 20) / 5 = 12."""
    at, call = desk(predictor="average"), Calls()
    predictions = []
    for tokens in (10, 20, 2, 10):
        request = call("a", tail=1, max_new=99)
        at.arrive(request)
        before = at.scheduler.counters["a"]
        at.run_pass()
        predictions.append((at.scheduler.counters["a"] - before - 1) / 2)
        produce(at, request, tokens)
        at.scheduler.on_finish(request)
    assert predictions == [0, 10, 12, 10]


def test_each_client_has_a_separate_average():
    at, call = desk(predictor="average"), Calls()
    serve(at, call("a", tail=1, max_new=99), 10)
    other = call("b", tail=1)
    at.arrive(other)
    before = at.scheduler.counters["b"]
    at.run_pass()
    assert at.scheduler.counters["b"] - before == 1


def test_a_retracted_request_is_charged_once():
    at, call = desk(), Calls()
    request = call("a", tail=30, max_new=10)
    at.arrive(request)
    at.run_pass()
    produce(at, request, 3)
    at.retract(request)
    at.run_pass()
    produce(at, request, 7)
    at.scheduler.on_finish(request)
    assert at.scheduler.counters == {"a": 50}


def test_a_request_that_never_ran_costs_nothing_and_changes_no_prediction():
    at, call = desk(predictor="average"), Calls()
    request = call("a")
    at.arrive(request)
    at.view.leave(request)
    at.scheduler.on_finish(request)
    assert at.scheduler.counters == {"a": 0}
    assert serve(at, call("a", tail=1, max_new=99), 10) == 1 + 2 * 10


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=10),
    st.sampled_from(["oracle", "average"]),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_in_the_end_all_clients_have_been_charged_their_true_cost(outputs, predictor, error):
    at, call = desk(predictor=predictor, error=error), Calls()
    for tokens in outputs:
        charged = serve(at, call("a", tail=7, max_new=max(outputs)), tokens)
        assert charged == 7 + 2 * tokens


def test_errors_are_spread_over_the_whole_range_and_average_out():
    at, call = desk(error=0.5), Calls()
    charges = []
    for _ in range(400):
        request = call("a", tail=1, max_new=100)
        at.arrive(request)
        before = at.scheduler.counters["a"]
        at.run_pass()
        charges.append((at.scheduler.counters["a"] - before - 1) / 2)
    assert 50 <= min(charges) < 52
    assert 148 < max(charges) <= 150
    assert abs(sum(charges) / len(charges) - 100) < 1


def test_the_artifact_charges_requests_beyond_their_prediction_again():
    """The charge occurs once per step that ends a request, and not within the prediction."""
    extra = {}
    for form in ("paper", "artifact-2023", "artifact"):
        at, call = desk(predictor="average", form=form), Calls()
        serve(at, call("a", tail=1, max_new=3), 3)  # so that a is predicted 3 tokens
        ended = [call("c", tail=1, max_new=4), call("c", tail=1, max_new=4)]
        within, beyond = call("a", tail=1, max_new=9), call("b", tail=1, max_new=9)
        at.arrive(within, beyond, *ended)
        at.run_pass()
        produce(at, within, 2)
        for request in (beyond, *ended):  # all are predicted 0 tokens
            produce(at, request, 4)
        before = dict(at.scheduler.counters)
        for request in ended:
            at.scheduler.on_finish(request)
        after = at.scheduler.counters
        extra[form] = {client: after[client] - before[client] for client in "abc"}
    nothing, again = {"a": 0, "b": 0, "c": 0}, {"a": 0, "b": 2, "c": 0}
    assert extra == {"paper": nothing, "artifact-2023": nothing, "artifact": again}


def test_the_artifact_does_not_charge_a_request_that_is_exactly_as_long_as_predicted():
    at, call = desk(predictor="average", form="artifact"), Calls()
    serve(at, call("a", tail=1, max_new=3), 3)  # so that a is predicted 3 tokens
    exact, ended = call("a", tail=1, max_new=9), call("c", tail=1, max_new=4)
    at.arrive(exact, ended)
    at.run_pass()
    produce(at, exact, 3)
    produce(at, ended, 4)
    before = at.scheduler.counters["a"]
    at.scheduler.on_finish(ended)
    assert at.scheduler.counters["a"] == before
