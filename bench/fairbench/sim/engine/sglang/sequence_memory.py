"""Memory of a running sequence: a locked path in the tree, and private tokens."""

from __future__ import annotations

from fairbench.schedulers.prefix_tree import place_at
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.sequence import Sequence


def store_prompt(cache: KVCache, sequence: Sequence, tokens: int) -> None:
    """Store and lock ``tokens`` more computed prompt tokens in the tree.

    Tokens that another sequence has stored in the meantime are freed.
    """
    node, request = sequence.node, sequence.request
    assert node is not None
    sequence.filled += tokens
    end, cached = cache.insert(node, sequence.prompt, sequence.place, sequence.filled, lock=True)
    if cached:
        cache.release_of(request.client, cached)
    if cache.knows_clients:
        cache.claim(end, request)
    sequence.node, sequence.private = end, 0
    complete = sequence.filled == sequence.total
    sequence.place = (
        (len(sequence.prompt), 0) if complete else place_at(sequence.prompt, sequence.filled)
    )
    if sequence.filled > request.input_tokens:  # after a retraction outputs are prefilled too
        cache.match(request.prompt, request.input_tokens)  # and their node starts here


def store_outputs(cache: KVCache, sequence: Sequence) -> None:
    """Store a finished sequence's outputs except the last one, and unlock its path."""
    node, request = sequence.node, sequence.request
    assert node is not None
    kept = sequence.produced - 1
    end = node
    if request.input_tokens + kept > node.depth:
        prompt = (*request.prompt, sequence.output)
        place = len(request.prompt), node.depth - request.input_tokens
        end, cached = cache.insert(node, prompt, place, request.input_tokens + kept)
        if cached:
            cache.release_of(request.client, cached)
    if cache.knows_clients:
        cache.retain(end, request)
    cache.unlock(node)
    sequence.node = None


def give_back(cache: KVCache, sequence: Sequence, private: int) -> None:
    """Free a retracted sequence's private tokens and unlock its path."""
    assert sequence.node is not None
    cache.release_of(sequence.request.client, private)
    cache.unlock(sequence.node)
