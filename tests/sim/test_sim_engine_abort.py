"""Test that a request is aborted when its client leaves."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fairbench.engine.clock import ARRIVE
from fairbench.engine.sequence import FINISHED, REFUSED, UNFINISHED
from fairbench.schedulers.local.dlpm import DLPM
from tests.sim.sim_helpers import PLAIN, US, Home, Spy, prompt
from tests.worker_invariants import check_rest


class Finishes(Spy):
    """A scheduler that records the ends of requests that it was told."""

    def __init__(self):
        super().__init__()
        self.finished = []

    def on_finish(self, request):
        self.finished.append(request.request_id)


def abort_at(home, sequence, at_us):
    home.clock.at(at_us * US, ARRIVE, 0, lambda: home.worker.abort(sequence))


def test_a_waiting_request_leaves_the_queue_and_is_never_computed():
    home = Home(Finishes(), pool=1000, max_running_requests=1)
    done = []
    home.send(10, 5)
    waiting = home.send(10, 5, on_done=done.append)
    last = home.send(10, 5)
    abort_at(home, waiting, 500)
    home.run()
    assert (waiting.status, waiting.produced, done) == (REFUSED, 0, [waiting])
    assert home.scheduler.finished == [1, 0, 2]
    assert [number for number, *_ in home.scheduler.admissions] == [0, 2]
    assert last.status == FINISHED


def test_the_load_cap_learns_from_a_retracted_waiting_request():
    reads = replace(PLAIN, coefficients_ms=PLAIN.coefficients_ms | {"c_w": 1e-6, "c_K": 1e-6})
    home = Home(profile=reads, pool=110, schedule_conservativeness=0.1, load_cap=10**6)
    both = home.send(20, 60), home.send(20, 60, at_ps=5_000 * US)
    home.run(50_000 * US)
    (lost,) = (one for one in both if one.retractions)
    assert lost.request in home.worker.waiting
    abort_at(home, lost, 50_000)
    home.run(50_000 * US)
    assert home.worker.cap._running.lengths.expected("x") == lost.produced > 10


def test_the_scheduler_never_sees_a_request_that_came_and_left_within_an_iteration():
    home = Home(Finishes())
    done = []
    home.send(10, 5)
    unheard = home.send(10, 5, at_ps=200 * US, on_done=done.append)
    last = home.send(10, 5, at_ps=300 * US)
    abort_at(home, unheard, 500)  # the prefill ends at 1,100
    home.run()
    assert (unheard.status, unheard.produced, done) == (REFUSED, 0, [unheard])
    assert home.scheduler.finished == [0, 2]
    assert [number for number, *_ in home.scheduler.admissions] == [0, 2]
    assert last.status == FINISHED


def test_an_aborted_running_request_ends_with_the_current_step_and_the_others_continue():
    home = Home(Finishes())  # a step takes 1 ms and 10 us per sequence
    first, second = home.send(10, 50), home.send(10, 50)
    prefill_us = 1000 + 10 * 20
    abort_at(home, first, prefill_us + 3 * 1020 + 7)
    home.run()
    assert (first.produced, first.finish_ps // US) == (5, prefill_us + 4 * 1020)
    assert first.status == FINISHED
    assert home.decodes() == [(prefill_us, 4, 2), (prefill_us + 4 * 1020, 45, 1)]
    assert second.produced == 50
    assert home.scheduler.finished == [0, 1]


def test_the_output_of_an_aborted_request_stays_cached():
    home = Home()
    first = home.send(10, 50)
    again = home.send(prompt("own-0", 10, "out-0", 4), 1, at_ps=10_000 * US)
    abort_at(home, first, 1100 + 2 * 1010 + 1)
    home.run()
    assert first.produced == 4
    assert again.cached_tokens == 13  # the prompt, and all outputs except the last one


def test_a_request_with_a_computed_prompt_ends_with_its_first_token():
    home = Home(chunked_prefill_size=100)
    first = home.send(250, 50)
    abort_at(home, first, 500)
    home.run()
    assert (first.produced, first.status) == (1, FINISHED)
    assert [tokens for *_, tokens in home.prefills()] == [100, 100, 50]
    assert home.decodes() == []


def test_a_finished_request_cannot_be_aborted():
    home = Home(Finishes())
    done = []
    first = home.send(10, 2, on_done=done.append)
    home.run()
    home.worker.abort(first)
    assert (done, home.scheduler.finished) == ([first], [0])


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 20_000),  # arrival, us
        st.integers(1, 120),  # prompt
        st.integers(1, 40),  # output
        st.none() | st.integers(1, 60_000),  # time from arrival to abort, in us
    ),
    min_size=1,
    max_size=12,
)


@given(REQUESTS)
def test_aborts_leave_no_trace_whenever_they_come(requests):
    home = Home(
        DLPM(DLPM.Params(quantum=50)),
        pool=170,
        profile=PLAIN,
        max_running_requests=4,
        chunked_prefill_size=50,
    )
    ended = []
    for at_us, tokens, output, after_us in requests:
        client = "xy"[tokens % 2]
        made = home.send(tokens, output, at_ps=at_us * US, client=client, on_done=ended.append)
        if after_us is not None:
            abort_at(home, made, at_us + after_us)
    home.run()  # the worker's invariants hold after every event
    check_rest(home.worker)
    assert sorted(s.request.request_id for s in ended) == list(range(len(requests)))
    assert all(sequence.status != UNFINISHED for sequence in ended)
    for sequence, (*_, output, after_us) in zip(home.sent, requests, strict=True):
        if after_us is None and sequence.status == FINISHED:
            assert sequence.produced == output
