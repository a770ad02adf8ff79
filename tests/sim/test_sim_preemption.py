"""Test preemption by recomputing and by swapping in both engines: by hand, and random streams."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.engine.sequence import FINISHED, HostMemory
from fairbench.hardware.catalogue import load_profile, profile_ids
from fairbench.hardware.timing import KVPool, slowed
from fairbench.schedulers.base import Preempt
from fairbench.schedulers.local.fcfs import FCFS
from tests.preemption_invariants import watch_preemptions
from tests.sim.sim_helpers import PLAIN, US, Home, prompt
from tests.sim.test_sim_vllm import VLLMHome
from tests.strategies import examples

COPY_PS = 10 * US
# A token's KV is one byte, and 10^5 bytes a second are copied in each direction.
LINKED = replace(PLAIN, pool=KVPool(1, 0, 1, 0.5, 100, host_gb_s=1e-4))


class Preempting(FCFS):
    """FCFS that preempts the requests that ``victims(view, now_s)`` names, as (request, swap)."""

    preempts = swaps = True

    def __init__(self, victims):
        super().__init__(FCFS.Params())
        self.victims, self.answers = victims, []

    def select(self, view, now_s):
        for request, swap in self.victims(view, now_s):
            self.answers.append((yield Preempt(request, swap)))
        yield from super().select(view, now_s)


def for_the_second(swap):
    """Preempt request 0 when request 1 waits."""

    def victims(view, now_s):
        waiting = [one.request_id for one in view.queue_order()]
        running = [one.request for one in view.running if one.request.request_id == 0]
        return [(one, swap) for one in running if 1 in waiting]

    return Preempting(victims)


def sglang_home(policy, **limits):
    return watched(Home(policy, profile=LINKED, pool=100, full_reservation=True, **limits))


def vllm_home(policy, **limits):
    return watched(VLLMHome(policy, profile=LINKED, blocks=7, **limits))


def watched(home):
    watch_preemptions(home.clock, [home.worker])
    return home


HOMES = pytest.mark.parametrize("home_of", [sglang_home, vllm_home])


def displaced(home_of, swap, host_tokens=1000):
    """Run a request of 40 + 40 alone until one of 70 + 10 arrives, which needs its memory."""
    policy = for_the_second(swap)
    home = home_of(policy, host_tokens=host_tokens)
    first, urgent = home.send(40, 40), home.send(70, 10, at_ps=20_000 * US)
    home.run()
    assert [one.status for one in home.sent] == [FINISHED, FINISHED]
    # 1,400 us for its prompt and first token, and 1,010 us for each further token
    held = 40 + (urgent.admitted_ps - 1_400 * US) // (1_010 * US)
    return home, policy, first, urgent, held


@HOMES
def test_swapped_tokens_are_not_recomputed(home_of):
    _, policy, first, urgent, held = displaced(home_of, swap=True)
    assert policy.answers[0] is True
    assert first.retracted_ps == urgent.admitted_ps < urgent.finish_ps <= first.readmitted_ps
    assert first.recompute_tokens == 1  # the token that had no KV yet
    assert held < first.swapped_tokens <= 2 * held  # cached tokens need not be restored


@HOMES
def test_tokens_not_swapped_are_recomputed(home_of):
    _, policy, first, _, held = displaced(home_of, swap=False)
    assert policy.answers[0] is True
    assert first.swapped_tokens == 0
    assert 1 < first.recompute_tokens <= held + 1


@HOMES
def test_copies_take_their_time_and_the_engine_waits_meanwhile(home_of):
    home, _, first, urgent, held = displaced(home_of, swap=True)
    assert urgent.first_token_ps == urgent.admitted_ps + held * COPY_PS + 1_700 * US
    back_ps = (first.swapped_tokens - held) * COPY_PS
    start_ps = first.readmitted_ps + back_ps
    rows = zip(*(home.log.column(name).tolist() for name in ("start_ps", "end_ps")), strict=True)
    assert (start_ps, start_ps + 1_010 * US) in list(rows)  # a prefill of one token


@HOMES
def test_a_host_without_room_refuses_the_swap(home_of):
    _, policy, first, _, _ = displaced(home_of, swap=True, host_tokens=30)
    assert not any(policy.answers)
    assert first.swapped_tokens == first.recompute_tokens == 0


@HOMES
@given(st.integers(0, 10**6))
@examples(25)
def test_in_random_streams_no_request_is_lost_and_no_memory_leaks(home_of, seed):
    """INV-3 to 5 and 12 to 21 hold after every event, and records equal those of single steps."""
    assert played(home_of, seed, step_by_step=False) == played(home_of, seed, step_by_step=True)


def played(home_of, seed, step_by_step):
    """Play a random stream under a policy that preempts at random. Return the records."""
    draw, left = Random(seed), 25

    def victims(view, now_s):
        nonlocal left
        chosen = [one.request for one in view.running if draw.random() < 0.2][:left]
        left -= len(chosen)
        return [(request, draw.random() < 0.6) for request in chosen]

    room = draw.choice([60, 200])
    home = home_of(Preempting(victims), host_tokens=room, step_by_step=step_by_step)
    shared = prompt("a", 30, "b", 20), prompt("a", 30, "c", 11), prompt("a", 30)
    for _ in range(10):
        parts = draw.choice([draw.randint(1, 60), *shared])
        home.send(parts, draw.randint(1, 25), at_ps=draw.randint(0, 60_000) * US)
    home.run()
    assert all(one.status == FINISHED for one in home.sent)
    assert all(one.produced == one.output.length for one in home.sent)
    assert home.worker.host.used == 0
    ends = [(one.finish_ps, one.recompute_tokens, one.swapped_tokens) for one in home.sent]
    return ends, [home.log.column(name).tolist() for name in home.log.names]


def test_an_aborted_request_leaves_the_host_memory():
    home = sglang_home(for_the_second(swap=True), host_tokens=1000)
    first = home.send(40, 40)
    home.send(70, 10, at_ps=20_000 * US)
    home.run(until_ps=25_000 * US)
    assert home.worker.host.used > 0
    home.worker.abort(first)
    assert home.worker.host.used == 0


def test_every_gpu_has_a_link_to_its_host():
    """A token of Llama 3.1 8B has 128 KiB of KV, so 4 GiB hold 32,768."""
    assert all(load_profile(name).pool.host_token_ps > 0 for name in profile_ids())
    pool = load_profile("a100-80gb/llama-3.1-8b/tp1/measured-sglang").pool
    assert pool.host_token_ps == round(131_072 / 25.2e9 * 1e12)
    assert pool.host_tokens(4.0) == 32_768


def test_a_slower_machine_copies_more_slowly():
    assert slowed(LINKED, 2.0).pool.host_token_ps == 2 * LINKED.pool.host_token_ps


def test_without_a_link_the_host_holds_nothing():
    assert not HostMemory(1000, 0).fits_copy(1)
