"""Test service in windows by hand, and that a wrong scheduler misses its targets."""

from itertools import pairwise

import numpy as np
import pytest

from fairbench.core import ServiceWeights
from fairbench.metrics.fairness import jain
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.local.vtc import VTC
from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.kit.trace import Trace
from fairbench_studies.validation.slora.artifact import build_scheduler
from fairbench_studies.validation.slora.compare import compare_run
from fairbench_studies.validation.slora.measured import load_measured
from fairbench_studies.validation.slora.order import scheduler_orders
from fairbench_studies.validation.slora.replay import fitted_profile, replay, server_limits
from fairbench_studies.validation.windows import Window, service_between, windows
from tests.shared_data import VTC_RUNS, needs

WEIGHTS = ServiceWeights()
# Client 0 sends 10 input and 5 output tokens, with the first token at 2 s and the end at 6 s.
# Client 1 does so 10 s later.
TWO = Trace(
    np.array([0, 1]),
    np.array([10, 10]),
    np.array([5, 5]),
    np.array([0.0, 10.0]),
    np.array([2.0, 2.0]),
    np.array([6.0, 6.0]),
)


@pytest.mark.parametrize(
    ("start_s", "end_s", "service"),
    [
        (0, 2, 0),  # the first token comes at the end of the window
        (0, 3, 10 + 2 + 2),  # then one token a second, of weight 2
        (2, 6, 10 + 2 + 8),
        (3, 5, 4),
        (6, 9, 0),
        (0, 100, 20),
    ],
)
def test_input_counts_at_the_first_token_and_outputs_evenly_after_it(start_s, end_s, service):
    assert service_between(TWO, WEIGHTS, start_s, end_s)[0] == pytest.approx(service)


def test_parts_add_up_to_the_window_and_windows_to_the_run():
    edges = [0, 2.5, 4.1, 13, 20]
    parts = [service_between(TWO, WEIGHTS, start, end) for start, end in pairwise(edges)]
    for client in (0, 1):
        assert sum(part[client] for part in parts) == pytest.approx(10 + 2 * 5)


def test_service_of_a_request_of_one_token_and_of_a_refused_request():
    odd = Trace(
        np.array([0, 1]), np.array([7, 7]), np.array([1, 9]), np.array([0.0, 0.0]),
        np.array([1.0, np.nan]), np.array([1.0, np.nan]),
    )  # fmt: skip
    assert service_between(odd, WEIGHTS, 0, 5) == {0: 9, 1: 0}


def overloaded(scheduler, *, seconds=150):
    """Return two clients at 1.5 and 3 requests/s of 256 input and output tokens; 1.7 are served."""
    arrivals = np.concatenate([np.arange(0, seconds, 1 / 1.5), np.arange(0.1, seconds, 1 / 3)])
    client = np.repeat([0, 1], [int(1.5 * seconds), len(arrivals) - int(1.5 * seconds)])
    lengths = np.full(len(arrivals), 256)
    asked = Trace(client, lengths, lengths, arrivals, arrivals, arrivals)
    return replay(asked, scheduler, fitted_profile("2024-06"), server_limits())


@pytest.fixture(scope="module")
def by_vtc():
    return overloaded(VTC(VTC.Params(charge="input")))


@pytest.fixture(scope="module")
def by_fcfs():
    return overloaded(FCFS(FCFS.Params()))


def test_a_wrong_scheduler_fails_on_service_and_on_jain(by_vtc, by_fcfs):
    """Throughput and whole-run totals are right, because all requests are served in the end."""
    wrong = compare_run("VTC/x", "x", by_vtc, by_fcfs, fitted=False)
    assert wrong.throughput.within(2)
    missed = [miss.split(":")[0] for miss in wrong.misses]
    assert {"service rate of client 0", "service rate of client 1", "Jain"} <= set(missed)
    assert wrong.jain.simulated == pytest.approx(0.9, abs=0.01)
    assert wrong.jain.measured == pytest.approx(1, abs=0.002)
    assert compare_run("VTC/x", "x", by_vtc, by_vtc, fitted=False).misses == []


