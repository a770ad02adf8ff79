"""Test decoding by hand: the new-token ratio, retraction, eviction while decoding, counters.

An iteration takes 1,000 us and 10 us per token (a decode step: per sequence), see sim_helpers.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.engine.sequence import FINISHED, NEVER
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.sim.front import SimFleet
from tests.sim.sim_helpers import PLAIN, US, Home, SpyLPM, prompt
from tests.strategies import prompts

DECAY = (0.7 - 0.098) / 600


def ratio(home):
    return home.worker._ratio.ratio_after(home.worker.batch.steps)


def test_the_ratio_decays_on_decode_steps_only_and_is_reset_when_idle():
    home = Home(step_by_step=True)
    home.send(10, 100)
    home.run(until_ps=1100 * US)
    assert ratio(home) == 0.7  # a prefill does not count
    home.run(until_ps=(1100 + 5 * 1010) * US)
    assert ratio(home) == pytest.approx(0.7 - 5 * DECAY)
    home.send(10, 3, at_ps=home.clock.now_ps)
    home.run(until_ps=home.clock.now_ps + 1100 * US)
    assert ratio(home) == pytest.approx(0.7 - 5 * DECAY)
    home.run()
    assert ratio(home) == 0.7


def retraction(**limits):
    """Run two requests in a pool of 100. Inputs of 20 and 10 with 39 KV each are too much.

    The second request fits at 1200: 80 free - 0.7 * 39 reserved > 10 + 40 + 1. Both decode from
    2300 on. After 35 steps, 30 + 70 = 100 tokens are in use.
    """
    home = Home(pool=100, **limits)
    home.send(20, 40)
    home.send(10, 40, at_ps=500 * US)
    return home


RETRACTED_US = 2300 + 35 * 1020


def test_the_ratio_of_a_retraction_ends_when_the_worker_is_idle():
    home = retraction(step_by_step=True)
    home.run(until_ps=RETRACTED_US * US)
    assert ratio(home) == 1.0  # (36 produced + 20) / (40 allowed + 1), and never above 1
    home.run(until_ps=(RETRACTED_US + 1010) * US)
    assert ratio(home) == 1.0  # the next step does not count
    home.run(until_ps=(RETRACTED_US + 2 * 1010) * US)
    assert ratio(home) == pytest.approx(1.0 - DECAY)
    home.run()
    assert ratio(home) == 0.7


def test_a_retraction_makes_room_for_twenty_steps():
    """In a pool of 100 with inputs of 60 and 10, 100 tokens are in use 15 steps after 2,700.

    The first request loses its 15 outputs, fewer than the 20 that the other needs, so its prompt
    goes, too.
    """
    home = Home(pool=100)
    home.send(60, 17)
    home.send(10, 17, at_ps=500 * US)
    home.run(until_ps=(2_700 + 15 * 1020) * US)
    cache = home.worker.cache
    assert home.scheduler.retracted == [0]
    assert (cache.free, cache.evictable, cache.locked) == (75, 0, 10)


def test_among_equal_outputs_the_longer_input_is_retracted():
    home = retraction()
    home.run(until_ps=RETRACTED_US * US)
    first, second = home.sent
    assert home.scheduler.retracted == [0]
    assert (first.retractions, first.retracted_ps) == (1, RETRACTED_US * US)
    assert first.total == 20 + 36
    assert second.retractions == 0
    # Its outputs are gone, but its prompt is still cached.
    cache = home.worker.cache
    assert (cache.free, cache.evictable, cache.locked) == (35, 20, 10)


def test_the_ratio_after_a_retraction_equals_a_hand_computation():
    home = retraction()
    home.run(until_ps=RETRACTED_US * US)
    assert ratio(home) == 1.0  # (36 + 20) / (40 + 1), at most 1
    home = Home(pool=371)
    home.send(20, 200)
    home.send(10, 200, at_ps=500 * US)  # 351 free - 0.7 * 199 reserved > 10 + 200 + 1
    home.run(until_ps=(2300 + 170 * 1020) * US)  # 30 + 2 * 170 in use, one free
    assert home.scheduler.retracted == [0]
    assert ratio(home) == (171 + 20) / (200 + 1)


def test_a_retracted_request_keeps_its_outputs_and_recomputes_them():
    home = retraction().run()
    first, second = home.sent
    # At that time, 54 are free or evictable. 20 would be locked and 3 are reserved, so 36 + 4 + 1
    # is too much.
    assert first.readmitted_ps == second.finish_ps == (RETRACTED_US + 4 * 1010) * US
    assert home.scheduler.admissions == [(0, 20, False), (1, 10, False), (0, 36, True)]
    assert (first.cached_tokens, first.extend_tokens, first.recompute_tokens) == (0, 20, 36)
    assert (first.first_token_ps, first.produced) == (1200 * US, 40)
    # Its prefill produces token 37, and three steps produce the rest.
    assert first.finish_ps == first.readmitted_ps + (1360 + 3 * 1010) * US
    rows = home.rows()
    assert sum(row["extend_tokens"] for row in rows) == 30
    assert sum(row["extend_charged_tokens"] for row in rows) == 30
    assert sum(row["recompute_tokens"] for row in rows) == 36
    assert sum(row["output_tokens"] for row in rows) == 80
    assert home.scheduler.tokens == 80


def test_a_retracted_request_reserves_only_its_remaining_output():
    # With inputs of 20 and 5, both decode from 2250 on. After 35 steps, all 95 tokens are in use.
    home = Home(pool=95)
    first = home.send(20, 40)
    second = home.send(5, 40, at_ps=500 * US)
    home.run()
    assert (first.retractions, second.retractions) == (1, 0)
    # Alone again, with its prompt cached, the request computes 36 outputs and has 4 to produce: 36
    # + 4 + 1 < 75. If it reserved all 40 again, it would wait permanently.
    assert first.recompute_tokens == 36
    assert first.readmitted_ps == second.finish_ps
    assert first.produced == 40


def test_the_request_with_fewest_outputs_is_retracted_first():
    home = Home(pool=103)
    home.send(10, 30)
    home.send(20, 30, at_ps=500 * US)
    # This request joins after ten steps with the shortest input: 50 in use, 2 * 19 * 0.69 reserved,
    # 26 needed.
    late = home.send(5, 20, at_ps=12_000 * US)
    home.run()
    assert late.admitted_ps == (2300 + 10 * 1020) * US
    assert home.scheduler.retracted == [2]


def test_a_lone_running_request_is_never_retracted():
    home = Home(pool=100)
    home.send(50, 48)
    home.run()
    assert home.scheduler.retracted == []


def test_cached_prompts_are_evicted_before_any_request_is_retracted():
    home = retraction()
    old = prompt("old", 30)
    before = Home(pool=130)
    before.send(old, 1)
    for sequence in home.sent:
        before.send(sequence.request.prompt, 40, at_ps=2000 * US + sequence.arrival_ps)
    before.run()
    assert before.evicted == [(old, 30)]
    assert before.scheduler.retracted == []


def test_a_decode_step_evicts_only_the_missing_tokens():
    home = Home(pool=99)
    for number, key in enumerate("ab"):
        home.send(prompt(key, 1), 1, at_ps=number * 5000 * US)
    home.send(10, 40, at_ps=10_000 * US)
    home.send(10, 40, at_ps=10_500 * US)
    home.run()
    # 77 tokens are free for two requests, enough for 38 steps. The 39th lacks one token.
    assert home.evicted == [(prompt("a", 1), 1)]


@pytest.mark.parametrize("step_by_step", [False, True])
def test_an_eviction_happens_at_the_step_that_needs_the_memory(step_by_step):
    home, evicted_us = Home(pool=100, step_by_step=step_by_step), []
    home.worker.cache.on_evict = lambda *_: evicted_us.append(home.clock.now_ps // US)
    home.send(prompt("a", 40), 1)
    home.send(prompt("b", 30), 1, at_ps=5000 * US)
    home.send(prompt("c", 10), 60, at_ps=10_000 * US)
    home.run()
    # 20 tokens are free from 11,100 on. Step 21 needs the 40 of a, and step 61 would need those of
    # b.
    assert evicted_us == [11_100 + 20 * 1010]
    assert home.decodes() == [(11_100, 59, 1)]


@pytest.mark.parametrize("step_by_step", [False, True])
def test_an_arrival_takes_effect_after_the_iteration(step_by_step):
    home, heard = Home(pool=100, full_reservation=True, step_by_step=step_by_step), []
    home.scheduler.on_arrival = lambda request, view, now_s: heard.append(home.scheduler.tokens)
    home.send(30, 20)
    home.send(60, 20, at_ps=500 * US)  # never room beside the first request, so the batch is full
    for at_us in (1300 + 3 * 1010, 1300 + 3 * 1010 + 1, 1300 + 7 * 1010 - 1):
        home.send(5, 5, at_ps=at_us * US)
    home.run()
    # At 0, no request runs. The arrival at 500 is in the prefill, which yields a token at 1300.
    # Steps of 1010 each follow. The third ends with the third arrival, and the fourth and the
    # seventh after the others.
    assert heard == [0, 1, 1 + 3, 1 + 4, 1 + 7]


def test_an_arrival_counts_as_queued_immediately():
    home = Home()
    running = home.send(10, 5)
    arrived = home.send(10, 5, at_ps=500 * US)  # the prefill ends at 1,100
    home.run(until_ps=1_000 * US)
    assert len(home.worker.waiting) == 0
    load = SimFleet([home.worker]).load(0)
    assert (load.in_flight, load.queued, load.running) == (2, 1, 1)
    assert home.worker.in_flight() == [running, arrived]
    home.run()
    assert home.worker.queued_count == 0


def test_requests_in_flight_are_known_at_any_time():
    home = Home(chunked_prefill_size=100, max_running_requests=2)
    sent = [home.send(*shape) for shape in ((10, 30), (250, 5), (10, 5))]
    home.run(until_ps=1500 * US)
    assert home.worker.in_flight() == sent
    assert [s.admitted_ps == NEVER for s in sent] == [False, False, True]
    home.run()
    assert home.worker.in_flight() == []


arrivals = st.lists(
    st.tuples(
        prompts(lengths=(1, 5, 31, 33, 40), max_size=2),
        st.integers(1, 30),
        st.integers(0, 15),
        st.integers(0, 60_000),
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize("scheduler", [None, SpyLPM])
@given(
    arrivals=arrivals,
    pool=st.integers(100, 220),
    chunk=st.sampled_from([16, 50, 8192]),
    slots=st.sampled_from([2, 2048]),
    mixed=st.booleans(),
)
def test_all_requests_are_served_alike_step_by_step(scheduler, arrivals, pool, chunk, slots, mixed):
    """The invariants hold after every event (see Home)."""
    ends = []
    for step_by_step in (False, True):
        home = Home(
            scheduler and scheduler(),
            pool=pool,
            chunked_prefill_size=chunk,
            max_running_requests=slots,
            step_by_step=step_by_step,
            enable_mixed_chunk=mixed,
        )
        for text, output, more, at_us in arrivals:
            home.send(text, output, max_new=output + more, at_ps=at_us * US)
        home.run()
        assert home.worker.in_flight() == []
        assert home.worker.cache.locked == 0
        states = [(s.status, s.admitted_ps, s.readmitted_ps, s.finish_ps) for s in home.sent]
        ends.append((states, home.rows(), home.scheduler.admissions, home.evicted))
    assert ends[0] == ends[1]


def test_a_long_context_makes_steps_longer_until_enough_others_decode_with_it():
    """A token of context costs 1 us in a batch and 4 us alone, by the length when joining."""
    costs = {**PLAIN.coefficients_ms, "c_K": 0.001, "c_tail": 0.004}
    home = Home(profile=replace(PLAIN, coefficients_ms=costs), pool=5000)
    home.send(100, 3)
    home.run()
    # Steps take 1,010 us, 101 and 102 us for their contexts, and 301 us for a context of 101 alone.
    first_us = 2000
    assert home.sent[0].first_token_ps == first_us * US
    assert home.sent[0].finish_ps == (first_us + (1010 + 101 + 303) + (1010 + 102 + 303)) * US
    many = Home(profile=replace(PLAIN, coefficients_ms=costs), pool=5000)
    sent = [many.send(100, 2) for _ in range(5)]
    many.run()  # five contexts of 101 cost 505 us, more than the 404 us of one
    assert {one.finish_ps - one.first_token_ps for one in sent} == {(1050 + 505) * US}


# A step takes 1,000 us, 10 us per sequence, and 1 us per token of context.
READING = replace(PLAIN, coefficients_ms={**PLAIN.coefficients_ms, "c_K": 0.001})


@pytest.mark.parametrize(("shared_read", "context_us"), [(1.0, 222), (0.5, 172), (0.0, 122)])
def test_a_shared_prefix_is_read_as_often_as_the_profile_says(shared_read, context_us):
    home = Home(profile=replace(READING, shared_read=shared_read), pool=5_000)
    home.send(prompt("shared", 100), 1)  # leaves its prompt in the cache
    for number in range(2):
        home.send(prompt("shared", 100, f"own-{number}", 10), 2, at_ps=100_000 * US)
    home.run()
    start_us, steps, size = home.decodes()[-1]
    (row,) = (row for row in home.rows() if row["start_ps"] // US == start_us)
    assert (steps, size) == (1, 2)
    # Both have 110 tokens of prompt and one output. The first 100 are the same.
    assert (row["end_ps"] - row["start_ps"]) // US == 1_000 + 2 * 10 + context_us


def test_without_a_shared_prefix_no_time_is_saved():
    ends = []
    for shared_read in (0.0, 1.0):
        home = Home(profile=replace(READING, shared_read=shared_read), pool=5_000)
        sent = [home.send(100, 5), home.send(50, 9)]
        home.run()
        ends.append([sequence.finish_ps for sequence in sent])
    assert ends[0] == ends[1]


def test_running_requests_decode_beside_chunks_with_mixed_chunks():
    """A step takes 1,000 us, 10 us per computed token, and 1 us per token of context.

    The running request takes one of the 16 tokens of a chunk, so the prompt of 40 tokens takes
    three iterations of 15, 15 and 10 tokens, each of which also decodes. Without mixed chunks, the
    running request waits for chunks of 16, 16 and 8 tokens. A chunk reads the chunks before it.
    """
    ends = []
    for mixed in (True, False):
        home = Home(
            FCFS(FCFS.Params()),
            profile=READING,
            chunked_prefill_size=16,
            enable_mixed_chunk=mixed,
        )
        home.send(10, 8)
        late = home.send(40, 1, at_ps=500 * US, client="y")
        home.run()
        ends.append(late.first_token_ps // US)
        beside = [
            (row["start_ps"] // US, row["end_ps"] // US, row["client"], row["extend_tokens"])
            for row in home.rows()
            if row["context_tokens"] and row["batch_size"] == 2
        ]
        assert beside == ([
            (1_100, 2_271, 1, 15), (1_100, 2_271, 0, 0),
            (2_271, 3_458, 1, 15), (2_271, 3_458, 0, 0),
            (3_458, 4_611, 1, 10), (3_458, 4_611, 0, 0),
        ] if mixed else [])  # fmt: skip
    assert ends == [4_611, 1_100 + 1_160 + 1_176 + 1_112]


def test_running_requests_wait_for_a_chunk_that_takes_all_memory():
    """Four requests with 4 tokens each run in a pool of 63 tokens. The long prompt has 40 tokens.

    Two chunks of 16 tokens and eight decoded tokens leave 7. The pass then reserves four of them
    for decoding, and less than one for later outputs, so the next chunk has 2 tokens. The fourth
    chunk takes the last token, and the running requests sit out its iteration.
    """
    home = Home(
        FCFS(FCFS.Params()),
        pool=63,
        chunked_prefill_size=20,
        schedule_conservativeness=0.01,
        enable_mixed_chunk=True,
    )
    sent = [home.send(4, 10) for _ in range(4)]
    sent.append(home.send(40, 1, at_ps=500 * US, client="y"))
    home.run()
    found = {}
    for row in home.rows():
        start = found.setdefault(row["start_ps"], [0, row["context_tokens"]])
        start[0] += row["extend_tokens"]
    assert list(found.values())[:5] == [[16, 0], [16, 20], [16, 24], [2, 28], [1, 0]]
    assert sum(one.retractions for one in sent) > 0  # the next step has no memory
    assert all(one.status == FINISHED for one in sent)
