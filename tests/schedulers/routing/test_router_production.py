"""Test the rules of production routers on hand-computed examples."""

from math import exp

import pytest

from fairbench.schedulers.routing.bases import draw, two_of
from fairbench.schedulers.routing.power_of_two import PowerOfTwo
from fairbench_rivals.routing.aibrix_prefix_cache import AibrixPrefixCache
from fairbench_rivals.routing.cache_aware import CacheAware
from fairbench_rivals.routing.dynamo import Dynamo
from fairbench_rivals.routing.llm_d import LlmD
from fairbench_rivals.routing.ray_prefix import RayPrefix
from fairbench_rivals.routing.vllm_router import VllmRouter
from fairbench_rivals.routing.vtc_basic import VtcBasic
from tests.schedulers.routing.router_helpers import answer, prompt, request, tell


class Sender:
    """A sender of prompts of (key, length) to one router, numbered in order."""

    def __init__(self, router):
        self.router = router
        self.sent = []

    def __call__(self, *segments, client="a", now_s=0.0):
        made = request(len(self.sent), client, *segments)
        worker = self.router.route(made, now_s)
        self.sent.append((made, worker))
        return worker

    def end(self, number, tokens=1, now_s=0.0):
        self.router.on_finish(*self.sent[number], answer(tokens), now_s)


def make(router_class, workers=2, **params):
    return Sender(router_class(router_class.Params(**params), workers))


def test_draws_are_uniform_and_differ_by_stream():
    drawn = [draw(number) for number in range(4000)]
    assert all(0 <= one < 1 for one in drawn)
    tenths = [sum(int(one * 10) == tenth for one in drawn) for tenth in range(10)]
    assert max(tenths) - min(tenths) < 120  # six standard deviations of 400 +- 19
    assert drawn != [draw(number, 1) for number in range(4000)]


@pytest.mark.parametrize("router_class", [AibrixPrefixCache, LlmD, RayPrefix])
def test_a_worker_that_joins_again_has_neither_cache_nor_requests(router_class):
    send = make(router_class, workers=1)
    send(("doc", 160))
    router = send.router
    assert (router._tree.tokens[0], router.in_flight_by_worker()) == (160, {0: 1})
    router.on_worker_join(0, 1.0)
    assert (router._tree.tokens[0], router.in_flight_by_worker()) == (0, {0: 0})
    send.end(0)  # an answer of the old process
    assert router.in_flight_by_worker() == {0: 0}


# power of two


def test_the_two_workers_differ_and_every_pair_occurs():
    pairs = {two_of([0, 1, 2], request(number, "a", ("p", 1))) for number in range(200)}
    assert pairs == {(a, b) for a in range(3) for b in range(3) if a != b}
    assert two_of([5], request(0, "a", ("p", 1))) == (5, 5)


def test_power_of_two_compares_pools_if_they_are_reported():
    send = make(PowerOfTwo)
    tell(send.router, {0: (0, 9, 900), 1: (0, 1, 100)})
    assert [send(("p", 1)) for _ in range(5)] == [1] * 5, "not by the five in flight at 1"
    send = make(PowerOfTwo, load="in_flight")
    tell(send.router, {0: (0, 9, 900), 1: (0, 1, 100)})
    assert sorted(send(("p", 1)) for _ in range(6)) == [0, 0, 0, 1, 1, 1]


# cache-aware


@pytest.mark.parametrize("rules", ["sgl-router", "sgl-model-gateway", "smg"])
def test_cache_aware_follows_a_prefix_above_the_threshold_only(rules):
    send = make(CacheAware, rules=rules, cache_threshold=0.5)
    first = send(("doc", 60), ("x", 40))
    assert send(("doc", 60), ("y", 40)) == first, "60% is shared"
    assert send(("doc", 50), ("z", 50)) == 1 - first, "50% is not more than the threshold"


def test_on_a_miss_sgl_router_goes_by_trees_and_smg_by_load():
    for rules, expected in (("sgl-router", 1), ("smg", 0)):
        send = make(CacheAware, rules=rules)
        assert send(("a", 100)) == 0
        assert send(("b", 10)) == 1
        send.end(0)
        assert send(("c", 50)) == expected  # Worker 1 has the smaller tree, and worker 0 is idle.


def test_ties_go_to_the_first_worker_in_the_release_and_to_the_least_used_in_smg():
    for rules, expected in (("sgl-model-gateway", [0, 0, 0]), ("smg", [0, 1, 0])):
        send = make(CacheAware, rules=rules)
        sent = []
        for name in "abc":  # each alone, so that no worker is busy when the next one arrives
            sent.append(send((name, 100)))
            send.end(len(sent) - 1)
        assert sent == expected


