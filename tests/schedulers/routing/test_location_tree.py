"""Test the location tree against a set of (worker, prefix) pairs, and corner cases by hand."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import prompt_tokens
from fairbench.schedulers.location_tree import Holders, LocationNode, LocationTree
from fairbench.schedulers.prefix_tree import path
from tests.schedulers.routing.router_helpers import NaiveLocations, prefixes, prompt, prompts

WORKERS = 3


def new_tree():
    return LocationTree(LocationNode)


def holders(tree, of):
    return tree.holders(tree.find(of)[0])


def marks(tree):
    """Return every (worker, prefix) that the tree represents."""
    return {
        (worker, prefix)
        for node in tree.nodes()
        for worker in range(WORKERS)
        if node.workers >> worker & 1
        for prefix in prefixes(path(node))[node.depth - node.length :]
    }


workers = st.integers(0, WORKERS - 1)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), prompts(), workers),
        st.tuples(st.just("evict"), prompts(), workers, st.floats(0, 1)),
        st.tuples(st.just("purge"), workers),
    ),
    max_size=25,
)


def calls(operations):
    """Draw calls (method, arguments). An eviction takes at least one token of its prefix."""
    for name, *arguments in operations:
        if name == "evict":
            of, worker, share = arguments
            arguments = [of, 1 + int(share * (prompt_tokens(of) - 1)), worker]
        yield name, arguments


@given(operations, prompts())
def test_the_tree_equals_a_set_of_prefixes(operations, probe):
    tree, naive = new_tree(), NaiveLocations()
    for name, arguments in calls(operations):
        getattr(tree, name)(*arguments)
        getattr(naive, name)(*arguments)
        assert marks(tree) == naive.marks
        assert all(node.workers or node.children for node in tree.nodes()), "a dead leaf"
    longest, holding = naive.holders(probe, WORKERS)
    assert holders(tree, probe) == Holders(longest, sum(1 << w for w in holding))
    assert tree.cached_tokens(tree.find(probe)[0]) == naive.cached_tokens(probe, WORKERS)


def test_a_partial_match_of_an_edge_counts():
    tree = new_tree()
    tree.insert(prompt(("doc", 100)), 2)
    assert holders(tree, prompt(("doc", 60), ("question", 5))) == Holders(60, 0b100)


def test_only_the_deepest_held_stretch_counts():
    tree = new_tree()
    tree.insert(prompt(("a", 10)), 0)
    tree.insert(prompt(("a", 10), ("b", 5)), 1)
    assert holders(tree, prompt(("a", 10), ("b", 5), ("c", 1))) == Holders(15, 0b10)
    assert holders(tree, prompt(("a", 10), ("c", 1))) == Holders(10, 0b11)
    assert holders(tree, prompt(("c", 1))) == Holders(0, 0)


def test_eviction_affects_one_stretch_of_one_worker():
    tree = new_tree()
    whole = prompt(("a", 10), ("b", 5))
    tree.insert(whole, 0)
    tree.insert(whole, 1)
    tree.evict(prompt(("a", 10)), 4, 0)
    # Worker 0 keeps the tail. A request on its way there will compute tokens 6 to 9 again.
    assert holders(tree, whole) == Holders(15, 0b11)
    assert holders(tree, prompt(("a", 10))) == Holders(10, 0b10)
    assert holders(tree, prompt(("a", 6))) == Holders(6, 0b11)


def test_evicted_outputs_are_ignored():
    tree = new_tree()
    tree.insert(prompt(("a", 10)), 0)
    tree.evict(prompt(("a", 10), ("output", 90)), 93, 0)  # 90 output tokens and 3 of the prompt
    assert holders(tree, prompt(("a", 10))) == Holders(7, 0b1)


def test_nodes_without_holders_disappear():
    tree = new_tree()
    tree.insert(prompt(("a", 10), ("b", 5)), 0)
    tree.insert(prompt(("a", 10), ("c", 5)), 1)
    tree.evict(prompt(("a", 10), ("b", 5)), 5, 0)
    assert [path(node) for node in tree.nodes()] == [prompt(("a", 10)), prompt(("a", 10), ("c", 5))]
    tree.purge(0)
    assert holders(tree, prompt(("a", 10))) == Holders(10, 0b10)
    tree.purge(1)
    assert list(tree.nodes()) == []


def test_the_tree_supports_any_number_of_workers():
    tree = new_tree()
    for worker in (0, 63, 64, 200):
        tree.insert(prompt(("a", 3)), worker)
    assert tree.cached_tokens(tree.find(prompt(("a", 3)))[0]) == {0: 3, 63: 3, 64: 3, 200: 3}
