"""Test Preble E2: hand-computed decisions, and recomputation of each from the history."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, prompt_tokens
from fairbench.schedulers.parts import preble_windows
from fairbench.schedulers.routing.preble_e2 import PrebleE2
from tests.schedulers.routing.router_helpers import NaiveLocations, answer, prompts, request

# A request costs 562.5 ms of decode (45 tokens of 12.5 ms) until a request has finished, and a
# prefill of 8.96 ms (under 64 tokens), 10.5 ms (under 256) or 5.506 ms + 0.0503 ms per token.


OFF = {"rebalance_threshold": inf, "autoscale_factor": inf, "imbalance_ratio": inf}


def make(workers=2, **params):
    return PrebleE2(PrebleE2.Params(**OFF | params), workers)


def route_all(router, *prompts, now_s=0.0, first=0):
    return [
        router.route(request(n, "a", *segments), now_s) for n, segments in enumerate(prompts, first)
    ]


def test_a_prefix_is_exploited_only_if_more_is_cached_than_missed():
    assert route_all(make(), [("a", 100)], [("a", 100), ("b", 100)]) == [0, 1]
    assert route_all(make(), [("a", 100)], [("a", 100), ("b", 99)]) == [0, 0]


def test_the_lighter_holder_is_chosen_and_not_the_first_one():
    router = make(4)
    assert route_all(router, [("x", 100)], [("y", 100)], [("doc", 100)]) == [0, 1, 2]
    # Mostly new, so explored; 3 is the only idle GPU. It has 25.6 ms of prefill now, and 2 had
    # 10.5.
    assert route_all(router, [("doc", 100), ("z", 300)], first=3) == [3]
    # GPUs 0 and 1 are as light as 2, but hold no prefix; then 2 is the heavier one.
    assert route_all(router, [("doc", 100), ("q", 10)], [("doc", 100), ("r", 10)], first=4) == [
        2,
        3,
    ]


def test_the_longest_match_wins_against_a_lighter_gpu_with_a_shorter_match():
    router = make(2)
    assert route_all(router, [("a", 100)], [("a", 100), ("b", 150)]) == [0, 1]
    tail = [[("a", 100), ("b", 150), (key, 5)] for key in "xyz"]
    assert route_all(router, *tail, first=2) == [1, 1, 1]


def test_exploration_considers_the_missed_prefill():
    router = make(2)
    assert route_all(router, [("a", 1000)], [("b", 1000)]) == [0, 1]
    # Loads are equal; half of the prompt is cached at GPU 1.
    assert route_all(router, [("b", 1000), ("c", 1000)], first=2) == [1]


def test_an_idle_cluster_is_explored_in_rotation():
    router = make(3)
    alone = [router.route(request(n, "a", (f"p{n}", 9)), 1000.0 * n) for n in range(6)]
    assert alone == [0, 1, 2, 0, 1, 2]


def test_exploit_traffic_of_the_heaviest_gpu_moves_to_the_lightest():
    documents = [[("a", 1000)], [("b", 1000)]]
    questions = [[("a", 1000), (f"q{n}", 10)] for n in range(3)]
    # Each document: 55.8 + 562.5 = 618.3 ms. The first question makes GPU 0 1189.8 ms, 1.92 times
    # GPU 1, so the second moves there (1237.1 ms with its 56.3 ms of prefill). Both hold the
    # document now, and GPU 0 is the lighter one. Above 1.924, the traffic moves one question later.
    assert route_all(make(rebalance_threshold=1.5), *documents, *questions) == [0, 1, 0, 1, 0]
    assert route_all(make(rebalance_threshold=1.92), *documents, *questions) == [0, 1, 0, 1, 0]
    assert route_all(make(rebalance_threshold=1.93), *documents, *questions) == [0, 1, 0, 0, 1]


def test_only_traffic_of_the_heaviest_gpu_moves():
    router = make(3, rebalance_threshold=1.5)
    for worker, requests in ((0, 9), (1, 3), (2, 1)):
        for _ in range(requests):
            router._windows.assign(worker, 0.0, 1000, router._tree.root)
    router._tree.insert(request(0, "a", ("p", 100)).prompt, 1)
    assert route_all(router, [("p", 100), ("q", 1)]) == [1]


def test_redirected_traffic_rotates_among_idle_gpus():
    router = make(3, rebalance_threshold=1.5)
    assert route_all(router, [("x", 100)], now_s=0.0) == [0]
    assert route_all(router, [("a", 100)], now_s=500.0, first=1) == [1]
    # GPUs 0 and 2 are tied without load; the last tie was won by 1.
    assert route_all(router, [("a", 100), ("q", 1)], now_s=500.0, first=2) == [2]


@pytest.mark.parametrize(("now_s", "worker"), [(179.9, 1), (180.0, 0)])
def test_load_is_forgotten_after_the_window_but_prefixes_are_not(now_s, worker):
    router = make(2, rebalance_threshold=1.5)
    assert route_all(router, [("a", 100)]) == [0]
    # Within the window, GPU 0 is infinitely heavier than the idle GPU 1.
    assert route_all(router, [("a", 100), ("q", 1)], now_s=now_s, first=1) == [worker]


def test_outputs_observed_on_a_gpu_set_its_decode_times():
    router = make(2)
    sent = [request(n, "a", (f"p{n}", 100)) for n in range(5)]
    assert [router.route(r, 0.0) for r in sent[:2]] == [0, 1]
    router.on_finish(sent[0], 0, answer(5), 1.0)  # 10.5 + 62.5 = 73 ms; GPU 1: 573 ms
    # a refused request says nothing, and GPU 1 stays at 573 ms
    router.on_finish(sent[1], 1, answer(0), 1.0)
    assert [router.route(r, 1.0) for r in sent[2:]] == [0, 0, 0]
    assert router._windows[0].load_us == 4 * 73_000
    assert router._windows[1].load_us == 573_000


def test_evicted_prefixes_are_not_exploited():
    router = make(2)
    first = request(0, "a", ("a", 100))
    assert router.route(first, 0.0) == 0
    router.on_evict(first.prompt, 60, 0, 1.0)
    assert route_all(router, [("a", 100), ("q", 1)], first=1) == [1]


def eviction_case(**params):
    """Return equal loads in which GPU 1 would evict a prefix of two requests, and GPU 0 of one."""
    router = make(2, **params)
    prompts = [[("a", 800)], [("b", 800)], [("b", 800), ("q", 10)], [("d", 10)]]
    assert route_all(router, *prompts) == [0, 1, 1, 0]
    return router


def eviction_us(router, worker, missed, keep=frozenset()):
    requests = router._windows[worker].assigned_requests
    return router._evictions.price_us(worker, missed, keep, requests)


def test_the_price_of_an_eviction_equals_that_of_the_paper():
    router = eviction_case(capacity_tokens=1000)
    # 810 held + 400 - 1000 = 210 too many GPU 0: 210 of a's 800, shared by 1 of 2 requests.
    assert eviction_us(router, 0, 400) == 10_500 / 2
    # GPU 1: q's 10, shared by 1 of 2, then 200 of b's 800, shared by 2 of 2.
    assert eviction_us(router, 1, 400) == (8_960 + 2 * 10_500) / 2
    assert eviction_us(router, 1, 190) == 0
    # The path of the request itself is kept: q is left, priced as if all were like it.
    path = frozenset(router._tree.upward(router._tree.find(request(9, "a", ("b", 800)).prompt)[0]))
    assert eviction_us(router, 1, 400, path) == 8_960 / 2 * 210 / 10


@pytest.mark.parametrize(("capacity_tokens", "worker"), [(0, 1), (1000, 0), (10_000, 1)])
def test_eviction_decides_between_equal_loads(capacity_tokens, worker):
    router = eviction_case(capacity_tokens=capacity_tokens)
    assert route_all(router, [("e", 400)], first=9) == [worker]


def test_the_scan_for_evictions_is_bounded():
    router = make(1, capacity_tokens=1)
    route_all(router, *([(f"p{n}", 10)] for n in range(200)))
    # 2000 tokens in 200 nodes of one request each; 128 nodes are checked, and the rest is priced
    # alike.
    assert eviction_us(router, 0, 1) == pytest.approx(8_960)


def test_a_gpu_leaves_and_returns_empty():
    router = make(2)
    sent = [request(n, "a", ("a", 100), (f"q{n}", 1)) for n in range(3)]
    assert [router.route(r, 0.0) for r in sent[:2]] == [0, 0]
    router.on_worker_leave(0, 1.0)
    router.on_worker_leave(0, 1.0)
    router.on_finish(sent[0], 0, answer(9), 1.0)
    router.on_evict(sent[0].prompt, 101, 0, 1.0)
    assert [router.route(r, 1.0) for r in sent] == [1, 1, 1]
    router.on_worker_join(0, 2.0)
    router.on_finish(sent[1], 0, answer(9), 2.0)  # now at GPU 1
    assert router._windows[0].load_us == 0
    assert route_all(router, [("a", 100), ("q", 1)], [("b", 100)], now_s=2.0, first=9) == [1, 0]
    # The requests of the first life left no trace that could expire.
    assert route_all(router, [("a", 100), ("r", 1)], now_s=500.0, first=20) == [1]


def test_ties_rotate_in_the_order_of_gpus_after_a_return():
    router = make(3)
    router.on_worker_leave(0, 0.0)
    router.on_worker_join(0, 0.0)
    alone = [router.route(request(n, "a", (f"p{n}", 9)), 1000.0 * n) for n in range(3)]
    assert alone == [0, 1, 2]


class Recomputed:
    """E2 without M, computed from complete histories."""

    def __init__(self, workers, params):
        self.workers, self.params = range(workers), params
        self.assigned, self.finished, self.tree = [], [], NaiveLocations()

    def prefill_us(self, tokens):
        linear = tokens * self.params.prefill_ms_per_token + self.params.prefill_base_ms
        return round(1000 * (linear if tokens >= 8 else 10.5 if tokens >= 64 else 8.96))

    def load_us(self, worker, now_s):
        start_s = now_s - self.params.window_s
        missed = [m for t, w, m in self.assigned if w == worker and t > start_s]
        outputs = [n for t, w, n in self.finished if w == worker and t > start_s]
        average = sum(outputs) / len(outputs) if outputs else self.params.default_output_tokens
        decode = round(1000 * self.params.decode_ms_per_token * average)
        return sum(self.prefill_us(m) + decode for m in missed)

    def candidates(self, sent, now_s):
        cached = self.tree.cached_tokens(sent.prompt, len(self.workers))
        longest = max(cached.values(), default=0)
        loads = [self.load_us(w, now_s) for w in self.workers]
        costs = [
            loads[w] + self.prefill_us(sent.input_tokens - cached.get(w, 0)) for w in self.workers
        ]
        exploit = sent.input_tokens - longest < longest
        pool = [w for w in self.workers if not exploit or cached.get(w, 0) == longest]
        best = {w for w in pool if costs[w] == min(costs[v] for v in pool)}
        lightest = {w for w in self.workers if loads[w] == min(loads)}
        heavy = max(loads) / self.params.rebalance_threshold > min(loads)
        moved = {w for w in best if exploit and heavy and loads[w] == max(loads)}
        return (best - moved) | (lightest if moved else set())


steps = st.lists(
    st.tuples(
        st.floats(0, 40),
        st.one_of(
            st.tuples(st.just("route"), prompts(), st.none()),
            st.tuples(st.just("finish"), st.integers(0, 99), st.integers(1, 30)),
            st.tuples(st.just("evict"), st.integers(0, 99), st.integers(1, 5)),
        ),
    ),
    max_size=40,
)


@given(steps, st.integers(1, 4), st.sampled_from([1.0, 1.5, 4.0, inf]), st.sampled_from([0, 16]))
def test_decisions_equal_those_recomputed_from_history(steps, workers, threshold, few):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preble_windows, "FEW", few)
        decide_both_ways(steps, workers, threshold)


def decide_both_ways(steps, workers, threshold):
    chosen = {"window_s": 100.0, "rebalance_threshold": threshold, "prefill_linear_from_tokens": 8}
    params = PrebleE2.Params(**OFF | chosen)
    router, naive = PrebleE2(params, workers), Recomputed(workers, params)
    now_s, sent, running = 0.0, [], []
    for number, (wait_s, (name, what, detail)) in enumerate(steps):
        now_s += wait_s
        if name == "route":
            new = Request(number, "a", 0, 0, what, prompt_tokens(what), 30)
            allowed = naive.candidates(new, now_s)
            worker = router.route(new, now_s)
            assert worker in allowed
            cached = naive.tree.cached_tokens(what, workers).get(worker, 0)
            naive.assigned.append((now_s, worker, new.input_tokens - cached))
            naive.tree.insert(what, worker)
            sent.append((new, worker))
            running.append((new, worker))
        elif name == "finish" and running:
            done, worker = running.pop(what % len(running))
            router.on_finish(done, worker, answer(detail), now_s)
            naive.finished.append((now_s, worker, detail))
        elif name == "evict" and sent:
            old, worker = sent[what % len(sent)]
            tokens = min(detail, old.input_tokens)
            router.on_evict(old.prompt, tokens, worker, now_s)
            naive.tree.evict(old.prompt, tokens, worker)
