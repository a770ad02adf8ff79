"""A KV pool without an engine. Requests of several clients start, grow and finish."""

from fairbench.core import Request, Segment, prompt_tokens
from fairbench.engine.client_cache import ClientCache
from fairbench.engine.clock import Clock
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.logs import MemoryLog, WorkerMemoryLog
from fairbench.schedulers.base import Setup
from fairbench.schedulers.eviction.registry import build_eviction
from tests.strategies import tokens_of


class Running:
    """A running request: the end of its locked path, and its private tokens."""

    def __init__(self, request, node, place):
        self.request, self.node, self.place = request, node, place
        self.private = 0

    @property
    def held(self):
        return tokens_of(self.request.prompt)


class Pool:
    """A KV pool. Without a ``policy``, it is the engine's own cache, which knows no clients."""

    def __init__(self, policy, capacity, weights, **settings):
        self.weights = weights
        self.evicted = []  # prefixes as tokens, and the number of evicted tokens
        self.log = MemoryLog(list(weights))

        def note(prefix, tokens):
            self.evicted.append((tokens_of(prefix), tokens))

        if policy is None:
            self.cache = KVCache(capacity, note)
        else:
            chosen = build_eviction(policy, settings)
            chosen.prepare(Setup(tuple(weights), weights, capacity))
            self.cache = ClientCache(capacity, note, chosen, WorkerMemoryLog(self.log, Clock(), 0))
        self.running = []
        self.made = 0

    def share(self, client):
        return self.cache.capacity * self.weights[client] / sum(self.weights.values())

    def need(self, client, prompt):
        return prompt_tokens(prompt) - self.cache.common_tokens(prompt, prompt_tokens(prompt))

    def start(self, client, prompt):
        """Compute a prompt if there is room. Return how much of it was cached, otherwise None."""
        cache, total = self.cache, prompt_tokens(prompt)
        node, place = cache.match(prompt, total)
        cache.touch(node)
        cache.lock(node)
        cached = node.depth
        if total - cached > cache.free + cache.evictable:
            cache.unlock(node)
            return None
        self.made += 1
        request = Request(self.made, client, self.made, 0, prompt, total, 100)
        cache.claim(node, request)
        cache.allocate_for(client, total - cached)
        end, again = cache.insert(node, prompt, place, total, lock=True)
        cache.release_of(client, again)
        cache.claim(end, request)
        self.running.append(Running(request, end, (len(prompt), 0)))
        return cached

    def decode(self):
        """Give every running request a token, if there is room."""
        counts = {}
        for one in self.running:
            counts[one.request.client] = counts.get(one.request.client, 0) + 1
        size = len(self.running)
        if not size or size > self.cache.free + self.cache.evictable:
            return
        if size > self.cache.free:
            self.cache.evict(size - self.cache.free, counts)
        self.cache.grow(1, counts, size)
        for one in self.running:
            one.private += 1

    def finish(self, number):
        """End a running request, and keep its outputs."""
        one = self.running.pop(number)
        request, cache, end = one.request, self.cache, one.node
        if one.private:
            prompt = (*request.prompt, Segment(f"out{request.request_id}", one.private))
            depth = request.input_tokens + one.private
            end, again = cache.insert(one.node, prompt, one.place, depth)
            cache.release_of(request.client, again)
        cache.retain(end, request)
        cache.unlock(one.node)

    def retract(self, number):
        """Take back the memory of a running request."""
        one = self.running.pop(number)
        self.cache.release_of(one.request.client, one.private)
        self.cache.unlock(one.node)

    def pinned(self, client):
        """Return the tokens that the client's running requests use, walking over their prompts."""
        mine = {
            tokens_of(one.request.prompt)[:length]
            for one in self.running
            if one.request.client == client
            for length in range(1, one.request.input_tokens + 1)
        }
        private = sum(one.private for one in self.running if one.request.client == client)
        return len(mine) + private
