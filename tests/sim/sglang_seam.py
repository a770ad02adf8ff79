"""SGLang's own scheduling classes on a CPU, without a model: one engine iteration per call.

The scheduler, batch, policy, adder, radix cache and allocator are SGLang's. Only their surroundings
are replaced: no process, no model, no tokenizer, no metrics. Overlap scheduling is off.
"""

from __future__ import annotations

import logging
import os
import types
import warnings
from array import array
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import resolve_name
from unittest import mock
from zlib import crc32

from fairbench.hardware.engine_params import RULES
from fairbench.live.plugin_releases import installed
from fairbench_engines.sglang.release import DISTRIBUTIONS, SUPPORTED
from fairbench_engines.sglang.requests import prefix_len

VERSION = installed(DISTRIBUTIONS) or SUPPORTED[-1]
BEFORE_0_5_22 = VERSION in ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21")

RADIX = "radix"
DRAFTS = 4  # tokens that a step may accept under speculative decoding
AFTER_END = 3  # a token that is accepted after the end of a request

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

# Parts of a SGLang scheduler that are absent or off in a plain engine on one GPU.
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


def why_absent(fits=tuple(RULES)):
    """Return why SGLang cannot be compared with the simulator here, or "", importing nothing.

    ``fits`` are the comparable releases, by default all whose rules the simulator follows.
    """
    if not installed(DISTRIBUTIONS):
        return f"sglang {VERSION} is not installed"
    return "" if VERSION in fits else f"sglang is {VERSION}, not {' or '.join(fits)}"


def match_limit(wanted):
    """Return how many waiting requests SGLang's LPM still sorts: before 0.5.22 always 128."""
    return 128 if BEFORE_0_5_22 else wanted


def reserves_all(ignores_eos):
    """Tell whether a running request reserves all of its outputs: before 0.5.22 none does."""
    return ignores_eos and not BEFORE_0_5_22


class Absent:
    """A stand-in for a part of SGLang that does not affect scheduling; unset attributes do nothing.

    A MagicMock, which remembers every call, would take longer than SGLang.
    """

    def __init__(self, **attributes):
        self.__dict__ |= attributes

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = self.__dict__[name] = Absent()
        return made

    def __call__(self, *_, **__):
        return self


@cache
def sglang():
    """Import SGLang's modules; without a GPU see tests/sglang_cpu/install.sh."""
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _tolerate_newer_transformers()
        modules = {name: import_module(path) for name, path in MODULES.items()}
    logging.getLogger("sglang").setLevel(logging.ERROR)
    modules["torch"].set_num_threads(1)  # its tensors are small
    return types.SimpleNamespace(**modules)


def _tolerate_newer_transformers():
    """Let an older SGLang register a model that transformers has added meanwhile."""
    configs = import_module("transformers").AutoConfig
    register = configs.register
    configs.register = lambda name, config, exist_ok=True: register(name, config, exist_ok=True)


@cache
def _scheduler_class():
    """Return SGLang's Scheduler without its constructor: no process, model, tokenizer or
    metrics.
    """
    sgl = sglang()

    class Bare(sgl.scheduler.Scheduler):
        def __init__(self, pool, chunk, max_prefill, slots, policy, longest, on_evict, tree):
            self.__dict__ |= dict.fromkeys(NONE) | dict.fromkeys(OFF, False)
            self.disaggregation_mode = sgl.disaggregation.DisaggregationMode.NULL
            self.spec_algorithm = sgl.spec_info.SpeculativeAlgorithm.NONE
            self.page_size, self.max_running_requests = 1, slots
            self.chunked_prefill_size, self.max_prefill_tokens = chunk, max_prefill
            self.waiting_queue, self.retracted, self.on_evict = [], [], on_evict
            self.server_args = server_args(sgl)
            self.running_batch = sgl.schedule_batch.ScheduleBatch(reqs=[], batch_is_full=False)
            self._make_memory(pool, slots, longest, tree)
            self.policy = sgl.schedule_policy.SchedulePolicy(
                policy, self.tree_cache, False, False, False
            )
            self.new_token_ratio_tracker = ratio_tracker(sgl)
            self._make_surroundings()

        def _make_memory(self, pool, slots, longest, tree):
            on_evict = self.on_evict

            class Cache(sgl.radix_cache.RadixCache):
                def _delete_leaf(self, node):
                    on_evict(node)
                    super()._delete_leaf(node)

            rows = sgl.memory_pool.ReqToTokenPool(slots, longest + 8, "cpu", False)
            tokens = sgl.token.TokenToKVPoolAllocator(pool, sgl.torch.float32, "cpu", None, False)
            params = sgl.cache_init_params.CacheInitParams(False, rows, tokens, 1)
            self.tree_cache = Cache(params) if tree == RADIX else unified_cache(params, tree)
            self.req_to_token_pool, self.token_to_kv_pool_allocator = rows, tokens

        def _make_surroundings(self):
            """Make the parts that do not affect scheduling."""
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

        def _add_request_to_queue(self, req, is_retracted=False):
            if is_retracted:
                self.retracted.append(req)
            super()._add_request_to_queue(req, is_retracted)

    return Bare


