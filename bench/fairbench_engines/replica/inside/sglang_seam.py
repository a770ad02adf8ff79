"""SGLang's own scheduling classes on a CPU without a model; each call runs one engine iteration.

The scheduler, batch, policy, PrefillAdder, radix cache and allocator are SGLang's classes.
Stand-ins replace SGLang's process, model, tokenizer and metrics. Overlap scheduling is off. This
module imports only the standard library and SGLang.
"""

from __future__ import annotations

import logging
import os
import types
import warnings
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from typing import Any
from zlib import crc32

RADIX, HICACHE = "radix", "hicache"

HOST_CACHE = {  # arguments of an SGLang server with a hierarchical KV cache
    "enable_hierarchical_cache": True,
    "hicache_ratio": 4.0,
    "hicache_size": 0,
    "hicache_write_policy": "write_through",
    "hicache_io_backend": "direct",
    "hicache_mem_layout": "layer_first",
}
DRAFTS = 4  # maximum number of draft tokens that a step accepts with speculative decoding
AFTER_END = 3  # token id that stands for any token after the end of an output
# output tokens of a request after its end: each token is ``AFTER_END``
NO_MORE: dict[int, int] = defaultdict(lambda: AFTER_END)

MODULES = {
    "torch": "torch",
    "runtime_context": "sglang.srt.runtime_context",
    "disaggregation": "sglang.srt.disaggregation.utils",
    "spec_info": "sglang.srt.speculative.spec_info",
    "schedule_batch": "sglang.srt.managers.schedule_batch",
    "schedule_policy": "sglang.srt.managers.schedule_policy",
    "scheduler": "sglang.srt.managers.scheduler",
    "utils": "sglang.srt.managers.utils",
    "results": "sglang.srt.managers.scheduler_components.batch_result_processor",
    "cache_init_params": "sglang.srt.mem_cache.cache_init_params",
    "memory_pool": "sglang.srt.mem_cache.memory_pool",
    "radix_cache": "sglang.srt.mem_cache.radix_cache",
    "token": "sglang.srt.mem_cache.allocator.token",
    "sampling_params": "sglang.srt.sampling.sampling_params",
}

# On one GPU, the attributes ``NONE`` of SGLang's scheduler are None, and the attributes ``OFF`` are
# False.
NONE = (
    "_pending_chunked_abort_req",
    "chunked_req",
    "decode_offload_manager",
    "dllm_config",
    "dynamic_chunk_sizer",
    "hisparse_coordinator",
    "last_batch",
    "max_queued_requests",
    "min_free_slots_delayer",
    "prefill_delayer",
    "scheduler_stage_metrics",
    "truncation_align_size",
)

OFF = (
    "_prefill_decode_interval_remaining",
    "abort_on_priority_when_disabled",
    "enable_dynamic_chunking",
    "enable_fpm",
    "enable_hicache_storage",
    "enable_hierarchical_cache",
    "enable_hisparse",
    "enable_lmcache",
    "enable_lora",
    "enable_overlap",
    "enable_priority_preemption",
    "enable_priority_scheduling",
    "enable_skip_finishing_decode",
    "enable_unified_cache_external_linker",
    "is_hybrid_swa",
    "is_mixed_chunk",
    "max_prefill_bs",
    "prefill_decode_interval",
    "priority_scheduling_preemption_threshold",
    "processed_tokens_counter",
    "require_mlp_sync",
)


class Absent:
    """A stand-in for a part of SGLang that does not affect scheduling.

    A missing attribute is another stand-in, and a call of a stand-in does nothing. A MagicMock
    would store every call, and would run longer than SGLang's own code.
    """

    def __init__(self, **attributes: Any) -> None:
        self.__dict__ |= attributes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = self.__dict__[name] = Absent()
        return made

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


@cache
def sglang() -> Any:
    """Import the modules of SGLang, which tests/sglang_cpu/install.sh installs without a GPU."""
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # ``exist_ok`` prevents an error if transformers already has a model that SGLang registers.
        configs = import_module("transformers").AutoConfig
        register = configs.register
        configs.register = lambda name, config, exist_ok=True: register(name, config, exist_ok=True)
        modules = {name: import_module(path) for name, path in MODULES.items()}
    logging.getLogger("sglang").setLevel(logging.ERROR)
    modules["torch"].set_num_threads(1)  # one thread is enough for small tensors
    return types.SimpleNamespace(**modules)


