"""The operations through which the simulator controls vLLM's own scheduler."""

from __future__ import annotations

import types
from importlib import import_module
from typing import Any

from fairbench_engines.replica.inside.packages import provide
from fairbench_engines.replica.inside.provenance import source_of
from fairbench_engines.replica.inside.replicas import EngineReplicas, seed_all
from fairbench_engines.replica.inside.token_ids import TokenIds
from fairbench_engines.replica.inside.virtual_time import VirtualTime
from fairbench_engines.replica.inside.vllm_seam import VLLMScheduling, admitted, vllm

PLUGIN = "fairbench_engines.replica.inside.vllm_plugin"  # module that needs fairbench's packages
HOST_POLICY = "fcfs"  # vLLM's own policy; fairbench's plugin replaces its order of the queue

# folders with scheduling code in vLLM's package
DECIDING = ("v1/core",)


def source() -> dict[str, Any]:
    """Return the version, digest and commit of vLLM's scheduling code (see ``source_of``).

    Raises ModuleNotFoundError if vLLM is not installed.
    """
    return source_of("vllm", DECIDING)


def load() -> None:
    """Import vLLM."""
    vllm()


def has_policy(name: str) -> bool:
    """Return whether the installed vLLM, possibly a fork, has a policy of this name."""
    return name in [one.value for one in vllm().scheduler.SchedulingPolicy]


