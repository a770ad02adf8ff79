"""vLLM's cached blocks, watched, so that what waiting requests match in them can be kept.

In vLLM a look-up changes nothing: it only follows the hashes of a prompt's blocks until one has no
block. The result changes only when that hash gets a block, or an earlier one loses its last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairbench.core import Request
from fairbench.live.plugins.engine_queue import EngineQueue
from fairbench.live.plugins.kept_matches import KeptMatches, Match, Spot
from fairbench.schedulers.views import RunningView

GROUP_BYTES = 4  # at the end of a key in vLLM's map of blocks; before them is the block's hash


class KeptBlocks(KeptMatches):
    """The matches of vLLM's waiting requests. Spots are named by the hash of their last block."""

    def __init__(self, manager: Any) -> None:
        super().__init__()
        self.theirs_of: Callable[[Request], Any]  # a waiting request of vLLM's, set by its queue
        self._manager = manager
        self._block_size: int = manager.coordinator.block_size
        self._hashes: dict[Spot, list[bytes]] = {}  # of all blocks up to a spot
        self._through: dict[bytes, dict[Spot, None]] = {}  # spots at and behind each of them
        self._watch()

    def _watch(self) -> None:
        """Listen to vLLM's map of blocks, and to the reset that replaces it."""
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
        theirs, size = self.theirs_of(request), self._block_size
        depth: int = self._manager.get_computed_blocks(theirs)[1]
        hashes, blocks = theirs.block_hashes, depth // size
        at = hashes[blocks - 1] if blocks else None
        # The last token of a prompt is always computed, so its block is never awaited.
        more = (blocks + 1) * size < theirs.num_tokens and blocks < len(hashes)
        return Match(depth, at, hashes[blocks] if more else None)

    def opened(self, spot: Spot, request: Request) -> None:
        hashes = self.theirs_of(request).block_hashes
        self._hashes[spot] = list(hashes[: spot.depth // self._block_size])
        for part in self._hashes[spot]:
            self._through.setdefault(part, {})[spot] = None

    def closed(self, spot: Spot) -> None:
        for part in self._hashes.pop(spot):
            spots = self._through[part]
            del spots[spot]
            if not spots:
                del self._through[part]


def is_plain(manager: Any) -> bool:
    """Return whether vLLM's blocks are of one kind, and all of them are attended to."""
    coordinator = getattr(manager, "coordinator", None)
    managers = getattr(coordinator, "single_type_managers", ())
    return (
        type(coordinator).__name__ == "UnitaryKVCacheCoordinator"
        and [type(one).__name__ for one in managers] == ["FullAttentionManager"]
        and getattr(coordinator, "dcp_world_size", 1) == 1
        and getattr(coordinator, "pcp_world_size", 1) == 1
    )


def kept_blocks(manager: Any) -> KeptBlocks | None:
    """Return the kept matches for vLLM's KV cache manager; None if its look-ups are others.

    Plain blocks are looked up from the first to the last.
    """
    blocks = getattr(manager.block_pool, "cached_block_hash_to_block", None)
    watchable = all(hasattr(blocks, name) for name in ("insert", "pop", "get_one_block"))
    return KeptBlocks(manager) if is_plain(manager) and watchable else None


class BlockQueue(EngineQueue):
    """A LiveQueue that has vLLM look up only requests whose match may have changed.

    ``theirs_of(request)`` returns vLLM's request.
    """

    def __init__(
        self,
        blocks: KeptBlocks,
        running: RunningView,
        matched: Callable[[Request], int],
        theirs_of: Callable[[Request], Any],
    ) -> None:
        super().__init__(blocks, running, matched)
        self._theirs_of = theirs_of
        blocks.theirs_of = theirs_of

    def take_in(self, request: Request, *, first: bool = False) -> None:
        """Append a request, or put it ``first``."""
        self.wait(request, self._theirs_of(request).all_token_ids, first=first)

    def leave(self, request: Request) -> None:
        """Take out what vLLM has popped or aborted."""
        self.admit(request)
