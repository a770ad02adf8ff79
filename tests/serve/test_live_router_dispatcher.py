"""Test the host of a Router, which gets every event, and only questions about running workers."""

from array import array
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import prompt_tokens
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.registry import build_router, routers_by_name
from fairbench_load.http_server import Problem
from fairbench_load.token_pages import segments_of
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.ingress import OUTCOMES, AttemptFailure, outcome_of

POOL = 1000


class Spy(Router):
    """A router that sends everything to a given worker and records its events."""

    name = "spy"
    wants_evictions = True

    @dataclass(frozen=True)
    class Params:
        """No parameters."""

    def __init__(self):
        self.choice = 0
        self.heard = []

    def route(self, request, now_s):
        return self.choice

    def on_finish(self, request, worker, output, now_s):
        self.heard.append(("finish", request.request_id, worker, output.length, now_s))

    def on_evict(self, prefix, evicted_tokens, worker, now_s):
        self.heard.append(("evict", prefix, evicted_tokens, worker))


class Timed(Spy):
    """A router that also gets first-token events."""

    def on_first_token(self, request, worker, at_s):
        self.heard.append(("began", request.request_id, worker, at_s))


class Changing(Spy):
    """A router whose workers may come and go."""

    def on_worker_leave(self, worker, now_s):
        self.heard.append(("leave", worker))

    def on_worker_join(self, worker, now_s):
        self.heard.append(("join", worker))


def ids(tokens, kind=0):
    return array("I", [kind * 10_000 + n for n in range(tokens)])


def home(router, workers=2, **options):
    return Dispatcher(router, workers, POOL, lambda: 12.5, **options)


def serve(dispatcher, made):
    """Send requests, each of which ends immediately."""
    for one in made:
        dispatcher.finish(dispatcher.dispatch(one), 0)


def evictions(spy):
    return [news for news in spy.heard if news[0] == "evict"]


def request(dispatcher, tokens=100, kind=0, client="ann"):
    return dispatcher.make_request(client, ids(tokens, kind), 8, -1, 0)


def test_a_prompt_is_cut_to_whole_pages_and_keeps_its_true_length():
    dispatcher = home(Spy())
    for tokens in (0, 7, 8, 9, 255, 256, 257, 271, 272, 5000):
        made, longer = request(dispatcher, tokens), segments_of(ids(6000))
        assert made.input_tokens == tokens
        assert made.prompt == longer[: len(made.prompt)]
        held = prompt_tokens(made.prompt)
        assert held <= tokens < held + longer[len(made.prompt)].length


def test_workers_with_large_pages_cache_whole_ones_only():
    dispatcher = home(Spy(), page_tokens=64)
    held = [prompt_tokens(request(dispatcher, tokens).prompt) for tokens in (63, 64, 200, 5000)]
    assert held == [0, 64, 192, 4864]  # from 4096 on, pages have 256 tokens
    assert request(dispatcher, 63).input_tokens == 63


def test_finish_informs_the_router_once_of_the_output():
    dispatcher = home(spy := Spy())
    flight = dispatcher.dispatch(request(dispatcher))
    assert dispatcher.under_way == 1
    dispatcher.finish(flight, 7)
    finish, (_, prefix, tokens, worker) = spy.heard
    assert finish == ("finish", 0, 0, 7, 12.5)
    # The output's key belongs to no token page, so it must not stay in the router's tree.
    assert (prefix[:-1], prefix[-1].length, tokens, worker) == (flight.request.prompt, 7, 7, 0)
    assert dispatcher.under_way == 0


def test_the_router_learns_of_the_first_token_before_the_end():
    clock = [3.0]
    dispatcher = Dispatcher(spy := Timed(), 2, POOL, lambda: clock[0])
    streamed, other = (dispatcher.dispatch(request(dispatcher)) for _ in range(2))
    for clock[0] in (5.0, 6.0):
        dispatcher.began(streamed)
    clock[0] = 7.0
    dispatcher.finish(streamed, 7)
    dispatcher.finish(other, 7)  # requests without a first token
    assert [news for news in spy.heard if news[0] != "evict"] == [
        ("began", 0, 0, 5.0),
        ("finish", 0, 0, 7, 7.0),
        ("finish", 1, 0, 7, 7.0),
    ]


@pytest.mark.parametrize("settings", [{}, {"d2lpm.insert_on_finish": True}])
def test_a_routers_tree_does_not_grow_with_the_requests(settings):
    dispatcher = home(router := build_router("d2lpm", settings, 2))
    for _ in range(100):
        dispatcher.finish(dispatcher.dispatch(request(dispatcher)), 5)
    assert sum(node.length for node in router._tree.nodes()) == 96


def test_a_worker_that_leaves_is_reported_once_and_its_state_is_cleared():
    dispatcher = home(spy := Changing())
    lost = []
    first = dispatcher.dispatch(request(dispatcher))
    first.on_lost = lambda _: lost.append(first)
    spy.choice = 1
    dispatcher.dispatch(request(dispatcher)).on_lost = lambda _: lost.append("not this")
    dispatcher.leave(0)
    dispatcher.leave(0)
    assert lost == [first]
    assert (dispatcher.up, dispatcher.under_way) == ({1}, 1)
    dispatcher.join(0)
    dispatcher.join(0)
    assert spy.heard == [("leave", 0), ("join", 0)]