class VLLMWorker:
    """vLLM's own scheduler in a replica; the simulator names requests by number.

    ``scheduler_cls`` is the plugin's scheduler class, or None for vLLM's own class.
    """

    def __init__(
        self,
        clock: VirtualTime,
        tokens: TokenIds,
        limits: Any,
        policy: str,
        *,
        scheduler_cls: type | None,
        tells_evicted: bool,
    ) -> None:
        self._clock, self._tokens, self._block_size = clock, tokens, limits.block_size
        self.engine = VLLMScheduling(limits, policy, scheduler_cls=scheduler_cls)
        self._plan: Any = None
        self._prefilling: set[str] = set()  # requests whose prompts are partly computed
        self._preempted: list[tuple[int, int]] = []
        self._evicted: list[Any] = []
        self._watch_preemptions()
        if tells_evicted:
            self._watch_evictions(self.engine.scheduler.kv_cache_manager.block_pool)

    def _watch_preemptions(self) -> None:
        scheduler = self.engine.scheduler
        preempt = scheduler._preempt_request

        def watched(request: Any, *arguments: Any, **named: Any) -> Any:
            self._preempted.append((int(request.request_id), request.num_output_tokens))
            self._prefilling.discard(request.request_id)
            return preempt(request, *arguments, **named)

        scheduler._preempt_request = watched

    def _watch_evictions(self, pool: Any) -> None:
        """Record the prefix of each evicted block, unless another block has the same tokens."""
        # for each block hash: token ids of a request, and the position at which the block ends
        ended: dict[Any, tuple[Any, int]] = {}
        store, remove = pool.cache_full_blocks, pool._remove_cached_block_hashes
        bare, size = vllm().kv_cache_utils.get_block_hash, self._block_size

        def stored(request: Any, **named: Any) -> Any:
            for number in range(named["num_cached_blocks"], named["num_full_blocks"]):
                ended[request.block_hashes[number]] = request.all_token_ids, (number + 1) * size
            return store(request=request, **named)

        def removed(block: Any) -> Any:
            gone = remove(block)
            for key in gone:
                if pool.cached_block_hash_to_block.get_one_block(key) is None:
                    ids, end = ended[bare(key)]
                    self._evicted.append((self._tokens.prompt(ids[:end]), size))
            return gone

        pool.cache_full_blocks, pool._remove_cached_block_hashes = stored, removed

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
        request = self.engine.request(
            number,
            self._tokens.of(prompt),
            self._tokens.of([output]),
            priority,
            client,
            max_new - output[1],
            arrival_s=self._clock.seconds(),
        )
        self.engine.scheduler.add_request(request)

    def turn(self, *, whole: bool) -> dict[str, Any]:
        """Plan the next step; return the plan and the scheduler's state.

        If ``whole`` is True, the plan contains each decoding request's context length. If vLLM
        schedules nothing, the plan lacks the key "decode".
        """
        plan = self._plan = self.engine.plan()
        answer = self._state()
        if plan is None:
            return answer
        requests, new = self.engine.scheduler.requests, set(admitted(plan))
        chunks, contexts = [], []
        for name, tokens in plan.num_scheduled_tokens.items():
            request = requests[name]
            if name in new or name in self._prefilling:
                chunks.append(self._chunk(request, tokens, first=name in new))
            else:
                # ``num_computed_tokens`` already counts the token of the planned step.
                contexts.append((int(name), request.num_computed_tokens))
        answer["decode"] = [len(contexts), sum(tokens for _, tokens in contexts)]
        answer["chunks"] = chunks
        if whole or chunks or "preempted" in answer:
            answer["contexts"] = contexts
        return answer

    def _chunk(self, request: Any, tokens: int, *, first: bool) -> tuple[int, int, int, bool, bool]:
        """Return a prompt chunk as (request number, tokens before it, new tokens, first, last).

        ``first`` and ``last`` say whether the chunk is the first or the last chunk of the prompt.
        """
        computed = request.num_computed_tokens
        last = computed == request.num_tokens
        (self._prefilling.discard if last else self._prefilling.add)(request.request_id)
        return int(request.request_id), computed - tokens, tokens, first, last

    def complete(self) -> dict[str, Any]:
        """End the step; return the state and (number, output tokens) of the finished requests."""
        finished = self.engine.complete(self._plan)
        self._plan = None
        answer = self._state()
        answer["finished"] = [(int(one.request_id), one.num_output_tokens) for one in finished]
        return answer

    def _state(self) -> dict[str, Any]:
        scheduler = self.engine.scheduler
        answer: dict[str, Any] = {
            "waiting": len(scheduler.waiting),
            "free": self.engine.free_blocks * self._block_size,
            "evictable": 0,
        }
        for name, noted in (("preempted", self._preempted), ("evicted", self._evicted)):
            if noted:
                answer[name] = list(noted)
                noted.clear()
        return answer

    def unfinished(self) -> list[Any]:
        """Return all unfinished requests."""
        return list(self.engine.scheduler.requests.values())

    def batch_requests(self) -> list[Any]:
        """Return the requests of the step that was planned last."""
        requests = self.engine.scheduler.requests
        return [requests[name] for name in self._plan.num_scheduled_tokens]

    @staticmethod
    def number(request: Any) -> int:
        """Return the simulator's number for a request."""
        return int(request.request_id)

    @staticmethod
    def produced_by(request: Any) -> int:
        """Return the number of a request's output tokens."""
        count: int = request.num_output_tokens
        return count


class VLLMBridge(EngineReplicas):
    """The factory of a run's replicas, which holds vLLM's configuration for the run."""

    def __init__(self) -> None:
        super().__init__("vllm")
        self._limits: Any = None
        self._plugin: Any = None  # fairbench's plugin, or None if vLLM's own policy decides
        self._policy = ""
        self._told: dict[str, Any] = {}

    def configure(self, told: dict[str, Any]) -> bool:
        self.charges_pass = told["charge_pass"]
        self._told, self._policy = told, told["policy"]
        self._limits = types.SimpleNamespace(**told["limits"])
        if told["plugin"] and not has_policy(self._policy):
            provide(**told["packages"])
            self._plugin, self._policy = import_module(PLUGIN), HOST_POLICY
        return self._plugin is not None

    def worker(self, index: int, tells_evicted: bool) -> VLLMWorker:
        seed_all(self._told["seed"], index, vllm().torch)
        kind = None
        if self._plugin:
            kind = self._plugin.vllm_class(self._told["plugin"], self._clock.now_s)
        shared = (self._clock, self._tokens, self._limits, self._policy)
        return VLLMWorker(*shared, scheduler_cls=kind, tells_evicted=tells_evicted)


BRIDGE = VLLMBridge