@needs(VTC_RUNS)
def test_the_measured_overload_under_vtc_is_matched_by_vtc_and_not_by_fcfs():
    (run,) = [run for run in load_measured(VTC_RUNS) if run.name == "VTC/overload"]
    for scheduler, right in (("VTC", True), ("FCFS", False)):
        chosen = build_scheduler(scheduler, run.recorded)
        simulated = replay(run.trace, chosen, fitted_profile(run.recorded), server_limits())
        compared = compare_run(run.name, run.scenario, run.trace, simulated, fitted=True)
        on_service = [miss for miss in compared.misses if "service rate" in miss or "Jain" in miss]
        assert (not on_service) == right
        assert compared.throughput.within(5)


def test_windows_end_with_the_last_arrival_and_slices_are_about_a_minute(by_vtc):
    whole, *slices = windows(by_vtc, by_vtc, WEIGHTS)
    assert (whole.start_s, whole.end_s) == (0, by_vtc.req_time_s.max())
    assert [one.slice for one in (whole, *slices)] == [False, True, True]
    assert [slices[0].start_s, slices[-1].end_s] == [whole.start_s, whole.end_s]
    assert slices[0].end_s == slices[1].start_s
    json = slices[0].as_dict()
    assert list(json) == ["start_s", "end_s", "jain_index", "clients"]
    assert json["clients"][1]["service_rate_tok_s"]["error_pct"] == 0


def test_a_run_of_one_instant_has_no_service_and_no_jain():
    instant = Trace(*(column[:1] for column in (
        TWO.client, TWO.prompt_tokens, TWO.output_tokens, TWO.req_time_s,
        TWO.first_token_latency_s, TWO.request_latency_s,
    )))  # fmt: skip
    (only,) = windows(instant, instant, WEIGHTS)
    assert only.rates == {0: Pair(0, 0)}
    assert only.as_dict()["jain_index"] == {"simulated": None, "measured": None, "error_pct": None}
    assert only.jain_within


@pytest.mark.parametrize(
    ("simulated", "cut", "within"),
    [(104, False, True), (106, False, False), (94, False, False), (114, True, True)],
)
def test_a_rate_may_differ_by_some_percent(simulated, cut, within):
    window = Window(0, 1, {0: Pair(simulated, 100)}, Pair(1, 1), cut)
    assert window.rate_within(0) == within


def test_a_tiny_client_may_differ_by_a_fraction_of_all_service():
    rates = {0: Pair(1_000, 1_000), 1: Pair(18, 10)}
    assert Window(0, 1, rates, Pair(1, 1)).rate_within(1)
    rates[1] = Pair(60, 40)
    assert not Window(0, 1, rates, Pair(1, 1)).rate_within(1)
    assert Window(0, 1, rates, Pair(1, 1), slice=True).rate_within(1)


def test_jain_may_differ_by_the_tolerance_of_the_rates():
    for cut, off in ((False, 0.024), (True, 0.074)):
        assert Window(0, 1, {}, Pair(0.9, 0.9 + off), cut).jain_within
        assert not Window(0, 1, {}, Pair(0.9, 0.902 + off), cut).jain_within
    rates = [1.05 * 2, 0.95]  # for two clients at 2 : 1
    assert jain(rates) == pytest.approx(jain([2, 1]) - 0.025, abs=1e-3)


def test_columns_that_rank_schedulers_can_differ_between_them(by_vtc, by_fcfs):
    """Whole-run service rates could not differ, because the trace alone decides them."""
    runs = [
        compare_run(f"{name}/x", "x", side, side, fitted=False)
        for name, side in (("VTC", by_vtc), ("FCFS", by_fcfs))
    ]
    ours, theirs = (dict(run.columns()) for run in runs)
    for column in ("service rate of client 0", "service rate of client 1", "Jain"):
        assert abs(ours[column].measured / theirs[column].measured - 1) > 0.05
    (order,) = scheduler_orders(runs)
    assert order.inverted == ()
    assert order.same >= 6
