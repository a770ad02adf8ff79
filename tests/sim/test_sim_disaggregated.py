"""Test prefill and decode workers: hand-computed values, invariants, equivalences, and waits."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment, prompt_tokens
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.contract import CONTRACTS, WorkerParts
from fairbench.engine.disaggregated import Transfers, disaggregated
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sequence import FINISHED, REFUSED, Sequence
from fairbench.hardware.engines import DEFAULT_ENGINE, DisaggregationParams
from fairbench.schedulers.registry import (
    build_local,
    local_class,
    locals_by_name,
    routers_by_name,
)
from fairbench.sim.run import simulate
from tests.invariants import assert_same_records
from tests.sim.disaggregated_helpers import run_checked, small, us
from tests.sim.sim_helpers import PLAIN, US, prompt

# A token has one byte and takes 2 us on the link. The latency is 3 ms.
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
        engine = spec.engine or DEFAULT_ENGINE
        self.workers = disaggregated(spec.settings, engine, contract, parts, spec.decode)
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
    """Return reservation, admission, transfer, first token and end of a request, in us."""
    names = ("reserved_ps", "admitted_ps", "sent_ps", "received_ps", "first_token_ps", "finish_ps")
    return [us(getattr(sequence, name)) for name in names]


# Known answers: a step takes 1,000 us and 10 us per token.


def test_one_request_takes_its_prefill_the_transfer_and_its_decode_steps():
    home = Home()
    one = home.send(100, 5)
    home.run()
    # 1,000 + 100 * 10 of prefill, 100 * 2 + 3,000 of transfer, and four steps of 1,010
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
    # Both prompts are computed in one iteration, 1,000 + 300 * 10. The second waits for the link.
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
    # Prompts run one after the other, 2,000 us each. The second begins when the first has ended.
    assert times(first)[2:] == [2_000, 5_200, 5_200, 9_240]
    assert times(second) == [0, 2_000, 4_000, 7_200, 9_240, 13_280]


@pytest.mark.parametrize("form", FORMS[:2])
def test_a_sglang_decode_worker_reserves_memory_for_three_times_as_many_as_run(form):
    home = Home(engine__max_running_requests=1, **form)
    sent = [home.send(100, 5) for _ in range(4)]
    home.run()
    # The fourth request waits for the end of the first. Prompts take 2,000 us each.
    assert [times(one)[1] for one in sent] == [0, 2_000, 4_000, 9_240]
    assert times(sent[3])[0] == times(sent[0])[-1] == 9_240


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


def test_a_worker_is_saturated_while_a_request_waits_for_memory_at_its_decode_worker():
    home, seen = Home(engine__max_total_tokens=150), []

    def look():
        worker = home.workers[0]
        seen.append((worker.queued_count, worker.running_count, worker.saturated))

    home.send(100, 5)
    home.send(100, 5)
    for at_us in (1_000, 6_000, 10_000, 20_000):
        home.clock.at(at_us * US, ARRIVE, 0, look)
    home.run()
    # The first request has its prefill until 2,000, and decodes until 9,240. Then the second
    # request has its prefill until 11,240.
    assert seen == [(1, 1, True), (1, 0, True), (0, 1, False), (0, 0, False)]


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


def test_outputs_of_a_client_that_has_left_the_list_are_its_debt():
    home = Home("dlpm", disaggregation__charge_outputs=True)
    home.send(100, 5)
    home.run()
    # The client leaves DLPM's list with its prefill. Its four later tokens are charged afterwards.
    assert home.workers[0].scheduler.balances()["x"] == -2 * 4


# small experiments


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("workload", "scheduler"), [("judge", "d2lpm"), ("judge", "vtc"), ("chat", "dlpm")]
)
def test_invariants_hold_after_every_event(workload, scheduler, form):
    result = run_checked(small(workload, scheduler, **form))
    assert (np.asarray(result.requests["status"].indices) == FINISHED).all()


def _needs_sglang(name):
    kind = local_class(name)
    return kind.sglang_since is not None or kind.decodes_first is not None


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_local_scheduler_and_router_orders_prefill_workers(form):
    for kind, names in (("local", locals_by_name()), ("router", routers_by_name())):
        for name in names:
            if kind == "local" and form.get("engine") and _needs_sglang(name):
                continue
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


@pytest.mark.parametrize("form", [FORMS[0], FORMS[2]])
def test_a_rate_limit_returns_the_reserved_memory(form):
    result = run_checked(small("chat", "fcfs", local="rpm", rpm__limit=3, **form))
    status = np.asarray(result.requests["status"].indices)
    assert (status == REFUSED).any()


def test_a_gateway_holds_requests_before_the_prefill_workers():
    result = run_checked(small("judge", "vtc", gateway="drr"))
    routed, reserved = (np.asarray(result.requests[name]) for name in ("routed_s", "reserved_s"))
    assert (routed <= reserved).all()
    assert (np.asarray(result.requests["status"].indices) == FINISHED).all()


class Link:
    """Transfers between workers 0, 1 and workers 2, 3, at 2 us per token and 3 ms of latency."""

    def __init__(self):
        self.clock, self.asked, self.arrived = Clock(), [], []
        self.transfers = Transfers(self.clock, DisaggregationParams(0.0005, 3.0), 1.0, workers=4)

    def send(self, source, target, tokens, at_us=0):
        number = len(self.asked)
        request = Request(number, "x", 0, 0, (), tokens, 1)
        one = Sequence(request, Segment("o", 1), at_us * US, lambda _: None)
        self.asked.append((one, source, target))
        done = partial(self.arrived.append, number)
        self.clock.at(at_us * US, ARRIVE, 0, lambda: self.transfers.send(one, source, target, done))
        return one

    def run(self):
        while self.clock.next_ps() is not None:
            self.clock.step()
        return [us(one.sent_ps) for one, *_ in self.asked]

    def busy(self):
        """Return each transfer's start and end, in microseconds, and its two workers."""
        return [
            (us(one.sent_ps), us(one.sent_ps) + 2 * one.request.input_tokens, {source, target})
            for one, source, target in self.asked
        ]


