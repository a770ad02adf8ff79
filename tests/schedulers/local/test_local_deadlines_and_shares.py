"""Test deadlines inside fair shares and the reverse: orders, the bound, and false deadlines."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import NoBound
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.dlpm_edf import DLPMThenEDF
from fairbench.schedulers.local.edf_dlpm import EDFThenDLPM
from tests.schedulers.local.local_server import Server, call
from tests.schedulers.local.local_toy_load import DLPM_UNIT, QUANTUM, Mix, overload, toy
from tests.schedulers.local.local_trace import max_gap

BOUND = 2 * (DLPM_UNIT + QUANTUM)


def dlpm_edf(**params):
    return DLPMThenEDF(DLPMThenEDF.Params(**params))


def edf_dlpm(**params):
    return EDFThenDLPM(EDFThenDLPM.Params(**params))


def due(number, client="a", first=None, end=None, tokens=50, at_s=0.0):
    request = call(number, client, tokens, at_s=at_s)
    return replace(request, first_token_by_s=first, deadline_s=end)


def admitted(scheduler, calls, matched=(), now_s=0.0):
    home = Server(scheduler, slots=99)
    home.now_s = now_s
    home.arrive(*calls)
    home.matched.update({calls[number]: tokens for number, tokens in matched})
    home.run_pass()
    return [request.request_id for request in home.admitted]


TWO_CLIENTS = [
    due(0, "a", first=9.0),
    due(1, "b", first=3.0),
    due(2, "a", first=5.0),
    due(3, "b", first=1.0),
    due(4, "b"),
]


def test_turns_keep_their_clients_and_go_to_the_most_urgent_request_of_the_client():
    assert admitted(dlpm_edf(), TWO_CLIENTS) == [2, 3, 0, 1, 4]
    # the longest cached prefix gives b the first turns, and its deadlines say which request goes
    assert admitted(dlpm_edf(), TWO_CLIENTS, matched=[(4, 45), (1, 40)]) == [3, 1, 2, 0, 4]


def test_deadlines_may_decide_between_all_clients_in_credit():
    assert admitted(dlpm_edf(within="credit"), TWO_CLIENTS) == [3, 1, 2, 0, 4]


@pytest.mark.parametrize("within", ["client", "credit"])
def test_a_client_without_credit_waits_however_urgent_its_request_is(within):
    scheduler = dlpm_edf(quantum=100, within=within)
    home = Server(scheduler, slots=2)
    home.arrive(due(0, "a", tokens=150), due(1, "b", tokens=10))
    home.run_pass()
    assert scheduler.credit["a"] < 0 < scheduler.credit["b"]
    home.slots = 4
    home.arrive(due(2, "a", first=1.0, tokens=10), due(3, "b", first=9.0, tokens=10))
    home.run_pass()
    assert [request.request_id for request in home.admitted] == [0, 1, 3, 2]


LATE = [due(0, first=5.0), due(1, first=30.0), due(2), due(3, first=25.0), due(4, first=8.0)]


@pytest.mark.parametrize("made", [dlpm_edf, edf_dlpm])
def test_late_requests_and_those_without_deadlines_keep_the_order_of_dlpm(made):
    assert admitted(made(), LATE, now_s=20.0) == [3, 1, 0, 2, 4]
    assert admitted(made(), LATE, matched=[(2, 45), (4, 40)], now_s=20.0) == [3, 1, 2, 4, 0]


def test_among_equal_deadlines_shares_decide_and_then_locality():
    scheduler = edf_dlpm(quantum=100)
    home = Server(scheduler, slots=2)
    home.arrive(due(0, "a", tokens=150), due(1, "b", tokens=10))
    home.run_pass()
    assert scheduler.credit["a"] < 0 < scheduler.credit["b"]
    home.slots = 9
    later = [due(n, c, first=f) for n, c, f in [(2, "a", 5), (3, "a", 7), (4, "b", 7), (5, "b", 7)]]
    home.arrive(*later)
    home.matched[later[3]] = 40
    home.run_pass()
    assert [request.request_id for request in home.admitted][2:] == [2, 5, 4, 3]


def test_old_requests_go_first_while_their_client_is_in_credit():
    old = [due(0, "a", at_s=0.0), due(1, "b", at_s=5.0), due(2, "c", first=90.0, at_s=60.0)]
    assert admitted(edf_dlpm(aging_s=60.0), old, now_s=64.0) == [0, 2, 1]
    assert admitted(edf_dlpm(aging_s=60.0), old, now_s=65.0) == [0, 1, 2]
    scheduler = edf_dlpm(aging_s=60.0)
    scheduler.on_arrival(old[0], Server(scheduler).view, 0.0)
    scheduler.credit["a"] = -1.0
    assert admitted(scheduler, old[1:], now_s=70.0) == [1, 2]
    in_debt = edf_dlpm(aging_s=60.0)
    in_debt.credit["a"] = -(10.0**6)
    assert admitted(in_debt, old, now_s=70.0) == [1, 2, 0]


@pytest.mark.parametrize("made", [dlpm_edf, edf_dlpm])
def test_a_flood_with_deadlines_does_not_starve_requests_without_deadlines(made):
    home, waiting = Server(made(quantum=100)), due(-1, "b")
    for second in range(100):
        home.step()
        home.arrive(*(due(2 * second + n, "a", first=home.now_s + 9) for n in range(2)))
        if second == 5:
            home.arrive(waiting)
        home.run_pass()
    assert waiting in home.finished


@pytest.mark.parametrize("made", [dlpm_edf, edf_dlpm])
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60), st.integers(1, 5)), max_size=25),
    st.integers(1, 3),
)
def test_without_deadlines_the_order_is_that_of_dlpm(made, sent, slots):
    runs = []
    for scheduler in (made(quantum=80, aging_s=10.0**6), DLPM(DLPM.Params(quantum=80))):
        home = Server(scheduler, slots=slots)
        for number, (client, tokens, new) in enumerate(sent):
            home.arrive(call(number, client, tokens, new=new))
            home.run(1)
        home.run(200)
        runs.append(([r.request_id for r in home.admitted], scheduler.credit))
    assert runs[0] == runs[1]


def test_the_bound_is_that_of_dlpm_or_none():
    assert dlpm_edf(quantum=7).service_bound() == DLPM(DLPM.Params(quantum=7)).service_bound()
    assert isinstance(edf_dlpm().service_bound(), NoBound)


class Promises:
    """Requests of a mix with random deadlines; those of ``liars`` are all due immediately."""

    def __init__(self, mix, seed, liars=""):
        self._mix, self._rng, self._liars = mix, random.Random(seed), liars

    def __call__(self, client):
        drawn = self._rng.choice([None, self._rng.uniform(1, 100)])
        first = 0.5 if client in self._liars else drawn
        return replace(self._mix(client), first_token_by_s=first)


def served(scheduler, mix, steps=200):
    """Return each client's service at each instant of an overload, and the largest gap."""
    engine = toy(scheduler, "abc")
    overload(engine, mix, "abc", steps)
    _, service, _, _ = engine.trace.rows()
    return service, max_gap(engine.trace)


