"""Test DLPM against a literal reading of the resolved Algorithm 1 ([DLPM]), and [gaps] A1-A12."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, ServiceBound
from fairbench.schedulers.local.dlpm import DLPM
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_requests import Calls
from tests.strategies import examples

RULES = [("strict", "stop"), ("strict", "skip"), ("relaxed", "skip")]
REJOINS = ["keep", "min0", "paper_zero"]


def desk(**params) -> Desk:
    return Desk(DLPM(DLPM.Params(**params)))


class Literal:
    """Algorithm 1 line by line: one quantum at a time, every request checked, none skipped."""

    def __init__(self, params: DLPM.Params, q: dict[str, int], idle: set[str]) -> None:
        self.params, self.q, self.idle = params, q, idle

    def check_refill(self, queue: list[Request], left_out: set[str]) -> bool:
        clients = [r.client for r in queue if r.client not in left_out]
        refilled = False
        while clients and all(self.q[i] <= 0 for i in clients):
            for i in list(self.q):
                if self.q[i] <= 0:
                    self.q[i] += self.params.quantum
                    self.leave(i)
            refilled = True
        return refilled

    def leave(self, client: str) -> None:
        """Remove an idle client that is in credit ([gaps] A5). No other idle client is listed."""
        if client in self.idle and self.q[client] > 0:
            del self.q[client]

    def select(self, order: list[Request], fits, extend) -> list[Request]:
        queue, admitted = list(order), []
        no_room: set[str] = set()
        while queue:
            progressed = False
            for r in list(queue):
                i = r.client
                if self.q[i] <= 0:
                    progressed = self.check_refill(queue, no_room) or progressed
                if self.q[i] <= 0:
                    continue
                if fits(r):
                    self.q[i] -= self.params.extend_weight * extend(r)
                    queue.remove(r)
                    admitted.append(r)
                    progressed = True
                elif self.params.no_room == "stop":
                    return admitted
                elif self.params.refill == "relaxed":
                    no_room.add(i)
            if not progressed:
                break
        return admitted


def random_state(rng: random.Random, params: DLPM.Params):
    """Return a random desk with debts and credits, some of idle clients, and the oracle's copy."""
    at, call = Desk(DLPM(params)), Calls()
    clients = "abcde"[: rng.randint(1, 5)]
    for _ in range(rng.randint(1, 12)):
        request = call(rng.choice(clients), tail=rng.randint(1, 60))
        at.matched[request] = rng.randrange(request.input_tokens)
        at.arrive(request)
    idle = set("vwx"[: rng.randint(0, 3)])
    for client in sorted(idle):
        request = call(client)
        at.scheduler.on_arrival(request, at.view, 0.0)
        at.scheduler.on_tokens(client, rng.randint(0, 40))
        if params.rejoin == "keep":
            at.scheduler.on_finish(request)
        else:
            # the client stays in flight, because otherwise idle clients leave immediately
            idle.discard(client)
    for client in at.view.clients():
        at.scheduler.credit[client] = rng.randint(-90, 20)
    return at, Literal(params, dict(at.scheduler.credit), idle)


def room(rng: random.Random):
    """Return a gate that takes tokens until one request does not fit, then only smaller ones."""
    left = rng.randint(0, 200)

    def fits(request: Request) -> bool:
        nonlocal left
        if request.input_tokens > left:
            return False
        left -= request.input_tokens
        return True

    return fits


@pytest.mark.parametrize(("refill", "no_room"), RULES)
@pytest.mark.parametrize("rejoin", REJOINS)
@pytest.mark.parametrize("block", range(2))
def test_select_equals_the_literal_algorithm(refill, no_room, rejoin, block):
    for seed in range(250 * block, 250 * (block + 1)):
        rng = random.Random(seed)
        params = DLPM.Params(
            quantum=rng.randint(1, 60), refill=refill, no_room=no_room, rejoin=rejoin
        )
        at, literal = random_state(rng, params)
        order = list(at.view.match_order())
        seed_of_room = rng.random()
        expected = literal.select(
            order, room(random.Random(seed_of_room)), lambda r, m=at.matched: r.input_tokens - m[r]
        )
        assert at.run_pass(room(random.Random(seed_of_room))) == expected
        assert at.scheduler.credit == literal.q