def unified_cache(params, core):
    """Return SGLang's UnifiedRadixCache with its tree in "rust" or in "python"."""
    memory = "sglang.srt.mem_cache"
    full = import_module(f"{memory}.unified_cache.component_type").ComponentType.FULL
    params.tree_components, params.tree_core_backend = (full,), core
    return import_module(f"{memory}.unified_radix_cache").UnifiedRadixCache(params)


def ratio_tracker(sgl):
    """Return SGLang's tracker of the new-token ratio, which older releases make from arguments."""
    tracker = sgl.scheduler.NewTokenRatioTracker
    if hasattr(tracker, "from_config"):
        return tracker.from_config()
    return tracker.from_server_args(server_args(sgl))


def server_args(sgl):
    """Return the server arguments that older releases keep, None in a newer one."""
    get = getattr(sgl.runtime_context, "get_server_args", None)
    return get() if get else None


def extend_len(req):
    """Return the tokens of a request that an iteration computes, by the release's name for them."""
    return req.extend_len if hasattr(req, "extend_len") else req.extend_range.length


def _first(value, *_, **__):
    return value


def path(node):
    """Return the token ids from the root to the end of a radix tree node."""
    parts = []
    while node.parent is not None:
        parts.append(node.key.token_ids)
        node = node.parent
    ids = array("q")
    for part in reversed(parts):
        ids += part
    return ids


@dataclass
class Iteration:
    """The result of one engine iteration; requests by number, in order."""

    prefills: list  # (request, cached tokens, computed tokens)
    retracted: list
    evicted: list  # (token ids of the prefix, number of evicted tokens)
    finished: list
    decoding: int = 0


def _around(hook):
    """Wrap a function as SGLang's registry does for AROUND: the original is the first argument."""

    def wrap(original):
        return lambda *arguments, **named: hook.method(original, *arguments, **named)

    return wrap


def configured(
    policy, hooks, *, chunk, max_prefill, slots, conservativeness, match_limit, **settings
):
    """Set SGLang's global configuration and the plugin's hooks around its methods, until closed.

    ``settings`` are further arguments of SGLang's servers.
    """
    sgl = sglang()
    sgl.schedule_policy.WAITING_QUEUE_PREFIX_MATCH_MAX = match_limit  # before 0.5.22 always 128
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
    if hooks is not None:
        stack.enter_context(_apply(hooks))
    return stack


def _apply(hooks):
    """Put the plugin's hooks around SGLang's methods; the stack removes them again."""
    stack = ExitStack()
    for target, hook in hooks.by_target().items():
        path, name = target.rsplit(".", 1)
        owner = resolve_name(path)
        around = _around(hook)(getattr(owner, name))
        made = staticmethod(around) if isinstance(vars(owner)[name], staticmethod) else around
        stack.enter_context(mock.patch.object(owner, name, made))
    return stack


