"""A vLLM block pool without an engine. Requests of several clients start, grow and finish."""

from collections import defaultdict
from fractions import Fraction

from fairbench.core import Request, Segment, prompt_tokens
from fairbench.engine.clock import Clock
from fairbench.engine.logs import MemoryLog, WorkerMemoryLog
from fairbench.engine.vllm_blocks import BlockCache, ClientBlockCache, held_by, prefix_of
from fairbench.schedulers.base import Setup
from fairbench.schedulers.eviction.registry import build_eviction
from tests.strategies import tokens_of


class Running:
    """A running request: its blocks, and the stored end of its prompt and outputs."""

    def __init__(self, request, node, place):
        self.request, self.node, self.place = request, node, place
        self.text = (*request.prompt, Segment(f"out{request.request_id}", 1_000))
        self.tokens, self.blocks = request.input_tokens, 0


class BlockPool:
    """A pool of ``blocks`` blocks of ``size`` tokens. Without ``policy``, it is vLLM's own."""

    def __init__(self, policy, blocks, size, weights, **settings):
        self.weights, self.size = weights, size
        self.evicted = []  # prefixes as tokens, and the number of evicted tokens
        self.log = MemoryLog(list(weights))
        if policy is None:
            self.cache = BlockCache(blocks, size)
        else:
            chosen = build_eviction(policy, settings)
            chosen.prepare(Setup(tuple(weights), weights, blocks * size))
            log = WorkerMemoryLog(self.log, Clock(), 0)
            self.cache = ClientBlockCache(blocks, size, chosen, log)
        self.cache.on_evict = lambda prefix, tokens: self.evicted.append(
            (tokens_of(prefix), tokens)
        )
        self.running = []
        self.made = 0

    def share(self, client):
        return self.cache.capacity * self.weights[client] / sum(self.weights.values())

    def start(self, client, prompt):
        """Compute a prompt if there is room. Return how much of it was cached, otherwise None."""
        cache, total = self.cache, prompt_tokens(prompt)
        node, place = cache.match(prompt, total - 1)
        depth = node.depth
        cached = [each.copies[0] for each in node.path()]
        used = sum(copy.node.blocks for copy in cached if copy.users)
        if -(-total // self.size) - used > cache.free_blocks:
            return None
        self.made += 1
        request = Request(self.made, client, self.made, 0, prompt, total, 100)
        one = Running(request, node, place)
        self._use(one, cached)
        one.blocks = node.depth // self.size
        self._take(one, -(-total // self.size) - one.blocks)
        self._store(one)
        self.running.append(one)
        return depth

    def decode(self):
        """Give every running request a token, if there is room."""
        needed = sum(one.tokens % self.size == 0 for one in self.running)
        if needed > self.cache.free_blocks:
            return
        for one in self.running:
            if one.tokens % self.size == 0:
                self._take(one, 1)
            one.tokens += 1
            self._store(one)

    def _use(self, one, cached):
        for copy in cached:
            self.cache.use(copy, one)
        self.cache.claim(one.node, one.request)

    def _take(self, one, blocks):
        self.cache.take_blocks(blocks, one)
        one.blocks += blocks

    def _store(self, one):
        full = (one.tokens - one.node.depth) // self.size
        one.node, one.place = self.cache.store(one, one.node, one.text, one.place, full)

    def _give_back(self, one):
        self.cache.give_back(one, one.node, self.blank_of(one))

    def blank_of(self, one):
        """Return the blocks of a running request that cannot be found."""
        return one.blocks - one.node.depth // self.size

    def finish(self, number):
        """End a running request, and keep what it has computed."""
        one = self.running.pop(number)
        self._retain(one)
        self._give_back(one)

    def _retain(self, one):
        self.cache.retain(one.node, one.request)

    def retract(self, number):
        """Take back the memory of a running request."""
        self._give_back(self.running.pop(number))

    def pinned(self, client):
        """Return the tokens in blocks that the client's running requests use."""
        mine = [one for one in self.running if one.request.client == client]
        held = {copy for one in mine for copy in held_by(one, one.node)}
        stored = sum(copy.node.blocks for copy in held)
        return self.size * (stored + sum(map(self.blank_of, mine)))


def watch_blocks(cache, hear):
    """Report the tokens up to the end of every overwritten block to ``hear``, one by one."""
    drop = cache.drop

    def dropped(node):
        for number in range(node.blocks):
            hear(prefix_of(node.prompt, node.depth - number * cache.block_size))
        drop(node)

    cache.drop = dropped


def nodes_of(cache):
    """Return every node of the tree except the root."""
    stack = [cache.root]
    while stack:
        node = stack.pop()
        stack += node.children.values()
        if node is not cache.root:
            yield node


def claims_of(cache):
    """Return the clients that claim each cached prefix of whole blocks."""
    claims, size = {}, cache.block_size
    for node in nodes_of(cache):
        tokens = tokens_of(prefix_of(node.prompt, node.depth))
        for end in range(node.parent.depth + size, node.depth + 1, size):
            claims[tokens[:end]] = set(node.holders)
    return claims


def residency_of(cache, blank=()):
    """Return each client's tokens by a walk: the cached tokens, and those of ``blank`` blocks."""
    held = defaultdict(Fraction)
    for node in nodes_of(cache):
        for client in node.holders:
            blocks = len(node.copies) * node.blocks
            held[client] += Fraction(blocks * cache.block_size, len(node.holders))
    for client, blocks in blank:
        held[client] += blocks * cache.block_size
    return held


def unpinned_of(cache):
    """Return each client's cached tokens that no running request uses, by a walk."""
    held = defaultdict(Fraction)
    for node in nodes_of(cache):
        blocks = sum(node.blocks for copy in node.copies if not copy.users)
        for client in node.holders:
            held[client] += Fraction(blocks * cache.block_size, len(node.holders))
    return held


def check_claims(cache, blank):
    """Check that claims reach the root, open leaves are listed, and residency equals a walk."""
    claims = cache.claims
    for node in nodes_of(cache):
        assert node.holders
        assert node.parent is cache.root or node.holders.keys() <= node.parent.holders.keys()
        below = [client for child in node.children.values() for client in child.holders]
        assert node.claimed_below == {client: below.count(client) for client in below}
        for queue in node.holders if claims.by_client else ("",):
            listed = any(node is entry[-1] for entry in claims.queues[queue])
            assert listed or not claims.is_open_leaf(node, queue)
    held, unpinned = residency_of(cache, blank), unpinned_of(cache)
    for client in cache.residency.clients:
        assert abs(cache.residency.held(client) - float(held[client])) < 1e-6
        assert abs(cache.residency.unpinned(client) - float(unpinned[client])) < 1e-6