def test_the_closed_form_refill_equals_repeated_refills():
    """The comparison covers thousands of random states, including idle clients in debt."""
    for seed in range(3000):
        rng = random.Random(seed)
        params = DLPM.Params(quantum=rng.randint(1, 30))
        at, literal = random_state(rng, params)
        for client in at.view.clients():
            credit = -rng.choice([0, rng.randint(0, 90), rng.randint(0, 3000)])
            at.scheduler.credit[client] = literal.q[client] = credit
        literal.check_refill(list(at.view.queue_order()), set())
        at.run_pass(lambda _: False)
        assert at.scheduler.credit == literal.q
        assert max(at.scheduler.credit.values()) <= params.quantum


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=1, max_size=12),
    st.integers(1, 40),
    st.sampled_from(RULES),
)
@examples(60)
def test_a_pass_ends_when_no_request_fits(requests, quantum, rules):
    """[gaps] A1: as printed, Algorithm 1 never leaves line 17."""
    at, call = desk(quantum=quantum, refill=rules[0], no_room=rules[1]), Calls()
    at.arrive(*(call(client, tail=tail) for client, tail in requests))
    assert at.run_pass(lambda _: False) == []
    assert 1 <= len(at.offered) <= 3 * len(requests)


def test_a_pass_over_an_empty_queue_ends_immediately():
    assert desk().run_pass() == []


def test_a_prompt_of_200_quanta():
    """[gaps] A3: one refill leaves a debt of 21,349, so 214 rounds are needed."""
    at, call = desk(quantum=100), Calls()
    first, second = call("a", tail=21_449), call("a", tail=21_449)
    at.arrive(first, second)
    assert at.run_pass(at_most=1) == [first]
    assert at.scheduler.credit == {"a": 100 - 21_449}
    assert at.run_pass(lambda _: False) == []
    assert at.offered == [second]
    assert at.scheduler.credit == {"a": -21_349 + 214 * 100}


def test_a_client_out_of_credit_waits_for_the_others():
    at, call = desk(quantum=10), Calls()
    hot = [call("a", ("doc", 40), tail=10) for _ in range(3)]
    cold = [call("b", tail=8) for _ in range(3)]
    at.arrive(*hot, *cold)
    at.matched = dict.fromkeys(hot, 40)
    # Refill (10, 10); the cached request costs 10 (0, 10); b 8 (0, 2), b 8 (0, -6); refill (10, 4);
    # b 8 (10, -4); next round of the list: a (0, -4); refill (10, 6); a.
    assert at.run_pass() == [hot[0], *cold, hot[1], hot[2]]
    assert at.scheduler.credit == {"a": 0, "b": 6}


def test_output_tokens_weigh_two_and_merged_calls_give_the_same_result():
    at, call = desk(quantum=100), Calls()
    at.arrive(call("a", tail=30))
    at.run_pass()
    at.scheduler.on_tokens("a", 3)
    at.scheduler.on_tokens("a", 4)
    assert at.scheduler.credit == {"a": 100 - 30 - 14}


@pytest.mark.parametrize(("charge_recompute", "credit"), [(False, 70), (True, 40)])
def test_a_second_prefill_is_charged_only_on_request(charge_recompute, credit):
    """[gaps] A9: recomputation is charged only with ``charge_recompute``."""
    at, call = desk(quantum=100, charge_recompute=charge_recompute), Calls()
    request = call("a", tail=30)
    at.arrive(request)
    at.run_pass()
    at.retract(request)
    assert at.run_pass() == [request]
    assert at.scheduler.credit == {"a": credit}