@cache
def _scheduler_class() -> Any:
    sgl = sglang()

    scheduler: Any = sgl.scheduler.Scheduler
    radix_cache: Any = sgl.radix_cache.RadixCache

    class Bare(scheduler):  # type: ignore[misc]  # SGLang is not installed for mypy
        def __init__(
            self,
            pool: int,
            chunk: int,
            max_prefill: int,
            slots: int,
            policy: str,
            longest: int,
            on_evict: Callable[[Any], None],
            tree: str,
            eviction: str,
        ) -> None:
            self.__dict__ |= dict.fromkeys(NONE) | dict.fromkeys(OFF, False)
            self.disaggregation_mode = sgl.disaggregation.DisaggregationMode.NULL
            self.spec_algorithm = sgl.spec_info.SpeculativeAlgorithm.NONE
            self.page_size, self.max_running_requests = 1, slots
            self.chunked_prefill_size, self.max_prefill_tokens = chunk, max_prefill
            self.waiting_queue: list[Any] = []
            self.retracted: list[Any] = []
            self.on_evict = on_evict
            self.server_args = server_args(sgl)
            self.running_batch = sgl.schedule_batch.ScheduleBatch(reqs=[], batch_is_full=False)
            self._make_memory(pool, slots, longest, tree, eviction)
            self.policy = sgl.schedule_policy.SchedulePolicy(
                policy, self.tree_cache, False, False, False
            )
            self.new_token_ratio_tracker = ratio_tracker(sgl)
            self._make_surroundings()

        def _make_memory(
            self, pool: int, slots: int, longest: int, tree: str, eviction: str
        ) -> None:
            on_evict = self.on_evict

            class Cache(radix_cache):  # type: ignore[misc]  # SGLang is not installed for mypy
                def _delete_leaf(self, node: Any) -> None:
                    on_evict(node)
                    super()._delete_leaf(node)

            kv = tiny_kv(pool) if tree == HICACHE else None
            rows = sgl.memory_pool.ReqToTokenPool(slots, longest + 8, "cpu", False)
            tokens = sgl.token.TokenToKVPoolAllocator(pool, sgl.torch.float32, "cpu", kv, False)
            params = sgl.cache_init_params.CacheInitParams(
                False, rows, tokens, 1, eviction_policy=eviction
            )
            if tree == HICACHE:
                self.enable_hierarchical_cache, self.tree_cache = True, hierarchical_cache(params)
            else:
                self.tree_cache = Cache(params) if tree == RADIX else unified_cache(params, tree)
            self.req_to_token_pool, self.token_to_kv_pool_allocator = rows, tokens

        def _make_surroundings(self) -> None:
            self.model_config = types.SimpleNamespace(
                is_encoder_decoder=False,
                vocab_size=2**62,
                self_opened_think_start_ids=None,
                think_end_ids=None,
            )
            self.metrics_reporter = Absent(num_generated_tokens=0, forward_ct_decode=0)
            self.grammar_manager = Absent(has_waiting_grammars=lambda: False)
            self.load_inquirer = Absent()
            self.dp_attn_adapter = Absent(
                maybe_prepare_mlp_sync_batch=_first, maybe_convert_decode_to_extend=_first
            )
            self.ngram_embedding_manager = Absent(prepare_for_forward=_first)
            self.beam_coordinator = Absent(
                pending_member_rows=lambda *_, **__: 0, commit_decode=lambda *_, **__: set()
            )
            self.tp_worker = Absent(model_runner=Absent(prefill_aware_swa=False))
            processor = sgl.results.SchedulerBatchResultProcessor
            fields = {name: self.__dict__.get(name) for name in processor.__dataclass_fields__}
            fields |= {"is_generation": True, "output_streamer": Absent()}
            self.batch_result_processor = processor(**fields)

        def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
            if is_retracted:
                self.retracted.append(req)
            super()._add_request_to_queue(req, is_retracted)

    return Bare


def unified_cache(params: Any, core: str) -> Any:
    """Return SGLang's UnifiedRadixCache; ``core`` is its programming language, rust or python."""
    memory = "sglang.srt.mem_cache"
    full = import_module(f"{memory}.unified_cache.component_type").ComponentType.FULL
    params.tree_components, params.tree_core_backend = (full,), core
    return import_module(f"{memory}.unified_radix_cache").UnifiedRadixCache(params)


