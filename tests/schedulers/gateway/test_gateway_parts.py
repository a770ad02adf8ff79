"""Test orders, detectors, bands and shedding by hand-computed examples."""

import pytest

from fairbench.core import Segment
from fairbench.errors import UsageError
from fairbench.schedulers.base import Setup
from fairbench.schedulers.gateway.build import build_gateway
from fairbench.schedulers.gateway.orders import ORDERS
from fairbench.schedulers.gateway.queue import GatewayQueue
from fairbench.schedulers.gateway.registry import GATEWAY_PARAMS, policies_by_name
from fairbench.schedulers.gateway.round_robin import RoundRobinFlows
from fairbench.schedulers.gateway.saturation import AlwaysRoom
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.prefix_tree import Node, PrefixTree
from fairbench.schedulers.registry import params_classes
from tests.schedulers.gateway.gateway_helpers import Desk, one_at_a_time


def ids(requests):
    return [request.request_id for request in requests]


# orders: which request of a flow is next


def test_edf_orders_by_deadline_and_puts_requests_without_one_last():
    desk = one_at_a_time("fcfs", gateway__order="edf")
    for deadline_s in (None, 9.0, 3.0, None, 5.0):
        desk.arrive("a", deadline_s=deadline_s)
    desk.serve(5)
    assert ids(desk.sent) == [0, 3, 5, 2, 1, 4]


def test_edf_uses_the_ttl_if_there_is_no_deadline():
    desk = one_at_a_time("round-robin", gateway__order="edf", gateway__ttl_s=10)
    desk.arrive("a")
    desk.now_s = 1.0
    desk.arrive("a", deadline_s=10.5)
    desk.arrive("a", deadline_s=9.0)
    desk.arrive("a")
    desk.serve(4)
    assert ids(desk.sent) == [0, 3, 1, 2, 4]  # 9, 10, 10.5 and 11 s


def test_a_flow_goes_by_longest_prefix_and_equals_go_by_age():
    matched = {"x": 90, "y": 40, "z": 40}
    desk = one_at_a_time(
        "round-robin",
        gateway__order="longest-prefix",
        matched=lambda request: matched.get(request.prompt[0].key, 0),
    )
    for client, key in (("a", "z"), ("a", "y"), ("a", "x"), ("b", "z"), ("b", "x")):
        desk.arrive(client, 100, key=key)
    desk.serve(5)
    assert ids(desk.sent) == [0, 3, 5, 1, 4, 2]


def test_longest_prefix_compares_only_the_first_request_of_each_flow():
    desk = one_at_a_time(
        "round-robin", gateway__order="longest-prefix", matched=lambda request: request.request_id
    )
    for _ in range(100):
        desk.arrive("a")
    desk.serve(2)
    assert ids(desk.sent) == [0, 64, 65]


def test_a_tree_reports_a_match_without_a_split():
    tree = PrefixTree(Node)
    tree.extend(tree.root, (Segment("a", 10), Segment("b", 10)), (0, 0), 20)
    for prompt, limit, expected in (
        ((Segment("a", 10), Segment("c", 5)), 100, 10),
        ((Segment("a", 7),), 100, 7),
        ((Segment("a", 10), Segment("b", 30)), 100, 20),
        ((Segment("a", 10), Segment("b", 30)), 12, 12),
        ((Segment("d", 7),), 100, 0),
    ):
        assert tree.common_tokens(prompt, limit) == expected
        assert len(tree.root.children) == 1
        assert next(iter(tree.root.children.values())).length == 20


# detectors: when a request may be dispatched


def test_concurrency_is_relative_to_the_pool():
    desk = Desk("fcfs", workers=2, concurrency__requests=2)
    for _ in range(6):
        desk.arrive("a")
    assert len(desk.at) == 4
    desk.answer()
    assert len(desk.at) == 4
    assert len(desk.gateway) == 1


@pytest.mark.parametrize(("headroom", "most"), [(0, 4), (1, 6), (3, 10)])
def test_headroom_is_added_to_the_running_limit_of_each_worker(headroom, most):
    desk = Desk("fcfs", workers=2, concurrency__requests=2, concurrency__headroom=headroom)
    for _ in range(12):
        desk.arrive("a")
    assert len(desk.at) == most
    desk.answer()
    assert len(desk.at) == most