@pytest.mark.parametrize("within", ["client", "credit"])
@pytest.mark.parametrize("liars", ["", "a"])
@pytest.mark.parametrize("seed", range(2))
def test_theorem_4_1_holds_under_any_deadlines(within, liars, seed):
    mix = Promises(Mix(seed, "abc"), seed, liars)
    _, gap = served(dlpm_edf(quantum=QUANTUM, within=within), mix)
    assert 0 < gap <= BOUND


# The share of client a and the largest gap, honest and lying, in docs/guide/goodput.md. The gain
# from a lie is unlimited in the last case, because time does not pass and no request is late.
LIES = [
    (dlpm_edf(quantum=QUANTUM), [(0.333, 864), (0.334, 786)]),
    (dlpm_edf(quantum=QUANTUM, within="credit"), [(0.327, 858), (0.339, 590)]),
    (edf_dlpm(quantum=QUANTUM), [(0.331, 3090), (1.0, 31092)]),
]


@pytest.mark.parametrize(("scheduler", "expected"), LIES, ids=["client", "credit", "edf-dlpm"])
def test_the_gain_of_a_client_that_lies_about_deadlines(scheduler, expected):
    assert BOUND == 4600
    for liars, (share, gap) in zip(("", "a"), expected, strict=True):
        fresh = type(scheduler)(scheduler.params)
        service, largest = served(fresh, Promises(Mix(0, "abc"), 0, liars), steps=300)
        assert service[0, -1] / service[:, -1].sum() == pytest.approx(share, abs=0.0005)
        assert largest == gap