def tiny_kv(pool: int) -> Any:
    """Return a KV pool that takes little memory: a single (unused) number per token."""
    sgl = sglang()
    return sgl.memory_pool.MHATokenToKVPool(
        *(pool, 1, sgl.torch.float32, 1, 1, 1, "cpu", False), enable_alt_stream=False
    )


def hierarchical_cache(params: Any) -> Any:
    """Return SGLang's UnifiedRadixCache with a second cache in host memory (HiCache).

    Copies between GPU and host memory do nothing, because a machine without a GPU has neither
    pinned memory nor SGLang's copy kernels.
    """
    host = "sglang.srt.mem_cache.pool_host"
    common: Any = import_module(f"{host}.common")
    common._cuda_host_register = lambda *_: None
    module: Any = import_module(f"{host}.mha")
    module.transfer_kv_direct = lambda **_: None
    tree = unified_cache(params, "python")
    tree.init_hicache(
        server_args(sglang()) or types.SimpleNamespace(file_storage_path=None), params
    )
    return tree


def ratio_tracker(sgl: Any) -> Any:
    """Return SGLang's ``NewTokenRatioTracker`` for any supported release of SGLang."""
    tracker = sgl.scheduler.NewTokenRatioTracker
    if hasattr(tracker, "from_config"):
        return tracker.from_config()
    return tracker.from_server_args(server_args(sgl))


def server_args(sgl: Any) -> Any:
    """Return the global server arguments of an older SGLang, or None in a newer release."""
    get = getattr(sgl.runtime_context, "get_server_args", None)
    return get() if get else None


def extend_len(req: Any) -> int:
    """Return how many prompt tokens of a request an iteration computes (all SGLang releases)."""
    length: int = req.extend_len if hasattr(req, "extend_len") else req.extend_range.length
    return length


def _first(value: Any, *_: Any, **__: Any) -> Any:
    return value


def path(node: Any) -> array[int]:
    """Return the token ids from the root to the end of a radix tree node."""
    parts = []
    while node.parent is not None:
        parts.append(node.key.token_ids)
        node = node.parent
    ids: array[int] = array("q")
    for part in reversed(parts):
        ids += part
    return ids


def configured(
    policy: str,
    *,
    chunk: int,
    max_prefill: int,
    slots: int,
    conservativeness: float,
    match_limit: int | None,
    **settings: Any,
) -> ExitStack:
    """Set the global configuration of SGLang until the returned stack is closed.

    ``match_limit`` is the length of the longest waiting queue that the policy LPM sorts; None means
    SGLang's default. ``settings`` are further arguments of an SGLang server.
    """
    sgl = sglang()
    if match_limit is not None:
        sgl.schedule_policy.WAITING_QUEUE_PREFIX_MATCH_MAX = match_limit
    config = sgl.runtime_context.get_context().override_server_args(
        schedule_policy=policy,
        chunked_prefill_size=chunk,
        max_prefill_tokens=max_prefill,
        max_running_requests=slots,
        pp_max_micro_batch_size=slots,
        schedule_conservativeness=conservativeness,
        disable_overlap_schedule=True,
        attention_backend="torch_native",
        device="cpu",
        **settings,
    )
    config.install()
    stack = ExitStack()
    stack.callback(config.restore)
    return stack


