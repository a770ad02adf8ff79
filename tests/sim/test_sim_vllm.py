"""Test the rules of the vLLM engine one by one, and decode runs against single steps."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment, prompt_tokens
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.contract import WorkerParts
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sequence import FINISHED, NEVER, REFUSED, Sequence
from fairbench.engine.vllm import VLLMReplica, empty_block_cache
from fairbench.hardware.engine_params import VLLMLimits
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.registry import build_local
from tests.sim.sim_helpers import PLAIN, US, prompt
from tests.sim.vllm_invariants import watch_vllm
from tests.strategies import examples


class VLLMHome:
    """A vLLM worker on its own clock, checked after every event."""

    def __init__(self, scheduler=None, *, blocks=64, profile=PLAIN, **limits):
        size = limits.setdefault("block_size", 16)
        limits.setdefault("max_num_seqs", 8)
        self.limits = VLLMLimits((blocks + 1) * size, **limits)
        self.clock, self.log, self.sent, self.evicted = Clock(), ServiceLog(["x", "y"]), [], []
        cache = empty_block_cache(self.limits)
        local = scheduler or FCFS(FCFS.Params())
        self.worker = VLLMReplica(
            WorkerParts(0, self.clock, local, profile, self.log), self.limits, cache
        )
        watch_vllm(self.clock, [self.worker])

    def hear_evictions(self):
        self.worker.cache.on_evict = lambda prefix, tokens: self.evicted.append(
            (self.clock.now_ps, prefix, tokens)
        )

    def send(self, parts, output, *, at_ps=0, client="x"):
        number = len(self.sent)
        text = prompt(f"own-{number}", parts) if isinstance(parts, int) else parts
        request = Request(number, client, 0, 0, text, prompt_tokens(text), output)
        sequence = Sequence(request, Segment(f"out-{number}", output), at_ps, lambda _: None)
        self.sent.append(sequence)
        self.clock.at(at_ps, ARRIVE, 0, partial(self.worker.submit, sequence))
        return sequence

    def run(self, until_ps=None):
        while (next_ps := self.clock.next_ps()) is not None:
            if until_ps is not None and next_ps > until_ps:
                break
            self.clock.step()
        return self

    def records(self):
        """Return all records."""
        rows = [self.log.column(name).tolist() for name in self.log.names]
        times = [
            (s.admitted_ps, s.first_token_ps, s.finish_ps, s.retracted_ps, s.readmitted_ps)
            for s in self.sent
        ]
        tokens = [
            (s.cached_tokens, s.extend_tokens, s.recompute_tokens, s.retractions, s.status)
            for s in self.sent
        ]
        return rows, times, tokens, self.evicted

    def steps(self):
        """Return (start in us, prompt tokens, decoding requests' context) of mixed steps."""
        columns = ("start_ps", "extend_tokens", "context_tokens", "steps")
        rows = zip(*(self.log.column(name).tolist() for name in columns), strict=True)
        return [(start // US, new, context) for start, new, context, _ in rows if new]


@pytest.mark.parametrize("step_by_step", [False, True])
def test_arrivals_take_effect_between_steps(step_by_step):
    """Request 0's prompt takes the only slot until 1,100 us. Its steps take 1,010 us each."""
    heard, tokens = [], []

    class Hearing(FCFS):
        def on_tokens(self, client, count):
            tokens.append(count)

        def on_arrival(self, request, view, now_s):
            heard.append((request.request_id, sum(tokens), round(now_s * 1e6)))

    home = VLLMHome(Hearing(FCFS.Params()), max_num_seqs=1, step_by_step=step_by_step)
    home.send(10, 12)
    home.send(10, 2, at_ps=500 * US)
    home.send(10, 2, at_ps=(1_100 + 3_000) * US)
    home.run()
    assert heard == [(0, 0, 0), (1, 1, 1_100), (2, 4, 1_100 + 3 * 1_010)]


@pytest.mark.parametrize("shared_read", [1.0, 0.5, 0.0])
def test_a_shared_prefix_is_read_as_often_as_the_profile_says(shared_read):
    """A step takes 1,000 us, 10 us per computed token, and 1 us per token of context."""
    reading = {**PLAIN.coefficients_ms, "c_K": 0.001}
    home = VLLMHome(profile=replace(PLAIN, coefficients_ms=reading, shared_read=shared_read))
    home.send(prompt("shared", 96), 1)  # leaves its prompt in the cache, six blocks
    for number in range(2):
        home.send(prompt("shared", 96, f"own-{number}", 10), 4, at_ps=100_000 * US)
    home.send(prompt("shared", 96, "late", 10), 1, at_ps=101_500 * US)  # in their first step
    home.run()
    columns = ("start_ps", "end_ps", "context_tokens")
    rows = zip(*(home.log.column(name).tolist() for name in columns), strict=True)
    lasted = {context: (end - start) // US for start, end, context in rows if context}
    saved = (1 - shared_read) * 96
    # Both have 106 tokens of prompt. The late request is prefilled in a step with them: it reads
    # the 96 itself, and the common part of the two is not increased by that.
    assert lasted == {
        2 * 107: 1_000 + 2 * 10 + 2 * 107 - saved,
        2 * 108: 1_000 + (2 + 10) * 10 + 96 + 2 * 108 - saved,
        2 * 109: 1_000 + 2 * 10 + 2 * 109 - saved,
    }


def test_a_step_decodes_first_and_gives_the_rest_of_its_budget_to_prompts():
    home = VLLMHome(max_num_batched_tokens=10)
    home.send(4, 5)
    home.send(20, 2)
    home.run()
    # 4 tokens of the first and 6 of the second prompt; then one decodes, with 9 and the last 5
    # beside it
    assert home.steps() == [(0, 10, 0), (1100, 9, 5), (2200, 5, 6)]


def test_a_prompt_hits_whole_cached_blocks_and_never_completely():
    home = VLLMHome()
    home.send(prompt("A", 32), 1)
    again = home.send(prompt("A", 32), 1, at_ps=10**12)
    longer = home.send(prompt("A", 32, "B", 9), 1, at_ps=2 * 10**12)
    part = home.send(prompt("A", 31), 1, at_ps=3 * 10**12)
    home.run()
    assert [s.cached_tokens for s in (again, longer, part)] == [16, 32, 16]


def test_requests_of_one_step_share_blocks_that_are_being_computed():
    home = VLLMHome()
    first, second = home.send(prompt("A", 40), 1), home.send(prompt("A", 40), 1)
    home.run()
    assert (first.cached_tokens, second.cached_tokens) == (0, 32)
    assert first.admitted_ps == second.admitted_ps


def test_without_prefix_caching_nothing_is_shared():
    home = VLLMHome(enable_prefix_caching=False)
    first, second = home.send(prompt("A", 40), 1), home.send(prompt("A", 40), 1)
    home.run()
    assert (first.cached_tokens, second.cached_tokens) == (0, 0)


def test_the_request_admitted_last_is_preempted_and_finds_its_blocks_again():
    home = VLLMHome(blocks=6)
    first, second = home.send(40, 20), home.send(40, 20)
    home.run()
    assert (first.retractions, second.retractions) == (0, 1)
    assert first.status == second.status == FINISHED
    # Both had 48 tokens and the next one when the first took the block that was returned first.
    assert second.retracted_ps < second.readmitted_ps == first.finish_ps
    assert second.recompute_tokens == 49 - 32


def test_admission_needs_the_blocks_of_the_whole_prompt():
    def second_admitted(**limits):
        home = VLLMHome(blocks=8, max_num_batched_tokens=80, **limits)
        first, second = home.send(60, 5), home.send(80, 2)
        home.run()
        return second.admitted_ps, first.finish_ps

    admitted, finish = second_admitted()
    assert admitted == finish
    assert second_admitted(scheduler_reserve_full_isl=False)[0] == 0


def test_the_watermark_stays_free_while_a_request_runs():
    home = VLLMHome(blocks=9, watermark=0.5)
    first, second = home.send(64, 3), home.send(32, 3)
    home.run()
    assert first.admitted_ps == 0
    assert second.admitted_ps == first.finish_ps


def test_a_lone_request_may_fill_the_whole_pool_in_spite_of_the_watermark():
    home = VLLMHome(blocks=9, watermark=0.5)
    alone = home.send(9 * 16 - 2, 2)
    home.run()
    assert (alone.status, alone.admitted_ps) == (FINISHED, 0)


def test_no_more_requests_run_than_allowed():
    home = VLLMHome(max_num_seqs=2)
    sent = [home.send(5, 4) for _ in range(3)]
    home.run()
    assert [s.admitted_ps for s in sent] == [0, 0, sent[0].finish_ps]


def test_a_request_that_can_never_fit_is_refused():
    home = VLLMHome(blocks=3)
    just, over = home.send(40, 9), home.send(40, 10)
    home.run()
    assert (just.status, over.status) == (FINISHED, REFUSED)


def test_a_request_that_loses_its_memory_amid_its_prompt_is_booked_once():
    home = VLLMHome(blocks=7, max_num_batched_tokens=8, scheduler_reserve_full_isl=False)
    home.send(7, 60)
    big = home.send(90, 3)
    home.run()
    assert big.retractions
    booked = sum(home.log.column("extend_tokens").tolist())
    assert booked == 7 + 90
    assert sum(home.log.column("recompute_tokens").tolist()) == big.recompute_tokens


def test_an_unfinished_step_has_admitted_no_request():
    home = VLLMHome()
    done, cut = home.send(16, 1), home.send(16, 1, at_ps=500 * US)
    home.run(until_ps=1_200 * US)  # the first step takes 1,160 us
    home.worker.settle()
    assert (done.status, done.admitted_ps, done.extend_tokens) == (FINISHED, 0, 16)
    assert (cut.admitted_ps, cut.cached_tokens, cut.extend_tokens) == (NEVER, 0, 0)


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"pool_tokens": 31}, "pool_tokens = 31"),
        ({"pool_tokens": 320, "max_num_batched_tokens": 100}, "max_num_batched_tokens = 100"),
    ],
)
def test_limits_that_vllm_refuses_at_its_start_are_refused(limits, named):
    with pytest.raises(ValueError, match=named):
        VLLMLimits(**limits)