def test_concurrency_by_tokens_sends_while_below_the_limit():
    desk = Desk("fcfs", concurrency__by="tokens", concurrency__tokens=100)
    for tokens in (60, 60, 1):
        desk.arrive("a", tokens)
    assert ids(desk.sent) == [0, 1]  # 60 is below 100, and 120 is not
    desk.answer()
    assert ids(desk.sent) == [0, 1, 2]


def test_concurrency_by_the_larger_is_a_mean_over_workers():
    desk = Desk(
        "fcfs", workers=2, concurrency__by="larger", concurrency__tokens=100,
        concurrency__requests=4,
    )  # fmt: skip
    desk.arrive("a", 150)  # 1.5 at worker 0
    desk.arrive("a", 10)  # and 0.25 at worker 1, so 0.875 on average
    assert len(desk.at) == 2
    desk.arrive("a", 10)  # worker 0: 1.6
    desk.arrive("a", 10)  # worker 1: 0.5; 1.05
    desk.arrive("a", 10)
    assert len(desk.at) == 4
    assert len(desk.gateway) == 1


def test_utilization_uses_the_last_poll():
    desk = Desk("fcfs", "utilization", utilization__poll_s=0.1)
    for _ in range(20):
        desk.arrive("a", 1)
    assert len(desk.at) == 20  # several requests are sent, because none waited at the poll
    desk.queued[0] = 5
    desk.now_s = 0.09
    desk.arrive("a", 1)
    assert len(desk.at) == 21
    desk.now_s = desk.gateway.wake_s(desk.now_s)
    assert desk.now_s == 0.1
    desk.arrive("a", 1)
    assert len(desk.gateway) == 1
    desk.queued[0] = 4
    desk.now_s = 0.19
    desk.go()
    assert len(desk.gateway) == 1
    desk.now_s = 0.2
    desk.go()
    assert not len(desk.gateway)


def test_utilization_counts_kv_memory_and_is_a_mean_over_workers():
    desk = Desk("fcfs", "utilization", workers=2)
    desk.arrive("a", 1_500)
    desk.now_s = 1.0
    desk.arrive("a", 1)  # (1.5 / 0.8 + 0) / 2 = 0.94
    assert len(desk.at) == 2
    desk.queued[1] = 1
    desk.now_s = 2.0
    desk.arrive("a", 1)  # (1.5 / 0.8 + 1 / 5) / 2 > 1
    assert len(desk.at) == 2


def test_utilization_with_credit_counts_requests_since_the_poll():
    desk = Desk("fcfs", "utilization", utilization__credit=True)
    for _ in range(20):
        desk.arrive("a", 1)
    assert len(desk.at) == 5


def test_utilization_treats_old_numbers_as_full():
    desk = Desk("fcfs", "utilization", utilization__poll_s=1.0)
    desk.arrive("a", 1)
    desk.now_s = 0.2
    desk.arrive("a", 1)
    desk.now_s = 0.3
    desk.arrive("a", 1)
    assert len(desk.at) == 2
    desk.now_s = 1.0
    desk.go()
    assert len(desk.at) == 3


def test_an_idle_cluster_is_not_polled_for_utilization():
    desk = Desk("fcfs", "utilization")
    desk.arrive("a", 1)
    assert desk.gateway.wake_s(0.0) == 0.05
    desk.now_s = 0.05
    desk.go()
    assert desk.gateway.wake_s(0.05) == 0.1
    desk.answer()
    desk.now_s = 0.1
    desk.go()
    assert desk.gateway.wake_s(0.1) is None


# bands and shedding


def test_a_lower_band_goes_only_if_no_higher_one_can():
    desk = one_at_a_time("round-robin", gateway__priority={"vip": 3})
    for client, priority in (("a", 0), ("b", 2), ("vip", 0), ("a", 1), ("b", 2)):
        desk.arrive(client, priority=priority)
    desk.serve(5)
    assert ids(desk.sent) == [0, 3, 2, 5, 4, 1]


def test_each_band_has_a_policy_of_its_own():
    desk = one_at_a_time("llm-d-vtc")
    desk.arrive("a", 16, priority=0)
    desk.arrive("a", 16, priority=1)
    desk.serve(1)
    assert desk.gateway.balances[1]["a"] == 400
    assert desk.gateway.balances[0]["a"] == 0


