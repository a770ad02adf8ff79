"""Cache eviction by fairbench's policies inside vLLM.

vLLM takes new blocks from the head of its queue of free blocks. A copy (mirror) of the block pool
records each block that is taken, stored, reused or returned. Before vLLM takes blocks, the eviction
policy moves the blocks that should be overwritten to the head of vLLM's queue of free blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fairbench.core import Request
from fairbench.errors import UsageError
from fairbench.schedulers.base import Setup
from fairbench.schedulers.memory_share import PromptTokens
from fairbench_engines.mirrored_cache import UNKNOWN, claiming, held_by_client
from fairbench_engines.vllm.mirrored_blocks import HashNode, MirroredBlocks
from fairbench_engines.vllm.views import is_plain
from fairbench_load.plugin_config import PluginConfig, check_function

POOL, QUEUE = "vllm.v1.core.block_pool.BlockPool", "vllm.v1.core.kv_cache_utils"
# functions of vLLM that the plugin wraps or calls, with their first parameters after ``self``
TARGETS = {
    "vllm.v1.core.kv_cache_manager.KVCacheManager.allocate_slots": ("request",),
    f"{POOL}.get_new_blocks": ("num_blocks",),
    f"{POOL}.touch": ("blocks",),
    f"{POOL}.free_blocks": ("ordered_blocks",),
    f"{POOL}.cache_full_blocks": ("request", "blocks", "num_cached_blocks", "num_full_blocks"),
    f"{POOL}.reset_prefix_cache": (),
    f"{POOL}.evict_blocks": ("block_ids",),
    f"{QUEUE}.FreeKVCacheBlockQueue.remove": ("block",),
    f"{QUEUE}.FreeKVCacheBlockQueue.prepend_n": ("blocks",),
}

Theirs = Any  # type of vLLM's own blocks and requests


@dataclass(slots=True)
class VLLMHolding:
    """A running request, and the node of its last full block."""

    request: Request
    node: HashNode


class BlockEviction:
    """The eviction policy of a vLLM scheduler, which controls vLLM's KV cache manager.

    ``request_of`` maps the name of a vLLM request to fairbench's request, or to None.
    """

    def __init__(
        self,
        config: PluginConfig,
        manager: Any,
        request_of: Callable[[str], Request | None],
        now_s: Callable[[], float],
    ) -> None:
        """Wrap the methods of vLLM's block pool; raise UsageError for unsupported cache kinds."""
        check_manager(manager)
        self._config = config
        self._request_of = request_of
        self._now_s = now_s
        self._size: int = manager.coordinator.block_size
        self._pool = pool = manager.block_pool
        self._get, self._free, self._touch = pool.get_new_blocks, pool.free_blocks, pool.touch
        self._cache_full, self._reset = pool.cache_full_blocks, pool.reset_prefix_cache
        self._allocate = manager.allocate_slots
        pool.get_new_blocks, pool.free_blocks, pool.touch = self.get, self.free, self.touch
        pool.cache_full_blocks, pool.reset_prefix_cache = self.cache_full, self.reset
        manager.allocate_slots = self.allocate
        self._start()

    def _start(self) -> None:
        # vLLM reserves a block that no request uses.
        config, blocks = self._config, self._pool.num_gpu_blocks - 1
        policy, size = config.build_eviction(), self._size
        policy.prepare(Setup(config.clients, config.weights, blocks * size))
        self.mirror = MirroredBlocks(blocks, size, policy, self._now_s, self._overwrite)
        # the stored blocks of each vLLM request, by the request's name
        self._held: dict[str, VLLMHolding] = {}
        self._taking = self._unknown = VLLMHolding(UNKNOWN, self.mirror.root)

    def residency(self) -> Mapping[str, float]:
        return held_by_client(self.mirror.residency)

    splits = 0  # a mirrored block is never split

    def free_tokens(self) -> int:
        """Return how many tokens fit into the empty blocks; cached tokens do not count as free."""
        return self.mirror.free

    def demand(self, theirs: Theirs) -> PromptTokens:
        """Return the memory that a waiting request of vLLM would take.

        vLLM always computes the last token of a prompt. With ``skip_reading_prefix_cache``, vLLM
        computes the whole prompt.
        """
        total, cached, used = theirs.num_tokens, 0, 0
        if not theirs.skip_reading_prefix_cache:
            cached, used = self.mirror.found(theirs.block_hashes[: (total - 1) // self._size])
        return PromptTokens(total - cached, total - used)

    def finished(self, name: str) -> None:
        """Record the tokens of a finished request as cached, before vLLM frees its blocks."""
        if (mine := self._held.pop(name, None)) is not None:
            self.mirror.retain(mine.node, mine.request)

    def preempted(self, name: str) -> None:
        """Forget a preempted request, which has lost its blocks."""
        self._held.pop(name, None)

    @contextmanager
    def _for(self, name: str) -> Iterator[VLLMHolding]:
        """Attribute to a request all blocks that vLLM takes or reuses in the ``with`` statement."""
        if (mine := self._held.get(name)) is None:
            known = self._config.clients
            request = claiming(self._request_of(name) or UNKNOWN, known)
            mine = self._held[name] = VLLMHolding(request, self.mirror.root)
        self._taking = mine
        try:
            yield mine
        finally:
            self._taking = self._unknown

    def allocate(self, request: Theirs, *args: Any, **named: Any) -> Any:
        """Wrap ``allocate_slots`` to attribute the allocated blocks to the request."""
        with self._for(request.request_id):
            return self._allocate(request, *args, **named)

    def touch(self, blocks: Sequence[Theirs]) -> None:
        """Wrap ``touch`` to record that a request uses the blocks of a cached prefix."""
        self._touch(blocks)
        self._taking.node = self.mirror.use(blocks, self._taking.request)

    def get(self, num_blocks: int) -> list[Theirs]:
        """Wrap ``get_new_blocks`` so that the policy chooses the cached blocks to overwrite."""
        client = self._taking.request.client
        # If too few blocks are free, vLLM itself raises an error.
        if num_blocks <= self._pool.get_num_free_blocks():
            self.mirror.make_room(num_blocks, client)
        theirs: list[Theirs] = self._get(num_blocks)
        self.mirror.take(theirs, client)
        return theirs

    def cache_full(
        self,
        request: Theirs,
        blocks: Sequence[Theirs],
        num_cached_blocks: int,
        num_full_blocks: int,
        *args: Any,
        **named: Any,
    ) -> None:
        """Wrap ``cache_full_blocks`` to record full blocks of the request as cached."""
        self._cache_full(request, blocks, num_cached_blocks, num_full_blocks, *args, **named)
        new = slice(num_cached_blocks, num_full_blocks)
        with self._for(request.request_id) as mine:
            mine.node = self.mirror.store(mine.node, request.block_hashes[new], blocks[new])

    def free(self, ordered_blocks: Iterable[Theirs]) -> None:
        """Wrap ``free_blocks`` to record that a request no longer uses the given blocks."""
        theirs = list(ordered_blocks)
        self._free(theirs)
        self.mirror.give_back(one for one in theirs if not one.is_null)

    def reset(self, *args: Any, **named: Any) -> bool:
        """Wrap ``reset_prefix_cache``: if vLLM resets its cache, also reset the mirror."""
        done = bool(self._reset(*args, **named))
        if done:
            self._start()
        return done

    def _overwrite(self, theirs: Theirs) -> None:
        self._pool.evict_blocks({theirs.block_id})
        self._pool.free_block_queue.remove(theirs)
        self._pool.free_block_queue.prepend_n([theirs])


def check_manager(manager: Any) -> None:
    """Raise UsageError if vLLM's KV cache manager does not allow fairbench's eviction policies."""
    if not manager.block_pool.enable_caching:
        raise UsageError(
            "--no-enable-prefix-caching cannot be combined with an eviction policy; "
            "leave the flag out"
        )
    if not is_plain(manager):
        kinds = ", ".join(type(one).__name__ for one in manager.coordinator.single_type_managers)
        raise UsageError(
            f"vLLM's cache is {type(manager.coordinator).__name__} with {kinds}: an eviction "
            "policy of fairbench needs full attention in all layers, and no context parallelism"
        )


def check_targets() -> None:
    """Raise UsageError unless vLLM has all functions that the plugin wraps or calls."""
    for target, parameters in TARGETS.items():
        check_function("vLLM", target, ("self", *parameters))