class RealEngine:
    """A SGLang scheduler with an empty KV pool, within ``configured``.

    With the plugin's ``hooks``, these decide, and ``policy`` must be "fcfs". No request with its
    output may be longer than ``longest``. ``on_evict`` gets the evicted nodes of the radix tree,
    which is the RadixCache, or a ``unified_cache`` in the language that ``tree`` names.
    """

    def __init__(
        self,
        policy,
        *,
        pool,
        chunk,
        max_prefill,
        slots,
        ignore_eos,
        hooks=None,
        longest=None,
        on_evict=lambda node: None,
        tree=RADIX,
    ):
        self._sgl = sglang()
        self._hooks = hooks
        self.scheduler = _scheduler_class()(
            pool, chunk, max_prefill, slots, policy, longest or pool, on_evict, tree
        )
        self._outputs = {}
        self._ignore_eos = ignore_eos

    def submit(self, number, prompt, output, max_new, client, **facts):
        """Let a request arrive that will produce the tokens ``output``; return SGLang's object.

        ``facts`` are further arguments of SGLang's, such as its adapter.
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

    def plan(self):
        """Run the first half of SGLang's event loop; return the batch to run, None if there is
        none.
        """
        scheduler = self.scheduler
        held = len(scheduler.running_batch.reqs)
        batch = self._turn()
        if batch is None and held and not scheduler.running_batch.reqs:
            batch = self._turn()  # before 0.5.23, a turn may only drop finished requests
        if batch is None and not scheduler.waiting_queue:
            scheduler.new_token_ratio_tracker.reset()
        return batch

    def _turn(self):
        scheduler = self.scheduler
        plan = scheduler.get_next_batch_to_run(scheduler.running_batch, scheduler.last_batch)
        scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
        scheduler.last_batch = batch
        return batch

    def complete(self, batch):
        """Act as the model and let SGLang process the result; return the finished requests."""
        processor = self.scheduler.batch_result_processor
        requests = list(batch.reqs)
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
        if self._hooks:  # SGLang's process_batch_result calls one of these two, and does much else
            self._hooks.results(lambda *_: None, self.scheduler, batch, result)
        finished = [req for req in requests if req.finished()]
        for req in finished:
            del self._outputs[req]
        return finished

    def _next(self, requests):
        """Return one token for each request."""
        tokens = [self._outputs[req][len(req.output_ids)] for req in requests]
        return self._sgl.utils.GenerationBatchResult(next_token_ids=self._sgl.torch.tensor(tokens))

    def _accepted(self, requests):
        """Return accepted drafts for each request, some of them after its last token."""
        rows, lengths = [], []
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


class SteppedEngine:
    """A SGLang scheduler that runs iteration by iteration; ``close`` it after use."""

    def __init__(
        self,
        policy,
        *,
        pool,
        hooks=None,
        conservativeness,
        match_limit,
        tree=RADIX,
        settings=None,
        **limits,
    ):
        ignore_eos = limits.pop("ignore_eos")
        self._configured = configured(
            policy,
            hooks,
            conservativeness=conservativeness,
            match_limit=match_limit,
            **limits,
            **(settings or {}),
        )
        self._evicted = []
        self._engine = RealEngine(
            policy,
            pool=pool,
            hooks=hooks,
            ignore_eos=ignore_eos,
            on_evict=lambda node: self._evicted.append((tuple(path(node)), len(node.key))),
            tree=tree,
            **limits,
        )
        self.submit, self.scheduler = self._engine.submit, self._engine.scheduler

    def close(self):
        """Restore SGLang's global configuration."""
        self._configured.close()

    def iterate(self):
        """Run one turn of SGLang's event loop; return None if there was nothing to do."""
        batch, retracted = self._engine.plan(), self._engine.scheduler.retracted
        if batch is None:
            return None
        return self._done(batch, retracted, self._engine.complete)

    def _done(self, batch, retracted, complete):
        prefill = batch.forward_mode.is_extend()
        running = len(batch.reqs)
        prefills = (
            [(_number(r), prefix_len(r), extend_len(r)) for r in batch.reqs] if prefill else []
        )
        finished = complete(batch)
        iteration = Iteration(
            prefills,
            [_number(req) for req in retracted],
            list(self._evicted),
            [_number(req) for req in finished],
            0 if prefill else running,
        )
        retracted.clear()
        self._evicted.clear()
        return iteration


class PipelinedEngine(SteppedEngine):
    """A SGLang scheduler of a pipeline with two stages, which has two running batches.

    A turn plans one batch and then processes the result of the other, as ``event_loop_pp`` does.
    """

    def __init__(self, *args, **limits):
        super().__init__(*args, **limits)
        empty = self._engine._sgl.schedule_batch.ScheduleBatch
        self._running = [empty(reqs=[], batch_is_full=False) for _ in range(2)]
        self._last, self._planned, self._turn = [None, None], [None, None], 0

    def iterate(self):
        idle = 0
        while idle < 3:  # the results of both batches may still be on their way
            iteration = self._one_turn()
            if iteration is not None:
                return iteration
            idle += 1
        return None

    def _one_turn(self):
        scheduler, here = self.scheduler, self._turn % 2
        there, self._turn = 1 - here, self._turn + 1
        scheduler.running_batch, scheduler.last_batch = self._running[here], self._last[here]
        plan = scheduler.get_next_batch_to_run(scheduler.running_batch, scheduler.last_batch)
        scheduler.running_batch = self._running[here] = plan.running_batch
        self._planned[here] = batch = plan.batch_to_run
        finished = []
        if (other := self._planned[there]) is not None:
            finished = self._engine.complete(other)
        self._last[there] = other
        if batch is None and other is None:
            return None
        if batch is None:
            return Iteration([], [], [], [_number(req) for req in finished])
        return self._done(batch, scheduler.retracted, lambda _: finished)


def _number(req):
    return int(req.rid)