def random_records(seed, scheduler, *, step_by_step, threshold=0):
    """Return the records of a random stream in a small pool."""
    draw = Random(seed)
    home = VLLMHome(
        build_local(scheduler, {}),
        blocks=draw.choice([6, 12, 40]),
        block_size=draw.choice([1, 4, 16]),
        max_num_batched_tokens=draw.choice([8, 32, 512]),
        max_num_seqs=draw.choice([2, 4, 8]),
        watermark=draw.choice([0.0, 0.1]),
        scheduler_reserve_full_isl=draw.random() < 0.5,
        step_by_step=step_by_step,
        long_prefill_token_threshold=threshold,
    )
    if draw.random() < 0.5:
        home.hear_evictions()
    for number in range(25):
        head = (Segment(draw.choice("ABC"), draw.choice([3, 16, 32])),) if number % 2 else ()
        text = (*head, Segment(f"own-{number}", draw.randrange(1, 40)))
        at_ps = draw.choice([draw.randrange(10**12), draw.randrange(400) * 1000 * US])
        home.send(text, draw.randrange(1, 40), at_ps=at_ps, client=draw.choice("xy"))
    home.run()
    home.worker.settle()
    return home


@given(
    seed=st.integers(0, 10**6),
    scheduler=st.sampled_from(["fcfs", "lpm", "vtc", "dlpm"]),
    threshold=st.sampled_from([0, 0, 1, 5]),
)
@examples(20)
def test_many_steps_together_leave_the_same_records_as_single_steps(seed, scheduler, threshold):
    at_once = random_records(seed, scheduler, step_by_step=False, threshold=threshold)
    one_by_one = random_records(seed, scheduler, step_by_step=True, threshold=threshold)
    assert at_once.records() == one_by_one.records()
    for sequence in at_once.sent:
        assert sequence.status in (FINISHED, REFUSED)
        assert (sequence.finish_ps == NEVER) == (sequence.status == REFUSED)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["fcfs", "lpm", "vtc", "dlpm"])
