"""Test Preble's prefix autoscaling and prefill/decode balancing by hand ([Preble] §3.2)."""

from math import inf

import pytest

from fairbench.schedulers.parts.fleet import as_bits
from fairbench.schedulers.parts.preble_costs import Autoscaler, key_portion
from fairbench.schedulers.parts.preble_tree import NOWHERE, PrebleTree, WaitWindow
from fairbench.schedulers.parts.preble_windows import TimeModel, Windows
from fairbench.schedulers.routing.preble_e2 import PrebleE2
from tests.schedulers.routing.router_helpers import answer, prompt, request

DOC, TINY_S = ("doc", 1000), 0.00896  # a prefill takes 55.8 ms, or less for fewer than 64 tokens


class Driven:
    """A router of two GPUs with a window of 100 s and only autoscaling after E2."""

    def __init__(self, workers=2, **params):
        off = {"rebalance_threshold": inf, "imbalance_ratio": inf, "window_s": 100.0}
        self.router = PrebleE2(PrebleE2.Params(**off | {"autoscale_factor": 2.0} | params), workers)
        self.count = 0

    def send(self, now_s, *segments, queued_s=None, prefill_s=TINY_S):
        """Send a prompt, and return its worker. ``queued_s`` delays its first token."""
        self.count += 1
        sent = request(self.count, "a", *segments)
        worker = self.router.route(sent, now_s)
        if queued_s is not None:
            self.router.on_first_token(sent, worker, now_s + prefill_s + queued_s)
            self.router.on_finish(sent, worker, answer(45), now_s + prefill_s + queued_s + 1)
        return worker


def overloaded(older_s, newer_s, **params):
    """Let GPU 0 serve a document, with an answered question in each half of the window."""
    driven = Driven(**params)
    assert [driven.send(0.0, DOC), driven.send(0.0, ("other", 1000))] == [0, 1]
    assert driven.send(1.0, DOC, ("q1", 10), queued_s=older_s) == 0
    assert driven.send(60.0, DOC, ("q2", 10), queued_s=newer_s) == 0
    return driven


@pytest.mark.parametrize(
    ("older_s", "newer_s", "worker"),
    [
        (1.0, 2.1, 1),
        (1.0, 1.9, 0),  # not doubled
        (0.0, 0.057, 1),  # the document takes 55.8 ms to compute
        (0.0, 0.055, 0),
    ],
)
def test_a_prefix_whose_queueing_time_doubles_gets_a_second_gpu(older_s, newer_s, worker):
    assert overloaded(older_s, newer_s).send(70.0, DOC, ("q3", 10)) == worker


def test_with_an_infinite_factor_a_prefix_never_gets_a_second_gpu():
    assert overloaded(1.0, 9.0, autoscale_factor=inf).send(70.0, DOC, ("q3", 10)) == 0


@pytest.mark.parametrize(("now_s", "worker"), [(49.0, 0), (70.0, 1), (103.0, 0)])
def test_the_prefix_must_occur_in_both_halves_of_the_window(now_s, worker):
    # First tokens come at 2 and 62.1 s. At 49 s, the second is missing; at 103 s, the first has
    # expired.
    driven = Driven()
    driven.send(0.0, DOC)
    driven.send(0.0, ("other", 1000))
    driven.send(1.0, DOC, ("q1", 10), queued_s=1.0)
    if now_s > 60:
        driven.send(60.0, DOC, ("q2", 10), queued_s=2.1)
    assert driven.send(now_s, DOC, ("q3", 10)) == worker


def test_after_that_the_two_gpus_share_the_load():
    driven = overloaded(1.0, 2.1)
    assert driven.send(70.0, DOC, ("q3", 10)) == 1
    # GPU 0 has the document, q1 and q2; GPU 1 has the other document and q3, and is the lighter
    # holder.
    assert driven.send(70.0, DOC, ("q4", 10)) == 1
    assert driven.send(70.0, DOC, ("q5", 10)) in (0, 1)
    loads = [driven.router._windows[worker].load_us for worker in driven.router._fleet.workers]
    assert max(loads) - min(loads) < 10**6


