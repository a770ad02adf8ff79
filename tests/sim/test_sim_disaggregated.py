"""Test prefill and decode workers: hand-computed values, invariants, equivalences, and waits."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment, prompt_tokens
from fairbench.hardware.cluster_params import DisaggregationParams
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.schedulers.registry import build_local, locals_by_name, routers_by_name
from fairbench.sim.clock import ARRIVE, Clock
from fairbench.sim.disaggregated.build import disaggregated
from fairbench.sim.disaggregated.replica import Transfers
from fairbench.sim.engine.contract import CONTRACTS, WorkerParts
from fairbench.sim.records.service_log import ServiceLog
from fairbench.sim.run import simulate
from fairbench.sim.sequence import FINISHED, REFUSED, Sequence
from tests.invariants import assert_same_records
from tests.sim.disaggregated_helpers import run_checked, small, us
from tests.sim.sim_helpers import PLAIN, US, prompt

# A token has one byte: 2 us each on the link, and 3 ms of latency.
LINK = {"disaggregation__bandwidth_gb_s": 0.0005, "disaggregation__latency_ms": 3.0}
FORMS = [{}, {"disaggregation__reserve": "admission"}, {"engine": "vllm"}]


class Home:
    """The workers of a small disaggregated cluster, on their own clock with ``PLAIN`` times."""

    def __init__(self, local="fcfs", **more):
        spec = small("judge", "fcfs", **(LINK | {"prefill": 1, "decode": 1} | more))
        self.clock, self.log = Clock(), ServiceLog(["x", "y"])
        contract = CONTRACTS[spec.engine or DEFAULT_ENGINE](spec.settings, PLAIN)
        parts = [
            WorkerParts(index, self.clock, build_local(local, spec.settings), PLAIN, self.log, None)
            for index in range(spec.prefill)
        ]
        self.workers = disaggregated(spec, contract, parts)
        self.sent = []

    def send(self, tokens, output, *, max_new=None, at_us=0, client="x"):
        number = len(self.sent)
        text = prompt(f"own-{number}", tokens)
        request = Request(number, client, 0, 0, text, prompt_tokens(text), max_new or output)
        sequence = Sequence(request, Segment(f"out-{number}", output), at_us * US, lambda _: None)
        self.sent.append(sequence)
        self.clock.at(at_us * US, ARRIVE, 0, lambda: self.workers[0].submit(sequence))
        return sequence

    def run(self):
        while self.clock.next_ps() is not None:
            self.clock.step()
        return self


def times(sequence):
    """Return reservation, admission, transfer, first token and end of a request, in
    microseconds.
    """
    names = ("reserved_ps", "admitted_ps", "sent_ps", "received_ps", "first_token_ps", "finish_ps")
    return [us(getattr(sequence, name)) for name in names]


# Known answers: a step takes 1,000 us and 10 us per token.


def test_one_request_takes_its_prefill_the_transfer_and_its_decode_steps():
    home = Home()
    one = home.send(100, 5)
    home.run()
    # 1,000 + 100 * 10 of prefill; 100 * 2 + 3,000 of transfer; four steps of 1,010.
    assert times(one) == [0, 0, 2_000, 5_200, 5_200, 9_240]
    assert (one.worker, one.decode_worker, one.status) == (0, 1, FINISHED)
    assert one.gpu_ps == (2_000 + 4 * 1_010) * US


def test_a_vllm_decode_worker_reserves_afterwards_and_produces_the_first_token():
    home = Home(engine="vllm")
    one = home.send(100, 5)
    home.run()
    assert times(one) == [2_000, 0, 2_000, 5_200, 6_210, 10_250]


def test_an_answer_of_one_token_ends_with_its_transfer():
    home = Home()
    one = home.send(100, 1)
    home.run()
    assert times(one) == [0, 0, 2_000, 5_200, 5_200, 5_200]


def test_transfers_of_a_worker_follow_each_other():
    home = Home()
    first, second = home.send(100, 2), home.send(200, 2)
    home.run()
    # Both prompts are computed in one iteration, 1,000 + 300 * 10; the second waits for the link.
    assert times(first)[2:4] == [4_000, 7_200]
    assert times(second)[2:4] == [4_200, 7_600]


def test_the_decode_worker_with_the_fewest_requests_is_chosen():
    home = Home(decode=2)
    sent = [home.send(100, tokens) for tokens in (900, 5, 5)]
    later = home.send(100, 5, at_us=30_000)
    home.run()
    assert [one.decode_worker for one in (*sent, later)] == [1, 2, 1, 2]


def test_a_request_with_its_kv_cache_waits_for_its_turn():
    home = Home(engine__max_running_requests=1)
    first, second = home.send(100, 5), home.send(100, 5)
    home.run()
    # One prompt after the other, 2,000 us each; the second begins when the first has ended.
    assert times(first)[2:] == [2_000, 5_200, 5_200, 9_240]
    assert times(second) == [0, 2_000, 4_000, 7_200, 9_240, 13_280]


def test_sglang_waits_for_memory_before_the_prompt_and_vllm_before_the_transfer():
    """The decode worker's pool holds one request."""
    home = Home(engine__max_total_tokens=150)
    first, second = home.send(100, 5), home.send(100, 5)
    home.run()
    assert times(first)[-1] == times(second)[0] == times(second)[1] == 9_240
    home = Home(engine="vllm", vllm__num_gpu_blocks_override=10)
    first, second = home.send(100, 5), home.send(100, 5)
    home.run()
    assert times(second)[1] < times(second)[0] == times(second)[2] == times(first)[-1]


