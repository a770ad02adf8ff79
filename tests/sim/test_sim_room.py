"""Test that the engine answers correctly whether a request would fit after preemptions."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairbench.engine.sequence import FINISHED
from fairbench.hardware.timing import ProfileCosts
from fairbench.schedulers.base import Preempt, Setup
from fairbench.schedulers.local.edf import EDF
from fairbench.schedulers.local.fcfs import FCFS
from tests.sim.sim_helpers import PLAIN, US, Home, prompt
from tests.sim.test_sim_vllm import VLLMHome
from tests.strategies import examples


class Asking(FCFS):
    """FCFS that asks at random which requests would have to leave, and preempts them."""

    preempts = True

    def __init__(self, seed):
        super().__init__(FCFS.Params())
        self._draw, self.answers = Random(seed), []

    def select(self, view, now_s):
        admitted = set()
        for request in view.queue_order():
            running = [one.request for one in view.running if one.request not in admitted]
            gone = {one for one in running if self._draw.random() < 0.2}
            if len(self.answers) >= 40:
                gone = set()
            said = view.running.would_fit(request, gone)
            for one in running:
                if one in gone:
                    assert (yield Preempt(one))
            found = yield request
            self.answers.append((said, found, bool(gone)))
            if not found:
                return
            admitted.add(request)


def sglang_home(policy, seed, **limits):
    draw = Random(seed)
    limits |= {"pool": draw.choice([150, 300]), "full_reservation": draw.random() < 0.3}
    return Home(policy, **limits)


def vllm_home(policy, seed, **limits):
    return VLLMHome(policy, blocks=Random(seed).choice([8, 16]), max_num_seqs=16, **limits)


# A request costs 10 tokens in addition to its context.
READS = replace(PLAIN, coefficients_ms=PLAIN.coefficients_ms | {"c_w": 0.5, "c_K": 0.001})


@pytest.mark.parametrize("limits", [{}, {"profile": READS, "load_cap": 200}])
@pytest.mark.parametrize("home_of", [sglang_home, vllm_home])
@given(st.integers(0, 10**6))
@example(401_579)  # 12 tokens are left for a request of 12, up to rounding
@examples(30)
def test_would_fit_is_exact(home_of, limits, seed):
    draw, policy = Random(seed), Asking(seed)
    home = home_of(policy, seed, **limits)
    shared = prompt("a", 32, "b", 20), prompt("a", 32, "c", 11), prompt("a", 32)
    for _ in range(12):
        parts = draw.choice([draw.randint(1, 60), *shared])
        home.send(parts, draw.randint(1, 40), at_ps=draw.randint(0, 30_000) * US)
    home.run()
    assert all(one.status == FINISHED for one in home.sent)
    assert all(said == found for said, found, _ in policy.answers)


class AskingAboutSharers(FCFS):
    """FCFS that asks whether a request would fit without the running ones of its first words."""

    preempts = True

    def __init__(self):
        super().__init__(FCFS.Params())
        self.said = []

    def select(self, view, now_s):
        running = [one.request for one in view.running]
        for request in view.queue_order():
            key = request.prompt[0].key
            sharers = {one for one in running if one.prompt[0].key == key}
            if len(sharers) == 2:
                self.said.append(view.running.would_fit(request, sharers))
            if not (yield request):
                return


@pytest.mark.parametrize(("more", "fits"), [(95, True), (97, False)])
def test_blocks_that_the_new_request_shares_with_the_preempted_are_not_freed(more, fits):
    """Four of 16 blocks are shared by two requests with one more each, and six are another's.

    Four are free, and two more without both. So the new request may have six besides the shared
    ones.
    """
    policy = AskingAboutSharers()
    home = VLLMHome(policy, blocks=16)
    home.send(prompt("a", 64, "b", 6), 6)
    home.send(prompt("a", 64, "c", 6), 6, at_ps=1_000 * US)
    home.send(90, 6, at_ps=1_000 * US)
    home.send(prompt("a", 64, "d", more), 6, at_ps=3_500 * US)
    home.run()
    assert policy.said[:1] == [fits]


def test_such_streams_have_both_answers_with_and_without_preemption():
    seen = set()
    for seed in range(20):
        draw, policy = Random(seed), Asking(seed)
        home = sglang_home(policy, seed)
        for _ in range(12):
            home.send(draw.randint(1, 60), draw.randint(1, 40), at_ps=draw.randint(0, 30_000) * US)
        home.run()
        seen |= {(found, gone) for _, found, gone in policy.answers}
    assert seen == {(True, True), (True, False), (False, True), (False, False)}


def rescuing(*requests):
    """Return a pool of 1,000 tokens under an EDF that rescues immediately.

    Requests are (prompt, outputs, arrival in us, deadline as Request has it).
    """
    scheduler = EDF(EDF.Params(preempt="recompute", rescue_s=1e9, progress=0))
    scheduler.prepare(Setup(costs=ProfileCosts(PLAIN)))
    home = Home(scheduler, pool=1000)
    for tokens, outputs, at_us, due in requests:
        sent = home.send(tokens, outputs, at_ps=at_us * US)
        sent.request = replace(sent.request, arrival_s=at_us / 1e6, **due)
    return home.run()


def test_future_outputs_count_as_much_as_the_engine_reserves_for_them():
    """Two requests run: 100 + 500 and, because only 0.7 of that is reserved, 100 + 500.

    The urgent request needs 480 and has 170. Without the first, it has 900 - 0.7 x 500. (900 - 500
    would not be enough.)
    """
    home = rescuing(
        (100, 500, 0, {"deadline_s": 1000.0}),
        (100, 440, 2_100, {"deadline_s": 5.0}),
        (380, 99, 6_000, {"first_token_by_s": 10.0}),
    )
    first, second, urgent = home.sent
    assert (first.retractions, second.retractions) == (1, 0)
    assert urgent.admitted_ps == first.retracted_ps < second.finish_ps


def test_admissions_of_the_same_pass_count():
    """200 + 100 runs, and 300 + 200 is admitted before the 300 + 300 that could replace it.

    800 are free, but only 229 of them for the last request, and the 499 without the first are not
    enough.
    """
    home = rescuing(
        (200, 100, 0, {"deadline_s": 1000.0}),
        (300, 200, 5_000, {"deadline_s": 10.0}),
        (300, 300, 5_000, {"first_token_by_s": 20.0}),
    )
    assert [one.retractions for one in home.sent] == [0, 0, 0]
    assert home.sent[1].admitted_ps < home.sent[2].admitted_ps