def test_a_transfer_whose_workers_are_free_overtakes_one_with_a_busy_worker():
    link = Link()
    for source, target, tokens in ((0, 2, 100), (0, 3, 50), (1, 2, 10), (1, 3, 30)):
        link.send(source, target, tokens)
    # The second waits for worker 0 and the third for worker 2. The fourth starts at once.
    assert link.run() == [0, 200, 200, 0]


def test_the_oldest_transfer_starts_first_when_two_end_at_one_instant():
    link = Link()
    for source, target, tokens in ((0, 2, 100), (1, 3, 100), (0, 3, 50), (0, 2, 50), (1, 2, 20)):
        link.send(source, target, tokens)
    # Both links end at 200. The third, the oldest, starts, and so does the fifth beside it.
    assert link.run() == [0, 0, 200, 300, 200]


def test_a_transfer_that_is_requested_later_finds_the_gap_on_a_free_link():
    link = Link()
    link.send(0, 2, 500)
    link.send(0, 3, 100, at_us=100)
    link.send(1, 3, 200, at_us=300)
    # Booked in advance, worker 3 would stay idle until worker 0 is free at 1,000.
    assert link.run() == [0, 1_000, 300]


ENDS = st.tuples(st.integers(0, 1), st.integers(2, 3), st.integers(1, 500), st.integers(0, 2_000))


@given(st.lists(ENDS, max_size=20))
def test_no_transfer_waits_while_both_its_workers_are_free(asked):
    link = Link()
    for source, target, tokens, at_us in sorted(asked, key=lambda one: one[3]):
        link.send(source, target, tokens, at_us)
    link.run()
    busy = link.busy()
    assert sorted(link.arrived) == list(range(len(asked)))
    for number, (start, end, workers) in enumerate(busy):
        others = [one for other, one in enumerate(busy) if other != number]
        assert not any(workers & one[2] and one[0] < end and start < one[1] for one in others)
        at = us(link.asked[number][0].arrival_ps)
        while at < start:  # at each instant, some transfer occupies one of the workers
            ends = [one[1] for one in others if workers & one[2] and one[0] <= at < one[1]]
            assert ends
            at = max(ends)
        # when a transfer was overtaken, one of its workers was busy
        for later in busy[number + 1 :]:
            if us(link.asked[number][0].arrival_ps) <= later[0] < start:
                kept = [one for one in busy if one is not later and one[0] <= later[0] < one[1]]
                assert any(workers & one[2] for one in kept)


def test_decoding_is_not_interrupted_by_prompts():
    """A prefill and a decode worker produce each token sooner than two colocated replicas."""
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