@pytest.mark.parametrize("given", [(), (AttemptFailure.HUNG,), (AttemptFailure.DIED,)])
def test_requests_of_a_worker_that_leaves_learn_the_reason(given):
    dispatcher, reasons = home(Changing()), []
    dispatcher.dispatch(request(dispatcher)).on_lost = reasons.append
    dispatcher.leave(0, *given)
    assert reasons == [*given] or (reasons, given) == ([AttemptFailure.HUNG], ())


def test_each_failure_of_an_attempt_has_one_outcome():
    table = {
        "ok": [None],
        "left": [AttemptFailure.LEFT],
        "evicted": [AttemptFailure.EVICTED],
        "lost": [AttemptFailure.DIED, AttemptFailure.CUT],
    }
    final = {failure: outcome for outcome, failures in table.items() for failure in failures}
    for failure in [None, *AttemptFailure]:
        assert outcome_of(failure) == final.get(failure, "error")
        assert outcome_of(failure, retried=True) == final.get(failure, "retried")
        assert outcome_of(failure) in OUTCOMES


def test_a_router_that_cannot_change_its_workers_is_overruled():
    dispatcher = home(spy := Spy(), workers=3)
    dispatcher.leave(0)
    flights = [dispatcher.dispatch(request(dispatcher)) for _ in range(4)]
    # the worker with the fewest requests in flight
    assert [flight.worker for flight in flights] == [1, 2, 1, 2]
    dispatcher.finish(flights[0], 0)
    # the worker at which the router assumes the request to be
    assert spy.heard == [("finish", 0, 0, 0, 12.5)]
    dispatcher.join(0)
    assert dispatcher.dispatch(request(dispatcher)).worker == 0


def test_without_workers_the_problem_is_reported():
    dispatcher = home(Spy(), workers=1)
    dispatcher.leave(0)
    with pytest.raises(Problem, match="no worker is available"):
        dispatcher.dispatch(request(dispatcher))


def test_prompts_beyond_the_pool_are_evicted_oldest_first():
    dispatcher = home(spy := Spy())
    made = [request(dispatcher, 416, kind) for kind in range(3)]  # two fit
    serve(dispatcher, made)
    assert evictions(spy) == [("evict", made[0].prompt, 416, 0)]


def test_a_worker_that_returns_has_room_for_as_many_prompts_as_a_new_one():
    dispatcher = home(spy := Changing())
    made = [request(dispatcher, 416, kind) for kind in range(4)]
    serve(dispatcher, made[:2])
    dispatcher.leave(0)
    dispatcher.join(0)
    serve(dispatcher, made[2:])
    assert evictions(spy) == []
    serve(dispatcher, [request(dispatcher, 416, 4)])
    assert evictions(spy) == [("evict", made[2].prompt, 416, 0)]


def test_a_repeated_prompt_becomes_younger():
    dispatcher = home(spy := Spy())
    made = [request(dispatcher, 416, kind) for kind in range(3)]
    serve(dispatcher, made[:2])
    dispatcher.dispatch(made[0])
    serve(dispatcher, made[2:])
    assert evictions(spy) == [("evict", made[1].prompt, 416, 0)]


def test_a_queue_larger_than_the_pool_evicts_nothing():
    dispatcher = home(spy := Spy())
    serve(dispatcher, [request(dispatcher, 416)])
    for kind in range(1, 10):
        dispatcher.dispatch(request(dispatcher, 416, kind))
    assert not evictions(spy)


def test_with_events_nothing_is_evicted_by_assumption_first():
    dispatcher = home(spy := Spy(), followed={0})
    made = [request(dispatcher, 416, kind) for kind in range(5)]  # four prompts fit twice the pool
    serve(dispatcher, made[:4])
    assert not evictions(spy)
    serve(dispatcher, made[4:])
    assert evictions(spy) == [("evict", made[0].prompt, 416, 0)]


def test_a_prompt_larger_than_the_pool_never_counts_as_cached():
    dispatcher = home(spy := Spy())
    made = request(dispatcher, 2048)
    serve(dispatcher, [made])
    assert evictions(spy) == [("evict", made.prompt, 2048, 0)]


def test_a_forgotten_cache_is_evicted_whole():
    dispatcher = home(spy := Spy())
    made = [request(dispatcher, 64, kind) for kind in range(2)]
    serve(dispatcher, made)
    dispatcher.forget_cache(1)
    assert not evictions(spy)
    dispatcher.forget_cache(0)
    assert evictions(spy) == [("evict", one.prompt, 64, 0) for one in made]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "finish", "leave", "join", "add", "drain"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


