"""Test admission by hand, one rule of SGLang 0.5.23 at a time.

An iteration takes 1,000 us and 10 us per token (a decode step: per sequence), see sim_helpers.
"""

import pytest

from fairbench.core import Request, Segment
from fairbench.engine.batch import Prefill
from fairbench.engine.sequence import NEVER, REFUSED, Sequence
from fairbench.engine.sglang import Admission
from tests.sim.sim_helpers import US, Home, Spy, SpyLPM, prompt


def test_prefill_comes_first_and_decode_waits():
    home = Home()
    first = home.send(10, 10)
    second = home.send(10, 2, at_ps=1500 * US)
    home.run()
    # The second step of the first request ends at 1100 + 1010 = 2110. Then follow 1,100 us of
    # prefill.
    assert home.prefills() == [(0, 1, 10), (2110, 1, 10)]
    assert home.decodes() == [(1100, 1, 1), (3210, 1, 2), (4230, 7, 1)]
    assert second.admitted_ps == 2110 * US
    assert first.finish_ps == (4230 + 7 * 1010) * US


@pytest.mark.parametrize(("arrival_us", "seen_us"), [(2109, 2110), (2110, 2110), (2111, 3120)])
def test_an_arrival_is_considered_at_the_first_boundary_after_it(arrival_us, seen_us):
    home = Home()
    home.send(10, 100)
    late = home.send(10, 2, at_ps=arrival_us * US)
    home.run()
    assert late.admitted_ps == seen_us * US


def test_the_head_of_the_queue_blocks_and_a_full_batch_makes_no_pass():
    home = Home(pool=100, full_reservation=True)
    first = home.send(30, 20)
    big = home.send(40, 20, at_ps=500 * US)
    small = home.send(5, 5, at_ps=500 * US)
    later = home.send(5, 5, at_ps=9000 * US)
    # 100 - 30 in use - 19 reserved = 51 < 40 + 20 + 1, although the small request would fit.
    home.run(until_ps=20_000 * US)
    assert home.scheduler.passes == 2
    # Steps end at 1300 + 1010 k. A request that arrives at 9000 is known at 9380, the end of the
    # 8th step, which updates the counters and leaves the run unchanged.
    assert (home.worker.batch.steps, home.worker._run.steps) == (8, 11)
    home.run()
    assert home.decodes()[0] == (1300, 19, 1)
    assert first.finish_ps == (1300 + 19 * 1010) * US
    # The batch shrank, so the next pass is at the same boundary.
    assert big.admitted_ps == small.admitted_ps == later.admitted_ps == first.finish_ps


def test_a_full_batch_makes_a_pass_only_when_it_shrinks():
    home = Home(pool=100, full_reservation=True)
    home.send(10, 30)
    short = home.send(10, 3)
    home.send(50, 20, at_ps=500 * US)
    home.run()
    # the first two passes, no room at 1200, no room at the end of the short request, then room
    assert home.scheduler.passes == 4
    assert home.prefills()[1][0] > short.finish_ps // US


def test_the_last_free_token_stays_free():
    home = Home(pool=100, full_reservation=True)
    home.send(10, 30)  # 100 - 10 in use - 29 reserved leaves 61
    fits, too_big = home.send(30, 30, at_ps=US), home.send(40, 20, at_ps=US)
    home.run(until_ps=1100 * US)
    assert (fits.admitted_ps, too_big.admitted_ps) == (NEVER, NEVER)  # 30 + 30 + 1 is not below 61
    home = Home(pool=100, full_reservation=True)
    home.send(10, 30)
    fits = home.send(30, 29, at_ps=US)
    home.run(until_ps=1100 * US)
    assert fits.admitted_ps == 1100 * US


def come_back(home, at_ps=0):
    """Return a retracted request, which has 20 tokens of input and 50 of 60 outputs to prefill."""
    back = home.send(20, 60, at_ps=at_ps)
    back.produced = 50
    back.retract(0)
    return back


def test_a_request_that_uses_up_the_budget_is_admitted_and_the_batch_is_full():
    home = Home(pool=145, full_reservation=True)
    home.send(5, 40)
    back = come_back(home, at_ps=US)
    small = home.send(5, 2, at_ps=1500 * US)
    home.run()
    # At 1050, the fit test needs 70 + 10 + 1 < 145 - 5 - 39, and the admission books 70 + 60 + 1. A
    # pass later, 70 would be free and 39 + 9 reserved, so that the small request would fit.
    assert back.admitted_ps == 1050 * US
    assert small.admitted_ps == back.finish_ps


def test_a_last_chunk_that_uses_up_two_budgets_leaves_the_batch_full():
    home = Home(pool=145, full_reservation=True, chunked_prefill_size=35)
    home.send(5, 40)
    back = come_back(home, at_ps=US)
    small = home.send(5, 2, at_ps=1500 * US)
    home.run()
    # The same as above, in two chunks of 35. The second chunk uses up the chunk budget, which would
    # end the pass and leave the batch open. But the 60 outputs that it books use up the memory,
    # too.
    assert [prefill[0] for prefill in home.prefills()[:3]] == [0, 1050, 2400]
    assert small.admitted_ps == back.finish_ps


