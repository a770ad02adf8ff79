"""Test fair sessions: visits, places and orders by hand, and the bound on counters."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment
from tests.schedulers.gateway.gateway_helpers import Desk
from tests.strategies import examples

BUFFER = 100  # tokens that each session needs besides its context


class Gate(Desk):
    """A desk whose turns are named by client and session, such as ``a1``."""

    def __init__(self, *, turns=2, workers=1):
        super().__init__(
            "fair-sessions", "none", workers=workers, pool_tokens=1000, fair_sessions__turns=turns
        )

    def turn(self, name, tokens):
        return self.arrive(name[0], tokens, program=int(name[1:]), key=name)

    def visit(self, name, tokens, turns):
        """Let a session have turns that are answered at once."""
        for _ in range(turns):
            request = self.turn(name, tokens)
            assert request in self.at
            self.answer(request, 0)

    def waiting(self):
        return [f"{request.client}{request.program_id}" for request in self.gateway]

    def at_s(self, now_s):
        self.now_s = now_s
        self.go()


def test_a_session_makes_room_after_its_visit_and_not_before():
    gate = Gate(turns=2)
    gate.visit("a1", 400, 1)
    gate.turn("a2", 400)
    gate.turn("a3", 300)  # sessions 1 and 2 use 1,000 with their buffers
    assert gate.waiting() == ["a3"]
    gate.answer(gate.turn("a1", 400), 0)  # the second turn ends the visit
    assert gate.waiting() == []
    gate.turn("a1", 400)
    assert gate.waiting() == ["a1"]


def test_a_visit_goes_on_while_nobody_waits():
    gate = Gate(turns=1)
    gate.visit("a1", 800, 5)


def test_an_idle_session_makes_room_after_30_s():
    gate = Gate(turns=9)
    gate.visit("a1", 700, 1)
    gate.turn("a2", 500)
    gate.at_s(29.9)
    assert gate.waiting() == ["a2"]
    gate.at_s(30.0)
    assert gate.waiting() == []


def test_the_client_with_the_least_service_resumes_first():
    gate = Gate(turns=1)
    gate.visit("a1", 300, 1)
    running = gate.turn("b2", 800)  # takes the room of session 1
    gate.turn("b3", 700)
    gate.turn("a1", 300)
    gate.answer(running, 0)
    assert gate.waiting() == ["b3"]  # a has had 300 tokens of service, and b 800


def test_nobody_takes_the_room_that_an_owed_session_waits_for():
    gate = Gate(turns=1)
    first, second = gate.turn("b1", 400), gate.turn("b2", 400)
    gate.turn("a3", 800)
    gate.turn("b4", 300)
    gate.answer(first, 0)  # 500 are free, which is enough for session 4
    assert gate.waiting() == ["a3", "b4"]
    gate.answer(second, 0)
    assert gate.waiting() == ["b4"]


def test_sessions_of_the_client_furthest_ahead_make_room_first():
    gate = Gate(turns=1)
    gate.visit("a1", 300, 1)
    gate.visit("b2", 400, 1)  # idle for a shorter time, but of the client with more service
    gate.turn("a3", 300)
    assert gate.turn("a1", 300) in gate.at
    gate.turn("b2", 400)
    assert gate.waiting() == ["b2"]


def test_a_session_returns_to_its_replica():
    gate = Gate(turns=1, workers=2)
    assert gate.at[gate.turn("a1", 600)] == 0
    gate.answer()
    long = gate.turn("b2", 850)  # replica 1
    assert gate.at[long] == 1
    other = gate.turn("b3", 800)  # takes the room of session 1
    gate.turn("a1", 600)
    gate.answer(other, 0)
    gate.answer(long, 0)
    (last,) = gate.at
    assert (last.program_id, gate.at[last]) == (1, 0)


def test_a_session_goes_elsewhere_if_its_replica_cannot_make_room():
    gate = Gate(turns=1, workers=2)
    gate.visit("a1", 600, 1)
    long = gate.turn("b2", 850)  # replica 1
    gate.turn("b3", 800)  # replica 0
    gate.turn("a1", 600)
    gate.answer(long, 0)
    assert gate.at[gate.sent[-1]] == 1
    assert gate.waiting() == []


def test_contexts_of_parallel_turns_count_together():
    gate = Gate(turns=9)
    shared = (Segment("system", 100),)
    for number, key in enumerate(("main", "agent")):
        prompt = (*shared, Segment(key, 250))
        request = Request(number, "a", 1, 0, prompt, 350, 100, 0.0)
        assert gate.gateway.enter(request, 0.0)
    gate.go()
    gate.turn("b2", 250)  # 1,000 - (100 + 250 + 250 + 100) leaves 300
    assert gate.waiting() == ["b2"]
    gate = Gate(turns=9)
    gate.turn("a1", 350)
    gate.turn("a1", 350)  # the same prompt counts once
    gate.turn("b2", 250)
    assert gate.waiting() == []


def test_a_context_larger_than_the_memory_goes_when_it_is_alone():
    gate = Gate(turns=1)
    running = gate.turn("a1", 500)
    gate.turn("b2", 2000)
    assert gate.waiting() == ["b2"]
    gate.answer(running, 0)
    assert gate.waiting() == []


@examples(60)
@given(
    turns=st.integers(1, 3),
    sizes=st.lists(st.integers(50, 300), min_size=2, max_size=12),
    answers=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60)), max_size=120),
)
def test_counters_of_two_waiting_clients_differ_by_less_than_the_bound(turns, sizes, answers):
    """The client that is ahead has at most K sessions with ``turns`` turns each in memory."""
    gate = Gate(turns=turns)
    names = [f"{'ab'[number % 3 == 0]}{number}" for number in range(1, len(sizes) + 1)]
    for name, size in zip(names, sizes, strict=True):
        gate.turn(name, size)
    most_sessions = 1000 // (min(sizes) + BUFFER)
    most_in, most_out = max(sizes), max((out for _, out in answers), default=0)
    bound = most_sessions * turns * (most_in + 2 * most_out)
    together, start = False, 0.0
    for number, outputs in answers:
        request = list(gate.at)[number % len(gate.at)]
        gate.now_s += 0.1
        gate.answer(request, outputs)
        name = f"{request.client}{request.program_id}"
        gate.turn(name, request.input_tokens)  # the session goes on
        both = {one[0] for one in gate.waiting()} == {"a", "b"}
        (counters,) = gate.gateway.balances.values()
        if both and together:
            assert abs(counters["a"] - counters["b"]) <= start + bound
        elif both:
            start = abs(counters["a"] - counters["b"])
        together = both


def test_the_session_that_is_idle_for_longest_makes_room_first():
    gate = Gate(turns=1)
    gate.visit("a1", 300, 1)
    gate.at_s(10.0)
    gate.visit("a2", 300, 1)
    gate.turn("b3", 400)  # 200 are free, and a session of a uses 400
    paused = gate.gateway._band(0).scheduler.pool()
    assert [session.longest[0].key for session in paused] == ["a1"]