@pytest.mark.parametrize("name", routers_by_name())
@given(steps=STEPS)
def test_no_bundled_router_ever_sends_to_a_worker_that_is_down_or_leaves(name, steps):
    dispatcher = home(build_router(name, {}, 3), workers=3)
    assert dispatcher.can_change
    flights, drained, removed = [], set(), []
    for step, number in steps:
        members = list(dispatcher.flights)
        one = members[number % len(members)] if members else -1
        if step == "ask" and dispatcher.up:
            made = request(dispatcher, 64 * number, number % 2, client=f"client-{number}")
            flight = dispatcher.dispatch(made)
            assert flight.routed == flight.worker  # not overruled
            assert flight.worker in dispatcher.up - drained
            flights.append(flight)
        elif step == "finish" and flights:
            dispatcher.finish(flights.pop(number % len(flights)), number)
        elif step == "leave":
            dispatcher.leave(one)
        elif step == "join":
            dispatcher.join(one)
        elif step == "add":
            assert dispatcher.add(followed=False) == max([*members, *drained, 2]) + 1
        elif step == "drain" and members and not dispatcher.is_draining(one):
            dispatcher.drain(one, partial(removed.append, one))
            drained.add(one)
        busy = {flight.worker for flight in flights if dispatcher.is_under_way(flight)}
        assert set(removed) == drained - busy
    for flight in flights:
        dispatcher.finish(flight, 1)
    assert dispatcher.under_way == 0
    assert (set(removed), len(removed)) == (drained, len(drained))
    assert not drained.intersection(dispatcher.flights)


@pytest.mark.parametrize("name", routers_by_name())
def test_every_bundled_router_gives_work_to_a_worker_that_is_added(name):
    dispatcher = home(build_router(name, {}, 2))
    dispatcher.join(dispatcher.add(followed=False))
    used, at_once = set(), []
    for number in range(400):
        tokens = 64 * (1 + number % 7)  # vtc-basic chooses by a client's past service
        made = request(dispatcher, tokens, number % 40, client=f"client-{number % 7}")
        at_once.append(dispatcher.dispatch(made))
        used.add(at_once[-1].worker)
        if len(at_once) > 12:
            dispatcher.finish(at_once.pop(0), 1)
    assert used == {0, 1, 2}


def test_naming_a_missing_worker_is_an_error_of_the_router():
    spy = Spy()
    dispatcher = home(spy)
    spy.choice = 2
    with pytest.raises(Problem, match="router spy: there is no worker 2"):
        dispatcher.dispatch(request(dispatcher))


class Holding(Changing):
    """A router that queues requests beyond one per worker."""

    holds = True

    def route(self, request, now_s):
        fleet = self.setup.fleet
        return next((w for w in fleet.workers() if not fleet.load(w).in_flight), None)


def holding():
    router = Holding()
    at = home(router)
    router.prepare(Setup(fleet=at))
    return at


def test_a_router_may_hold_requests_until_another_ends():
    at, sent = holding(), []
    made = [at.make_request("a", ids(10, n), 5, -1, 0) for n in range(4)]
    flights = [at.dispatch(one, sent.append) for one in made]
    assert [flight and flight.worker for flight in flights] == [0, 1, None, None]
    assert (at.under_way, sent) == (4, [])
    assert (at.load(0).in_flight, at.load(0).tokens, at.load(0).queued) == (1, 10, None)
    at.finish(flights[1], 3)
    assert [(one.request, one.worker) for one in sent] == [(made[2], 1)]
    at.close_request(made[3])
    at.finish(flights[0], 3)
    assert len(sent) == 1
    assert at.under_way == 1


def test_held_requests_go_when_a_worker_joins_and_wait_while_none_is_up():
    at, sent = holding(), []
    at.leave(1)
    first, second = (at.make_request("a", ids(10, n), 5, -1, 0) for n in range(2))
    flight = at.dispatch(first)
    assert at.dispatch(second, sent.append) is None
    at.leave(0)
    at.finish(flight, 0)
    assert sent == []
    at.join(1)
    assert [(one.request, one.worker) for one in sent] == [(second, 1)]


def test_a_router_that_holds_one_client_does_not_hold_the_others():
    class Picky(Holding):
        def route(self, request, now_s):
            return None if request.client == "a" else 0

    at = home(Picky())
    held, other = at.make_request("a", ids(4), 5, -1, 0), at.make_request("b", ids(4), 5, -1, 0)
    assert at.dispatch(held) is None
    assert at.dispatch(other).worker == 0


def test_a_router_that_fails_later_fails_only_the_request_it_was_asked_about():
    at, told = holding(), []
    made = [at.make_request("a", ids(10, n), 5, -1, 0) for n in range(4)]
    flights = [at.dispatch(one, told.append) for one in made]
    answers = iter([7, 1])
    at.router.route = lambda request, now_s: next(answers)
    at.finish(flights[0], 0)  # frees a slot; the router names a worker that does not exist
    assert [type(one).__name__ for one in told] == ["Problem", "RequestInFlight"]
    assert told[1].request is made[3]
    assert at.under_way == 2
