"""Test ``preempt=fair``: memory is taken from the client that is furthest ahead."""

import pytest

from fairbench.core import Request
from fairbench.schedulers.list_view import ListView
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.registry import build_local
from fairbench.schedulers.setup import Setup
from fairbench.schedulers.views import Running
from tests.sim.sim_helpers import US
from tests.sim.test_sim_vllm import VLLMHome
from tests.sim.vllm_plugin_streams import ask_ours
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


@pytest.mark.parametrize("preempt", [None, "fair"])
def test_a_light_client_keeps_its_memory_beside_a_flood(preempt):
    """The light client's request is the last of the batch, which the engine would preempt."""
    settings = {} if preempt is None else {"vtc.preempt": preempt}
    home = VLLMHome(build_local("vtc", settings), blocks=16)
    for _ in range(7):
        home.send(16, 40)
    light = home.send(16, 40, at_ps=3_000 * US, client="y")
    home.run()
    flood = sum(one.retractions for one in home.sent) - light.retractions
    assert (light.retractions == 0) == (preempt == "fair")
    assert flood > 0


@pytest.mark.parametrize("seed", range(12))
def test_nobody_is_preempted_for_a_client_that_is_further_ahead(seed, monkeypatch):
    seen, on_retract = [], VTC.on_retract

    def checked(self, request, view, now_s):
        others = {one.request.client for one in view.running} - {request.client}
        seen.extend(self.account.ahead(request.client) >= self.account.ahead(o) for o in others)
        on_retract(self, request, view, now_s)

    monkeypatch.setattr(VTC, "on_retract", checked)
    stream = random_stream(seed)
    steps = ask_ours(stream, "vtc", {"vtc.preempt": "fair"})
    assert all(seen)
    assert sum(len(step.finished) for step in steps.values()) == len(stream.arrivals)


def test_only_fair_is_allowed():
    with pytest.raises(Exception, match=r"vtc.preempt = 'unfair'"):
        build_local("vtc", {"vtc.preempt": "unfair"})