def test_cache_aware_balances_only_beyond_both_thresholds():
    send = make(CacheAware, balance_abs=2, balance_rel=1.5)
    sent = [send(("doc", 100), (str(number), 1)) for number in range(4)]
    assert sent == [0, 0, 0, 1], "the fourth sees 3 - 0 > 2, and 3 > 0"
    assert send(("doc", 100), ("again", 1)) == 1, "to whom it was sent last"


def test_smg_moves_prompts_of_a_departed_worker_to_the_first_worker():
    for purge, expected in ((False, [0, 0]), (True, [1, 1])):
        send = make(CacheAware, workers=3, purge_on_leave=purge)
        send(("x", 5))
        send(("y", 5))
        assert send(("doc", 100)) == 2
        send.end(1)
        send.router.on_worker_leave(2, 0.0)
        assert [send(("doc", 100)), send(("doc", 100))] == expected


def test_cache_aware_forgets_at_its_interval():
    send = make(CacheAware, max_tree_size=400, eviction_interval_s=10.0)  # 100 tokens
    assert (send(("old", 100)), send(("x", 1)), send(("y", 1))) == (0, 1, 0)
    assert send(("new", 80), now_s=5.0) == 1
    send.end(3)
    assert send(("old", 100), now_s=9.9) == 0, "not yet"
    send = make(CacheAware, workers=1, max_tree_size=400, eviction_interval_s=10.0)
    send(("old", 80))
    send(("new", 80))
    send(("x", 1), now_s=10.0)
    assert send.router._tree.tokens[0] == 81


def test_cache_aware_with_events_uses_the_reported_caches():
    send = make(CacheAware, kv_events=True)
    assert (send(("doc", 100)), send(("x", 1))) == (0, 1)
    assert send(("doc", 10), ("y", 90)) == 0, "10% is cached: no threshold with events"
    send.router.on_evict(send.sent[0][0].prompt, 100, 0, 0.0)
    assert send(("doc", 100)) == 1, "evicted, so to the least loaded"


# dynamo


def test_dynamo_weighs_blocks_to_prefill_and_blocks_in_use():
    send = make(Dynamo)
    fleet = tell(send.router, {0: (0, 0, 0), 1: (0, 0, 0)})
    first = send(("doc", 160))
    other = 1 - first
    # Because of its 10 cached blocks, this worker has 1 to prefill and 11 in use, against 11 and 11
    # elsewhere.
    assert send(("doc", 160), ("q", 16)) == first
    # An unrelated prompt costs 4 + (11 + 4) there, 4 + 4 elsewhere.
    assert send(("new", 64)) == other
    # With 10 blocks cached and 11 + 1 in use, it costs 1 + 12 = 13 there, elsewhere 11 + (4 + 11) =
    # 26.
    assert send(("doc", 160), ("r", 16)) == first
    # The request sent last waits for its prefill, 1 block: 1 + 10 - 9, and 13 in use.
    fleet.loads[first] = (1, 0, 0)
    assert send(("doc", 144), ("s", 16)) == first
    send.end(4)
    # All three requests wait, with 12 blocks: 12 + 10 - 9, and 13 in use; elsewhere 10 + (4 + 10).
    fleet.loads[first] = (3, 0, 0)
    assert send(("doc", 144), ("t", 16)) == other
    for number in (0, 1, 2, 3, 5):
        send.end(number)
    assert set(send.router._tree.active_tokens.values()) == {0}


def test_dynamo_of_the_first_generation_adds_three_parts():
    send = make(Dynamo, generation=1)
    first = send(("doc", 160))
    loads = {0: (0, 0, 0), 1: (0, 0, 0)}
    loads[first] = (4, 0, 900)
    fleet = tell(send.router, loads)
    assert send(("doc", 160)) == first, "2 x 1 - 0.9 - 1 = 0.1, against 0"
    fleet.loads[first] = (4, 0, 1000)
    fleet.loads[1 - first] = (0, 0, 50)
    assert send(("doc", 160)) == first, "0 against -0.05"
    assert send(("doc", 144), ("q", 16)) == 1 - first, "-0.2 against -0.05"


def test_dynamo_with_a_temperature_draws_randomly():
    send = make(Dynamo, temperature=1.0)
    send(("doc", 160))
    sent = [send(("doc", 160), (str(n), 1)) for n in range(40)]
    assert 1 <= sent.count(0) < 40


