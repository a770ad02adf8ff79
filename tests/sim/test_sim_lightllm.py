"""Test S-LoRA's loop by hand, and its test of fit against stepping into the future."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment
from fairbench.engine.batch import RunningBatch
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.contract import WorkerParts
from fairbench.engine.lightllm import FitTest, LightLLMWorker
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sequence import FINISHED, REFUSED, Sequence
from fairbench.hardware.engine_params import LightLLMLimits
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.local.lcf import LCF
from fairbench.schedulers.local.rpm import RPM
from fairbench.schedulers.local.vtc import VTC
from tests.sim.sim_helpers import PLAIN, US


def make(number, tokens, output, client="a", on_done=lambda _: None):
    segments = (Segment(f"r{number}", tokens),)
    request = Request(number, client, number, 0, segments, tokens, output)
    return Sequence(request, Segment(f"r{number}/out", output), 0, on_done)


class Server:
    """A server: ``send`` requests, then ``run``."""

    def __init__(self, scheduler=None, *, pool=1_000, **limits):
        self.clock = Clock()
        scheduler = scheduler or FCFS(FCFS.Params())
        self.worker = LightLLMWorker(
            WorkerParts(0, self.clock, scheduler, PLAIN, ServiceLog([])),
            LightLLMLimits(pool, **limits),
        )
        self.sent = []
        self.done = []
        self.most_held = 0

    def send(self, tokens, output, *, at_us=0, client="a"):
        sequence = make(len(self.sent), tokens, output, client, self.done.append)
        sequence.arrival_ps = at_us * US
        self.sent.append(sequence)
        self.clock.at(at_us * US, ARRIVE, 0, lambda: self.worker.submit(sequence))
        return sequence

    def run(self):
        while self.clock.next_ps() is not None:
            self.clock.step()
            batch = self.worker.batch
            held = sum(s.total + batch.produced(s) for s in batch.sequences)
            self.most_held = max(self.most_held, held)
        return self

    def times(self):
        """Return (admitted, first token, finished) of each request in us."""
        return [
            tuple(at // US for at in (s.admitted_ps, s.first_token_ps, s.finish_ps))
            for s in self.sent
        ]


def test_a_lone_request_starts_immediately_and_decodes_to_its_end():
    server = Server()
    server.send(5, 3, at_us=100)
    # a prefill of 1,000 + 5 * 10, which yields the first token, then two steps of 1,000 + 10
    assert server.run().times() == [(100, 1_150, 3_170)]


def test_a_minibatch_costs_its_overhead_once():
    server = Server(prefill_overhead_ms=2.0)
    server.send(5, 1)
    server.send(4, 1)
    # A minibatch of 9 tokens begins with the requests that have arrived by then.
    assert server.run().times() == [(0, 3_090, 3_090)] * 2


def test_an_idle_server_starts_again_with_the_next_arrival():
    server = Server()
    server.send(5, 1)
    server.send(5, 1, at_us=50_000)
    assert server.run().times()[1] == (50_000, 51_050, 51_050)


def test_a_new_minibatch_waits_for_ten_steps():
    server = Server()
    server.send(5, 100)
    server.send(5, 100, at_us=1_060)
    # 1,050 and ten steps of 1,010; without waiting, it would begin at 2,060
    assert server.run().times()[1][0] == 1_050 + 10 * 1_010


def test_after_ten_steps_each_step_tries_the_queue_as_read_before():
    """Arrivals during a step are read after the decision at its end: too late at the 13th."""
    server = Server()
    server.send(5, 100)
    server.send(5, 100, at_us=1_050 + 12 * 1_010 + 5)
    assert server.run().times()[1][0] == 1_050 + 14 * 1_010


def test_a_step_that_ends_a_request_reads_arrivals_before_its_decision():
    server = Server()
    server.send(5, 100)
    server.send(5, 14)
    # in the 13th step, the last one of the second request
    server.send(5, 100, at_us=1_100 + 12 * 1_020 + 5)
    assert server.run().times()[2][0] == 1_100 + 13 * 1_020


def test_arrivals_during_a_prefill_are_read_before_the_next_decision():
    server = Server(max_wait_tokens=1)
    server.send(5, 100)
    server.send(5, 100, at_us=500)
    # in the only step between two minibatches, too late for the decision
    server.send(5, 100, at_us=1_060)
    times = server.run().times()
    assert times[1][0] == 1_050 + 1_010
    assert times[2][0] == 1_050 + 1_010 + 1_050 + 1_020


def test_an_idle_server_checks_for_arrivals_at_fixed_intervals():
    server = Server(idle_poll_ms=10.0)
    server.send(5, 1)
    server.send(5, 1, at_us=1_060)  # idle since 1,050
    server.send(5, 1, at_us=40_000)  # idle since 12,100
    server.send(5, 1, at_us=41_000)
    admitted = [times[0] for times in server.run().times()]
    assert admitted == [0, 11_050, 42_100, 42_100]


def test_a_prefill_computes_whole_tiles():
    limits = LightLLMLimits(1_000, prefill_tile=256)
    rows = [limits.prefill_rows(tokens) for tokens in (1, 2, 3, 64, 65, 129, 256, 257, 600)]
    assert rows == [1, 2, 4, 64, 128, 256, 256, 512, 768]
    assert LightLLMLimits(1_000).prefill_rows(77) == 77
    server = Server(prefill_tile=8)
    server.send(5, 1)
    server.send(9, 1, at_us=5_000)
    # 1,000 and 10 per row, with 8 rows and then 16
    assert server.run().times() == [(0, 1_080, 1_080), (5_000, 6_160, 6_160)]


def test_the_ten_steps_count_from_the_last_minibatch():
    server = Server()
    server.send(5, 100)
    server.send(5, 100, at_us=1_060)
    server.send(5, 100, at_us=11_160)  # while the second minibatch is prefilled, until 12,200
    assert server.run().times()[2][0] == 1_050 + 10 * 1_010 + 1_050 + 10 * 1_020


def test_the_wait_ends_early_when_the_batch_is_empty():
    server = Server()
    server.send(5, 3)
    server.send(5, 1, at_us=1_060)
    assert server.run().times()[1][0] == 1_050 + 2 * 1_010


def test_a_minibatch_has_a_limit_on_tokens_and_keeps_the_order():
    server = Server(max_prefill_tokens=10)
    for tokens in (4, 6, 8, 1):
        server.send(tokens, 100)
    admitted = [times[0] for times in server.run().times()]
    second = 1_100 + 10 * 1_020
    assert admitted == [0, 0, second, second]


def test_the_default_minibatch_is_3072_tokens_or_a_sixth_of_the_pool():
    """Requests have 258 tokens. 11 fit under 3,072, 12 do not, and a sixth of 60,000 holds 38."""
    for pool, first in ((10_000, 11), (60_000, 38)):
        server = Server(pool=pool)
        for _ in range(40):
            server.send(258, 20)
        assert [times[0] for times in server.run().times()].count(0) == first


def test_a_request_waits_until_memory_suffices_for_the_whole_batch():
    """After prefill, two requests have 11 tokens and 9 to go: a peak of 2 * 11 + 9 * 2 = 40."""
    for pool, together in ((40, False), (41, True)):
        server = Server(pool=pool)
        for tokens, output in ((10, 10), (10, 10), (1, 1)):
            server.send(tokens, output)
        first, second, small = server.run().times()
        # The small request fits in either pool, but never before its turn.
        assert [second[0], small[0]] == [0 if together else first[2]] * 2


def test_each_client_in_the_batch_takes_its_tokens_off_the_pool():
    """Three requests peak at 3 * 6 + 5 * 3 = 33: below 44 - 8, but not below 44 - 2 * 8."""
    for clients, together in (("aaa", True), ("aab", False)):
        server = Server(pool=44, client_tokens=8)
        for client in clients:
            server.send(5, 6, client=client)
        assert (server.run().times()[2][0] == 0) == together


def test_the_number_of_running_requests_is_limited():
    server = Server(max_running_requests=2)
    for _ in range(3):
        server.send(5, 5)
    times = server.run().times()
    assert [t[0] for t in times] == [0, 0, times[0][2]]


def test_a_request_that_can_never_fit_is_refused_immediately():
    server = Server(pool=30, max_prefill_tokens=20)
    outsized, long, largest = server.send(21, 1), server.send(20, 10), server.send(20, 9)
    server.run()
    assert [s.status for s in (outsized, long, largest)] == [REFUSED, REFUSED, FINISHED]
    assert server.done == [outsized, long, largest]


def test_a_rate_limit_refuses_requests_and_the_others_continue():
    server = Server(RPM(RPM.Params(limit=1)))
    server.send(5, 2)
    server.send(5, 2, at_us=10)
    server.send(5, 2, at_us=20, client="b")
    assert [s.status for s in server.run().sent] == [FINISHED, REFUSED, FINISHED]


def test_the_scheduler_gets_every_token_before_the_next_question():
    """When the pool is free again, a has had 20 + 2 * 6 and b 12 + 2 * 6, so b goes first."""
    server = Server(LCF(LCF.Params()), pool=60)
    server.send(20, 6, client="a")
    server.send(12, 6, client="b")
    server.send(30, 6, at_us=10, client="a")
    server.send(30, 6, at_us=20, client="b")
    server.run()
    third, fourth = server.sent[2:]
    assert fourth.admitted_ps < third.admitted_ps


RUNNING = st.lists(st.tuples(st.integers(1, 30), st.integers(2, 30)), max_size=6)


@given(RUNNING, st.integers(0, 29), st.tuples(st.integers(1, 30), st.integers(1, 30)),
       st.integers(1, 300), st.integers(0, 20))  # fmt: skip
def test_the_fit_test_equals_stepping_into_the_future(running, age, new, pool, client_tokens):
    batch = RunningBatch()
    for number, (tokens, output) in enumerate(running):
        sequence = make(number, tokens, output, client=f"c{number % 2}")
        sequence.produced = 1
        batch.join(sequence)
    steps = min([age, *(output - 2 for _, output in running)])  # all requests are still running
    batch.steps += steps
    lengths = [(tokens + 1 + steps, output - 2 - steps) for tokens, output in running]
    lengths.append((new[0] + 1, new[1] - 1))
    clients = {f"c{number % 2}" for number in range(len(running))} | {"c0"}
    most = max(
        sum(length + step for length, remaining in lengths if remaining >= step)
        for step in range(31)
    )
    limits = LightLLMLimits(pool, client_tokens=client_tokens)
    fits = FitTest(batch, limits).try_add(make(9, *new, client="c0"))
    assert fits == (most < pool - client_tokens * len(clients))


ARRIVALS = st.lists(
    st.tuples(
        st.integers(1, 20), st.integers(1, 30), st.integers(0, 60_000), st.sampled_from("ab")
    ),
    min_size=1,
    max_size=25,
)


@given(ARRIVALS, st.integers(60, 120), st.booleans())
def test_all_requests_end_and_the_pool_never_overflows(arrivals, pool, fair):
    server = Server(VTC(VTC.Params()) if fair else None, pool=pool)
    for tokens, output, at_us, client in arrivals:
        server.send(tokens, output, at_us=at_us, client=client)
    server.run()
    assert server.most_held <= pool
    assert len(server.done) == len(arrivals)
    assert all(s.status == FINISHED and s.produced == s.output.length for s in server.sent)
    assert all(s.arrival_ps <= s.admitted_ps < s.first_token_ps <= s.finish_ps for s in server.sent)


def test_the_last_token_of_a_running_request_needs_no_memory():
    """The running request has produced 1 of 5 tokens, so with three more it has 14.

    The new request then holds its prompt, the token of its prefill and three more: 14 + 14.
    """
    batch, running = RunningBatch(), make(0, 10, 5)
    running.produced = 1
    batch.join(running)
    fits = [FitTest(batch, LightLLMLimits(pool)).try_add(make(1, 10, 6)) for pool in (28, 29)]
    assert fits == [False, True]