def test_the_queueing_time_must_double_again_for_a_third_gpu():
    driven = overloaded(1.0, 2.1, workers=3)
    assert driven.send(70.0, DOC, ("q3", 10)) == 2
    # GPU 0's waits are forgotten. Two requests that waited do not restore them.
    assert driven.send(71.0, DOC, ("q4", 10), queued_s=2.0) == 2
    assert driven.send(72.0, DOC, ("q5", 10), queued_s=2.0) in (0, 2)
    assert driven.send(73.0, DOC, ("q6", 10)) in (0, 2)


def test_no_change_follows_when_every_gpu_has_the_prefix():
    driven = overloaded(1.0, 2.1, workers=2)
    driven.router._tree.insert(prompt(DOC), 1)
    assert driven.send(70.0, DOC, ("q3", 10)) in (0, 1)
    assert driven.router._tree.home(driven.router._tree.find(prompt(DOC)).node) == NOWHERE


def test_the_subtree_is_split_by_load():
    driven = Driven()
    driven.send(0.0, DOC)
    driven.send(0.0, ("other", 1000))
    for number in range(3):  # GPU 0 has all prefixes: x from three requests, y from two, z from one
        assert driven.send(1.0, DOC, ("x", 100), (f"x{number}", 5), queued_s=1.0) == 0
    for number in range(2):
        assert driven.send(1.0, DOC, ("y", 100), (f"y{number}", 5), queued_s=1.0) == 0
    assert driven.send(1.0, DOC, ("z", 100), queued_s=1.0) == 0
    assert driven.send(60.0, DOC, ("q", 5), queued_s=9.0) == 0
    assert driven.send(70.0, DOC, ("r", 5)) == 1
    # x, the heaviest, stays, and y moves. z belongs to the prefix, without shared tokens below.
    assert driven.send(71.0, DOC, ("y", 100), ("y9", 5)) == 1
    assert driven.send(71.0, DOC, ("x", 100), ("x9", 5)) == 0
    assert driven.send(71.0, DOC, ("z", 100), ("z9", 5)) == 0


def test_a_pin_ends_with_the_window_an_eviction_or_its_gpu():
    tree = PrebleTree()
    end = tree.insert(prompt(("a", 10), ("b", 5)), 0)
    upper = tree.find(prompt(("a", 10))).node

    tree.pin(end, 1)
    assert (tree.home(end), tree.home(upper)) == (1, NOWHERE)
    tree.evict(prompt(("a", 10), ("b", 5)), 5, 0)  # elsewhere
    assert tree.home(end) == 1
    again = tree.insert(prompt(("a", 10), ("b", 5)), 1)
    tree.evict(prompt(("a", 10), ("b", 5)), 5, 1)
    assert tree.home(again) == NOWHERE

    tree.pin(upper, 1)
    tree.purge(1)
    assert tree.home(upper) == NOWHERE

    tree.pin(upper, 0)
    tree.forget(end, 0)
    assert tree.home(upper) == NOWHERE


def test_a_split_keeps_pin_and_waits_in_both_parts():
    tree = PrebleTree()
    node = tree.insert(prompt(("a", 10)), 0)
    tree.pin(node, 1)
    node.waits[0] = WaitWindow(100.0)
    node.waits[0].add(1.0, 5.0)
    upper = tree.find(prompt(("a", 6))).node
    upper.waits[0].add(60.0, 7.0)
    assert tree.home(upper) == 1
    assert upper.waits[0].halves(70.0) == (5.0, 7.0)
    assert node.waits[0].halves(70.0) is None


def test_the_key_portion_is_the_deepest_node_longer_than_its_context():
    tree = PrebleTree()
    nodes = {}
    for lengths in ((10, 11, 21, 9), (10, 11, 22)):
        at = ()
        for level, length in enumerate(lengths):
            at = (*at, (f"{level}-{length}", length))
            nodes[lengths[: level + 1]] = tree.insert(prompt(*at), 0)
    assert key_portion(nodes[10, 11, 22]) is nodes[10, 11, 22]
    assert key_portion(nodes[10, 11, 21, 9]) is nodes[10, 11]  # 21 is not more than 10 + 11
    assert key_portion(nodes[(10,)]) is nodes[(10,)]
    assert key_portion(tree.root) is tree.root


