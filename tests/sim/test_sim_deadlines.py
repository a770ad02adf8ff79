"""Test deadlines of simulated requests, from targets to the schedulers that use them."""

import pytest

from fairbench.config.resolve import resolve
from fairbench.core import Request
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.timing import ProfileCosts
from fairbench.schedulers.gateway.orders import EarliestDeadline
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.sim.cluster import Deadlines
from fairbench.sim.run import simulate
from fairbench.targets import alone

GOODPUT = {"client-0.ttft": "500ms", "client-1.ttft": "2s", "client-2.e2el": "20s",
           "client-3.e2el": "5x"}  # fmt: skip


def spec(local, **more):
    flags = {"workload": "chat", "scenario": "none", "scheduler": f"round-robin+{local}"}
    flags |= {"num_programs": 4, "request_rate": 4.0, "goodput": GOODPUT, **more}
    return resolve(flags, {"engine.max_running_requests": 4})


@pytest.fixture
def seen(monkeypatch):
    """Return every request that a local scheduler receives."""
    found = []
    monkeypatch.setattr(FCFS, "on_arrival", lambda self, request, view, now: found.append(request))
    return found


def test_requests_contain_their_deadlines(seen):
    simulate(spec("fcfs"))
    of = {f"client-{i}": [r for r in seen if r.client == f"client-{i}"] for i in range(4)}
    assert all(of.values())
    for request in of["client-0"]:
        assert request.first_token_by_s == request.arrival_s + 0.5
        assert request.deadline_s is None
    for request in of["client-2"]:
        assert (request.first_token_by_s, request.deadline_s) == (None, request.arrival_s + 20)
    costs = ProfileCosts(load_profile(spec("fcfs").gpu))
    for request in of["client-3"]:
        lone = alone(costs, request.input_tokens, request.max_new_tokens)
        assert request.deadline_s == request.arrival_s + 5 * lone.e2el_s


def test_without_targets_requests_have_no_deadlines(seen):
    simulate(spec("fcfs", goodput=None))
    assert seen
    promised = {(one.first_token_by_s, one.deadline_s, one.token_every_s) for one in seen}
    assert promised == {(None, None, None)}
    assert Deadlines((), None).due("anyone", 1.0, 10, 10) == (None, None, None)


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [(None, None, None), (3.0, None, 3.0), (None, 4.0, 4.0), (3.0, 4.0, 3.0), (5.0, 4.0, 4.0)],
)
def test_the_next_deadline_is_the_first_one(first, end, expected):
    request = Request(0, "a", 0, 0, (), 0, 1, 0.0, end, first_token_by_s=first)
    assert request.next_deadline_s == expected


def test_edf_meets_more_deadlines_than_the_order_of_arrival():
    by_local = {local: simulate(spec(local)).summary for local in ("fcfs", "edf")}
    ratio = {local: summary["goodput_ratio"] for local, summary in by_local.items()}
    assert ratio["edf"] > ratio["fcfs"] + 0.05
    assert by_local["edf"]["goodput_min_ratio"] >= by_local["fcfs"]["goodput_min_ratio"]


def test_the_order_of_a_gateway_uses_the_first_deadline():
    def due(number, first, end):
        return Request(number, "a", 0, 0, (), 0, 1, float(number), end, first_token_by_s=first)

    requests = [due(0, 9.0, None), due(1, 8.0, 7.0), due(2, None, 6.0), due(3, None, None)]
    order = EarliestDeadline(ttl_s=4.5, matched=lambda request: 0)  # the last token is due at 7.5
    assert [one.request_id for one in order.ordered(requests)] == [2, 1, 3, 0]
