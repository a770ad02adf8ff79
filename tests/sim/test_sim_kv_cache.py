"""Test the KV cache against a model of tokens, and on hand-made evictions."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairbench.core import prompt_tokens
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.sglang import locked_by
from fairbench.schedulers.prefix_tree import path
from tests.sim.sim_helpers import prompt
from tests.strategies import common, examples, prefixes_of, prompts, tokens_of
from tests.worker_invariants import check_evictable_leaves_are_listed, check_tree

CAPACITY = 30
texts = prompts(lengths=(1, 2, 3, 5))
picks = st.integers(0, 999)


class KVCacheAgainstTokens(RuleBasedStateMachine):
    """A model of the KV cache that knows only tokens.

    ``touched`` maps each cached token prefix to its last use, and ``locked`` holds a token tuple
    per lock. Nodes exist only in the cache, except for ``cut``.
    """

    def __init__(self):
        super().__init__()
        self.cache = KVCache(CAPACITY, self.evicted)
        self.moved = []
        self.cache.on_moved = self.moved.append
        self.touched = {}
        self.locks = []  # (node, tokens)
        self.waiting = []  # (waiter, tokens)
        self.private = 0
        self.wanted = 0  # tokens for which memory is being freed
        self.arrived = 0

    # the model

    def cached(self, tokens):
        return max((n for n in range(len(tokens) + 1) if tokens[:n] in self.touched), default=0)

    def touch(self, tokens, access=None):
        access = access or (self.cache._stamp, 0, 0)
        self.touched.update(dict.fromkeys(prefixes_of(tokens), access))

    def cut(self, tokens, access=None):
        """Record a match that ends inside a node, because it also touches the rest of that node."""
        depth = self.cached(tokens)
        for node in self.cache.nodes():
            end = tokens_of(path(node))
            if node.depth - node.length < depth < node.depth and end[:depth] == tokens[:depth]:
                rest = prefixes_of(end)[depth:]
                self.touched.update(dict.fromkeys(rest, access or (self.cache._stamp + 1, 0, 0)))

    def is_locked(self, tokens):
        return any(common(tokens, held) == len(tokens) for _, held in self.locks)

    def evicted(self, prefix, count):
        tokens = tokens_of(prefix)
        gone = prefixes_of(tokens)[-count:]
        assert self.wanted > 0, "evicted more than was asked for"
        self.wanted -= count
        ends = [tokens_of(path(node)) for node in self.cache.nodes()]
        parents = [tokens_of(path(node.parent)) for node in self.cache.nodes()]
        open_leaves = [end for end in ends if end not in parents and not self.is_locked(end)]
        assert tokens in open_leaves
        assert self.touched[tokens] == min(self.touched[leaf] for leaf in open_leaves)
        assert tokens[:-count] == parents[ends.index(tokens)]
        for prefix_gone in gone:
            del self.touched[prefix_gone]

    def unlocked(self):
        return sum(not self.is_locked(tokens) for tokens in self.touched)

    def look(self, text):
        """Match a prompt, and touch the matched part."""
        tokens = tokens_of(text)
        self.cut(tokens)
        node, place = self.cache.match(text, len(tokens))
        assert node.depth == self.cached(tokens)
        self.cache.touch(node)
        self.touch(tokens[: node.depth])
        return node, place

    # rules for engines and queues

    @rule(text=texts)
    def store(self, text):
        """Store a request's prompt, computed in private memory."""
        tokens, total = tokens_of(text), prompt_tokens(text)
        node, place = self.look(text)
        need = total - node.depth
        self.cache.lock(node)
        self.locks.append((node, tokens[: node.depth]))
        room = CAPACITY - self.private - len(self.touched) + self.unlocked()
        assert room == self.cache.free + self.cache.evictable
        if need <= room:
            self.wanted = need - self.cache.free
            self.cache.allocate(need)
            end, cached = self.cache.insert(node, text, place, total)
            self.cache.release(cached)
            assert (cached, end.depth) == (0, total)
            self.touch(tokens)
        self.locks.pop()
        self.cache.unlock(node)

    @rule(text=texts)
    def store_twice(self, text):
        """Store one prompt of two siblings twice. The second one's part is a duplicate."""
        tokens, total = tokens_of(text), prompt_tokens(text)
        if self.cached(tokens) or 2 * total > self.cache.free:
            return
        self.cache.allocate(2 * total)
        for duplicate in (0, total):
            _, cached = self.cache.insert(self.cache.root, text, (0, 0), total)
            assert cached == duplicate
            self.cache.release(cached)
            self.touch(tokens)

    @rule(text=texts, gone=st.booleans())
    def branch(self, text, gone):
        """Run two requests with the same prompt.

        The first may be ``gone`` when the second one's prompt is computed.
        """
        tokens, total = tokens_of(text), prompt_tokens(text)
        node, place = self.look(text)
        need = total - node.depth
        if 2 * need > self.cache.free:
            return
        self.cache.allocate(2 * need)
        self.private += 2 * need
        for _ in range(2):
            self.cache.lock(node)
            self.locks.append((node, tokens[: node.depth]))
        for number in range(2):
            expected = self.cached(tokens) - node.depth
            end, cached = self.cache.insert(node, text, place, total, lock=True)
            self.cache.release(cached)
            self.private -= need
            self.touch(tokens)
            self.locks.remove((node, tokens[: node.depth]))
            self.locks.append((end, tokens))
            assert (cached, end.depth, tokens_of(path(end))) == (expected, total, tokens)
            if gone and not number:
                self.unlock(-1)
                self.evict(CAPACITY)

    @rule(text=texts)
    def use(self, text):
        self.look(text)

    @rule(text=texts)
    def lock(self, text):
        node, _ = self.look(text)
        self.cache.lock(node)
        self.locks.append((node, tokens_of(path(node))))

    @precondition(lambda self: self.locks)
    @rule(pick=picks)
    def unlock(self, pick):
        node, _ = self.locks.pop(pick % len(self.locks))
        self.cache.unlock(node)

    @rule(text=texts)
    def wait(self, text):
        """Let a request arrive.

        At a refresh, all waiting requests are touched, one by one. The new request, and requests
        whose match has changed, are matched then.
        """
        self.cache.refresh(())
        self.arrived += 1
        self.waiting.append((Waiting(text, self.arrived), tokens_of(text)))
        for waiter, tokens in self.waiting:
            access = (self.cache.refresh_stamp, 0, waiter.rank)
            if waiter.node is None or waiter in self.moved:
                self.cut(tokens, access)
                self.cache.attach(waiter)
            self.touch(tokens[: self.cached(tokens)], access)
        self.moved.clear()

    @precondition(lambda self: self.waiting)
    @rule(pick=picks)
    def stop_waiting(self, pick):
        waiter, _ = self.waiting.pop(pick % len(self.waiting))
        self.cache.detach(waiter)

    @rule(tokens=st.integers(1, CAPACITY))
    def evict(self, tokens):
        free, most = self.cache.free, self.unlocked()
        self.wanted = tokens
        self.cache.evict(tokens)
        assert self.cache.free - free >= min(tokens, most)

    @rule(tokens=st.integers(1, 9))
    def run(self, tokens):
        if tokens <= self.cache.free + self.cache.evictable:
            self.wanted = tokens - self.cache.free
            self.cache.allocate(tokens)
            self.private += tokens

    @rule(tokens=st.integers(1, 9))
    def finish(self, tokens):
        self.cache.release(min(tokens, self.private))
        self.private -= min(tokens, self.private)

    # invariants

    @invariant()
    def the_same_tokens_are_cached(self):
        nodes = list(self.cache.nodes())
        spans = [prefixes_of(tokens_of(path(node)))[-node.length :] for node in nodes]
        assert sum(map(len, spans)) == len(self.touched)
        assert {prefix for span in spans for prefix in span} == self.touched.keys()
        for node, span in zip(nodes, spans, strict=True):
            (access,) = {self.touched[prefix] for prefix in span}
            assert node.children or access == self.cache._access_of(node)
            assert {self.is_locked(prefix) for prefix in span} == {node.locks > 0}

    @invariant()
    def memory_adds_up(self):
        cache = self.cache
        assert cache.free + cache.evictable + cache.locked + self.private == CAPACITY
        assert cache.evictable == self.unlocked()
        check_tree(cache)
        check_evictable_leaves_are_listed(cache)

    @invariant()
    def what_locks_alone_keep_is_known(self):
        for count in range(len(self.locks) + 1):
            gone, stay = (
                {p for _, held in part for p in prefixes_of(held)}
                for part in (self.locks[:count], self.locks[count:])
            )
            ends = [node for node, _ in self.locks[:count]]
            assert locked_by(ends) == len(gone - stay)

    @invariant()
    def waiting_requests_know_their_match(self):
        for waiter, tokens in self.waiting:
            depth = self.cached(tokens)
            assert waiter.node.depth <= depth
            assert waiter.node.depth == depth or waiter in self.moved


