"""A vLLM block pool without an engine: requests of several clients that start, grow and finish."""

from collections import defaultdict
from fractions import Fraction

from fairbench.core import Request, Segment, prompt_tokens
from fairbench.schedulers.eviction.registry import build_eviction
from fairbench.schedulers.setup import Setup
from fairbench.sim.clock import Clock
from fairbench.sim.engine.vllm.block_cache import BlockCache
from fairbench.sim.engine.vllm.block_tree import prefix_of
from fairbench.sim.engine.vllm.client_blocks import ClientBlockCache
from fairbench.sim.records.memory_log import MemoryLog, WorkerMemoryLog
from strategies import tokens_of


class Running:
    """A request that runs: its blocks, and the end of what is stored of its prompt and outputs."""

    def __init__(self, request, node, place, blocks):
        self.request, self.node, self.place, self.blocks = request, node, place, blocks
        self.text = (*request.prompt, Segment(f"out{request.request_id}", 1_000))
        self.tokens = request.input_tokens


class BlockPool:
    """``blocks`` of ``size`` tokens. ``policy`` None is vLLM's own cache without clients."""

    def __init__(self, policy, blocks, size, weights, **settings):
        self.weights, self.size = weights, size
        self.evicted = []  # prefixes as tokens, with how many of them went
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
        """Compute a prompt, if there is room. Returns how much of it was cached, None if none."""
        cache, total = self.cache, prompt_tokens(prompt)
        node, place = cache.match(prompt, total - 1)
        cached = path_blocks(node)
        new = -(-total // self.size) - len(cached)
        if new + sum(not block.users for block in cached) > cache.free_blocks:
            return None
        self.made += 1
        request = Request(self.made, client, self.made, 0, prompt, total, 100)
        for block in cached:
            cache.use(block)
        cache.claim(node, request)
        one = Running(request, node, place, [*cached, *cache.take(new, client)])
        self._store(one)
        self.running.append(one)
        return node.depth

    def decode(self):
        """Give every running request a token, if there is room."""
        needed = sum(one.tokens % self.size == 0 for one in self.running)
        if needed > self.cache.free_blocks:
            return
        for one in self.running:
            if one.tokens % self.size == 0:
                one.blocks += self.cache.take(1, one.request.client)
            one.tokens += 1
            self._store(one)

    def _store(self, one):
        full = one.blocks[one.node.depth // self.size : one.tokens // self.size]
        one.node, one.place = self.cache.store(one.node, one.text, one.place, full)

    def finish(self, number):
        """End a running request and keep what it has computed."""
        one = self.running.pop(number)
        self.cache.retain(one.node, one.request)
        self.cache.give_back(reversed(one.blocks))

    def retract(self, number):
        """Take the memory of a running request back."""
        self.cache.give_back(reversed(self.running.pop(number).blocks))

    def pinned(self, client):
        """Tokens in blocks that the client's running requests use."""
        mine = [one for one in self.running if one.request.client == client]
        return self.size * len({block for one in mine for block in one.blocks})


def path_blocks(node):
    """The blocks that a look-up finds, first to last."""
    found = []
    while node.parent is not None:
        found.insert(0, node.blocks[0])
        node = node.parent
    return found


def nodes_of(cache):
    """Every node of the tree but the root."""
    stack = [cache.root]
    while stack:
        node = stack.pop()
        stack += node.children.values()
        if node is not cache.root:
            yield node


def claims_of(cache):
    """Who claims each cached prefix of whole blocks."""
    return {tokens_of(prefix_of(node)): set(node.holders) for node in nodes_of(cache)}


def residency_of(cache, running, *, unpinned=False):
    """Each client's tokens, by a walk; ``running`` are pairs of a client and its blocks."""
    held = defaultdict(Fraction)
    for node in nodes_of(cache):
        blocks = [block for block in node.blocks if not (unpinned and block.users)]
        for client in node.holders:
            held[client] += Fraction(len(blocks) * cache.block_size, len(node.holders))
    if not unpinned:
        for client, blocks in running:
            held[client] += cache.block_size * sum(block.node is None for block in blocks)
    return held


def check_claims(cache, running):
    """Claims reach the root, every open leaf is listed, and residency is what a walk counts."""
    claims = cache.claims
    for node in nodes_of(cache):
        assert node.holders
        assert node.parent is cache.root or node.holders.keys() <= node.parent.holders.keys()
        assert set(node.idle) == {block for block in node.blocks if not block.users}
        below = [client for child in node.children.values() for client in child.holders]
        assert node.claimed_below == {client: below.count(client) for client in below}
        for queue in node.holders if claims.by_client else ("",):
            listed = any(node is entry[-1] for entry in claims.queues[queue])
            assert listed or not claims.is_open_leaf(node, queue)
    for unpinned in (False, True):
        counted = residency_of(cache, running, unpinned=unpinned)
        for client in cache.residency.clients:
            residency = cache.residency
            told = residency.unpinned(client) if unpinned else residency.held(client)
            assert abs(told - float(counted[client])) < 1e-6
