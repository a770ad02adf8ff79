"""Views of vLLM's waiting queue and running batch for schedulers.

If vLLM's block pool reports changes, a waiting request's cached prefix is looked up again only
after a change. A cached prefix grows only if the next hash of the prompt gets a block, and shrinks
only if a hash inside the prefix loses its last block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from itertools import compress, repeat
from operator import attrgetter
from typing import Any

from fairbench.core import Request
from fairbench.errors import UsageError
from fairbench.schedulers.prefix_tree import IN_BATCH_TOKENS
from fairbench.schedulers.views import (
    NEEDS_CACHE_AWARE,
    ClientLoad,
    ListScan,
    ListView,
    QueueView,
    Running,
    RunningView,
    client_load,
)
from fairbench_engines.kept_matches import EngineQueue, KeptMatches, Match, Spot
from fairbench_engines.scheduler_host import REQUEST, RUNNING, Theirs, Tracked

REQUEST_ID, COMPUTED_TOKENS, ALL_TOKENS, PROMPT_TOKENS, OUTPUT_TOKENS = map(
    attrgetter,
    ("request_id", "num_computed_tokens", "num_tokens", "num_prompt_tokens", "num_output_tokens"),
)

# number of bytes that follow a block's hash in a key of vLLM's map of blocks
GROUP_BYTES = 4


class VLLMLiveBatch:
    """A RunningView of the running requests of a vLLM scheduler.

    vLLM reserves no memory for the outputs of running requests.
    """

    def __init__(self, scheduler: Any, tracked: Mapping[Hashable, Tracked]) -> None:
        self._scheduler = scheduler
        self._tracked = tracked

    @property
    def free_tokens(self) -> int:
        blocks: int = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return blocks * int(self._scheduler.block_size)

    def __len__(self) -> int:
        return len(self._scheduler.running)

    def __iter__(self) -> Iterator[Running]:
        # ``map`` and ``compress`` are faster than a loop over the hundreds of requests in a step.
        running = self._scheduler.running
        known = list(map(self._tracked.get, map(REQUEST_ID, running)))
        theirs = list(compress(running, known))
        held = map(min, map(COMPUTED_TOKENS, theirs), map(ALL_TOKENS, theirs))
        requests = map(REQUEST, filter(None, known))
        produced = map(OUTPUT_TOKENS, theirs)
        return map(RUNNING, zip(requests, produced, held, repeat(0)))

    def load(self, client: str) -> ClientLoad:
        return client_load(self, client)

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        return False


class LiveQueue(QueueView):
    """A WaitingView in which preempted requests go to the head of the queue.

    ``matched(request)`` returns a request's number of cached tokens. The view calls ``matched``
    only if the scheduler is ``cache_aware``. ``ours`` maps requests to the plugin's records.
    """

    def __init__(
        self,
        running: RunningView,
        matched: Callable[[Request], int],
        ours: Mapping[Request, Tracked],
        *,
        cache_aware: bool,
    ) -> None:
        super().__init__(running)
        self._by_match = (
            ListView([], matched, lambda one: ours[one].prompt) if cache_aware else None
        )

    def match_order(self, *, refresh: bool = True) -> ListScan:
        if self._by_match is None:
            raise UsageError(NEEDS_CACHE_AWARE)
        return self._by_match.match_order(refresh=refresh)

    def matched_tokens(self, request: Request) -> int:
        if self._by_match is None:
            raise UsageError(NEEDS_CACHE_AWARE)
        return self._by_match.matched_tokens(request)

    def take_in(self, request: Request, *, first: bool = False) -> None:
        """Append a request or, with ``first``, put it at the head of the queue."""
        (self.enter_first if first else self.enter)(request)

    def enter(self, request: Request) -> None:
        super().enter(request)
        if self._by_match is not None:
            self._by_match.enter(request)

    def enter_first(self, request: Request) -> None:
        super().enter_first(request)
        if self._by_match is not None:
            self._by_match.enter_first(request)

    def leave(self, request: Request) -> None:
        super().leave(request)
        if self._by_match is not None:
            self._by_match.leave(request)

    def grown(self, request: Request) -> None:
        """Do nothing, because this view looks up all matches in each pass."""

    def end_pass(self) -> None:
        """Do nothing, because admitted requests have already left the view."""


class KeptBlocks(KeptMatches):
    """Stored prefix look-ups of waiting requests; the last block's hash identifies the prefix."""

    def __init__(self, manager: Any) -> None:
        super().__init__()
        # the waiting requests; ``BlockQueue`` sets this attribute
        self.ours: Mapping[Request, Tracked]
        self._manager = manager
        self._block_size: int = manager.coordinator.block_size
        # hashes of the blocks of each cached prefix, by the position at which the prefix ends
        self._hashes: dict[Spot, list[bytes]] = {}
        # for each block hash, the end positions of all cached prefixes that contain the block
        self._through: dict[bytes, dict[Spot, None]] = {}
        self._watch()

    def _watch(self) -> None:
        """Observe changes of vLLM's map of blocks, and resets that replace the map."""
        pool = self._manager.block_pool
        blocks = pool.cached_block_hash_to_block
        insert, pop = blocks.insert, blocks.pop
        reset = pool.reset_prefix_cache

        def inserted(key: bytes, block: Any) -> None:
            insert(key, block)
            if (part := key[:-GROUP_BYTES]) in self._awaiting:
                self.stored(part)

        def popped(key: bytes, block_id: int) -> Any:
            block = pop(key, block_id)
            if (part := key[:-GROUP_BYTES]) in self._through and blocks.get_one_block(key) is None:
                for spot in self._through[part]:
                    self.lost(spot.at)
            return block

        def emptied(*args: Any, **named: Any) -> Any:
            done = reset(*args, **named)
            if pool.cached_block_hash_to_block is not blocks:
                pool.reset_prefix_cache = reset
                self.lost_all()
                self._watch()
            return done

        blocks.insert, blocks.pop, pool.reset_prefix_cache = inserted, popped, emptied

    def look_up(self, request: Request) -> Match:
        theirs, size = self.ours[request].theirs, self._block_size
        depth: int = self._manager.get_computed_blocks(theirs)[1]
        hashes, blocks = theirs.block_hashes, depth // size
        at = hashes[blocks - 1] if blocks else None
        # vLLM always computes a prompt's last token, so a block with this token is never a cache
        # hit.
        more = (blocks + 1) * size < theirs.num_tokens and blocks < len(hashes)
        return Match(depth, at, hashes[blocks] if more else None)

    def opened(self, spot: Spot, request: Request) -> None:
        hashes = self.ours[request].theirs.block_hashes
        self._hashes[spot] = list(hashes[: spot.depth // self._block_size])
        for part in self._hashes[spot]:
            self._through.setdefault(part, {})[spot] = None

    def closed(self, spot: Spot) -> None:
        for part in self._hashes.pop(spot):
            spots = self._through[part]
            del spots[spot]
            if not spots:
                del self._through[part]


def apart_of(theirs: Theirs) -> Hashable:
    """Return a key of a request; vLLM shares prefixes only among requests with equal keys.

    The key is None for a request with tokens only. The key contains the LoRA adapter, cache salt,
    images and prompt embeddings. Images and embeddings have placeholder tokens, which do not differ
    between requests.
    """
    adapter = theirs.lora_request and theirs.lora_request.lora_name
    embedded = None if theirs.prompt_embeds is None else theirs.request_id
    images = [
        one.identifier for one in theirs.mm_features if one.mm_position.offset < IN_BATCH_TOKENS
    ]
    parts = (adapter, theirs.cache_salt, embedded, *images)
    return parts if any(parts) else None


def is_plain(manager: Any) -> bool:
    """Return whether all of vLLM's blocks are of the same kind, with full attention."""
    coordinator = getattr(manager, "coordinator", None)
    managers = getattr(coordinator, "single_type_managers", ())
    return (
        type(coordinator).__name__ == "UnitaryKVCacheCoordinator"
        and [type(one).__name__ for one in managers] == ["FullAttentionManager"]
        and getattr(coordinator, "dcp_world_size", 1) == 1
        and getattr(coordinator, "pcp_world_size", 1) == 1
    )


def kept_blocks(manager: Any) -> KeptBlocks | None:
    """Return stored prefix look-ups for vLLM's KV cache, or None if look-ups cannot be stored.

    Prefix look-ups can be stored only if vLLM looks up the blocks of a prompt from first to last.
    With a draft model such as EAGLE, vLLM drops the last block of each cached prefix.
    """
    blocks = getattr(manager.block_pool, "cached_block_hash_to_block", None)
    watchable = all(hasattr(blocks, name) for name in ("insert", "pop", "get_one_block"))
    drops = bool(getattr(manager.coordinator, "eagle_group_ids", ()))
    return KeptBlocks(manager) if is_plain(manager) and watchable and not drops else None


class BlockQueue(EngineQueue):
    """A view of the queue that makes vLLM look up only requests whose match may have changed."""

    def __init__(
        self,
        blocks: KeptBlocks,
        running: RunningView,
        matched: Callable[[Request], int],
        ours: Mapping[Request, Tracked],
    ) -> None:
        super().__init__(blocks, running, matched)
        self._ours = blocks.ours = ours

    def take_in(self, request: Request, *, first: bool = False) -> None:
        """Append a request to the queue or, with ``first``, put it at the head."""
        theirs = self._ours[request].theirs
        self.wait(request, theirs.all_token_ids, apart=apart_of(theirs), first=first)

    def grown(self, request: Request) -> None:
        """Look up a preempted request's cached prefix again after its last output has arrived."""
        theirs = self._ours[request].theirs
        self.look_again(request, theirs.all_token_ids, apart=apart_of(theirs))
