"""Test the history tree and the active tree against sets of (worker, prefix)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairbench_rivals.routing.dynamo import ActiveTree
from fairbench_rivals.routing.history_tree import HistoryTree
from tests.schedulers.routing.router_helpers import prefixes, prompt, prompts

workers = st.integers(0, 2)


def held(sent, worker):
    """Return every prefix of the prompts that were sent to the worker."""
    return {prefix for made, to in sent if to == worker for prefix in prefixes(made)}


@given(st.lists(st.tuples(prompts(), workers), max_size=12))
def test_a_shared_prefix_is_counted_once_per_worker_and_stored_once(sent):
    tree = HistoryTree()
    for made, worker in sent:
        tree.insert(made, worker)
    of = [held(sent, worker) for worker in range(3)]
    assert [tree.tokens[worker] for worker in range(3)] == [len(prefixes) for prefixes in of]
    # Looking up a prompt splits nodes, but stores nothing.
    assert tree.stored == len(set.union(*of))


@given(st.lists(st.tuples(prompts(), workers), max_size=12), st.integers(0, 30))
def test_a_shortened_prefix_keeps_its_beginning(sent, limit):
    tree = HistoryTree()
    for made, worker in sent:
        tree.insert(made, worker)
    before = [tree.tokens[worker] for worker in range(3)]
    tree.shrink(0, limit)
    assert tree.tokens[0] <= max(limit, 0)
    assert [tree.tokens[1], tree.tokens[2]] == before[1:]
    left = {made: tree.cached_tokens(tree.find(made).node).get(0, 0) for made, _ in sent}
    kept = {prefix for made, depth in left.items() for prefix in prefixes(made)[:depth]}
    assert len(kept) == tree.tokens[0]
    tree.shrink_all(0)
    assert (tree.stored, list(tree.nodes())) == (0, [])


def test_the_prefix_sent_longest_ago_goes_first_and_after_its_extensions():
    tree = HistoryTree()
    first, second, third = (prompt(("doc", 10), (tail, 5)) for tail in "xyz")
    for made in (first, second, third, first):
        tree.insert(made, 0)
    assert tree.tokens[0] == 25
    tree.shrink(0, 16)
    cached = [tree.cached_tokens(tree.find(m).node).get(0, 0) for m in (first, second, third)]
    assert cached == [15, 10, 10]
    tree.shrink(0, 14)
    assert tree.cached_tokens(tree.find(first).node) == {0: 10}


@given(st.lists(st.tuples(prompts(), workers), max_size=10), st.data())
def test_active_tokens_are_those_of_requests_in_flight(sent, data):
    tree, flights = ActiveTree(), []
    for made, worker in sent:
        end = tree.insert(made, worker)
        tree.start_request(end, worker)
        flights.append((made, worker, end))
        if flights and data.draw(st.booleans()):
            _, worker, end = flights.pop(data.draw(st.integers(0, len(flights) - 1)))
            tree.stop_request(end, worker)
    left = [(made, worker) for made, worker, _ in flights]
    for worker in range(3):
        in_use = held(left, worker)
        assert tree.active_tokens[worker] == len(in_use)
        for made, _ in sent:
            shared = tree.shared_tokens(tree.find(made).node, worker)
            assert shared == sum(prefix in in_use for prefix in prefixes(made))