class Skipping(Spy):
    """A scheduler that tries every request, whether or not the previous one fitted."""

    def select(self, view, now_s):
        for request in view.queue_order():
            _ = yield request


def test_an_unfinished_chunk_leaves_and_opens_the_batch():
    home = Home(Skipping(), pool=200, full_reservation=True, chunked_prefill_size=30)
    home.send(5, 40)
    big, chunk = home.send(20, 170, at_ps=US), home.send(60, 20, at_ps=US)
    small = home.send(5, 2, at_ps=1500 * US)
    home.run()
    # At 1050, the large request finds no room, then the first chunk is admitted. When that chunk
    # leaves SGLang's batch, so does the flag. The second chunk, at 2350, uses up the chunk budget
    # before any request is tried, and the small one is admitted in the following pass.
    assert [prefill[0] for prefill in home.prefills()[:4]] == [0, 1050, 2350, 3650]
    assert (chunk.admitted_ps, small.admitted_ps) == (1050 * US, 3650 * US)
    assert big.admitted_ps > small.finish_ps


def test_an_emptied_batch_loses_its_full_mark():
    home = Home(pool=100, full_reservation=True)
    back = come_back(home)
    small = home.send(5, 2, at_ps=500 * US)
    home.run()
    # The same as above, but SGLang keeps the flag in the empty batch, which the prefill batch
    # replaces.
    assert back.admitted_ps == 0
    assert small.admitted_ps == 1700 * US


def test_an_unfinished_chunk_reserves_no_outputs():
    home = Home(pool=137, full_reservation=True, chunked_prefill_size=40)
    home.send(10, 40)
    come_back(home)
    small = home.send(5, 2, at_ps=2000 * US)
    home.run()
    # The first pass books 10 + 40 + 1 and 30 + 1. With 60 outputs, the batch would be full. At
    # 2800, 57 are free and 39 + 9 reserved.
    assert home.prefills()[:2] == [(0, 2, 40), (1400, 1, 40)]
    assert small.admitted_ps == 2800 * US


def test_the_prefix_is_locked_before_the_fit_test():
    home = Home(pool=100, full_reservation=True)
    home.send(prompt("shared", 40), 1)
    other = home.send(prompt("other", 10), 40, at_ps=2000 * US)
    again = home.send(prompt("shared", 40, "more", 5), 5, at_ps=2000 * US + 1)
    home.run()
    # 40 are cached and evictable, 10 in use, 39 reserved. That leaves 51, or 11 once the prefix is
    # locked, and 5 + 5 + 1 is below 51 but not below 11.
    assert again.admitted_ps == other.finish_ps
    assert again.cached_tokens == 40


def test_a_fully_cached_prompt_still_computes_one_token():
    home = Home()
    home.send(prompt("a", 40), 1)
    again = home.send(prompt("a", 40), 1, at_ps=5000 * US)
    home.run()
    assert (again.cached_tokens, again.extend_tokens) == (39, 1)


def test_siblings_admitted_together_both_pay_and_the_duplicate_is_freed():
    home = Home(pool=200)
    pair = [home.send(prompt("a", 50), 4) for _ in range(2)]
    home.run(until_ps=2000 * US)
    assert home.scheduler.admissions == [(0, 50, False), (1, 50, False)]
    assert home.prefills() == [(0, 2, 100)]
    assert (home.worker.cache.locked, home.worker.cache.free) == (50, 150)
    home.run()
    assert [s.cached_tokens for s in pair] == [0, 0]


def test_lpm_lets_the_second_sibling_wait_for_the_prefix_of_the_first():
    home = Home(SpyLPM(), max_prefill_tokens=40)
    for _ in range(2):
        home.send(prompt("a", 40), 4)
    home.run()
    assert home.scheduler.admissions == [(0, 40, False), (1, 1, False)]


def test_outputs_are_cached_except_for_the_last_token():
    home = Home()
    home.send(prompt("a", 10), 5)
    follow_up = home.send((*prompt("a", 10), Segment("out-0", 5), Segment("b", 3)), 1, at_ps=10**12)
    home.run()
    assert (follow_up.cached_tokens, follow_up.extend_tokens) == (14, 4)
    home = Home()
    home.send(prompt("a", 10), 1)
    home.run()
    assert home.worker.cache.evictable == 10


def test_a_long_prompt_is_prefilled_in_chunks_while_decode_waits():
    home = Home(chunked_prefill_size=100)
    running = home.send(10, 4)
    long = home.send(250, 2, at_ps=500 * US)
    after = home.send(60, 2, at_ps=600 * US)
    home.run()
    # 100 + 100 + 50 tokens. The rest of the third chunk's budget goes to the next request, and its
    # remainder follows.
    assert home.prefills() == [
        (0, 1, 10),
        (1100, 1, 100),
        (3100, 1, 100),
        (5100, 2, 100),
        (7100, 1, 10),
    ]
    assert (long.admitted_ps, long.first_token_ps) == (1100 * US, 7100 * US)
    assert (after.admitted_ps, after.first_token_ps) == (5100 * US, 8200 * US)
    assert home.decodes()[0] == (8200, 1, 3)
    assert running.finish_ps == (8200 + 1030 + 2 * 1010) * US
    # The whole prompt is charged with the first chunk. Its tokens are computed chunk by chunk.
    columns = ("input_tokens", "extend_charged_tokens", "extend_tokens", "output_tokens")
    rows = [tuple(row[name] for name in columns) for row in home.rows()[:5]]
    assert rows == [
        (10, 10, 10, 1),
        (250, 250, 100, 0),
        (0, 0, 100, 0),
        (60, 60, 100, 1),
        (0, 0, 10, 1),
    ]
    assert home.scheduler.admissions == [(0, 10, False), (1, 250, False), (2, 60, False)]


