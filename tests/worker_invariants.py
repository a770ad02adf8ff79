"""Numbered invariants of a worker between any two events (see invariants)."""

from collections import Counter

from fairbench.core import prompt_tokens
from fairbench.engine.client_cache import ClientCache


def watch(clock, workers) -> None:
    """Check the workers after every event of the clock, and that the clock never runs backwards."""
    step = clock.step

    def checked() -> None:
        before_ps = clock.now_ps
        step()
        assert clock.now_ps >= before_ps
        for worker in workers:
            check_worker(worker)
            check_batch(worker.batch)

    clock.step = checked


def check_worker(worker) -> None:
    """Check INV-3 to 5 and 12 between any two events."""
    holders = holders_of(worker)
    check_kv_conservation(worker, holders)
    check_locks(worker, holders)
    check_tree(worker.cache)
    check_evictable_leaves_are_listed(worker.cache)


def check_batch(batch, vain=0) -> None:
    """INV-13: the batch's sums equal a walk over it, and no request runs beyond its end.

    Asynchronous scheduling computes at most ``vain`` tokens beyond the end.
    """
    produced = [batch.produced(sequence) for sequence in batch.sequences]
    inputs = [sequence.request.input_tokens for sequence in batch.sequences]
    assert batch.context_tokens == sum(produced) + sum(inputs)
    for sequence, tokens in zip(batch.sequences, produced, strict=True):
        assert 1 <= tokens <= sequence.output.length + vain


def holders_of(worker) -> list:
    """Return the sequences that hold memory: running, prefilling, or between two chunks."""
    prefilling = [prefill.sequence for prefill in worker._prefills]
    chunked = [] if worker._chunked is None else [worker._chunked]
    return list(dict.fromkeys([*worker.batch.sequences, *prefilling, *chunked]))


def check_kv_conservation(worker, holders) -> None:
    """INV-3: capacity = free + evictable + locked + private, none of them negative."""
    cache, batch = worker.cache, worker.batch
    decoded = sum(batch.private(s) for s in batch.sequences)
    private = decoded + sum(s.private for s in holders)
    parts = cache.free, cache.evictable, cache.locked, private
    assert min(parts) >= 0
    assert sum(parts) == cache.capacity


def check_locks(worker, holders) -> None:
    """INV-4: a node is locked once by each sequence that holds it, and by each locked child."""
    held = Counter(id(sequence.node) for sequence in holders)
    for node in worker.cache.nodes():
        below = sum(child.locks > 0 for child in node.children.values())
        assert node.locks == held[id(node)] + below


def check_tree(cache) -> None:
    """INV-5: depths, keys and sums agree with the nodes."""
    evictable = locked = 0
    for node in cache.nodes():
        assert 0 <= node.start < node.edge[0].length
        assert node.length == prompt_tokens(node.edge) - node.start
        assert node.depth == node.parent.depth + node.length
        assert node.parent.children[node.key] is node
        if node.locks:
            locked += node.length
        else:
            evictable += node.length
            assert not any(child.locks for child in node.children.values())
    assert (evictable, locked) == (cache.evictable, cache.locked)


def check_open_leaves_are_queued(cache) -> None:
    """INV-12 for a cache with an eviction policy: every queue knows its open leaves."""
    by_client, queues = cache.claims.by_client, cache.claims.queues
    for node in cache.nodes():
        assert node.holders
        for queue in node.holders if by_client else ("",):
            below = queue in node.claimed_below if by_client else node.children
            listed = any(node is entry[-1] for entry in queues[queue])
            assert listed or node.locks or below


def check_evictable_leaves_are_listed(cache) -> None:
    """INV-12: eviction lists every unlocked leaf, and each node at most once."""
    if isinstance(cache, ClientCache):
        check_open_leaves_are_queued(cache)
        return
    listed = Counter(id(node) for *_, node in cache._leaves)
    assert not listed or max(listed.values()) == 1
    for node in cache.nodes():
        assert node.listed == (id(node) in listed)
        assert node.listed or node.locks or node.children


def check_rest(worker) -> None:
    """INV-3, 4 and 10 at the end: if no request runs, no memory is locked or private.

    A worker with waiting requests is not asleep.
    """
    if not holders_of(worker):
        assert worker.cache.locked == 0
        assert worker.cache.free + worker.cache.evictable == worker.cache.capacity
    if len(worker.waiting):
        assert not worker._idle
