"""Test client limits at a gateway: no request is lost, doubled or queued needlessly.

The desk knows no costs, so a request weighs its prompt and half of the 128 output tokens that are
expected of a new client. With 36 prompt tokens it weighs 100.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import CostModel, Request, Segment
from fairbench.errors import UsageError
from fairbench.schedulers.base import Setup
from fairbench.schedulers.gateway.client_limits import ClientLimits
from fairbench.schedulers.gateway.registry import (
    GatewayParams,
    needs_sessions,
    policy_class,
    policy_names,
)
from fairbench.schedulers.load_cap import CAP_UNITS, step_units
from fairbench_serve.served_settings import served_gateway
from tests.schedulers.gateway.gateway_helpers import Desk
from tests.schedulers.gateway.test_gateway_properties import CLIENTS, EVENTS, played
from tests.strategies import examples

WEIGHS_100 = 36


def desk(limit, policy="fcfs", saturation="none", **kwargs):
    return Desk(policy, saturation, gateway__client_limit=limit, **kwargs)


def clients(requests):
    return "".join(request.client for request in requests)


def test_a_lone_client_may_use_all_and_each_of_two_has_half():
    home = desk(400)
    for _ in range(6):
        home.arrive("a", WEIGHS_100)
    assert clients(home.sent) == "aaaa"
    for _ in range(3):
        home.arrive("b", WEIGHS_100)
    assert clients(home.sent) == "aaaabb"  # no client loses running requests
    home.answer(home.sent[0], 128)
    home.answer(home.sent[1], 128)
    assert clients(home.sent) == "aaaabb"  # two of the four running requests, which is its half
    home.answer(home.sent[2], 128)
    assert clients(home.sent) == "aaaabba"


def test_a_program_whose_last_call_was_withdrawn_is_new_when_it_returns():
    limits = ClientLimits(GatewayParams(client_limit=100), Setup(fleet=desk(100)))

    def call(number, program):
        prompt = (Segment(f"p{number}", WEIGHS_100),)
        return Request(number, "a", program, 0, prompt, WEIGHS_100, 100, 0.0, calls_left=0)

    running, gone, other, again = call(0, 1), call(1, 5), call(2, 6), call(3, 5)
    assert limits.admits(running)
    assert not limits.admits(gone)
    assert limits.leave_line(gone)
    assert not limits.admits(other)
    assert not limits.admits(again)
    limits.end_admitted(running, 128)
    assert list(limits.admit_freed()) == [other]


def test_a_clients_limit_grows_when_others_leave():
    home = desk(400)
    for client in "bbaaaaaa":
        home.arrive(client, WEIGHS_100)
    assert clients(home.sent) == "bbaa"
    for request in home.sent[:2]:
        home.answer(request, 128)
    assert clients(home.sent) == "bbaaaa"


def test_weights_and_the_number_of_workers_count():
    home = desk(400, workers=2, weights={"a": 3.0})
    home.arrive("b", WEIGHS_100)
    for _ in range(9):
        home.arrive("a", WEIGHS_100)
    for _ in range(3):
        home.arrive("b", WEIGHS_100)
    assert clients(home.sent).count("a") == 6
    assert clients(home.sent).count("b") == 2


@pytest.mark.parametrize("number", range(10))
def test_shares_do_not_depend_on_the_order_in_which_weights_are_added(number):
    weights = {f"{number}a": 0.1, f"{number}b": 0.2, f"{number}c": 0.3}
    home = desk(400, weights=weights)
    for client in (*weights, *weights, *weights):
        home.arrive(client, WEIGHS_100)
    assert sum(request.client == f"{number}c" for request in home.sent) == 2


def test_each_client_has_its_share_of_the_running_requests_however_small_they_are():
    home = desk(None, workers=2, gateway__client_requests=4, weights={"a": 3.0})
    home.arrive("b", 1)
    for _ in range(9):
        home.arrive("a", 1)
    for _ in range(4):
        home.arrive("b", 1)
    assert clients(home.sent).count("a") == 6  # three quarters of 8
    assert clients(home.sent).count("b") == 2
    home.answer(next(one for one in home.at if one.client == "b"), 128)
    assert clients(home.sent).count("b") == 3


def test_the_lower_of_two_limits_holds():
    for requests, sent in ((2, 2), (9, 4)):
        home = desk(400, gateway__client_requests=requests)
        for _ in range(6):
            home.arrive("a", WEIGHS_100)
        assert len(home.sent) == sent


@pytest.mark.parametrize("number", [3, 7, 49])
def test_shares_that_are_whole_numbers_are_not_rounded_down(number):
    home = desk(None, gateway__client_requests=2 * number)
    for client in [f"c{one}" for one in range(number)] * 3:
        home.arrive(client, 1)
    assert len(home.sent) == 2 * number


def test_a_share_below_one_request_counts_as_one():
    home = desk(None, gateway__client_requests=2)
    for client in "abcabc":
        home.arrive(client, 1)
    assert clients(home.sent) == "abc"


def test_a_reserve_is_kept_for_absent_clients():
    home = desk(400, gateway__client_requests=9, gateway__client_reserve=1.0)
    for _ in range(3):
        home.arrive("a", WEIGHS_100)
    assert clients(home.sent) == "aa"  # half of 400 for a lone client
    for client in "bbcc":
        home.arrive(client, WEIGHS_100)
    # a third and then a quarter of 400, and one request of each client
    assert clients(home.sent) == "aabc"


def test_a_reserve_counts_weights_and_holds_for_requests():
    weights = {"gateway__client_reserve": 1.0, "weights": {"a": 3.0}}
    home = desk(None, workers=2, gateway__client_requests=4, **weights)
    for _ in range(9):
        home.arrive("a", 1)
    assert len(home.sent) == 6  # of 8 requests, beside an absent client of weight 1


def test_a_reserve_without_a_limit_is_refused():
    with pytest.raises(UsageError, match="client_reserve = 1: needs a limit per client; set"):
        desk(None, gateway__client_reserve=1.0)


def test_one_request_of_any_length_is_always_allowed():
    home = desk(400)
    home.arrive("a", 5_000)
    home.arrive("a", 1)
    home.arrive("b", 5_000)
    assert clients(home.sent) == "ab"


def test_the_gateway_learns_lengths_of_answers():
    home = desk(400)
    for _ in range(32):
        home.arrive("a", 1)
        home.answer(output_tokens=398)  # the next request weighs 1 + 199
    for _ in range(3):
        home.arrive("a", 1)
    assert len(home.at) == 2


@pytest.mark.parametrize(("tenants", "gone"), [({}, 6), ({"gateway__tenants": "tree"}, 4)])
def test_names_of_a_tenant_share_a_limit_if_configured(tenants, gone):
    home = desk(800, **tenants)
    home.arrive("other", WEIGHS_100)
    for _ in range(3):
        for name in "abc":
            home.arrive(f"org/{name}", WEIGHS_100)
    assert sum(request.client.startswith("org/") for request in home.sent) == gone


def test_tenants_without_a_limit_to_share_are_refused():
    for build in (
        lambda: desk(None, gateway__tenants="tree"),
        lambda: served_gateway("fcfs", "none", {"gateway.tenants": "tree"}),
    ):
        with pytest.raises(UsageError, match=r"tenants = 'tree': .*gateway\.client_limit, too"):
            build()


def test_a_queue_is_ordered_by_priority_then_by_arrival():
    home = desk(100)
    for priority in (0, 0, 1, -1, 1, 0):
        home.arrive("a", WEIGHS_100, priority=priority)
    for request in [*range(5)]:
        home.answer(home.sent[request], 128)
    assert [request.request_id for request in home.sent] == [0, 2, 4, 1, 5, 3]


def test_priorities_of_clients_count_in_the_queue_of_their_tenant():
    priority = {"org/b": 1}
    home = desk(100, gateway__tenants="tree", gateway__priority=priority)
    for client in "aabab":
        home.arrive(f"org/{client}", WEIGHS_100)
    for request in range(4):
        home.answer(home.sent[request], 128)
    assert clients(home.sent).replace("org/", "") == "abbaa"


def test_a_client_over_its_limit_delays_no_other():
    home = desk(200, "vtc", "concurrency", concurrency__requests=3)
    for client in "aaaaab":
        home.arrive(client, WEIGHS_100)
    assert clients(home.sent) == "aab"


def test_a_queued_request_may_be_withdrawn_or_expire():
    home = desk(100, gateway__ttl_s=10.0)
    first, *lined = [home.arrive("a", WEIGHS_100) for _ in range(4)]
    home.gateway.withdraw(lined[0])
    home.now_s = 11.0
    home.go()
    assert home.shed == lined[1:]
    assert not len(home.gateway)
    home.answer(first)
    assert home.sent == [first]


def test_a_policy_may_refuse_a_request_at_its_turn():
    home = desk(100, "token-bucket", token_bucket__burst=1.0, token_bucket__rate_per_min=1e-6)
    first, second = home.arrive("a", WEIGHS_100), home.arrive("a", WEIGHS_100)
    assert home.sent == [first]
    home.answer(first)
    assert home.gateway.wake_s(home.now_s) == home.now_s
    home.go()
    assert home.shed == [second]
    assert home.arrive("a") in home.refused  # refused requests are not counted
    assert not len(home.gateway)


def test_a_queue_can_fill_its_band():
    home = desk(100, gateway__band_requests=2)
    for client, priority in (("a", 0), ("a", 0), ("a", 0), ("a", 0), ("a", 1), ("b", 0)):
        home.arrive(client, WEIGHS_100, priority=priority)
    assert [request.request_id for request in home.sent] == [0]
    assert [request.request_id for request in home.gateway] == [1, 2, 4]
    assert [request.request_id for request in home.refused] == [3, 5]


def test_a_queued_request_yields_to_a_higher_band():
    home = desk(100, gateway__max_requests=2)
    for client, priority in (("a", 0), ("a", 0), ("a", 0), ("a", 1), ("a", 1), ("a", 1)):
        home.arrive(client, WEIGHS_100, priority=priority)
    assert [request.request_id for request in home.shed] == [2, 1]
    assert [request.request_id for request in home.gateway] == [3, 4]
    assert [request.request_id for request in home.refused] == [5]


class Costs(CostModel):
    """Costs: a step takes 1 s and 1 ms per token of context."""

    def prefill_s(self, cached_tokens, new_tokens):
        return new_tokens / 1000

    def decode_step_s(self, requests, context_tokens):
        return 1 + context_tokens / 1000

    def frontend_s(self, input_tokens):
        return 0.0


def test_auto_equals_the_load_cap():
    class OneWorker:
        def workers(self):
            return (0,)

    costs = Costs()
    limits = ClientLimits(GatewayParams(client_limit="auto"), Setup(costs=costs, fleet=OneWorker()))
    asking = Desk("fcfs", "none")
    gone = sum(limits.admits(asking.request("a", WEIGHS_100)) for _ in range(100))
    assert gone * 100 == CAP_UNITS * step_units(costs).unit_tokens


def test_auto_needs_costs():
    for build in (
        lambda: desk("auto"),
        lambda: served_gateway("fcfs", "none", {"gateway.client_limit": "auto"}),
    ):
        with pytest.raises(UsageError, match=r"gateway\.client_limit = 'auto'.*number of tokens"):
            build()
    for wrong in (0, -1, "much"):
        with pytest.raises(UsageError, match="client_limit"):
            desk(wrong)
    for wrong in (0, -1, "auto"):
        with pytest.raises(UsageError, match="client_requests"):
            desk(None, gateway__client_requests=wrong)


def memory(most, **kwargs):
    """Return a desk that limits memory. A request reserves its prompt and 100 output tokens."""
    return desk(None, gateway__client_memory=most, gateway__client_reserve=0.25, **kwargs)


@pytest.mark.parametrize(("prompt", "sent"), [(100, 4), (300, 2), (1, 7), (700, 1), (900, 1)])
def test_memory_counts_prompts_and_all_output_that_may_come(prompt, sent):
    """A lone client has 800 of 1,000 tokens, or one request of any size."""
    home = memory(1_000)
    for _ in range(9):
        home.arrive("a", prompt)
    assert len(home.sent) == sent


def test_lengths_of_answers_do_not_change_the_reserved_memory():
    home = memory(1_000)
    for _ in range(40):
        home.arrive("a", 100)
        home.answer(output_tokens=1)
    for _ in range(9):
        home.arrive("a", 100)
    assert len(home.at) == 4


def test_greedy_clients_that_come_one_after_the_other_leave_room_for_the_next():
    home = memory(10_000)
    for client in "abc":
        for _ in range(99):
            home.arrive(client, 100)
    assert [clients(home.sent).count(client) for client in "abc"] == [
        40,
        8,
        1,
    ]  # 4/5 of what is left
    home.arrive("d", 100)
    assert clients(home.sent)[-1] == "d"
    for request in home.sent[:40]:
        home.answer(request, 100)
    counts = [sum(one.client == client for one in home.at) for client in "abcd"]
    assert counts[0] <= 11  # its share is 10,000 / 4.25 tokens
    assert sum(counts) * 200 <= 10_000


def test_with_a_limit_of_memory_requests_leave_room_likewise():
    home = memory(10**6, gateway__client_requests=10)
    for client in "abc":
        for _ in range(9):
            home.arrive(client, 1)
    assert clients(home.sent) == "aaaaaaaabc"


def test_memory_is_shared_by_weight_over_all_workers():
    home = memory(1_000, workers=2, weights={"a": 3.0, "b": 0.5})
    for _ in range(19):
        home.arrive("a", 100)
    assert len(home.sent) == 9  # 2,000 x 3 / 3.25 tokens
    for _ in range(3):
        home.arrive("b", 1)
    assert clients(home.sent) == "a" * 9 + "b"  # two thirds of 200 tokens, but at least one request


@examples(60)
@given(
    sizes=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 500)), max_size=60),
    reserve=st.sampled_from([0.0, 0.25, 2.0]),
)
def test_only_first_requests_can_take_more_memory_than_there_is(sizes, reserve):
    home = desk(None, gateway__client_memory=1_000, gateway__client_reserve=reserve)
    for client, tokens in sizes:
        home.arrive(client, tokens)
    first = {request.client: request for request in reversed(home.sent)}.values()
    more = [request for request in home.sent if request not in first]
    if more:
        assert sum(request.input_tokens + 100 for request in more) <= 1_000


@examples(60)
@given(
    policy=st.sampled_from(
        [
            name
            for name in policy_names()
            if policy_class(name).sort_queue is None and policy_class(name).decodes_first is None
        ]
    ),
    events=EVENTS,
    limit=st.integers(1, 2_000),
    requests=st.none() | st.integers(1, 9),
    memory_tokens=st.none() | st.integers(1, 2_000),
    reserve=st.sampled_from([0.0, 0.5, 3.0]),
    ttl_s=st.sampled_from([0.0, 30.0]),
)
def test_every_request_is_dispatched_once_or_refused_once(
    policy, events, limit, requests, memory_tokens, reserve, ttl_s
):
    more = {"gateway__client_requests": requests, "gateway__client_reserve": reserve}
    more["gateway__client_memory"] = memory_tokens
    home = desk(limit, policy, gateway__ttl_s=ttl_s, **more)

    def conserved():
        gone = [*home.sent, *home.refused, *home.shed]
        assert len(set(gone)) == len(gone)
        held = list(home.gateway)
        assert not set(gone) & set(held)
        # A client without requests in flight has none queued either, except at a session gate.
        for client in () if needs_sessions(policy) else CLIENTS:
            under_way = [one for one in home.at if one.client == client]
            assert under_way or all(one.client != client for one in held)

    arrivals = played(home, events, conserved)
    assert not len(home.gateway)
    assert set(arrivals) == {*home.sent, *home.refused, *home.shed}
