"""Test the radix tree against a set of token prefixes."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Segment, prompt_tokens
from fairbench.schedulers.prefix_tree import Node, PrefixTree, path, place_at, truncate
from tests.strategies import common, prefixes_of, prompts, tokens_of


def prompt(*parts):
    return tuple(Segment(key, length) for key, length in zip(parts[::2], parts[1::2], strict=True))


def insert(tree, text, depth):
    node, place = tree.match(text, depth)
    if node.depth < depth:
        node = tree.extend(node, text, place, depth)
    return node


def held(tree):
    """Return every token prefix that the tree stores."""
    return {prefix for node in tree.nodes() for prefix in prefixes_of(tokens_of(path(node)))}


def check(tree):
    for node in tree.nodes():
        assert 0 <= node.start < node.edge[0].length
        assert node.length == prompt_tokens(node.edge) - node.start
        assert node.depth == node.parent.depth + node.length
        assert node.parent.children[node.key] is node
        assert len(tokens_of(path(node))) == node.depth


steps = st.lists(
    st.tuples(
        st.sampled_from(["insert", "match", "peek", "remove"]), prompts(), st.integers(1, 99)
    ),
    max_size=30,
)


@given(steps)
def test_a_tree_holds_the_prefixes_that_were_inserted_and_not_removed(steps):
    tree, oracle = PrefixTree(Node), set()
    for action, text, number in steps:
        tokens = tokens_of(text)
        limit = min(number, len(tokens))
        longest = max((n for n in range(limit + 1) if tokens[:n] in oracle), default=0)
        if action == "insert":
            end = insert(tree, text, limit)
            oracle.update(prefixes_of(tokens[:limit]))
            assert tokens_of(path(end)) == tokens[:limit]
        elif action == "match":
            node, place = tree.match(text, limit)
            assert tokens_of(path(node)) == tokens[:longest]
            assert place == place_at(text, longest)
        elif action == "peek":
            before = {id(node) for node in tree.nodes()}
            node, place = tree.descend(tree.root, text, (0, 0), limit, split=False)
            assert {id(node) for node in tree.nodes()} == before
            ends = [tokens_of(path(one)) for one in tree.nodes()]
            whole = [len(end) for end in ends if tokens[:limit][: len(end)] == end]
            assert node.depth == max(whole, default=0)
        elif leaves := [node for node in tree.nodes() if not node.children]:
            leaf = leaves[number % len(leaves)]
            gone = prefixes_of(tokens_of(path(leaf)))[leaf.parent.depth :]
            parent = leaf.parent
            assert tree.remove(leaf) is parent
            oracle.difference_update(gone)
        check(tree)
        assert held(tree) == oracle


def test_two_prompts_that_diverge_inside_a_segment_share_its_beginning():
    tree = PrefixTree(Node)
    long = insert(tree, prompt("a", 10, "b", 5), 15)
    other = insert(tree, prompt("a", 7, "c", 2), 9)
    shared = long.parent
    assert other.parent is shared
    assert (shared.edge, shared.start, shared.depth) == (prompt("a", 7), 0, 7)
    assert (long.edge, long.start) == (prompt("a", 10, "b", 5), 7)
    assert path(long) == prompt("a", 10, "b", 5)


def test_a_split_keeps_the_lower_node_and_cuts_at_a_segment_border():
    tree = PrefixTree(Node)
    node = insert(tree, prompt("a", 4, "b", 4), 8)
    upper = tree.split(node, 4)
    assert (upper.edge, node.edge) == (prompt("a", 4), prompt("b", 4))
    assert (upper.depth, node.depth, node.parent) == (4, 8, upper)
    assert tree.match(prompt("a", 4, "b", 9), 13)[0] is node


def test_the_same_key_twice_is_not_one_long_segment():
    tree = PrefixTree(Node)
    insert(tree, prompt("a", 5, "a", 5), 10)
    assert tree.match(prompt("a", 10), 10)[0].depth == 5
    assert tree.match(prompt("a", 5, "a", 5), 10)[0].depth == 10


@given(prompts(), st.integers(0, 99))
def test_truncate_and_place_at_count_tokens(text, number):
    tokens = tokens_of(text)
    depth = number % (len(tokens) + 1)
    assert tokens_of(truncate(text, depth)) == tokens[:depth]
    index, offset = place_at(text, depth)
    assert depth == sum(length for _, length in text[:index]) + offset
    assert index == len(text) or offset < text[index].length


@given(prompts(), prompts())
def test_a_match_is_the_common_prefix(one, other):
    tree = PrefixTree(Node)
    insert(tree, one, len(tokens_of(one)))
    found, _ = tree.match(other, len(tokens_of(other)))
    assert found.depth == common(tokens_of(one), tokens_of(other))