def test_dynamo_with_a_temperature_draws_the_cheapest_worker_most_often():
    """Costs are scaled to 0 and 1, so the odds at temperature 0.5 are 1 : exp(-2)."""
    router = make(Dynamo, temperature=0.5).router
    drawn = [router._pick(request(n, "a", ("p", 1)), {0: 9.0, 1: 5.0}) for n in range(4000)]
    assert drawn.count(1) / 4000 == pytest.approx(1 / (1 + exp(-2)), abs=0.03)


# llm-d


def test_llm_d_adds_the_cached_fraction_and_half_a_point_for_an_empty_queue():
    send = make(LlmD)
    first = send(("doc", 160))
    fleet = tell(send.router, {0: (0, 0, 0), 1: (0, 0, 0)})
    fleet.loads[first] = (64, 9, 0)
    assert send(("doc", 48), ("q", 112)) == first, "0.3 + 0.25 against 0.5"
    assert send(("doc", 32), ("r", 128)) == 1 - first, "0.2 + 0.25 against 0.5"
    fleet.loads[first] = (500, 9, 0)
    assert send(("doc", 128), ("s", 32)) == first, "0.8 + 0, not less, against 0.2 + 0.5"


def test_llm_d_sees_only_the_first_256_blocks():
    for limit, expected in ((256, 1.0), (0, 4096 / 8192)):
        send = make(LlmD, workers=1, max_prefix_blocks=limit)
        send(("doc", 4096), ("x", 4096))
        send(("doc", 4096), ("y", 4096))
        tree = send.router._tree
        stored = min(8192, limit * 16 or 8192)
        # the blocks that the two prompts share
        assert 2 * stored - tree.stored == expected * stored


def test_llm_d_forgets_prefixes_beyond_its_index():
    send = make(LlmD, workers=1, lru_blocks=10)
    for key in "abc":
        send((key, 80))
    assert send.router._tree.tokens[0] == 160


def test_llm_d_weighs_queue_and_pool_when_configured():
    send = make(LlmD, prefix_weight=0.0, load_weight=0.0, queue_weight=1.0, kv_weight=1.0)
    tell(send.router, {0: (3, 0, 200), 1: (1, 0, 900)})
    assert send(("p", 16)) == 1, "0 + 0.8 against 1 + 0.1"
    tell(send.router, {0: (1, 0, 200), 1: (1, 0, 900)})
    assert send(("p", 16)) == 0, "nobody has the shorter queue"


def test_llm_d_scores_a_queue_between_the_longest_and_the_shortest():
    send = make(
        LlmD, workers=3, prefix_weight=0.0, load_weight=0.0, queue_weight=1.0, kv_weight=1.0
    )
    fleet = tell(send.router, {0: (4, 0, 0), 1: (3, 0, 100), 2: (0, 0, 700)})
    assert send(("p", 16)) == 2, "0 + 1 and 0.25 + 0.9 against 1 + 0.3"
    fleet.loads[1] = (2, 0, 100)
    assert send(("p", 16)) == 1, "0.5 + 0.9 against 1 + 0.3"


# aibrix-prefix-cache


def test_aibrix_takes_the_best_match_that_is_not_too_busy():
    send = make(AibrixPrefixCache)
    first = send(("doc", 100))
    # With n in flight at the holder and none elsewhere, mean and deviation are n/2, so n always
    # fits.
    assert [send(("doc", 100), (str(n), 1)) for n in range(8)] == [first] * 8
    # Because 9 - 0 > 8, only the idle worker is considered, which holds no prefix.
    assert send(("doc", 100)) == 1 - first
    # Balanced again, with equal matches, the one with fewer requests is chosen.
    assert send(("doc", 100)) == 1 - first


def test_aibrix_ignores_a_match_with_a_load_beyond_a_deviation():
    send = make(AibrixPrefixCache, workers=3)
    first = send(("doc", 100))
    others = [worker for worker in range(3) if worker != first]
    # With n, 0, 0 in flight, mean n/3 and deviation 0.47 n together are 0.80 n, less than n.
    assert send(("doc", 100)) in others


def test_aibrix_matches_in_whole_percents():
    for whole, expected in ((True, 1), (False, 0)):
        send = make(AibrixPrefixCache, whole_percents=whole, deviations=9.0)
        tree = send.router._tree
        for worker, tokens in ((0, 989), (1, 985)):
            held = prompt(("doc", tokens))
            tree.add(tree.find(held), held, worker)
        busy = request(99, "a", ("x", 1))
        send.router._fleet.dispatch(busy, 0)
        assert send(("doc", 990), ("q", 10)) == expected, "98% each, and worker 0 is the busier"


def test_aibrix_index_is_smaller_than_a_pool():
    send = make(AibrixPrefixCache, index_tokens=1000)
    for number in range(30):
        send((f"d{number}", 100))
        assert send.router._tree.stored <= 1000