class SGLangScheduling:
    """An SGLang scheduler with an empty KV pool; call ``configured`` before creating the scheduler.

    - If ``hooks`` of fairbench's plugin are given, fairbench orders the requests, and ``policy``
      must be "fcfs".
    - ``longest`` is the limit on prompt and output tokens of a request.
    - ``on_evict`` receives each evicted node of the radix tree.
    - ``tree`` is RADIX for SGLang's RadixCache, HICACHE for a ``hierarchical_cache``, and "rust" or
      "python" for a ``unified_cache``.
    - ``eviction`` is the name of the eviction policy of SGLang's cache.
    """

    def __init__(
        self,
        policy: str,
        *,
        pool: int,
        chunk: int,
        max_prefill: int,
        slots: int,
        ignore_eos: bool,
        hooks: Any = None,
        longest: int | None = None,
        on_evict: Callable[[Any], None] = lambda node: None,
        tree: str = RADIX,
        eviction: str = "lru",
    ) -> None:
        self._sgl = sglang()
        self._hooks = hooks
        self.scheduler = _scheduler_class()(
            pool, chunk, max_prefill, slots, policy, longest or pool, on_evict, tree, eviction
        )
        self._outputs: dict[Any, Sequence[int]] = {}
        self._ignore_eos = ignore_eos

    def submit(
        self,
        number: int,
        prompt: Iterable[int],
        output: Sequence[int],
        max_new: int,
        client: str,
        **facts: Any,
    ) -> Any:
        """Add a request that will produce the tokens ``output``; return SGLang's request object.

        ``facts`` are further arguments of SGLang's request, such as its adapter.
        """
        sgl = self._sgl
        params = sgl.sampling_params.SamplingParams(
            max_new_tokens=max_new, stop_token_ids={output[-1]}, ignore_eos=self._ignore_eos
        )
        params.normalize(None)
        req = sgl.schedule_batch.Req(
            str(number),
            "",
            array("q", prompt),
            params,
            routing_key=client,
            vocab_size=2**62,
            **facts,
        )
        self._outputs[req] = output
        self.scheduler._add_request_to_queue(req)
        return req

    def plan(self) -> Any:
        """Run the first half of SGLang's event loop once; return the batch to run, or None."""
        scheduler = self.scheduler
        held = len(scheduler.running_batch.reqs)
        batch = self._turn()
        if batch is None and held and not scheduler.running_batch.reqs:
            # Before SGLang 0.5.23, a call that removes finished requests returns no batch, so
            # SGLang is called again.
            batch = self._turn()
        if batch is None and not scheduler.waiting_queue:
            scheduler.new_token_ratio_tracker.reset()
        return batch

    def _turn(self) -> Any:
        scheduler = self.scheduler
        plan = scheduler.get_next_batch_to_run(scheduler.running_batch, scheduler.last_batch)
        scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
        scheduler.last_batch = batch
        if batch is not None and batch.forward_mode.is_extend():
            # On a real server, SGLang's ``run_batch`` counts the processed prompt tokens.
            scheduler.processed_tokens_counter += batch.extend_num_tokens
        return batch

    def complete(self, batch: Any) -> list[Any]:
        """Give SGLang the next output tokens in place of the model.

        Return the requests that this batch has finished.
        """
        processor = self.scheduler.batch_result_processor
        requests = list(batch.reqs)
        running = [req for req in requests if not req.finished()]
        speculates = not batch.spec_algorithm.is_none() and batch.forward_mode.is_decode()
        result = self._accepted(requests) if speculates else self._next(requests)
        if batch.forward_mode.is_extend():
            processor.process_batch_result_prefill(batch, result)
        else:
            if speculates:
                for req, tokens in zip(requests, result.accept_lens.tolist(), strict=True):
                    batch.seq_lens[requests.index(req)] += tokens
            batch.input_ids = result.next_token_ids
            processor.process_batch_result_decode(batch, result)
        # Call the plugin's hook here, because SGLang's ``process_batch_result`` is not called.
        if self._hooks:
            self._hooks.results(lambda *_: None, self.scheduler, batch, result)
        finished = [req for req in running if req.finished()]
        for req in finished:
            del self._outputs[req]
        return finished

    def _next(self, requests: list[Any]) -> Any:
        tokens = [self._outputs.get(req, NO_MORE)[len(req.output_ids)] for req in requests]
        return self._sgl.utils.GenerationBatchResult(next_token_ids=self._sgl.torch.tensor(tokens))

    def _accepted(self, requests: list[Any]) -> Any:
        """Return 1 to ``DRAFTS`` accepted tokens for each request, as in speculative decoding.

        Tokens beyond the end of the output are ``AFTER_END``.
        """
        rows: list[int] = []
        lengths: list[int] = []
        for req in requests:
            done = len(req.output_ids)
            lengths.append(1 + crc32(f"{req.rid} {done}".encode()) % DRAFTS)
            row = [*self._outputs[req][done : done + DRAFTS], *[AFTER_END] * DRAFTS]
            rows += row[:DRAFTS]
        return self._sgl.utils.GenerationBatchResult(
            next_token_ids=self._sgl.torch.tensor(rows),
            accept_lens=self._sgl.torch.tensor(lengths),
            speculative_num_draft_tokens=DRAFTS,
        )
