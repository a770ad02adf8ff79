"""Test the map from block hashes to prompts, against a cache that is a plain set of prefixes."""

import tracemalloc
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import prompt_tokens
from fairbench.schedulers.location_tree import LocationNode, LocationTree
from fairbench.schedulers.registry import build_router
from fairbench_load.kv_event_wire import AllBlocksCleared, BlockRemoved, BlockStored
from fairbench_load.token_pages import segments_of
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.kv_events import BlockIndex

WORKER = 3
ROUND_ROBIN = build_router("round-robin", {}, 1)


class Cache:
    """The stored blocks, each as all tokens up to its end, and the events of every change."""

    def __init__(self, block_size):
        self.block_size = block_size
        self.held = set()
        self.numbers = {}

    def name(self, prefix):
        return self.numbers.setdefault(prefix, 10_000 + len(self.numbers)) if prefix else None

    def prefixes(self, tokens):
        size = self.block_size
        return [tokens[:end] for end in range(size, len(tokens) + 1, size)]

    def cached(self, tokens):
        return max((len(p) for p in self.prefixes(tokens) if p in self.held), default=0)

    def store(self, tokens):
        start = self.cached(tokens)
        new = [prefix for prefix in self.prefixes(tokens) if len(prefix) > start]
        self.held.update(new)
        if not new:
            return []
        ids, size = list(tokens[start : len(new[-1])]), self.block_size
        names = [self.name(prefix) for prefix in new]
        return [BlockStored(names, self.name(tokens[:start]), ids, size, None, "GPU")]

    def drop(self, tokens, count):
        """Drop up to ``count`` blocks from a prompt's end, if no other block depends on them."""
        gone = []
        for prefix in reversed(self.prefixes(tokens[: self.cached(tokens)])):
            size = len(prefix) + self.block_size
            below = any(len(p) == size and p[: len(prefix)] == prefix for p in self.held)
            if len(gone) == count or below:
                break
            self.held.remove(prefix)
            gone.append(self.name(prefix))
        # In SGLang's order: node by node, leaves first, and the blocks of a node in their order.
        half = len(gone) // 2
        names = [*reversed(gone[:half]), *reversed(gone[half:])]
        return [BlockRemoved(names, "GPU")] if names else []


def prompt_of(forks):
    """Return tokens that agree for prompts up to the first fork in which they differ."""
    tokens = []
    for kind, length in forks:
        tokens += [100_000 * kind + len(tokens) + n for n in range(length)]
    return tuple(tokens)


PROMPTS = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from([16, 32, 48, 80, 160])), min_size=1, max_size=4
).map(prompt_of)


@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
@given(data=st.data())
def test_the_cache_that_a_router_assumes_is_real(block_size, data):
    cache, tree = Cache(block_size), LocationTree(LocationNode)
    index = BlockIndex(lambda prefix, tokens: tree.evict(prefix, tokens, WORKER), lambda: None)
    prompts = data.draw(st.lists(PROMPTS, min_size=1, max_size=4))
    home = Dispatcher(ROUND_ROBIN, 1, 10_000, lambda: 0.0, page_tokens=block_size)
    pages = {
        tokens: home.make_request("c", array("I", tokens), 1, 0, 0).prompt for tokens in prompts
    }
    for _ in range(data.draw(st.integers(1, 8))):
        tokens = data.draw(st.sampled_from(prompts))
        if data.draw(st.booleans()):
            tree.insert(pages[tokens], WORKER)
            index.apply(cache.store(tokens))
        else:
            index.apply(cache.drop(tokens, data.draw(st.integers(1, 200))))
    assert len(index) == len(cache.held)
    for tokens in prompts:
        # This compares whole pages of dispatched prompts. Within a block, two prompts may share
        # router pages that the worker, which caches blocks, holds for only one.
        believed = tree.holders(tree.find(pages[tokens])[0]).tokens
        assert believed - believed % block_size <= cache.cached(tokens)
        assert believed >= min(cache.cached(tokens), prompt_tokens(pages[tokens])) - 31


def heard(*batches):
    """Return the reports of an index on some events."""
    found = []
    index = BlockIndex(
        lambda prefix, tokens: found.append((prefix, tokens)), lambda: found.append("clear")
    )
    for events in batches:
        index.apply(events)
    return found, len(index)


IDS = list(range(64))
STORED = BlockStored([1, 2], None, IDS, 32, None, "GPU")


def test_the_end_of_a_run_and_all_of_it_are_removed():
    prefix = segments_of(IDS)
    assert heard([STORED, BlockRemoved([2])]) == ([(prefix, 32)], 1)
    assert heard([STORED, BlockRemoved([1, 2])]) == ([(prefix, 64)], 0)
    assert heard([STORED, BlockRemoved([2])], [BlockRemoved([1])]) == (
        [(prefix, 32), (prefix[:4], 32)],
        0,
    )


def test_a_block_may_follow_a_block_in_the_middle_of_a_run():
    below = BlockStored([3], 1, [900 + n for n in range(32)], 32, None)
    prefix = segments_of(IDS[:32] + below.token_ids)
    assert heard([STORED, below, BlockRemoved([3])]) == ([(prefix, 32)], 2)


def test_events_before_the_subscription_are_ignored():
    unknown = BlockStored([8], 7, IDS, 64, None)
    assert heard([unknown, BlockRemoved([7, 8])]) == ([], 0)