def test_a_request_that_no_decode_worker_holds_is_refused():
    home = Home()
    never = home.send(100, 5, max_new=9_000)
    fits = home.send(100, 5)
    home.run()
    assert (never.status, fits.status) == (REFUSED, FINISHED)
    assert home.workers[0].in_flight() == []


def test_reservation_at_admission_follows_the_fair_order():
    """A client that floods the decode worker is served in turn, not first come, first served."""
    ends = {}
    for reserve in ("arrival", "admission"):
        more = {"engine__max_total_tokens": 150, "disaggregation__reserve": reserve}
        home = Home("vtc", **more)
        for _ in range(3):
            home.send(100, 5)
        late = home.send(100, 5, at_us=10, client="y")
        home.run()
        ends[reserve] = sorted(home.sent, key=lambda one: one.finish_ps).index(late)
    assert ends == {"arrival": 3, "admission": 1}


@pytest.mark.parametrize(("charges", "units"), [(False, 100 + 2 * 1), (True, 100 + 2 * 5)])
def test_outputs_are_charged_at_the_prefill_worker_on_request(charges, units):
    home = Home("vtc", disaggregation__charge_outputs=charges)
    home.send(100, 5)
    home.run()
    assert home.workers[0].scheduler.balances()["x"] == units


# Small experiments.


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("workload", "scheduler"), [("judge", "d2lpm"), ("judge", "vtc"), ("chat", "dlpm")]
)
def test_invariants_hold_after_every_event(workload, scheduler, form):
    result = run_checked(small(workload, scheduler, **form))
    assert (np.asarray(result.requests["status"].indices) == FINISHED).all()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_local_scheduler_and_router_orders_prefill_workers(form):
    for kind, names in (("local", locals_by_name()), ("router", routers_by_name())):
        for name in names:
            run_checked(small("chat", "fcfs", num_programs=1, **{kind: name}, **form))


@pytest.mark.parametrize("form", FORMS)
def test_step_by_step_gives_the_same_tables(form):
    spec = small("tot", "d2lpm", num_programs=1, **form)
    part = "vllm" if "engine" in form else "engine"
    slow = small("tot", "d2lpm", num_programs=1, **form, **{f"{part}__step_by_step": True})
    assert_same_records(simulate(spec), simulate(slow))


