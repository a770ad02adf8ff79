"""Numbered invariants of one vLLM worker between any two events."""

from collections import Counter

from fairbench.engine.vllm_blocks import advance, next_block
from tests.sim.block_pool import check_claims
from tests.worker_invariants import check_batch


def watch_vllm(clock, workers) -> None:
    """Check the workers after every event of the clock, and that the clock never runs backwards."""
    step = clock.step

    def checked() -> None:
        before_ps = clock.now_ps
        step()
        assert clock.now_ps >= before_ps
        for worker in workers:
            check_vllm_worker(worker)

    clock.step = checked


def check_vllm_worker(worker) -> None:
    """Check INV-13 to 18 between any two events."""
    check_batch(worker.batch, vain=worker.limits.async_scheduling)
    check_blocks(worker)
    check_tables(worker)
    check_block_tree(worker.cache)
    check_running(worker)
    check_waiting(worker)
    if worker.cache.knows_clients:
        running = worker.running
        blank = [(one.request.client, unstored_of(running, one)) for one in running.sequences]
        check_claims(worker.cache, blank)


def check_blocks(worker) -> None:
    """INV-14: every block is blank, cached and unused, or used by as many tables as it says."""
    cache, running = worker.cache, worker.running
    users = users_of_copies(running, running.sequences)
    unstored = sum(unstored_of(running, sequence) for sequence in running.sequences)
    assert cache.blank >= 0
    unused = list(cache.unused())
    assert cache.unused_blocks == sum(copy.node.blocks for copy in unused)
    used = sum(copy.node.blocks for copy in users)
    assert cache.blank + cache.unused_blocks + used + unstored == cache.blocks
    assert all(len(copy.users) == count for copy, count in users.items())
    assert not any(copy.users for copy in unused)
    assert len(running.tables) == len(running.sequences)
    assert cache.shared == in_common(users)
    apart = [sequence for sequence in running.sequences if sequence not in worker.batch.sequences]
    decoding = users_of_copies(running, worker.batch.sequences)
    assert running.tables.shared_tokens(apart) == in_common(decoding) * cache.block_size


def users_of_copies(running, sequences) -> Counter:
    return Counter(copy for sequence in sequences for copy in running.tables.copies(sequence))


def unstored_of(running, sequence) -> int:
    """Return the blocks of a sequence that cannot be found."""
    stored = sum(copy.node.blocks for copy in running.tables.copies(sequence))
    return running.tables.blocks(sequence) - stored


def in_common(users) -> int:
    """Return the users of blocks without the first of each."""
    return sum((count - 1) * copy.node.blocks for copy, count in users.items())


def check_tables(worker) -> None:
    """INV-15: a running sequence holds blocks for its computed and current tokens.

    It holds at most one step's blocks more. Only its full blocks can be found in the cache.
    """
    cache, size = worker.cache, worker.cache.block_size
    for sequence in worker.running.sequences:
        blocks = worker.running.tables.blocks(sequence)
        if worker.running.decodes(sequence) or sequence in worker._stalled:
            stalled = sequence not in worker.batch.sequences
            produced = sequence.produced if stalled else worker.batch.produced(sequence)
            held = sequence.request.input_tokens + produced
            assert blocks in (-(-held // size), -(-(held - 1) // size))
        else:
            assert -(-sequence.filled // size) <= blocks <= -(-sequence.total // size)
        unstored = unstored_of(worker.running, sequence)
        assert 0 <= unstored <= blocks
        if not cache.prefix_caching:
            assert unstored == blocks


def check_block_tree(cache) -> None:
    """INV-16: if a prefix is cached, so is every shorter one.

    Memory holds each node at least once. The unused copies are listed in the order of eviction.
    """
    stack, unused = [cache.root], set()
    while stack:
        node = stack.pop()
        for key, child in node.children.items():
            assert child.key == key == next_block(child.prompt, child.start, cache.block_size)
            assert child.parent is node
            assert child.blocks > 0
            assert child.depth == node.depth + child.blocks * cache.block_size
            assert advance(child.prompt, (0, 0), node.depth) == advance(
                child.prompt, child.start, 0
            )
            assert child.copies
            assert all(copy.node is child for copy in child.copies)
            unused.update(copy for copy in child.copies if not copy.users)
            stack.append(child)
    assert set(cache.unused()) == unused


def check_running(worker) -> None:
    """INV-17: the number of running sequences is limited, and only the last may be prefilling.

    At least one token of its prompt is computed, not cached. Under a threshold for long prompts,
    any sequence may be prefilling, and beside others none has more tokens of a step than the
    threshold.
    """
    running, threshold = worker.running, worker.limits.long_prefill_token_threshold
    assert len(running) <= worker.limits.max_num_seqs
    stalled = set(worker._stalled)
    decoding = [running.decodes(s) or s in stalled for s in running.sequences]
    if threshold:
        assert len(running) <= 1 or all(chunk.tokens <= threshold for chunk in worker._chunks)
    else:
        assert decoding == sorted(decoding, reverse=True) or worker.scheduler.retraction_order
    for sequence in running.sequences:
        assert sequence.cached_tokens < sequence.request.input_tokens
        assert sequence.cached_tokens % worker.cache.block_size == 0


def check_waiting(worker) -> None:
    """INV-18: a waiting request is attached where its longest cached prefix ends."""
    cache = worker.cache
    stack = [cache.root]
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        for waiter in node.waiters or ():
            assert waiter.node is node
            if waiter.dirty:
                continue
            assert cache.match(waiter.prompt, waiter.total - 1)[0] is node
