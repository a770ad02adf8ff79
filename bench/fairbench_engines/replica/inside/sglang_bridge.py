"""The operations through which the simulator controls SGLang's own scheduler."""

from __future__ import annotations

from contextlib import ExitStack
from enum import EnumMeta
from importlib import import_module
from typing import Any

from fairbench_engines.replica.inside.packages import provide
from fairbench_engines.replica.inside.provenance import source_of
from fairbench_engines.replica.inside.replicas import EngineReplicas, seed_all
from fairbench_engines.replica.inside.sglang_seam import (
    MODULES,
    SGLangScheduling,
    configured,
    extend_len,
    path,
    sglang,
)
from fairbench_engines.replica.inside.token_ids import TokenIds
from fairbench_engines.replica.inside.virtual_time import VirtualTime

# The plugin is imported after ``provide`` has made fairbench's packages importable.
PLUGIN = "fairbench_engines.replica.inside.sglang_plugin"
HOST_POLICY = "fcfs"  # SGLang's own policy; fairbench's plugin replaces its order of the queue

# folders of SGLang's package with the scheduling code
DECIDING = ("srt/managers", "srt/mem_cache")


def source() -> dict[str, Any]:
    """Return the version, digest and commit of SGLang's scheduling code (see ``source_of``).

    Raises ModuleNotFoundError if SGLang is not installed.
    """
    return source_of("sglang", DECIDING)


def load() -> None:
    """Import SGLang."""
    sglang()


def prefix_len(req: Any) -> int:
    """Return how many tokens of a prompt are cached, in all supported releases of SGLang."""
    length: int = req.prefix_len if hasattr(req, "prefix_len") else len(req.prefix_indices)
    return length


def has_policy(name: str) -> bool:
    """Return whether the installed SGLang, possibly a fork, has a policy of this name."""
    named = vars(sglang().schedule_policy).values()
    kinds: list[Any] = [one for one in named if isinstance(one, EnumMeta)]
    return any(name == policy.value for kind in kinds for policy in kind)