def test_a_request_is_shed_when_its_time_is_over():
    desk = one_at_a_time("drr", gateway__ttl_s=2.0)
    first = desk.arrive("a")
    desk.now_s = 1.0
    second = desk.arrive("a")
    assert desk.gateway.wake_s(1.0) == 2.0
    desk.now_s = 2.0
    desk.go()
    assert desk.shed == [first]
    desk.answer()
    assert desk.sent[-1] == second
    desk.now_s = 10.0
    desk.go()
    assert desk.shed == [first]
    assert desk.gateway.wake_s(10.0) is None


def test_a_full_band_refuses():
    desk = one_at_a_time("fcfs", gateway__band_requests=2)
    for priority in (0, 0, 0, 1):
        desk.arrive("a", priority=priority)
    assert ids(desk.refused) == [3]
    assert ids(desk.gateway) == [1, 2, 4]


def test_an_arrival_displaces_the_latest_of_the_lowest_band_below():
    desk = one_at_a_time("fcfs", gateway__max_requests=3)
    for priority in (0, 0, 1, 1, 2, 0, 1):
        desk.arrive("a", priority=priority)
    # Requests 1, 2 (band 0) and 3 fill it. 4 displaces 2, and 5 displaces 1. 6 and 7 find none
    # below.
    assert ids(desk.shed) == [2, 1]
    assert ids(desk.refused) == [6, 7]
    desk.serve(4)
    assert ids(desk.sent) == [0, 5, 3, 4]


def test_a_displaced_request_may_be_withdrawn_first():
    desk = one_at_a_time("fcfs", gateway__max_requests=1)
    low = desk.arrive("a")
    high = desk.request("a", priority=1)
    assert desk.gateway.enter(high, desk.now_s)
    assert desk.gateway.wake_s(desk.now_s) == desk.now_s
    desk.gateway.withdraw(low)
    assert list(desk.gateway.shed(desk.now_s)) == []
    assert list(desk.gateway) == [high]


def test_a_withdrawn_request_is_removed():
    desk = one_at_a_time("wfq", gateway__ttl_s=5.0)
    request = desk.arrive("a")
    desk.gateway.withdraw(request)
    assert not len(desk.gateway)
    desk.now_s = 6.0
    desk.go()
    assert not desk.shed


def test_an_unknown_client_has_no_priority():
    setup = Setup(clients=("client-0",), fleet=Desk("fcfs"))
    settings = {"gateway.priority": {"client0": 1}}
    with pytest.raises(UsageError, match="Did you mean 'client-0'"):
        build_gateway("fcfs", "none", settings, router=None, setup=setup)


# calls from other code


def test_an_answer_without_a_time_gets_the_last_known_time():
    policy = RoundRobinFlows(RoundRobinFlows.Params())
    heard = []
    policy.on_answer = lambda request, read, tokens, now_s: heard.append((tokens, now_s))
    desk = Desk("fcfs")
    queue = GatewayQueue(policy, desk.gateway._make_queue()._router, AlwaysRoom())
    request = desk.request("a")
    assert queue.enter(request, 3.0)
    queue.release(4.0, lambda request, worker: None)
    queue.finish(request, 7)
    assert heard == [(7, 4.0)]


def test_a_local_scheduler_learns_the_output_before_the_end():
    policy, heard = FCFS(FCFS.Params()), []
    policy.on_output = lambda request, tokens: heard.append((request.request_id, tokens))
    policy.on_finish = lambda request: heard.append(request.request_id)
    desk = Desk("fcfs")
    queue = GatewayQueue(policy, desk.gateway._make_queue()._router, AlwaysRoom())
    served, withdrawn = desk.request("a"), desk.request("a")
    assert queue.enter(served, 0.0)
    queue.release(0.0, lambda request, worker: None)
    assert queue.enter(withdrawn, 0.0)
    queue.withdraw(withdrawn)
    queue.finish(served, 7)
    assert heard == [(1, 0), 1, (0, 7), 0]


def test_no_part_of_a_gateway_has_the_name_of_another_part_with_parameters():
    others = params_classes()
    for name, params in GATEWAY_PARAMS.items():
        assert name not in others or not params.__dataclass_fields__, name
    policies = {"llm-d-vtc", "program-aware", "kthena", "token-bucket", "drr", "wfq"}
    assert set(policies_by_name()) >= policies
    assert set(ORDERS) == {"fcfs", "edf", "longest-prefix"}
