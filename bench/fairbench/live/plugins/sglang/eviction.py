"""Eviction by a policy of ours inside SGLang: whose requests take memory, and for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fairbench.core import Request
from fairbench.errors import UsageError
from fairbench.live.plugins.config import PluginConfig
from fairbench.live.plugins.mirrored_cache import UNKNOWN, MirroredCache, held_by_client
from fairbench.live.plugins.sglang.evictable_tree import EvictableTree, check_tree
from fairbench.live.plugins.sglang.kept_tree import KeptTree, after
from fairbench.live.plugins.sglang.release import Hook
from fairbench.live.plugins.sglang.requests import Req
from fairbench.schedulers.setup import Setup
from fairbench.sim.engine.client_cache import ClaimedNode

Original = Callable[..., Any]


@dataclass(slots=True)
class Holding:
    """A running request, and the tokens that it holds outside the tree."""

    request: Request
    private: int = 0
    decodes: bool = False


class Eviction:
    """The eviction policy of one SGLang scheduler. The hooks are for SGLang's ScheduleBatch."""

    def __init__(self, config: PluginConfig, now_s: Callable[[], float]) -> None:
        self._config = config
        self._now_s = now_s
        self._held: dict[Req, Holding] = {}
        self._decoding: dict[str, int] = {}  # requests by client, the longest there first
        self._watching = False
        self._batch: Any = None  # whose requests need memory
        self._tree: EvictableTree

    def watch(self, tree: Any, kept: KeptTree | None) -> None:
        """Let the policy evict from SGLang's tree, of which ``kept`` has waiting requests' matches.

        Raises UsageError if the tree has no place for a policy.
        """
        check_tree(tree)
        self._capacity = tree.token_to_kv_pool_allocator.size
        self._page = tree.page_size
        self._kept = kept
        self._tree = EvictableTree(tree, self._make_mirror, self._evict)
        self._watching = True
        after(tree, "checkpoint", self._stored)
        after(tree, "on_release", self._released)
        if kept is not None:
            kept.on_touch = self._tree.touched

    def _make_mirror(self, drop: Callable[[ClaimedNode], None]) -> MirroredCache:
        config = self._config
        policy = config.build_eviction()
        policy.prepare(Setup(config.clients, config.weights, self._capacity))
        self._held.clear()
        self._decoding.clear()
        return MirroredCache(self._capacity, policy, self._now_s, drop, self._page)

    @property
    def _mirror(self) -> MirroredCache:
        self._tree.mirror.free = self._tree.free()
        return self._tree.mirror

    def residency(self) -> Mapping[str, float]:
        """Return the tokens that each client holds; empty before a tree is watched."""
        return held_by_client(self._tree.mirror.residency) if self._watching else {}

    # Requests.

    def admitted(self, req: Req, request: Request) -> None:
        """Claim the cached prefix of an admitted request."""
        mirror = self._tree.mirror
        claiming = mirror.claiming(request)
        self._held[req] = Holding(claiming)
        mirror.claim(self._tree.nodes[req.last_node], claiming)

    def _stored(self, _: Any, req: Req, **named: Any) -> None:
        """Claim the tokens of a request that SGLang has just put into its tree."""
        mine = self._held.get(req) or Holding(UNKNOWN)
        left = req.kv.kv_allocated_len - req.kv.cache_protected_len
        node, private = self._tree.nodes[req.last_node], mine.private - left
        self._tree.mirror.store(node, mine.request, private, last=req.finished())
        mine.private = left

    def _released(self, _: Any, req: Req, **named: Any) -> None:
        """Forget a request that has given its memory back."""
        if (mine := self._held.pop(req, None)) is None:
            return
        client = mine.request.client
        self._tree.mirror.residency.add_private(client, -mine.private)
        if mine.decodes:
            self._decoding[client] -= 1
            if not self._decoding[client]:
                del self._decoding[client]

    # Memory.

    def by_target(self, batch: str) -> dict[str, Hook]:
        """Return the hooks, by function of SGLang's batch, which is the class ``batch``."""
        return {
            f"{batch}.prepare_for_extend": Hook(self.extend),
            f"{batch}.prepare_for_decode": Hook(self.decode),
            f"{batch}.check_decode_mem": Hook(self.of_batch),
            f"{batch}.release_req": Hook(self.of_batch, ("idx",)),
        }

    def extend(self, original: Original, batch: Any, *args: Any, **named: Any) -> Any:
        """Around ``prepare_for_extend``: make room for one request after the other."""
        mirror = self._mirror
        for req in batch.reqs:
            if (mine := self._held.get(req)) is not None:
                mirror.take(mine.request.client, tokens := req.extend_len)
                mine.private += tokens
        return self.of_batch(original, batch, *args, **named)

    def decode(self, original: Original, batch: Any, *args: Any, **named: Any) -> Any:
        """Around ``prepare_for_decode``: each request takes a token."""
        for mine in filter(None, map(self._held.get, batch.reqs)):
            mine.private += 1
            if not mine.decodes:
                mine.decodes, client = True, mine.request.client
                self._decoding[client] = self._decoding.get(client, 0) + 1
        self._mirror.decode(self._decoding)
        return self.of_batch(original, batch, *args, **named)

    def of_batch(self, original: Original, batch: Any, *args: Any, **named: Any) -> Any:
        """Around methods that may evict: the requests of the batch need the memory."""
        self._batch = batch
        return original(batch, *args, **named)

    def _evict(self, tokens: int) -> int:
        mirror = self._mirror
        before = mirror.free
        mirror.evict(tokens, self._per_client(self._batch))
        return mirror.free - before

    def _per_client(self, batch: Any) -> Counter[str]:
        reqs = () if batch is None else batch.reqs
        return Counter(self._held[req].request.client for req in reqs if req in self._held)


def check_eviction(server_args: Any, policy: str | None) -> None:
    """Raise UsageError if a server's ranks would evict differently."""
    if policy == "retention" and server_args.tp_size > 1:
        raise UsageError(
            f"--tp-size {server_args.tp_size}: must be 1 for eviction {policy}, which reads the "
            "clock of each rank"
        )
