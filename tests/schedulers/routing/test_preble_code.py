"""Test Preble's E2 as in its code: loads, candidates and moved prefixes by hand."""

from math import inf

import pytest

from fairbench_studies.preble.code.router import PrebleE2Code
from fairbench_studies.preble.code.tree import CodeTree
from tests.schedulers.routing.router_helpers import answer, prompt, request

OFF = {"rebalance_threshold": inf, "hit_ratio": inf, "eviction_cost": False}


def make(workers=2, **params):
    """Return a router whose prefill takes 1 ms per token and whose output token takes 150 ms."""
    times = {"prefill_ms_per_token": 1.0, "prefill_base_ms": 0.0, "prefill_linear_from_tokens": 0}
    return PrebleE2Code(PrebleE2Code.Params(**OFF | times | params), workers)


class Sender:
    """A sender of numbered requests with 256 output tokens each, which may finish immediately."""

    def __init__(self, router):
        self.router, self.count, self.sent = router, 0, []

    def __call__(self, *segments, now_s=0.0, finish=True, ttft_s=None):
        self.count += 1
        new = request(self.count, "a", *segments)
        worker = self.router.route(new, now_s)
        self.sent.append((new, worker))
        if ttft_s is not None:
            self.router.on_first_token(new, worker, now_s + ttft_s)
        if finish:
            self.router.on_finish(new, worker, answer(1), now_s)
        return worker


def allocated(router, *segments):
    """Return the GPUs (bits) of the node at which this prompt ends."""
    return router._tree.allocated.get(router._tree.find(prompt(*segments)).node, 0)


def test_a_leaf_shorter_than_its_context_follows_the_allocation():
    send = Sender(make(3))
    assert [send(("a", 100)), send(("b", 100))] == [0, 1]
    assert send(("b", 100), ("q", 99)) == 1
    assert send(("b", 100), ("r", 100)) == 2  # as long as its context, so explored
    assert allocated(send.router, ("b", 100)) == 0b110


def test_a_prompt_seen_before_is_explored_if_it_is_one_node():
    """This defect of the code is kept: a cached prompt that is a single node counts as new."""
    send = Sender(make(2))
    assert [send(("a", 100)), send(("a", 100))] == [0, 1]


def test_the_chosen_gpu_is_the_cheapest_candidate_and_not_the_first():
    send = Sender(make(4))
    assert [send((key, 100)) for key in "wxyz"] == [0, 1, 2, 3]
    assert send(("y", 100), ("long", 200)) == 3
    # GPUs 2 and 3 have y; 3 also has z and the long prompt. The lighter of the two is 2.
    assert allocated(send.router, ("y", 100)) == 0b1100
    assert send(("y", 100), ("q", 1)) == 2


def test_load_is_shared_misses_and_requests_in_flight():
    send = Sender(make(2))
    send(("a", 100))
    # A request without a hit takes 100 ms.
    assert send.router._load.of_gpus(1) == {0: pytest.approx(0.1), 1: 0.0}
    send(("a", 100), ("q", 50), finish=False)
    # Two requests of the key node missed 50 + 100 of 250 tokens. One is in flight, with 256 tokens
    # of 150 ms.
    alone = 150 / 250 * 2 * 0.1
    assert send.router._load.of_gpus(1)[0] == pytest.approx(alone + 256 * 0.15)
    send.router._tree.allocated[send.router._tree.find(prompt(("a", 100))).node] = 0b11
    assert send.router._load.of_gpus(1) == {
        0: pytest.approx(alone / 2 + 256 * 0.15),
        1: pytest.approx(alone / 2),
    }
    assert send.router._load.of_gpus(3) == {0: 0.0, 1: 0.0}


def test_time_per_output_token_is_the_median_of_observations():
    router = make(1)
    for number, tokens in enumerate((11, 21, 41)):
        new = request(number, "a", ("a", 10))
        router.route(new, 0.0)
        router.on_first_token(new, 0, 1.0)
        router.on_finish(new, 0, answer(tokens), 3.0)
    assert router._gpus[0].tpot_s == pytest.approx(0.125)  # median of 0.15, 0.2, 0.1, 0.05


@pytest.mark.parametrize(("hit_ratio", "worker"), [(0.7, 0), (0.85, 2), (inf, 2)])
def test_exploration_goes_to_the_highest_hit_ratio(hit_ratio, worker):
    send = Sender(make(3, hit_ratio=hit_ratio))
    send(("a", 10))
    send(("b", 10))
    for number in range(9):  # GPU 0: 90 of 109 tokens, 0.83
        send(("a", 10), (f"q{number}", 1))
    assert send(("new", 50)) == worker


def test_hit_ratios_are_forgotten_after_their_window():
    send = Sender(make(3, hit_ratio=0.7))
    send(("a", 10))
    for number in range(9):
        send(("a", 10), (f"q{number}", 1))
    assert send(("new", 50), now_s=29.0) == 0
    assert send(("newer", 50), now_s=59.5) != 0