TIMES = TimeModel(
    prefill_ms_per_token=1.0,
    prefill_base_ms=0.0,
    prefill_linear_from_tokens=0,
    prefill_short_ms=0.0,
    prefill_tiny_ms=0.0,
    decode_ms_per_token=1.0,
)


@pytest.mark.parametrize(
    ("dispatched_to", "answered_by", "newer_s", "is_overloaded"),
    [
        (1, 1, 4.0, True),  # exactly twice the older 2 s
        (1, 1, 3.9, False),
        (0, 1, 4.0, False),  # sent elsewhere after that
    ],
)
def test_only_first_tokens_from_the_gpu_of_the_last_dispatch_are_waits(
    dispatched_to, answered_by, newer_s, is_overloaded
):
    scaler, tree = Autoscaler(2.0, 100.0, TIMES), PrebleTree()
    end = tree.insert(prompt(DOC), 1)  # takes 1 s to compute
    older, newer, ended = (request(number, "a", DOC) for number in range(3))
    scaler.note_dispatch(older, 1, end, 0, 8.0)
    scaler.note_first_token(older, 1, 10.0)
    scaler.note_dispatch(newer, dispatched_to, end, 500_000, 59.5)
    scaler.note_dispatch(ended, 1, end, 0, 59.0)
    scaler.note_end(ended)
    scaler.note_first_token(ended, 1, 69.0)  # would be a wait of 10 s
    scaler.note_first_token(newer, answered_by, 60.0 + newer_s)
    assert (scaler.overloaded(end, 1, 70.0) is end) == is_overloaded
    assert scaler.overloaded(end, 0, 70.0) is None


def windows(*loads):
    """Give GPUs the given milliseconds of prefill, and requests of 10 ms of decoding."""
    made, end = Windows(100.0, TIMES, 10.0), PrebleTree().root
    for worker, (prefill_ms, requests) in enumerate(loads):
        made.add_gpu(worker)
        for number in range(requests):
            made.assign(worker, 0.0, 0 if number else prefill_ms * 1000, end)
    return made


@pytest.mark.parametrize(
    ("loads", "ratio", "workers"),
    [
        # Decoding takes 90 and 30 ms, prefill 30 and 30. The ratios are 3 and 1, or 2 together, so
        # they are 1.5 and 0.5 times that.
        ([(30, 9), (30, 3)], 1.4, [0]),
        ([(30, 9), (30, 3)], 1.5, []),
        ([(30, 3), (30, 3)], 1.0, []),
        ([(30, 9), (30, 9), (30, 0), (90, 3)], 1.2, [0, 1]),  # the third GPU has no load at all
        ([(0, 0), (0, 0)], 1.0, []),
        ([(30, 9), (30, 3)], inf, []),
    ],
)
def test_a_gpu_that_decodes_far_more_than_usual_is_found(loads, ratio, workers):
    assert windows(*loads).decode_heavy(ratio) == as_bits(workers)


@pytest.mark.parametrize(("ratio", "worker"), [(inf, 1), (1.5, 1), (1.05, 0)])
def test_exploration_goes_to_the_gpu_that_mostly_decodes(ratio, worker):
    # Prefill and decoding in ms are 55.8 + 5 x 9.0 = 100.6 and 6 x 562.5 on GPU 0, and 55.8 + 8.96
    # and 2 x 562.5 on GPU 1. The ratios are 33.5 and 17.4, or 27.2 together, and 33.5 is 1.23 times
    # that.
    driven = Driven(imbalance_ratio=ratio)
    driven.send(0.0, DOC)
    driven.send(0.0, ("other", 1000))
    driven.send(0.0, ("other", 1000), ("q", 10))
    for number in range(5):
        driven.send(0.0, DOC, (f"q{number}", 10))
    assert driven.send(0.0, ("new", 500)) == worker
