"""The numbered invariants of one worker, which hold between any two events. See invariants."""

from collections import Counter


def watch(clock, workers) -> None:
    """Check the workers after every event of the clock, and that it never runs backwards."""
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
    """INV-3 to 5 and 12, between any two events."""
    holders, nodes = holders_of(worker), nodes_of(worker.cache)
    check_kv_conservation(worker, holders)
    check_locks(worker, holders, nodes)
    check_tree(worker.cache, nodes)
    check_evictable_leaves_are_listed(worker.cache, nodes)


def nodes_of(cache) -> list:
    """Every node but the root, parents first; walked once an event, since most time goes there."""
    found = [*cache.root.children.values()]
    for node in found:
        if node.children:
            found += node.children.values()
    return found


def check_batch(batch) -> None:
    """INV-13: the batch's sums are those of a walk over it, and nobody runs beyond its end."""
    produced = [batch.produced(sequence) for sequence in batch.sequences]
    inputs = [sequence.request.input_tokens for sequence in batch.sequences]
    assert batch.context_tokens == sum(produced) + sum(inputs)
    for sequence, tokens in zip(batch.sequences, produced, strict=True):
        assert 1 <= tokens <= sequence.output.length


def holders_of(worker) -> list:
    """Sequences that hold memory: running, prefilling, or between two chunks."""
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


def check_locks(worker, holders, nodes) -> None:
    """INV-4: a node is locked once by each sequence that holds it or something below it."""
    expected = Counter()
    for sequence in holders:
        at = sequence.node
        while at is not worker.cache.root:
            expected[at] += 1
            at = at.parent
    assert {node: node.locks for node in nodes if node.locks} == expected


def check_tree(cache, nodes=None) -> None:
    """INV-5: depths, keys, sums and counts of waiting requests agree with the nodes."""
    nodes = nodes_of(cache) if nodes is None else nodes
    evictable = locked = 0
    waiting = Counter()
    for node in [cache.root, *nodes]:
        if node.waiters:
            count = sum(len(group) for group in node.waiters.values())
            at = node
            while at is not None:
                waiting[at] += count
                at = at.parent
    assert {node: node.waiting_below for node in nodes if node.waiting_below} == (
        {node: count for node, count in waiting.items() if node is not cache.root}
    )
    for node in nodes:
        length, parent = node.length, node.parent
        assert length > 0
        assert length == sum([part for _, _, part in node.edge])
        assert node.depth == parent.depth + length
        assert parent.children[node.key] is node
        if node.locks:
            locked += length
        else:
            evictable += length
            assert not node.children or not any(child.locks for child in node.children.values())
    assert (evictable, locked) == (cache.evictable, cache.locked)


def check_evictable_leaves_are_listed(cache, nodes=None) -> None:
    """INV-12: eviction knows every unlocked leaf, and lists a node once at most."""
    listed = {node for *_, node in cache._leaves}
    assert len(listed) == len(cache._leaves)
    for node in nodes_of(cache) if nodes is None else nodes:
        assert node.listed == (node in listed)
        assert node.listed or node.locks or node.children


def check_rest(worker) -> None:
    """INV-3, 4 and 10 at the end: with nothing running nothing is locked or private, and a worker
    that has waiting requests is not asleep."""
    if not holders_of(worker):
        assert worker.cache.locked == 0
        assert worker.cache.free + worker.cache.evictable == worker.cache.capacity
    if len(worker.waiting):
        assert not worker._idle