def test_no_request_is_admitted_while_the_chunk_budget_is_used_up():
    home = Home(chunked_prefill_size=100)
    home.send(250, 2)
    small = home.send(10, 2)
    home.run()
    # This request waits for the third iteration, in which 50 of the budget are left.
    assert home.prefills() == [(0, 1, 100), (2000, 1, 100), (4000, 2, 60)]
    assert small.admitted_ps == 4000 * US


def test_the_input_budget_ends_a_pass_after_the_admission_that_uses_it_up():
    home = Home(max_prefill_tokens=100)
    for _ in range(3):
        home.send(60, 5)
    home.run()
    assert home.prefills() == [(0, 2, 120), (2200, 1, 60)]  # and the batch is not full


def test_request_slots_limit_the_batch():
    home = Home(max_running_requests=2)
    short, _, third = home.send(10, 3), home.send(10, 9), home.send(10, 3)
    home.run()
    assert home.prefills()[0] == (0, 2, 20)
    assert third.admitted_ps == short.finish_ps
    assert home.scheduler.passes == 2


@pytest.mark.parametrize("max_new", [49, 60])
def test_a_request_that_can_never_fit_is_refused_immediately(max_new):
    home, told = Home(pool=100), []
    home.send(10, 5)
    refused = home.send(50, 5, max_new=max_new, at_ps=700 * US, on_done=told.append)
    home.run(until_ps=700 * US)
    assert told == [refused]
    assert (refused.status, refused.admitted_ps, refused.worker) == (REFUSED, NEVER, 0)
    home.run()
    assert home.scheduler.passes == 1


def test_the_largest_request_that_fits_runs_to_its_end():
    home = Home(pool=100)
    largest = home.send(50, 48)
    home.run()
    assert largest.finish_ps == (1500 + 47 * 1010) * US


@pytest.mark.parametrize(
    ("full_reservation", "admitted_us"), [(False, 1100), (True, 1100 + 99 * 1010)]
)
def test_the_ratio_scales_reservations_of_running_requests(full_reservation, admitted_us):
    home = Home(pool=200, full_reservation=full_reservation)
    home.send(10, 100)
    # 190 are free, and 99 future outputs reserve 69.3 or 99. The second request needs 10 + 80 + 1 =
    # 91.
    second = home.send(10, 80, at_ps=US)
    home.run()
    assert second.admitted_ps == admitted_us * US


def test_under_other_policies_the_head_of_the_queue_is_touched_every_32nd_pass():
    for scheduler, expected in ((None, [(0, 128), (32, 128), (64, 128)]), (SpyLPM(), [])):
        home, touches = Home(scheduler), []
        for number in range(70):
            home.send(5, 1, at_ps=number * 2000 * US)
        waiting = home.worker.waiting
        touch = waiting.touch_head

        def spy(count, home=home, touches=touches, touch=touch):
            touches.append((home.clock.now_ps // (2000 * US), count))
            touch(count)

        waiting.touch_head = spy
        home.run()
        assert touches == expected


def admission(reserved, chunk):
    """Return a pass of a replica with a cache of 100 tokens and this budget for a chunk."""
    home = Home(pool=100, chunked_prefill_size=chunk, max_prefill_tokens=8192)
    return Admission(home.worker, reserved, most=9)


@pytest.mark.parametrize(
    ("reserved", "tokens", "last"), [(10.0, 40, True), (70.5, 29, False), (100.5, 40, True)]
)
def test_a_continued_chunk_is_cut_to_the_remaining_memory_if_there_is_any(reserved, tokens, last):
    """40 tokens remain, chunks have 50, and 90, 29.5 or no tokens are free. 0 means no limit."""
    attempt = admission(reserved, chunk=50)
    text = prompt("p", 80)
    sequence = Sequence(Request(0, "x", 0, 0, text, 80, 5), Segment("out", 5), 0, lambda _: None)
    sequence.filled = 40
    attempt.continue_chunk(sequence)
    assert attempt.prefills == [Prefill(sequence, 40, tokens, first=False, last=last)]
    assert attempt.chunked is (None if last else sequence)


@pytest.mark.parametrize(("reserved", "spent"), [(99, True), (100, False), (101, False)])
def test_a_used_up_budget_ends_a_pass_unless_all_memory_is_reserved(reserved, spent):
    """The cache has 100 tokens. Without chunk budget, only memory decides whether to try again."""
    attempt = admission(reserved, chunk=0)
    assert attempt.spent is spent
