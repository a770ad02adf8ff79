"""Test the bounded tree against a scan of all nodes for the least recently used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Segment, prompt_tokens
from fairbench.schedulers.location_tree import MAX_NODES, BoundedTree, LocationNode, LocationTree
from fairbench.schedulers.prefix_tree import path
from tests.schedulers.routing.router_helpers import NaiveLocations, prefixes, prompt, prompts
from tests.schedulers.routing.test_location_tree import WORKERS, calls, marks, operations


class Scanning(LocationTree):
    """A tree bounded by definition: the least recently used prefix is evicted, leaf by leaf."""

    def __init__(self, limit):
        super().__init__(LocationNode)
        self.limit, self.used, self.adds = limit, {}, 0

    def add(self, found, prompt, worker):
        self.adds += 1
        end = super().add(found, prompt, worker)
        self.used.update(dict.fromkeys(self.upward(end), self.adds))
        return self.shrunk(end)

    def evict(self, prefix, evicted_tokens, worker):
        super().evict(prefix, evicted_tokens, worker)
        self.shrunk(None)

    def on_split(self, upper, lower):
        super().on_split(upper, lower)
        self.used[upper] = self.used[lower]

    def shrunk(self, newest):
        while len(nodes := list(self.nodes())) > self.limit:
            oldest = min((n for n in nodes if not n.children), key=lambda n: self.used[n])
            if oldest is newest:
                break
            oldest.workers = 0
            self.prune(oldest)
        return newest


def run(tree, operations):
    for name, arguments in calls(operations):
        getattr(tree, name)(*arguments)
        yield tree


def ring(tree):
    """Return the tree's nodes in the order of their eviction."""
    at = tree.root.newer
    while at is not tree.root:
        assert at.newer.older is at
        yield at
        at = at.newer


@st.composite
def operations_of_a_few(draw):
    """Draw operations on so few prompts that one is often repeated immediately."""
    few = st.sampled_from(draw(st.lists(prompts(), min_size=1, max_size=3)))
    insert = st.tuples(st.just("insert"), few, st.integers(0, 1))
    evict = st.tuples(st.just("evict"), few, st.integers(0, 1), st.floats(0, 1))
    purge = st.tuples(st.just("purge"), st.integers(0, 1))
    return draw(st.lists(st.one_of(insert, insert, insert, evict, purge), max_size=25))


@given(operations | operations_of_a_few(), st.integers(1, 12))
def test_the_least_recently_used_prefix_is_forgotten(operations, limit):
    for found, expected in zip(
        run(BoundedTree(limit), operations), run(Scanning(limit), operations), strict=True
    ):
        assert marks(found) == marks(expected)
        linked = list(ring(found))
        assert len(linked) == found.size == len(set(linked)) == len(list(found.nodes()))
        assert set(linked) == set(found.nodes())
        assert all(linked.index(n) < linked.index(n.parent) for n in linked if n.parent.parent)


@given(operations, st.integers(1, 12), prompts())
def test_a_bounded_tree_answers_like_the_unbounded_one_or_knows_less(operations, limit, probe):
    tree, naive = BoundedTree(limit), NaiveLocations()
    longest = 0
    for name, arguments in calls(operations):
        getattr(tree, name)(*arguments)
        getattr(naive, name)(*arguments)
        assert marks(tree) <= naive.marks
        if name == "insert":
            of, worker = arguments
            end, _ = tree.find(of)
            assert (end.depth, end.workers >> worker & 1) == (prompt_tokens(of), 1)
            longest = max(longest, len(list(tree.upward(end))))
            assert tree.size <= max(limit, longest)
    unbounded, known = naive.cached_tokens(probe, WORKERS), tree.cached_tokens(tree.find(probe)[0])
    assert all(depth <= unbounded[worker] for worker, depth in known.items())


@given(operations, prompts())
def test_below_its_limit_the_tree_equals_the_unbounded_tree(operations, probe):
    bounded, unbounded = BoundedTree(), LocationTree(LocationNode)
    for one, other in zip(run(bounded, operations), run(unbounded, operations), strict=True):
        assert [(path(n), n.workers) for n in one.nodes()] == [
            (path(n), n.workers) for n in other.nodes()
        ]
    found = [tree.cached_tokens(tree.find(probe)[0]) for tree in (bounded, unbounded)]
    assert found[0] == found[1]


def test_the_prefix_unused_for_longest_goes_leaf_by_leaf_and_shared_ones_last():
    tree = BoundedTree(3)
    system = Segment("system", 10)
    for name in ("a", "b"):
        tree.insert((system, Segment(name, 5)), 0)
    assert tree.size == 3
    tree.insert((system, Segment("a", 5)), 1)  # used again, so that b is now the older one
    tree.insert((system, Segment("c", 5)), 2)
    kept = {path(node)[-1].key: node.workers for node in tree.nodes()}
    assert kept == {"system": 0b111, "a": 0b011, "c": 0b100}


@pytest.mark.parametrize("news", [("evict", 3, 1), ("purge", 1)])
def test_a_lost_prefix_is_stored_again(news):
    tree, one = BoundedTree(), prompt(("a", 5), ("b", 5))
    for worker in (0, 1):
        tree.insert(one, worker)
    name, *arguments = news
    getattr(tree, name)(*((one, *arguments) if name == "evict" else arguments))
    assert marks(tree) < {(worker, prefix) for worker in (0, 1) for prefix in prefixes(one)}
    tree.insert(one, 1)
    assert marks(tree) == {(worker, prefix) for worker in (0, 1) for prefix in prefixes(one)}


def test_a_prompt_with_more_nodes_than_the_limit_is_kept_whole_until_the_next():
    tree = BoundedTree(1)
    for tokens in (10, 20, 30):
        end = tree.insert((Segment("a", tokens),), 0)
        assert (end.depth, tree.size) == (tokens, tokens // 10)
    tree.insert(prompt(("b", 5)), 1)
    assert [path(node) for node in tree.nodes()] == [prompt(("b", 5))]


@pytest.mark.parametrize("router", ["d2lpm", "fair-finish"])
def test_routers_report_how_much_they_remember(router):
    from fairbench.schedulers.registry import build_router

    assert build_router(router, {}, 2)._tree.limit == MAX_NODES
    assert build_router(router, {f"{router}.max_tree_nodes": 7}, 2)._tree.limit == 7
