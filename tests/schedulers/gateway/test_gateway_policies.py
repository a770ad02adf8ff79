"""Test which flow goes next: hand-computed numbers of each policy, and two bounds."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import UsageError
from fairbench_rivals.gateway.program_aware import scaled
from tests.schedulers.gateway.gateway_helpers import Desk, one_at_a_time
from tests.strategies import examples

TOKENS = st.lists(st.integers(1, 500), min_size=1, max_size=25)


def order_of(desk, times):
    return "".join(client[0] for client in desk.serve(times))


def test_round_robin_goes_by_name_one_request_per_turn():
    desk = one_at_a_time("round-robin")
    for client, tokens in (("c", 1), ("a", 900), ("a", 900), ("b", 5), ("b", 5), ("b", 5)):
        desk.arrive(client, tokens)
    assert order_of(desk, 6) == "abcabb"


def test_llm_d_vtc_charges_128_outputs_and_never_corrects_that():
    desk = one_at_a_time("llm-d-vtc")
    for _ in range(3):
        desk.arrive("long", 100)
        desk.arrive("short", 100)
    desk.serve(6, output_tokens=1_000)
    counters = desk.gateway.balances[0]
    # The first client starts at 0, because no client waits: 3 x (100 + 3 x 128) each.
    assert (counters["long"], counters["short"]) == (1452, 1452)


def test_llm_d_vtc_corrected_charges_the_true_output():
    desk = one_at_a_time("llm-d-vtc", llm_d_vtc__corrected=True)
    desk.arrive("a", 100)
    desk.serve(2, output_tokens=1_000)
    assert desk.gateway.balances[0]["a"] == 100 + 3 * 1_000


def test_llm_d_vtc_starts_newcomers_at_the_lowest_waiting_client_and_forgets_the_idle():
    desk = one_at_a_time("llm-d-vtc", llm_d_vtc__forget_s=300)
    desk.arrive("a", 16)
    desk.arrive("a", 16)
    desk.answer()  # a has 400, and one request still waits
    desk.arrive("b", 16)
    counters = desk.gateway.balances[0]
    assert (counters["a"], counters["b"]) == (400, 400)
    desk.serve(2)
    desk.now_s = 300
    desk.arrive("c", 16)
    assert {"a", "b"} <= set(counters)
    desk.now_s = 301
    desk.arrive("c", 16)
    assert set(counters) == {"c"}


def test_llm_d_vtc_starts_a_newcomer_at_the_lowest_of_several_waiting_clients():
    desk = one_at_a_time("llm-d-vtc")
    for client, tokens in (("a", 16), ("b", 616), ("a", 16), ("b", 16)):
        desk.arrive(client, tokens)
    desk.serve(2)  # a: 16 + 3 x 128, b: 616 + 3 x 128
    desk.arrive("c", 16)
    counters = desk.gateway.balances[0]
    assert (counters["a"], counters["b"], counters["c"]) == (400, 1000, 400)


def test_program_aware_balances_little_service_against_a_long_wait():
    desk = one_at_a_time("program-aware")
    desk.answer(output_tokens=0)
    desk.arrive("a", 100)
    desk.answer(output_tokens=200)  # a has 100 + 2 x 200 tokens
    policy = desk.gateway._bands[0].scheduler
    assert policy.attained("a", 0.0) == 500
    assert policy.attained("a", 60.0) == 250  # halved every minute
    assert policy.attained("a", 120.0) == 125
    desk.arrive("warm", 1)
    desk.arrive("a", 1)
    desk.now_s = 50.0
    desk.arrive("b", 1)
    # a has the most service and the longest wait: 0.2 against 0.8
    assert order_of(desk, 2) == "ba"


def test_program_aware_compares_waits_of_less_than_a_second():
    desk = one_at_a_time("program-aware")
    for client, outputs in (("a", 495), ("b", 45)):  # 1,000 and 100 tokens
        desk.arrive(client, 10)
        desk.answer()
        desk.answer(output_tokens=outputs)
        desk.arrive("warm", 1)
    desk.arrive("a", 1)
    desk.arrive("b", 1)
    desk.now_s = 0.8
    desk.arrive("c", 1)
    desk.now_s = 0.9
    # scores: a 0.2, b 0.72 + 0.2, c 0.8
    assert order_of(desk, 2) == "bc"


def test_program_aware_charges_nothing_until_an_answer_ends():
    desk = Desk("program-aware", concurrency__requests=2)
    desk.arrive("a", 400)
    desk.arrive("b", 1)
    desk.arrive("b", 1)
    desk.arrive("a", 400)
    desk.answer(desk.sent[1], 1)  # b has 3 now, and a, with 400 in flight, has 0
    assert [request.client for request in desk.sent] == ["a", "b", "a"]


def test_scaled_values_lie_between_the_least_and_the_most():
    assert scaled([5, 10, 7.5]) == [0, 1, 0.5]
    assert scaled([3, 3]) == [0, 0]


def test_in_kthena_an_empty_window_goes_before_everything():
    desk = one_at_a_time("kthena", kthena__window_s=100)
    desk.answer()
    desk.arrive("a", 10)
    desk.answer(output_tokens=45)  # a has used 10 + 2 x 45 tokens at 0 s
    desk.arrive("warm", 1)
    for client in "aabbb":
        desk.arrive(client, 10)
    assert order_of(desk, 4) == "bbba"
    desk.now_s = 100.0
    policy = desk.gateway._bands[0].scheduler
    assert policy.usage("a", 100.0) == 100
    assert policy.usage("a", 100.1) == 0


def test_answers_leave_the_window_of_kthena_one_by_one():
    desk = one_at_a_time("kthena", kthena__window_s=100)
    policy = desk.gateway._bands[0].scheduler
    for now_s, outputs in ((0.0, 45), (50.0, 10)):
        desk.now_s = now_s
        desk.arrive("a", 10)
        desk.answer()
        desk.answer(output_tokens=outputs)
        desk.arrive("warm", 1)
    assert [policy.usage("a", at_s) for at_s in (100.0, 100.1, 150.1)] == [130, 30, 0]


def test_kthena_keeps_the_arrival_priority_unless_refreshed():
    for refreshed, expected in ((False, "aab"), (True, "aba")):
        desk = one_at_a_time("kthena", kthena__refreshed=refreshed)
        for client in "aab":
            desk.arrive(client, 10)
        assert order_of(desk, 3) == expected


def test_infergrid_counts_requests_at_arrival():
    desk = one_at_a_time("infergrid-drr")
    for client in "aaabb":
        desk.arrive(client)
    assert order_of(desk, 5) == "ababa"


def test_infergrid_forgets_answered_requests():
    desk = one_at_a_time("infergrid-drr")
    for client in "aaa":
        desk.arrive(client)
    desk.serve(3)
    desk.arrive("c")
    desk.serve(1)
    for client in "bba":
        desk.arrive(client)
    assert order_of(desk, 3) == "bab"


def test_drr_grants_a_quantum_a_turn():
    free = {"drr__assumed_output_tokens": 0, "drr__corrected": False}
    desk = one_at_a_time("drr", drr__quantum=100, **free)
    for client, tokens in (("a", 60), ("a", 60), ("a", 60), ("b", 100), ("b", 100)):
        desk.arrive(client, tokens)
    # a's 100 buys one request of 60. For b, 100 buys one. For a, 40 + 100 buys two and leaves
    # 20.
    assert order_of(desk, 5) == "abaab"


def test_drr_with_a_small_quantum_equals_many_rounds():
    free = {"drr__assumed_output_tokens": 0, "drr__corrected": False}
    desk = one_at_a_time("drr", drr__quantum=1e-3, **free)
    for client, tokens in (("a", 300), ("a", 300), ("b", 100), ("b", 100), ("b", 100), ("b", 100)):
        desk.arrive(client, tokens)
    assert order_of(desk, 6) == "bbabba"


def test_drr_drops_credit_and_keeps_debt():
    desk = one_at_a_time("drr", drr__quantum=1_000, drr__assumed_output_tokens=0)
    desk.arrive("a", 10)
    desk.arrive("b", 10)
    desk.answer()  # a is dispatched, and loses its credit of 990
    deficits = desk.gateway.balances[0]
    assert deficits["a"] == 0
    desk.answer(output_tokens=100)  # b is dispatched; a owes its output
    assert (deficits["a"], deficits["b"]) == (-200, 0)
    for client, tokens in (("a", 900), ("b", 10)):
        desk.arrive(client, tokens)
    assert order_of(desk, 2) == "ba"  # a has the first turn, but gets only 800


@pytest.mark.parametrize("quantum", [1, 100, 2_000])
@examples(15)
@given(a=TOKENS, b=TOKENS, weight=st.sampled_from([1.0, 3.0]))
def test_drr_keeps_its_bound_while_both_clients_wait(quantum, a, b, weight):
    free = {"drr__assumed_output_tokens": 0, "drr__corrected": False}
    desk = one_at_a_time("drr", drr__quantum=quantum, weights={"b": weight}, **free)
    bound = quantum + max(a) + max(b) / weight
    assert largest_difference(desk, a, b, weight) <= bound


@examples(30)
@given(a=TOKENS, b=TOKENS, weight=st.sampled_from([1.0, 3.0]))
def test_wfq_keeps_its_bound_while_both_clients_wait(a, b, weight):
    free = {"wfq__assumed_output_tokens": 0, "wfq__corrected": False}
    desk = one_at_a_time("wfq", weights={"b": weight}, **free)
    assert largest_difference(desk, a, b, weight) <= max(a) + max(b) / weight + 1e-6


def largest_difference(desk, a, b, weight):
    """Return the range of the weighted difference of charges while both clients wait."""
    for client, flow in (("a", a), ("b", b)):
        for tokens in flow:
            desk.arrive(client, tokens)
    paid, seen = 0.0, [0.0]
    left = {"a": len(a), "b": len(b)}
    while all(left.values()):
        desk.answer(output_tokens=0)
        request = desk.sent[-1]
        left[request.client] -= 1
        paid += request.input_tokens if request.client == "a" else -request.input_tokens / weight
        seen.append(paid)
    return max(seen) - min(seen)


def test_the_bound_of_drr_is_nearly_reached():
    free = {"drr__assumed_output_tokens": 0, "drr__corrected": False}
    desk = one_at_a_time("drr", drr__quantum=100, **free)
    assert largest_difference(desk, [1] * 250, [101] * 5, 1.0) >= 100


TURNS = {"drr__quantum": 10, "drr__assumed_output_tokens": 0, "drr__corrected": False}


@pytest.mark.parametrize(
    ("policy", "tenants", "turns"),
    [
        ("wfq", {}, ["a/x", "a/y", "b"] * 4),
        ("wfq", {"wfq__tenants": "tree"}, ["a/x", "b", "a/y", "b"] * 3),
        ("drr", TURNS, ["a/x", "a/y", "b"] * 4),
        ("drr", TURNS | {"drr__tenants": "tree"}, ["a/x", "b", "a/y", "b"] * 3),
    ],
)
def test_a_tree_shares_between_tenants_first(policy, tenants, turns):
    desk = one_at_a_time(policy, **tenants)
    for name in ["a/x", "a/y", "b"] * 6:
        desk.arrive(name)
    assert desk.serve(12) == turns


def test_drr_in_a_tree_gives_tenants_and_clients_their_weights():
    weights = {"a/": 3.0, "a/y": 2.0}
    desk = one_at_a_time("drr", weights=weights, drr__tenants="tree", **TURNS)
    for name in ["a/x", "a/y", "b"] * 24:
        desk.arrive(name)
    # The tenant a/ has three of four turns. Of these, y has two of three.
    served = desk.serve(24)
    assert [served.count(name) for name in ("a/x", "a/y", "b")] == [6, 12, 6]


@examples(30)
@given(
    quantum=st.sampled_from([1, 100, 2_000]),
    sizes=st.tuples(TOKENS, TOKENS, TOKENS),
    weight=st.sampled_from([0.25, 1.0, 3.0]),
)
def test_drr_bounds_siblings_at_both_levels_while_they_wait(quantum, sizes, weight):
    """The bound is that without a tree: a quantum and the largest requests over the weights."""
    free = {"drr__assumed_output_tokens": 0, "drr__corrected": False, "drr__tenants": "tree"}
    desk = one_at_a_time("drr", drr__quantum=quantum, weights={"a/": weight}, **free)
    left = dict(zip(("a/x", "a/y", "b"), map(len, sizes), strict=True))
    for client, flow in zip(left, sizes, strict=True):
        for tokens in flow:
            desk.arrive(client, tokens)
    paid = dict.fromkeys(left, 0)
    clients, tenants = [0.0], [0.0]
    while all(left.values()):
        desk.answer(output_tokens=0)
        request = desk.sent[-1]
        left[request.client] -= 1
        paid[request.client] += request.input_tokens
        clients.append(paid["a/x"] - paid["a/y"])
        tenants.append((paid["a/x"] + paid["a/y"]) / weight - paid["b"])
    x, y, b = map(max, sizes)
    assert max(clients) - min(clients) <= quantum + x + y
    assert max(tenants) - min(tenants) <= quantum + max(x, y) / weight + b + 1e-6


CALLS = st.tuples(st.sampled_from(["a/x", "a/y", "b"]), st.integers(1, 90), st.integers(0, 300))


@pytest.mark.parametrize("tenants", [None, "tree"])
@pytest.mark.parametrize("policy", ["wfq", "drr"])
@given(calls=st.lists(CALLS, max_size=30))
def test_charges_add_up_to_the_service(policy, tenants, calls):
    desk = one_at_a_time(policy, **{f"{policy}__tenants": tenants})
    scheduler, charged = desk.gateway._bands[0].scheduler, Counter()
    charge = scheduler.charge_node

    def noted(tenant, node, price, *, sent):
        charged[node] += price
        charge(tenant, node, price, sent=sent)

    scheduler.charge_node = noted
    served = Counter()
    for client, tokens, outputs in calls:
        desk.arrive(client, tokens)
        served[client] += tokens + 2 * outputs
        if tenants == "tree" and client != "b":
            served["a/"] += tokens + 2 * outputs
    outputs_of = {client: [c[2] for c in calls if c[0] == client] for client in served}
    while desk.at:
        (request,) = desk.at
        desk.answer(output_tokens=(outputs_of.get(request.client) or [0]).pop(0))
    del charged["warm"]
    assert charged == pytest.approx(served)


@pytest.mark.parametrize("policy", ["wfq", "drr"])
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 90)), max_size=30))
def test_without_tenants_the_tree_changes_nothing(policy, calls):
    runs = []
    for tenants in ({}, {f"{policy}__tenants": "tree"}):
        desk = one_at_a_time(policy, weights={"b": 0.3}, **tenants)
        for number, (client, tokens) in enumerate(calls):
            desk.arrive(client, tokens)
            if number % 3 == 2:
                desk.answer()
        while desk.at:
            desk.answer()
        runs.append([request.request_id for request in desk.sent])
    assert runs[0] == runs[1]
    assert len(runs[0]) == 1 + len(calls)


def test_wfq_gives_no_credit_for_absence():
    desk = one_at_a_time("wfq", wfq__assumed_output_tokens=0, wfq__corrected=False)
    for _ in range(4):
        desk.arrive("a", 100)
    desk.serve(2)  # b was absent while a got 200
    for _ in range(3):
        desk.arrive("b", 100)
    assert order_of(desk, 5) == "abab" + "b"


def test_wfq_charges_the_output_at_the_end():
    desk = one_at_a_time("wfq", wfq__assumed_output_tokens=0)
    desk.arrive("a", 10)
    desk.answer()
    desk.answer(output_tokens=500)
    for client in "aabb":
        desk.arrive(client, 10, go=False)
    ends = desk.gateway.balances[0]
    assert ends["a"] == 1 + 10 + 2 * 1 + 2 * 500 or ends["a"] > 1_000
    desk.go()
    assert order_of(desk, 1) == "b"


def test_token_bucket_refuses_requests_over_the_rate():
    desk = Desk("token-bucket", "none", token_bucket__rate_per_min=60, token_bucket__burst=2)
    for _ in range(4):
        desk.arrive("a")
    desk.arrive("b")
    desk.now_s = 1.0
    desk.arrive("a")
    desk.arrive("a")
    assert [request.request_id for request in desk.sent] == [0, 1, 4, 5]
    assert [request.request_id for request in desk.refused] == [2, 3, 6]


def test_names_of_a_tenant_share_one_bucket():
    rate = {"token_bucket__rate_per_min": 60, "token_bucket__burst": 2}
    desk = Desk("token-bucket", "none", token_bucket__tenants="tree", **rate)
    for client in ("mal/1", "mal/2", "mal/team/3", "ann", "mal/1"):
        desk.arrive(client)
    assert [request.request_id for request in desk.refused] == [2, 4]
    apart = Desk("token-bucket", "none", **rate)
    for client in ("mal/1", "mal/2", "mal/team/3", "mal/1"):
        apart.arrive(client)
    assert not apart.refused


def test_weights_multiply_the_rate_and_the_burst_of_a_bucket():
    rate = {"token_bucket__rate_per_min": 60, "token_bucket__burst": 1}
    desk = Desk("token-bucket", "none", token_bucket__weights={"a": 3.0, "b": 0.5}, **rate)
    for now_s in (0.0, 1.0):
        desk.now_s = now_s
        for client in "aaaabb":
            desk.arrive(client)
    assert [request.request_id for request in desk.refused] == [3, 5, 9, 10, 11]


def test_any_local_scheduler_works_at_the_gateway():
    desk = one_at_a_time("vtc", vtc__lift="none")
    for client in "aaab":
        desk.arrive(client, 10)
    assert order_of(desk, 4) == "abaa"
    desk.answer(output_tokens=7)
    assert desk.gateway.balances[0]["a"] == 3 * 10 + 2 * (1 + 1 + 7)


def test_dlpm_at_the_gateway_uses_the_workers_caches():
    cached = {"x": 9, "y": 0}
    desk = one_at_a_time("dlpm", matched=lambda request: cached.get(request.prompt[0].key, 0))
    for key in ("y", "y", "x"):
        desk.arrive("a", 10, key=key)
    assert [desk.sent[-1].prompt[0].key for _ in range(3) if desk.serve(1)] == ["x", "y", "y"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"drr__quantum": 0}, "drr.quantum"),
        ({"gateway__order": "lifo"}, "gateway.order"),
        ({"gateway__ttl_s": -1}, "gateway.ttl_s"),
        ({"concurrency__requests": 0}, "concurrency.requests"),
    ],
)
def test_wrong_parameters_are_named(wrong, message):
    with pytest.raises(UsageError, match=message):
        Desk("drr", **wrong).arrive("a")