class Waiting:
    """A waiting request. The list is in order of arrival."""

    def __init__(self, prompt, rank):
        self.prompt, self.total, self.rank = prompt, prompt_tokens(prompt), rank
        self.node, self.place = None, (0, 0)

    def touched_at(self, refresh):
        return 0, self.rank


KVCacheAgainstTokens.TestCase.settings = settings(examples(150), stateful_step_count=30)
TestKVCacheAgainstTokens = KVCacheAgainstTokens.TestCase


def stored(cache, text):
    """Store a prompt. Return its end node, unlocked."""
    total = prompt_tokens(text)
    node, place = cache.match(text, total)
    cache.allocate(total - node.depth)
    return cache.insert(node, text, place, total)[0]


def collector(capacity):
    gone = []
    return KVCache(capacity, lambda prefix, tokens: gone.append((prefix, tokens))), gone


def test_the_leaf_unused_for_longest_goes_first_and_whole():
    cache, gone = collector(100)
    for key in "abc":
        stored(cache, prompt(key, 10))
    cache.touch(cache.match(prompt("a", 10), 10)[0])
    cache.evict(11)
    assert gone == [(prompt("b", 10), 10), (prompt("c", 10), 10)]
    assert (cache.free, cache.evictable) == (90, 10)


def test_a_parent_goes_after_its_last_child():
    cache, gone = collector(100)
    stored(cache, prompt("a", 10, "b", 5))
    stored(cache, prompt("a", 10, "c", 5))
    stored(cache, prompt("d", 10))
    cache.evict(16)
    # The parent was used when its second child was stored, before d.
    assert gone == [
        (prompt("a", 10, "b", 5), 5),
        (prompt("a", 10, "c", 5), 5),
        (prompt("a", 10), 10),
    ]


def test_locked_nodes_and_their_paths_stay():
    cache, gone = collector(100)
    held = stored(cache, prompt("a", 10, "b", 5))
    stored(cache, prompt("a", 10, "c", 5))
    cache.lock(held)
    cache.evict(100)
    assert gone == [(prompt("a", 10, "c", 5), 5)]
    assert (cache.free, cache.evictable, cache.locked) == (85, 0, 15)
    cache.unlock(held)
    cache.evict(100)
    assert cache.free == 100


def test_a_split_of_a_locked_edge_keeps_the_counts():
    cache, _ = collector(100)
    held = stored(cache, prompt("a", 10))
    cache.lock(held)
    upper, _ = cache.match(prompt("a", 4, "z", 3), 7)
    assert (upper.length, upper.locks, held.length, held.locks) == (4, 1, 6, 1)
    cache.unlock(held)
    assert (cache.evictable, cache.locked) == (10, 0)


def test_only_the_shortfall_is_evicted():
    cache, gone = collector(30)
    for key in "abc":
        stored(cache, prompt(key, 10))
    cache.allocate(10)
    assert [tokens for _, tokens in gone] == [10]
    assert cache.free == 0
