"""Test that ``preempt=fair`` takes memory from the client that is furthest ahead."""

import pytest

from fairbench.core import Request
from fairbench.schedulers.base import Setup
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.registry import build_local
from fairbench.schedulers.views import ListView, Running
from fairbench.tenants import ROOT
from tests.preemption_invariants import watch_fairness
from tests.sim import sglang_streams
from tests.sim.sim_helpers import US
from tests.sim.test_sim_vllm import VLLMHome
from tests.sim.vllm_plugin_streams import SETTINGS, ask_ours
from tests.sim.vllm_streams import random_stream


def running(*clients):
    """Return a running batch of these clients' requests, the oldest first."""
    requests = [Request(n, client, 0, 0, (), 100, 50) for n, client in enumerate(clients)]
    return [Running(request, 1, 101, 0) for request in requests]


@pytest.mark.parametrize("local", ["vtc", "dlpm"])
@pytest.mark.parametrize(
    ("outputs", "weights", "order"),
    [
        ({"a": 30, "b": 10}, {}, [3, 2, 0, 1]),
        ({"a": 10, "b": 30}, {}, [1, 3, 2, 0]),
        ({"a": 30, "b": 10}, {"a": 4.0}, [1, 3, 2, 0]),  # a is entitled to more
        ({"a": 20, "b": 20}, {}, [3, 2, 1, 0]),  # the newest of all
    ],
)
def test_the_newest_request_of_the_client_furthest_ahead_comes_first(
    local, outputs, weights, order
):
    scheduler = build_local(local, {f"{local}.preempt": "fair"})
    scheduler.prepare(Setup(weights=weights))
    batch = running("a", "b", "a", "a")
    for one in batch:
        scheduler.on_arrival(one.request, ListView([], lambda request: 0), 0.0)
    for client, tokens in outputs.items():
        scheduler.on_tokens(client, tokens)
    found = [request.request_id for request in scheduler.retraction_order(batch, 0.0)]
    assert found == order


def test_quanta_that_a_client_in_credit_did_not_take_put_it_behind():
    """DLPM's credits alone would call the flood behind after each of its refills."""
    account = build_local("dlpm", {"dlpm.preempt": "fair", "dlpm.quantum": 100}).account
    for client in ("light", "flood"):
        account.begin_request(client)
    account.refill(ROOT, ["flood"])  # both were at 0, and have 100 now
    account.charge("light", 60)
    for _ in range(3):  # the light client has no waiting request, but a running one
        account.charge("flood", 150)
        account.refill(ROOT, ["flood"])
    assert account.balances() == {"light": 40, "flood": -50 + 100}
    assert account.lead("light") == -1 + 0.6
    assert account.lead("flood") == -1 + 4.5
    account.begin_request("new")  # behind the flood by the rest of the flood's quantum
    assert account.lead("flood") - account.lead("new") == 0.5


@pytest.mark.parametrize("local", ["vtc", "dlpm"])
@pytest.mark.parametrize("preempt", [None, "fair"])
def test_a_light_client_keeps_its_memory_beside_a_flood(local, preempt):
    """The light client's request is the last of the batch, which the engine would preempt."""
    settings = {} if preempt is None else {f"{local}.preempt": preempt}
    home = VLLMHome(build_local(local, settings), blocks=16)
    for _ in range(7):
        home.send(16, 40)
    light = home.send(16, 40, at_ps=3_000 * US, client="y")
    home.run()
    flood = sum(one.retractions for one in home.sent) - light.retractions
    assert (light.retractions == 0) == (preempt == "fair")
    assert flood > 0


@pytest.mark.parametrize("local", ["vtc", "dlpm"])
def test_nobody_is_preempted_for_a_client_that_is_further_ahead(local):
    seen = []
    for seed in range(5):
        scheduler = build_local(local, {f"{local}.preempt": "fair"} | SETTINGS.get(local, {}))
        of_stream = watch_fairness(scheduler)
        stream = random_stream(seed)
        steps = ask_ours(stream, local, {}, scheduler=scheduler)
        assert sum(len(step.finished) for step in steps.values()) == len(stream.arrivals)
        seen += of_stream
    assert len(seen) > 10


def test_nobody_is_preempted_for_a_client_that_is_further_ahead_in_sglang():
    seen = []

    class Watched(VTC):
        def __init__(self, params):
            super().__init__(params)
            seen.append(watch_fairness(self))

    for seed in range(20):
        stream = sglang_streams.random_stream(seed)
        sglang_streams.ask_ours_under(Watched, VTC.Params(preempt="fair"), stream)
    assert sum(map(len, seen)) > 3


def test_only_fair_is_allowed():
    with pytest.raises(Exception, match=r"vtc.preempt = 'unfair'"):
        build_local("vtc", {"vtc.preempt": "unfair"})