def test_memory_other_than_that_of_the_gpu_does_not_count():
    kept = BlockStored([9], None, IDS, 64, None, "CPU_PINNED")
    assert heard([STORED, kept, BlockRemoved([1, 2], "CPU_PINNED")]) == ([], 2)


def test_a_clear_forgets_everything():
    assert heard([STORED, AllBlocksCleared(), BlockRemoved([2])]) == (["clear"], 0)


def test_a_block_of_another_layer_group_is_another_block():
    gone = []
    index = BlockIndex(lambda prefix, tokens: gone.append(tokens), lambda: None)
    ids = list(range(32))
    for group in (0, 1):
        index.apply([BlockStored([7, 8], None, ids, 16, None, "GPU", group_idx=group)])
    assert len(index) == 4
    index.apply([BlockRemoved([8], "GPU", group_idx=2)])
    assert (len(index), gone) == (4, [])
    index.apply([BlockRemoved([8], "GPU", group_idx=1)])
    assert (len(index), gone) == (3, [16])


def test_a_hash_may_be_bytes():
    gone = []
    index = BlockIndex(lambda prefix, tokens: gone.append(prefix_ids(prefix)), lambda: None)
    index.apply([BlockStored([b"x"], None, list(range(8)), 8, None)])
    index.apply([BlockStored([b"y"], b"x", list(range(8, 16)), 8, None)])
    index.apply([BlockRemoved([b"y"])])
    assert gone == [list(range(16))]


def prefix_ids(prefix):
    return list(array("I", b"".join(segment.key.encode("latin-1") for segment in prefix)))


def pages(name, tokens, size, parent=None):
    """Return the events of a prompt as SGLang writes them, one for each page."""
    events = []
    for at in range(0, tokens, size):
        ids = list(range(at, at + size))
        events.append(BlockStored([f"{name}-{at}".encode()], parent, ids, size, None, "GPU"))
        parent = events[-1].block_hashes[0]
    return events


def whole(name, tokens, size, parent=None):
    """Return the event of a prompt as vLLM writes it, one for all of its blocks."""
    names = [f"{name}-{at}".encode() for at in range(0, tokens, size)]
    return [BlockStored(names, parent, list(range(len(names) * size)), size, None, "GPU")]


def turns(name, tokens, size):
    """Return the events of a conversation whose turns are four blocks each."""
    events, parent = [], None
    for turn in range(tokens // size // 4):
        events += whole(f"{name}-{turn}", 4 * size, size, parent)
        parent = events[-1].block_hashes[-1]
    return events


def questions(name, tokens, size):
    """Return the events of one document with questions of one block each."""
    document = pages(name, tokens // 2, size)
    end = document[-1].block_hashes[-1]
    asked = [pages(f"{name}-{at}", size, size, end) for at in range(tokens // 2 // size)]
    return document + [event for events in asked for event in events]


@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize("stored", [pages, whole, turns, questions])
def test_memory_grows_with_the_tokens_and_not_with_their_prefixes(stored, size):
    def kept_bytes(tokens):
        index = BlockIndex(lambda prefix, tokens: None, lambda: None)
        tracemalloc.start()
        index.apply(stored("p", tokens, size))
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(index) == tokens // size
        return kept

    # An id takes 4 bytes, and an array up to an eighth more. The rest is for each block.
    bound = 5 * 2**11 + 500 * (2**11 // size)
    assert kept_bytes(2**11) <= bound
    assert kept_bytes(2**12) <= 2 * bound


def test_replaced_ends_of_a_prompt_leave_no_memory():
    """The first block stays, and long prompts after it come and go."""
    index = BlockIndex(lambda prefix, tokens: None, lambda: None)
    (first,) = pages("head", 16, 16)
    index.apply([first])
    tracemalloc.start()
    for number in range(20):
        below = pages(f"p{number}", 2048, 16, first.block_hashes[0])
        index.apply(below)
        index.apply([BlockRemoved(one.block_hashes, "GPU") for one in reversed(below)])
        del below
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index) == 1
    assert kept < 2**15


@pytest.mark.parametrize("order", [list, reversed])
def test_a_prompt_that_is_removed_page_by_page_is_reported_once(order):
    """A report copies the prefix, so a report for each page would take quadratic time."""
    stored = pages("p", 4096, 16)
    gone = [BlockRemoved(one.block_hashes, "GPU") for one in order(stored)]
    prefix = segments_of(range(4096))
    assert heard(stored, gone) == ([(prefix, 4096)], 0)
    assert heard(stored, gone[:128])[0][0][1] == 2048


def test_two_ends_of_one_prompt_are_reported_with_their_own_tokens():
    parent = pages("p", 512, 16)
    end = parent[-1].block_hashes[0]
    left, right = (whole(name, 512, 16, end) for name in ("left", "right"))
    found, held = heard(
        [*parent, *left, *right],
        [BlockRemoved(one.block_hashes, "GPU") for one in (*left, *right, *parent)],
    )
    assert (sorted(tokens for _, tokens in found), held) == ([512, 1024], 0)


@pytest.mark.parametrize("size", [-1, 0])
def test_blocks_without_tokens_are_harmless(size):
    odd = BlockStored([1, 2], None, IDS, size, None)
    assert heard([odd, BlockRemoved([1]), BlockRemoved([2])])[1] == 0


def test_a_block_that_names_itself_as_its_parent_ends():
    loop = BlockStored([1], 1, IDS, 64, None)
    assert heard([BlockStored([1], None, IDS, 64, None), loop, loop, BlockRemoved([1])])[1] == 0