def test_the_cost_of_evictions_is_that_of_key_nodes_not_in_use():
    send = Sender(make(2, eviction_cost=True))
    send(("a", 100))
    send(("b", 100))
    send(("a", 100), ("q", 20), finish=False)
    # All nodes of GPU 0 are in use, and none of GPU 1, on which one request missed 100 tokens.
    assert send.router._load.eviction_s(0, 50) == 0.0
    assert send.router._load.eviction_s(1, 50) == pytest.approx(0.1)


def balanced(**params):
    """Return a router with three documents of two requests each on GPU 0, and one on GPU 1."""
    send = Sender(make(2, **{"rebalance_after": 0} | params))
    router = send.router
    for key, tokens in (("a", 100), ("b", 200), ("c", 500), ("d", 100)):
        send((key, tokens), now_s=0.0)
        router._tree.move(router._tree.find(prompt((key, tokens))).node, int(key == "d"))
        send((key, tokens), (f"{key}q", 2), now_s=0.0)
    return send


def where(send):
    sizes = {"a": 100, "b": 200, "c": 500, "d": 100}
    return {key: allocated(send.router, (key, tokens)) for key, tokens in sizes.items()}


def test_the_cheapest_nodes_move_until_loads_are_close():
    send = balanced(rebalance_after=10**6)
    assert where(send) == {"a": 1, "b": 1, "c": 1, "d": 2}
    # GPU 0 has documents of about 101, 201 and 501 ms, GPU 1 has 101 ms. If a moves, the loads are
    # 702 and 202; if b moves, 501 and 403, which is close enough.
    router = send.router
    router._balance._params = PrebleE2Code.Params(rebalance_after=0)
    end = router._tree.find(prompt(("a", 100), ("aq", 2))).node
    router._balance.rebalance(end, 10**6, 0.0)
    assert where(send) == {"a": 2, "b": 2, "c": 1, "d": 2}
    assert allocated(router, ("a", 100), ("aq", 2)) == 2  # nodes below it move, too


@pytest.mark.parametrize(
    ("params", "requests"),
    [
        ({"rebalance_after": 50}, 99),
        ({"rebalance_threshold": inf}, 10**6),
        ({"rebalance_min_hits": 3}, 10**6),
        ({"rebalance_threshold": 8.0}, 10**6),
        ({"rebalance_max_chain": 1}, 10**6),
    ],
)
def test_conditions_under_which_nodes_do_not_move(params, requests):
    send = balanced(rebalance_after=10**6)
    router = send.router
    router._balance._params = PrebleE2Code.Params(**params)
    end = router._tree.find(prompt(("a", 100), ("aq", 2))).node  # one level below its key node
    router._balance.rebalance(end, requests, 0.0)
    assert where(send) == {"a": 1, "b": 1, "c": 1, "d": 2}


@pytest.mark.parametrize(("later_s", "gpus"), [(2.0, 0b11), (1.9, 0b01)])
def test_the_only_node_of_a_gpu_gets_a_second_one_when_ttft_doubles(later_s, gpus):
    send = Sender(make(2, rebalance_threshold=1.5, rebalance_after=0))
    send(("a", 100), now_s=0.0, ttft_s=1.0)
    send(("a", 100), ("q1", 1), now_s=1.0, ttft_s=1.0)
    send(("a", 100), ("q2", 1), now_s=120.0, ttft_s=later_s)
    assert allocated(send.router, ("a", 100)) == 0b01
    send(("a", 100), ("q3", 1), now_s=130.0)
    assert allocated(send.router, ("a", 100)) == gpus


def test_after_the_window_a_key_node_has_no_gpus():
    send = Sender(make(2))
    send(("a", 100))
    assert allocated(send.router, ("a", 100)) == 1
    send(("b", 100), now_s=180.0)
    assert allocated(send.router, ("a", 100)) == 0
    assert [key.requests for key in send.router._tree.keys.values()] == [1]


def test_a_split_gives_the_counts_to_the_part_that_is_the_key_node():
    tree = CodeTree()
    end = tree.insert(prompt(("a", 100)), 0)
    tree.allocate(end, 0)
    tree.begin(end, 0)
    tree.count(0.0, end, 0, 100, 30)
    upper = tree.find(prompt(("a", 60))).node
    assert list(tree.keys) == [upper]
    assert (tree.allocated[upper], tree.under_way[0][upper]) == (1, 1)
    tree.over(end, 0)
    assert not tree.under_way[0]
    tree.expire(0.0)
    assert not tree.keys


def test_a_gpu_that_leaves_and_returns_has_nothing():
    send = Sender(make(2))
    send(("a", 100), finish=False)
    router = send.router
    router.on_worker_leave(0, 1.0)
    router.on_finish(send.sent[0][0], 0, answer(5), 1.0)
    assert allocated(router, ("a", 100)) == 0
    assert [send(("a", 100), ("q", 1), now_s=1.0), send(("c", 9), now_s=1.0)] == [1, 1]
    router.on_worker_join(0, 2.0)
    assert router._load.of_gpus(1)[0] == 0.0
    assert send(("d", 9), now_s=2.0) == 0