# vtc-basic


def test_vtc_basic_sends_light_users_to_the_first_and_heavy_users_to_the_last_worker():
    send = make(VtcBasic, workers=4, true_outputs=True)
    fleet = dict.fromkeys(range(4), (0, 0, 0))
    tell(send.router, fleet)
    assert send(("p", 1000), client="light") == 0
    send.router.tokens["heavy"] = 9000.0
    # bucket = (1000 + 9000) / 2 = 5000: light at 0.2, heavy at 1.8
    assert send(("p", 1), client="light") == 0
    assert send(("q", 1), client="heavy") == 2
    send.router.tokens.update(heavy=90_000.0)
    # In a bucket of 45,500, 90,000 / 45,500 = 1.98, which is never more than 2 with two users.
    assert send(("q", 1), client="heavy") == 2


def test_vtc_basic_charges_an_estimate_by_default():
    for true_outputs, at_once, at_the_end in ((False, 100 + 2 * 150, 400), (True, 100, 114)):
        send = make(VtcBasic, true_outputs=true_outputs)
        send(("p", 100))
        assert send.router.tokens == {"a": at_once}
        send.end(0, tokens=7)
        assert send.router.tokens == {"a": at_the_end}


def test_vtc_basic_forgets_a_user_only_on_the_next_request_of_the_user():
    for drop_all, left in ((False, 400.0), (True, 0.0)):
        send = make(VtcBasic, drop_all=drop_all)
        send(("p", 100), client="gone")
        send(("p", 100), client="a", now_s=300.5)
        assert send.router.tokens["gone"] == left


def test_vtc_basic_counts_the_tokens_of_the_last_300_s():
    send, counted = make(VtcBasic, true_outputs=True), []
    for tokens, now_s in ((100, 0.0), (30, 200.0), (7, 300.0), (1, 300.5), (2, 501.0)):
        send((f"p{now_s}", tokens), now_s=now_s)
        counted.append(send.router.tokens["a"])
    assert counted == [100, 130, 137, 30 + 7 + 1, 7 + 1 + 2]


# vllm-router


def test_vllm_router_follows_the_longest_prefix_under_any_load():
    send = make(VllmRouter, workers=3)
    first = send(("doc", 320))
    assert {send(("doc", 320), (str(n), 5)) for n in range(50)} == {first}
    assert {send(("doc", 31), (str(n), 50)) for n in range(60)} == {0, 1, 2}, "less than a chunk"


def test_vllm_router_sends_a_short_match_by_rate():
    send = make(VllmRouter, min_match_tokens=64)
    assert [send(("doc", 63)) for _ in range(4)] == [0, 1, 0, 1]
    assert send(("doc", 64), now_s=61.0) == 0, "the minute is over"


# ray-prefix


def test_below_a_tenth_ray_goes_to_the_smallest_tree():
    send = make(RayPrefix)
    assert send(("a", 100)) == 0
    assert send(("b", 50)) == 1
    assert send(("c", 100)) == 1, "50 tokens are remembered there, not 100"
    assert send(("a", 10), ("d", 90)) == 0, "a tenth is a match"
    assert send(("a", 9), ("e", 91)) == 1, "less is not: 150 are remembered there, here 190"


def test_ray_leaves_the_prefix_when_queues_differ_by_more_than_ten():
    send = make(RayPrefix)
    first = send(("doc", 100))
    assert [send(("doc", 100)) for _ in range(10)] == [first] * 10
    assert send(("doc", 100)) == 1 - first, "11 - 0 > 10: the less loaded of two"


def test_ray_forgets_only_when_configured():
    for evict, left in ((False, 151), (True, 51)):  # whole leaves, until at most 60 tokens are left
        limits = {"eviction_threshold": 400, "eviction_target": 240}
        send = make(RayPrefix, workers=1, do_eviction=evict, **limits)
        for key in "abc":
            send((key, 50))
        send(("x", 1), now_s=10.0)
        assert send.router._tree.tokens[0] == left


def test_ray_forgets_at_its_interval_only():
    limits = {"eviction_threshold": 400, "eviction_target": 240}
    send = make(RayPrefix, workers=1, do_eviction=True, **limits)
    left = []
    for key, now_s in (("a", 25.0), ("b", 26.0), ("c", 29.9), ("x", 29.9), ("y", 30.0)):
        send((key, 50), now_s=now_s)
        left.append(send.router._tree.tokens[0])
    # The first request comes after the sweep at 20 s. At 30 s, 200 tokens are above the limit of
    # 100, so only the last 50 of them stay, and 50 are new.
    assert left == [50, 100, 150, 200, 100]
