"""The numbered invariants of one vLLM worker, which hold between any two events."""

from collections import Counter

from block_pool import check_claims

from worker_invariants import check_batch


def watch_vllm(clock, workers) -> None:
    """Check the workers after every event of the clock, and that it never runs backwards."""
    step = clock.step

    def checked() -> None:
        before_ps = clock.now_ps
        step()
        assert clock.now_ps >= before_ps
        for worker in workers:
            check_vllm_worker(worker)

    clock.step = checked


def check_vllm_worker(worker) -> None:
    """INV-14 to 18, and 13, between any two events."""
    check_batch(worker.batch)
    check_blocks(worker)
    check_tables(worker)
    check_block_tree(worker.cache)
    check_running(worker)
    check_waiting(worker)
    if worker.cache.knows_clients:
        tables, sequences = worker.running.tables, worker.running.sequences
        check_claims(worker.cache, [(s.request.client, tables.blocks(s)) for s in sequences])


def check_blocks(worker) -> None:
    """INV-14: every block is blank, cached and unused, or used by as many tables as it says."""
    cache, running = worker.cache, worker.running
    tables = [running.tables.blocks(sequence) for sequence in running.sequences]
    users = Counter(block for table in tables for block in table)
    assert cache.blank >= 0
    assert cache.blank + len(cache.unused) + len(users) == cache.blocks
    assert all(block.users == count for block, count in users.items())
    assert all(block.users == 0 and block.node is not None for block in cache.unused)
    assert len(running.tables) == len(running.sequences)
    assert cache.shared == sum(count - 1 for count in users.values())
    decoding = Counter(
        block for sequence in worker.batch.sequences for block in running.tables.blocks(sequence)
    )
    apart = [sequence for sequence in running.sequences if sequence not in worker.batch.sequences]
    in_common = sum(count - 1 for count in decoding.values()) * cache.block_size
    assert running.tables.shared_tokens(apart) == in_common


def check_tables(worker) -> None:
    """INV-15: a running sequence holds blocks for what it has computed and computes now, no more
    than one step's worth; its full blocks can be found, the others cannot."""
    cache, size = worker.cache, worker.cache.block_size
    for sequence in worker.running.sequences:
        blocks = worker.running.tables.blocks(sequence)
        if sequence in worker.batch.sequences or sequence in worker._stalled:
            stalled = sequence in worker._stalled
            produced = sequence.produced if stalled else worker.batch.produced(sequence)
            held = sequence.request.input_tokens + produced
            assert len(blocks) in (-(-held // size), -(-(held - 1) // size))
        else:
            assert -(-sequence.filled // size) <= len(blocks) <= -(-sequence.total // size)
        stored = [block.node is not None for block in blocks]
        assert stored == sorted(stored, reverse=True)
        if not cache.prefix_caching:
            assert not any(stored)


def check_block_tree(cache) -> None:
    """INV-16: a cached prefix has every shorter one cached; the blocks of a node name it."""
    stack = [cache.root]
    while stack:
        node = stack.pop()
        for key, child in node.children.items():
            assert child.key == key
            assert child.parent is node
            assert child.depth == node.depth + cache.block_size
            assert sum(length for _, _, length in key) == cache.block_size
            assert child.blocks
            assert all(block.node is child for block in child.blocks)
            stack.append(child)


def check_running(worker) -> None:
    """INV-17: no more run than may; only the last of them may be prefilling, and what is cached of
    a prompt leaves at least one of its tokens to compute."""
    running = worker.running
    assert len(running) <= worker.limits.max_num_seqs
    stalled = set(worker._stalled)
    decoding = [s in worker.batch.sequences or s in stalled for s in running.sequences]
    assert decoding == sorted(decoding, reverse=True) or worker.scheduler.orders_retraction
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
