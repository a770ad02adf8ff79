"""A subclass of vLLM's scheduler, in which a local scheduler of fairbench orders the queue.

Start a server with ``vllm serve M --scheduler-cls fairbench_engines.vllm.scheduler.FairScheduler``.
This module imports vLLM.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from copy import copy
from itertools import repeat
from operator import ge, sub
from typing import Any, NamedTuple

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler

from fairbench.errors import UsageError
from fairbench_engines.vllm.eviction import BlockEviction
from fairbench_engines.vllm.exporter import VLLMExporter, exporter_of
from fairbench_engines.vllm.ranks import link_of
from fairbench_engines.vllm.scheduler_host import StepPart, VLLMHome
from fairbench_engines.vllm.start import one_line, plugin_of
from fairbench_engines.vllm.views import (
    ALL_TOKENS,
    COMPUTED_TOKENS,
    PROMPT_TOKENS,
    kept_blocks,
)
from fairbench_load.client_metrics import COUNTED, Ledger


class ScheduledStep(NamedTuple):
    """A scheduled engine step whose results have not arrived yet."""

    plan: Any
    begun_s: float
    parts: list[StepPart]


class VLLMScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not installed for mypy
    """A scheduler in which FAIRBENCH_LOCAL decides admissions, and vLLM decides everything else.

    At runtime, the scheduler also inherits from the scheduler class that vLLM would use without the
    plugin. With asynchronous scheduling, vLLM schedules a step while the previous step runs.
    Clients are charged for output tokens as soon as vLLM knows the tokens. A server that cannot run
    the scheduler prints a line of text and ends with exit code 2.
    """

    now_s: Callable[[], float] = staticmethod(time.monotonic)

    def __new__(cls, vllm_config: Any, *args: Any, **named: Any) -> VLLMScheduler:
        with one_line():
            made: VLLMScheduler = super().__new__(_matching(cls, vllm_config.scheduler_config))
        return made

    def __init__(self, vllm_config: Any, *args: Any, **named: Any) -> None:
        with one_line():
            self._config = plugin_of(vllm_config)
        self._parallel = vllm_config.parallel_config
        super().__init__(vllm_config, *args, **named)
        self._eviction: BlockEviction | None = None
        # The eviction policy must wrap the block pool before ``kept_blocks`` observes the pool.
        if self._config.eviction is not None:
            with one_line():
                self._eviction = BlockEviction(
                    self._config,
                    self.kv_cache_manager,
                    # ``self.home`` is looked up at each call, because a reset replaces it.
                    lambda name: self.home.request_of(name),
                    self.now_s,
                )
        self._exporter: VLLMExporter | None = None
        if self.log_stats:
            ahead = isinstance(self, AsyncScheduler)
            self._exporter = exporter_of(self._config, self.max_num_active_reqs, asynchronous=ahead)
        aware = self._config.build().cache_aware
        self._kept = kept_blocks(self.kv_cache_manager) if aware else None
        self._in_flight: deque[ScheduledStep] = deque()
        self._settle()

    def _settle(self) -> None:
        ledger = Ledger(self._exporter)
        self.waiting = self.home = VLLMHome(self._config, ledger, self, self._kept)
        self.home.share_memory(self._eviction)
        with one_line():
            self.home.ranks = link_of(self._parallel, self.home.scheduler)

    def is_full(self) -> bool:
        """Return whether vLLM can admit no request at present."""
        running = len(self.running) + self.num_waiting_for_streaming_input
        return bool(running >= self.max_num_active_reqs)

    def has_slot(self, request: Any) -> bool:
        """Return whether vLLM can load the request's LoRA adapter without removing another one."""
        if self.lora_config is None or request.lora_request is None:
            return True
        used = {one.lora_request.lora_int_id for one in self.running if one.lora_request}
        mine = request.lora_request.lora_int_id
        return mine in used or len(used) < self.lora_config.max_loras

    def schedule(self, *args: Any, **named: Any) -> Any:
        """Schedule a step, in which vLLM asks fairbench's queue which requests to admit."""
        self.home.begin_pass()
        self._rank_victims()
        try:
            plan = super().schedule(*args, **named)
        finally:
            self.home.end_pass()
        if self.home.costs is not None:
            new_tokens = plan.num_scheduled_tokens
            scheduled, tokens = [self.requests[name] for name in new_tokens], new_tokens.values()
            ends = list(map(COMPUTED_TOKENS, scheduled))
            all_but_last = map(sub, map(ALL_TOKENS, scheduled), repeat(1))
            known = map(max, map(PROMPT_TOKENS, scheduled), all_but_last)
            decoding = map(ge, map(sub, ends, tokens), known)
            parts = list(map(StepPart, new_tokens, ends, tokens, decoding))
            self._in_flight.append(ScheduledStep(plan, self.home.now_s, parts))
        return plan

    def _rank_victims(self) -> None:
        """Set vLLM's priorities to fairbench's preemption order if this step may run out of memory.

        vLLM's priority policy preempts the request with the highest priority number. Priorities do
        not affect the queue, which fairbench's scheduler orders.
        """
        if self.home.scheduler.retraction_order is None:
            return
        self.policy = SchedulingPolicy.PRIORITY
        drafts = self.num_lookahead_tokens // self.block_size
        most = len(self.running) * (1 + drafts)
        most += self.max_num_scheduled_tokens // self.block_size + 1
        if self.kv_cache_manager.block_pool.get_num_free_blocks() > most:
            return  # the free blocks suffice for this step, so vLLM preempts no request
        order = self.home.retraction_order(self.running, self.home.now_s)
        for rank, request in enumerate(reversed(order)):
            request.priority = rank

    def _preempt_request(self, request: Any, *args: Any, **named: Any) -> None:
        super()._preempt_request(request, *args, **named)
        if self._eviction is not None:
            self._eviction.preempted(request.request_id)
        self._rank_victims()

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        # ``super()`` counts the step's tokens as computed, so fairbench's admission pass ends
        # first.
        self.home.end_pass()
        super()._update_after_schedule(scheduler_output)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        while self._in_flight:  # steps end in the order of their scheduling
            plan, begun_s, parts = self._in_flight.popleft()
            if plan is scheduler_output:
                # Charge the step's time before its finished requests are removed.
                self.home.took(begun_s, self.now_s(), parts)
                break
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for batch in outputs.values():
            self.home.produced(batch.outputs)
        self.home.tell(self.now_s())
        if self._exporter is not None:
            self._exporter.update_gauges(self.home)
            if self._eviction is not None:
                self._exporter.residency(self._eviction.residency)
        return outputs

    def _free_request(self, request: Any, *args: Any, **named: Any) -> Any:
        self.home.last_output(request)
        if self._eviction is not None:
            self._eviction.finished(request.request_id)
        self.home.gone(request)
        if self.home.idle:  # publish charges now, because vLLM may run no further step
            self.home.tell(self.now_s())
        return super()._free_request(request, *args, **named)

    def reset_prefix_cache(self, *args: Any, **named: Any) -> bool:
        """Wrap ``POST /reset_prefix_cache``; if the server is idle, also forget all charges.

        Charges at data-parallel ranks are kept, because each rank counts charges of all ranks.
        """
        success = bool(super().reset_prefix_cache(*args, **named))
        if success and self.home.idle and self.home.ranks is None:
            self._settle()
        return success

    @property
    def counters(self) -> dict[str, float]:
        return {what: self.home.ledger.total(what) for what in COUNTED}


# Commands that start vLLM servers name the scheduler class ``FairScheduler``.
FairScheduler = VLLMScheduler


def _matching(kind: type, scheduler_config: Any) -> type:
    """Return a subclass of ``kind`` and of vLLM's scheduler class for this configuration.

    Raises UsageError if vLLM's scheduler class for this configuration does not match ``kind``.
    """
    plain = copy(scheduler_config)
    plain.scheduler_cls = None
    wanted = plain.get_scheduler_cls()
    if not issubclass(wanted, Scheduler) or issubclass(kind, AsyncScheduler) > issubclass(
        wanted, AsyncScheduler
    ):
        raise UsageError(
            f"--scheduler-cls {kind.__name__} does not fit this server: with async_scheduling = "
            f"{scheduler_config.async_scheduling} vLLM uses a {wanted.__name__}"
        )
    return kind if issubclass(kind, wanted) else type(kind.__name__, (kind, wanted), {})