def test_stop_and_skip_when_the_longest_match_does_not_fit():
    for no_room, admitted in (("stop", 0), ("skip", 1)):
        at, call = desk(no_room=no_room), Calls()
        large, small = call("a", ("doc", 50), tail=500), call("b", tail=5)
        at.arrive(large, small)
        at.matched = {large: 50}
        assert len(at.run_pass(lambda r, small=small: r is small)) == admitted


def test_strict_refill_waits_for_a_client_whose_request_does_not_fit():
    """[gaps] A4: smaller requests wait, too."""
    for refill, admitted in (("strict", 2), ("relaxed", 5)):
        at, call = desk(quantum=10, no_room="skip", refill=refill), Calls()
        large = call("a", tail=500)
        at.arrive(large, *(call("b", tail=5) for _ in range(5)))
        assert len(at.run_pass(lambda r, large=large: r is not large)) == admitted


def one_comes_and_goes(at: Desk, call: Calls, extend: int = 40) -> Request:
    """Serve client a once and let it leave, while b waits throughout."""
    request = call("a", tail=extend)
    at.arrive(request)
    assert at.run_pass(at_most=1) == [request]
    at.scheduler.on_finish(request)
    return request


@pytest.mark.parametrize(("rejoin", "on_return"), [("keep", -30), ("min0", -30), ("paper_zero", 0)])
def test_a_debt_survives_an_absence_except_under_paper_zero(rejoin, on_return):
    """[gaps] A5: what a client owes when it leaves."""
    at, call = desk(quantum=10, rejoin=rejoin), Calls()
    one_comes_and_goes(at, call)
    at.arrive(call("a"))
    assert at.scheduler.credit == {"a": on_return}


@pytest.mark.parametrize(("rejoin", "on_return"), [("keep", -10), ("min0", -30), ("paper_zero", 0)])
def test_only_keep_continues_to_refill_an_idle_debtor(rejoin, on_return):
    """[gaps] A5: lines 6-7 as printed refill every client on the list, waiting or not."""
    at, call = desk(quantum=10, rejoin=rejoin), Calls()
    one_comes_and_goes(at, call)
    at.arrive(call("b", tail=10), call("b", tail=10))
    assert len(at.run_pass()) == 2  # two refills
    at.arrive(call("a"))
    assert at.scheduler.credit["a"] == on_return


@pytest.mark.parametrize("rejoin", REJOINS)
def test_no_rule_accumulates_credit(rejoin):
    at, call = desk(quantum=100, rejoin=rejoin), Calls()
    one_comes_and_goes(at, call)  # leaves with a credit of 60
    assert at.scheduler.credit == {}
    at.arrive(call("a"))
    assert at.scheduler.credit == {"a": 0}


def test_a_debtor_that_is_refilled_into_credit_while_idle_is_forgotten():
    at, call = desk(quantum=10), Calls()
    one_comes_and_goes(at, call)
    at.arrive(*(call("b", tail=10) for _ in range(4)))
    at.run_pass()  # refills: -20, -10, 0, 10
    assert at.scheduler.credit == {"b": 0}


def test_a_client_with_a_running_request_stays_on_the_list():
    at, call = desk(quantum=100), Calls()
    first, second = call("a", tail=20), call("a", tail=20)
    at.arrive(first, second)
    at.run_pass()
    at.scheduler.on_finish(first)
    assert at.scheduler.credit == {"a": 60}
    at.scheduler.on_finish(second)
    assert at.scheduler.credit == {}


@pytest.mark.parametrize(
    ("params", "bounded"),
    [
        ({}, True),
        ({"no_room": "skip"}, True),
        ({"no_room": "skip", "refill": "relaxed"}, False),
        ({"rejoin": "paper_zero"}, False),
    ],
)
def test_a_bound_is_claimed_only_where_theorem_4_1_holds(params, bounded):
    bound = DLPM(DLPM.Params(quantum=123, **params)).service_bound()
    assert isinstance(bound, ServiceBound) == bounded
    if bounded:
        assert (bound.view, bound.quantum_tokens) == ("actual", 123)
