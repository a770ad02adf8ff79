"""Test that booking a whole batch at once equals booking its clients one by one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Setup
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.dlpm_edf import DLPMThenEDF
from fairbench.schedulers.local.dlpm_hold import HoldingDLPM
from fairbench.schedulers.local.edf_dlpm import EDFThenDLPM
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.views import ListView
from fairbench_studies.dlpm.upstream import UpstreamDLPM
from fairbench_studies.validation.slora.forms import ArtifactForm, in_form
from tests.schedulers.local.local_server import Server, call

CLIENTS = ("a", "b", "c")
batches = st.lists(
    st.tuples(
        st.integers(1, 50), st.dictionaries(st.sampled_from(CLIENTS), st.integers(1, 9), min_size=1)
    ),
    max_size=8,
)


def made(kind, **params):
    scheduler = kind(kind.Params(**params))
    scheduler.prepare(Setup(CLIENTS, {"a": 1, "b": 3, "c": 0.7}))
    for number, client in enumerate(CLIENTS):
        request = Request(number, client, number, 0, (Segment(client, 10),), 10, 100)
        view = ListView([], lambda _: 0, lambda request: request.prompt)
        scheduler.on_arrival(request, view, 0.0)
    return scheduler


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        *((VTC, {}), (in_form(ArtifactForm, VTC), {}), (VTC, {"tenants": "tree"})),
        *((VTC, {"output_weight": 3}), (DLPM, {}), (DLPM, {"tenants": "tree"})),
    ],
)
@given(batches)
def test_booking_a_batch_equals_booking_its_clients_one_by_one(kind, params, told):
    together, apart = made(kind, **params), made(kind, **params)
    for steps, running in told:
        together.on_steps(steps, running)
        for client, count in running.items():
            apart.on_tokens(client, steps * count)
    assert together.balances() == apart.balances()


class DoubledVTC(VTC):
    """A user's scheduler that implements only ``on_tokens``."""

    name = "doubled-vtc"

    def on_tokens(self, client: str, tokens: int) -> None:
        super().on_tokens(client, 2 * tokens)


class DoubledDLPM(DLPM):
    """A user's DLPM that implements only ``on_tokens``."""

    name = "doubled-dlpm"

    def on_tokens(self, client: str, tokens: int) -> None:
        super().on_tokens(client, 2 * tokens)


@pytest.mark.parametrize(("kind", "usual"), [(DoubledVTC, VTC), (DoubledDLPM, DLPM)])
def test_schedulers_that_override_token_counts_get_each_client(kind, usual):
    scheduler, twice = made(kind), made(usual)
    assert scheduler.on_steps is None  # so that a host calls ``on_tokens`` for each client
    for client, count in {"a": 2, "b": 3}.items():
        scheduler.on_tokens(client, 5 * count)
    twice.on_steps(10, {"a": 2, "b": 3})
    assert scheduler.balances() == twice.balances()
    assert scheduler.balances() != made(usual).balances()


def told_at_once(kind):
    """Return a scheduler that books every step immediately."""

    class AtOnce(kind):
        def on_steps(self, steps, running):
            for client, count in running.items():
                self.on_tokens(client, steps * count)

    return AtOnce


events = st.lists(
    st.tuples(st.sampled_from(["join", "finish", "steps", "look"]), st.sampled_from(CLIENTS)),
    max_size=60,
)


@pytest.mark.parametrize(
    ("kind", "weights"), [(VTC, {}), (VTC, {"a": 3.0, "b": 0.7}), (DLPM, {}), (DLPM, {"c": 0.7})]
)
@given(events, st.integers(1, 5))
def test_late_bookings_are_complete_when_read(kind, weights, told, steps):
    late, at_once = kind(kind.Params()), told_at_once(kind)(kind.Params())
    view = ListView([], lambda _: 0, lambda request: request.prompt)
    running, requests = {}, {client: [] for client in CLIENTS}
    for scheduler in (late, at_once):
        scheduler.prepare(Setup(CLIENTS, weights))
    for number, (event, client) in enumerate(told):
        request = Request(number, client, number, 0, (Segment(client, 10),), 10, 100)
        if event == "finish" and requests[client]:
            request = requests[client].pop()
            running[client] -= 1
            if not running[client]:
                del running[client]
        for scheduler in (late, at_once):
            if event == "join":
                scheduler.on_arrival(request, view, 0.0)
                scheduler.on_admitted(request, 10, False)
                scheduler.on_tokens(client, 1)
            elif event == "finish" and request.request_id != number:
                scheduler.on_finish(request)
            elif event == "steps":
                scheduler.on_steps(steps, running)
        if event == "join":
            requests[client].append(request)
            running[client] = running.get(client, 0) + 1
        elif event == "look":
            assert late.balances() == at_once.balances()
    assert late.balances() == at_once.balances()


@pytest.mark.parametrize("kind", [DLPM, DLPMThenEDF, HoldingDLPM, UpstreamDLPM, EDFThenDLPM])
def test_a_pass_uses_the_tokens_produced_so_far(kind):
    scheduler = kind(kind.Params(quantum=100))
    home = Server(scheduler, slots=99)
    home.arrive(*(call(number, client) for number, client in enumerate("aaab")))
    home.run_pass()
    for request in home.produced:
        scheduler.on_tokens(request.client, 1)
    scheduler.on_steps(20, {"a": 3, "b": 1})  # so that a is in debt, and b is not
    home.arrive(*(replace(call(n, c), first_token_by_s=9.0) for n, c in [(4, "a"), (5, "b")]))
    home.run_pass()
    assert [request.request_id for request in home.admitted[4:]] == [5, 4]


class SettlingVTC(VTC):
    """A user's scheduler that books the tokens of the waiting clients itself."""

    def select(self, view, now_s):
        self.account.book_decoded(view.clients())
        yield from super().select(view, now_s)


@pytest.mark.parametrize("kind", [VTC, SettlingVTC])
def test_the_least_counter_includes_the_tokens_produced_so_far(kind):
    scheduler = kind(kind.Params())
    home = Server(scheduler, slots=2)
    home.arrive(*(call(number, client) for number, client in enumerate("abab")))
    home.run_pass()
    for request in home.produced:
        scheduler.on_tokens(request.client, 1)
    scheduler.on_steps(20, {"a": 2, "b": 1})  # while both clients wait
    home.slots = 99
    home.run_pass()
    assert [request.request_id for request in home.admitted] == [0, 1, 3, 2]