def test_many_steps_together_leave_the_same_records_for_many_streams(scheduler):
    preempted = 0
    for seed in range(150):
        at_once = random_records(seed, scheduler, step_by_step=False)
        one_by_one = random_records(seed, scheduler, step_by_step=True)
        assert at_once.records() == one_by_one.records(), seed
        preempted += sum(sequence.retractions for sequence in at_once.sent)
    assert preempted > 50


class Sizing(FCFS):
    def __init__(self, tokens):
        super().__init__(FCFS.Params())
        self.tokens = tokens

    def step_tokens(self, running, now_s):
        return self.tokens


@pytest.mark.parametrize(
    ("tokens", "chunks"),
    [
        (40, [10, 39, 39, 22]),  # one block belongs to the running request
        (10**6, [10, 100]),  # the engine's own limit is far away
        (0, [1] * 110),  # at least one token of a prompt
    ],
)
def test_a_prompt_is_cut_to_the_step_size_of_the_scheduler(tokens, chunks):
    home = VLLMHome(Sizing(tokens))
    home.send(10, 150)
    home.send(100, 2, at_ps=25_000 * US)
    home.run()
    assert [new for _, new, _ in home.steps()] == chunks
    assert all(one.status == FINISHED for one in home.sent)


def test_a_long_prompt_gets_the_threshold_unless_it_is_alone():
    """A step takes 1,000 us, and 10 us per computed token. x arrives beside y's answer.

    Each step computes 16 tokens of x and one of y. Alone, x takes its last 20 tokens at once. In
    vLLM without the threshold, one step would take the 63 tokens that the budget leaves.
    """
    home = VLLMHome(max_num_batched_tokens=64, long_prefill_token_threshold=16)
    home.send(10, 6, client="y")
    long = home.send(100, 1, at_ps=500 * US)
    home.run()
    assert home.steps() == [
        (0, 10, 0),
        (1_100, 16, 11),
        (2_270, 16, 12),
        (3_440, 16, 13),
        (4_610, 16, 14),
        (5_780, 16, 15),
        (6_950, 20, 0),
    ]
    assert long.finish_ps == 8_150 * US


def test_long_prompts_share_a_step_under_the_threshold():
    """Two prompts arrive together. Each gets 16 tokens, and the last one alone gets the rest."""
    home = VLLMHome(max_num_batched_tokens=40, long_prefill_token_threshold=16)
    first, second = home.send(20, 1), home.send(60, 1)
    home.run()
    assert home.steps() == [(0, 32, 0), (1_320, 20, 0), (2_520, 28, 0)]
    assert (first.finish_ps, second.finish_ps) == (2_520 * US, 3_800 * US)