class SGLangWorker:
    """SGLang's own scheduler in a replica; the simulator names requests by number.

    With ``hooks``, a fairbench scheduler orders requests instead of SGLang's policy.
    """

    def __init__(
        self,
        clock: VirtualTime,
        tokens: TokenIds,
        limits: dict[str, Any],
        *,
        hooks: Any,
        tells_evicted: bool,
    ) -> None:
        self._clock, self._tokens, self._hooks = clock, tokens, hooks
        self._evicted: list[Any] = []
        on_evict = self._note_evicted if tells_evicted else lambda node: None
        self.engine = SGLangScheduling(**limits, hooks=hooks, on_evict=on_evict)
        self._batch: Any = None
        # unfinished requests by SGLang's id, which is the request's number as text
        self._running: dict[str, Any] = {}

    def _note_evicted(self, node: Any) -> None:
        self._evicted.append((self._tokens.prompt(path(node)), len(node.key)))

    def submit(
        self,
        number: int,
        prompt: list[Any],
        output: list[Any],
        max_new: int,
        client: str,
        priority: int,
    ) -> None:
        """Add a request to the engine's queue; each segment of its tokens is a list [key, length].

        ``prompt`` is a list of segments, and ``output`` is a single segment.
        """
        tokens = self._tokens
        ids, answer = tokens.of(prompt), tokens.of([output])
        req = self.engine.submit(number, ids, answer, max_new, client, priority=priority)
        self._running[req.rid] = req

    def turn(self, *, whole: bool) -> dict[str, Any]:
        """Plan the next batch; return the plan and the scheduler's state.

        If ``whole`` is True, the plan contains each decoding request's context length. If SGLang
        runs no batch, the plan lacks the keys "prefill" and "decode".
        """
        batch = self._batch = self.engine.plan()
        answer = self._state()
        if batch is not None and self._hooks:
            # On a real server, ``run_batch`` sets this launch time, which the plugin's hooks need.
            batch.launch_ts = self._clock.now_s()
        if batch is None:
            pass
        elif batch.forward_mode.is_extend():
            answer["prefill"] = [self._prefill(req) for req in batch.reqs]
        else:
            contexts = batch.seq_lens_cpu.tolist()
            answer["decode"] = [len(contexts), sum(contexts)]
            if whole or "preempted" in answer:
                numbers = [int(req.rid) for req in batch.reqs]
                answer["contexts"] = list(zip(numbers, contexts, strict=True))
        return answer

    def _prefill(self, req: Any) -> tuple[int, int, int, int]:
        """Return a request's number, and its prompt's cached, computed and remaining tokens."""
        cached = prefix_len(req)
        left = len(req.origin_input_ids) + len(req.output_ids) - cached
        return int(req.rid), cached, extend_len(req), left

    def complete(self) -> dict[str, Any]:
        """End the batch; return the engine's state and the finished requests.

        ``finished`` lists each request's number and output tokens.
        """
        finished = self.engine.complete(self._batch)
        self._batch = None
        for req in finished:
            del self._running[req.rid]
        answer = self._state()
        answer["finished"] = [(int(req.rid), len(req.output_ids)) for req in finished]
        return answer

    def _state(self) -> dict[str, Any]:
        scheduler = self.engine.scheduler
        answer: dict[str, Any] = {
            "waiting": len(scheduler.waiting_queue),
            "free": int(scheduler.token_to_kv_pool_allocator.available_size()),
            "evictable": int(scheduler.tree_cache.evictable_size()),
        }
        if scheduler.retracted:
            retracted = [(int(req.rid), len(req.output_ids)) for req in scheduler.retracted]
            answer["preempted"] = retracted
            scheduler.retracted.clear()
        if self._evicted:
            answer["evicted"] = self._evicted
            self._evicted = []
        return answer

    def unfinished(self) -> list[Any]:
        return list(self._running.values())

    def batch_requests(self) -> list[Any]:
        """Return the requests of the batch that was planned last."""
        return list(self._batch.reqs)

    @staticmethod
    def number(req: Any) -> int:
        """Return the simulator's number for a request."""
        return int(req.rid)

    @staticmethod
    def produced_by(req: Any) -> int:
        """Return the number of a request's output tokens."""
        return len(req.output_ids)


class SGLangBridge(EngineReplicas):
    """The factory of a run's replicas, which holds SGLang's configuration for the run."""

    def __init__(self) -> None:
        super().__init__("sglang")
        self._configured = ExitStack()
        self._limits: dict[str, Any] = {}
        # the module of fairbench's plugin, or None if SGLang's own policy decides
        self._plugin: Any = None
        self._told: dict[str, Any] = {}

    def configure(self, told: dict[str, Any]) -> bool:
        self.charges_pass = told["charge_pass"]
        self._told, policy = told, told["policy"]
        if told["plugin"] and not has_policy(policy):
            provide(**told["packages"])
            self._plugin, policy = import_module(PLUGIN), HOST_POLICY
        limits = told["limits"]
        shared = {name: limits[name] for name in ("chunk", "max_prefill", "slots")}
        self._configured = configured(policy, **shared, **told["configured"])
        self._limits = {"policy": policy, **limits}
        return self._plugin is not None

    def worker(self, index: int, tells_evicted: bool) -> SGLangWorker:
        seed_all(self._told["seed"], index, sglang().torch)
        hooks = None
        if self._plugin:
            told, now_s = self._told, self._clock.now_s
            shown = told["plugin"], told["release"], now_s, MODULES.values()
            hooks = self._plugin.sglang_hooks(*shown)
        shared = (self._clock, self._tokens, self._limits)
        return SGLangWorker(*shared, hooks=hooks, tells_evicted=tells_evicted)


BRIDGE = SGLangBridge