@pytest.mark.parametrize("form", FORMS)
def test_the_same_seed_gives_the_same_records(form):
    assert_same_records(simulate(small("judge", **form)), simulate(small("judge", **form)))


@pytest.mark.parametrize("form", FORMS)
def test_decode_workers_run_out_of_memory_and_all_tokens_are_generated(form):
    result = run_checked(small("chat", "fcfs", prefill=3, decode=1, **form))
    requests = result.requests
    assert np.asarray(requests["retractions"]).sum() > 0
    assert (np.asarray(requests["status"].indices) == FINISHED).all()


@pytest.mark.parametrize("form", FORMS[:2])
def test_no_decode_worker_is_above_its_load_cap(form):
    capped = {"engine__load_cap": 8_000, "engine__max_running_requests": 3}
    result = run_checked(small("judge", "vtc", **form, **capped))
    assert (np.asarray(result.requests["status"].indices) == FINISHED).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_run_that_is_cut_off_has_every_request_once(form):
    spec = small("tot", "vtc", **form).model_copy(update={"duration_s": 1.0, "max_drain_s": 0.0})
    result = run_checked(spec)
    status = np.asarray(result.requests["status"].indices)
    assert (status != FINISHED).any()


def test_a_rate_limit_returns_the_reserved_memory():
    result = run_checked(small("chat", "fcfs", local="rpm", rpm__limit=3))
    status = np.asarray(result.requests["status"].indices)
    assert (status == REFUSED).any()


def test_a_gateway_holds_requests_before_the_prefill_workers():
    result = run_checked(small("judge", "vtc", gateway="drr"))
    routed, reserved = (np.asarray(result.requests[name]) for name in ("routed_s", "reserved_s"))
    assert (routed <= reserved).all()
    assert (np.asarray(result.requests["status"].indices) == FINISHED).all()


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(2, 3), st.integers(1, 500)), max_size=20))
def test_transfers_never_overlap_at_a_worker_and_keep_its_order(asked):
    clock, arrived, free_us = Clock(), [], dict.fromkeys(range(4), 0)
    transfers = Transfers(clock, DisaggregationParams(0.0005, 3.0), 1.0, workers=4)
    for number, (source, target, tokens) in enumerate(asked):
        request = Request(number, "x", 0, 0, (), tokens, 1)
        one = Sequence(request, Segment("o", 1), 0, lambda _: None)
        transfers.send(one, source, target, partial(arrived.append, number))
        assert us(one.sent_ps) == max(free_us[source], free_us[target])
        free_us[source] = free_us[target] = us(one.sent_ps) + 2 * tokens
    while clock.next_ps() is not None:
        clock.step()
    assert sorted(arrived) == list(range(len(asked)))
    assert not asked or us(clock.now_ps) == max(free_us.values()) + 3_000


def test_decoding_is_not_interrupted_by_prompts():
    """One prefill and one decode worker produce each token sooner than two colocated replicas."""
    flags = {"prefill": 1, "decode": 1, "engine__max_total_tokens": 400_000}
    apart = simulate(small("judge", "fcfs", **flags))
    together = simulate(
        small("judge", "fcfs", **(flags | {"prefill": None, "decode": None, "dp": 1}))
    )
    assert apart.summary["mean_tpot_ms"] < together.summary["mean_tpot_ms"]


def test_gpu_time_counts_both_sides():
    result = simulate(small("judge", "d2lpm"))
    worker, gpu_s = (np.asarray(result.service[name]) for name in ("worker", "gpu_s"))
    sides = gpu_s[worker < 2].sum(), gpu_s[worker >= 2].sum()
    assert min(sides) > 0
    summary = result.summary
    assert summary["gpu_s"] == pytest.approx(sum(sides))
    assert (summary["prefill_gpu_s"], summary["decode_gpu_s"]) == pytest.approx(sides)
    assert summary["prefill_busy_ratio"] == pytest.approx(sides[0] / 2 / summary["duration"])
