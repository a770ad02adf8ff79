"""vLLM's scheduler, with one of our local schedulers in place of its queue's order.

``vllm serve M --scheduler-cls fairbench_engines.vllm.scheduler.FairScheduler``. Imports vLLM.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler

from fairbench.errors import UsageError
from fairbench.live.ledger import COUNTED, Ledger
from fairbench_engines.vllm.eviction import BlockEviction
from fairbench_engines.vllm.exporter import VLLMExporter, exporter_of
from fairbench_engines.vllm.home import Home, Part
from fairbench_engines.vllm.start import one_line, plugin_of
from fairbench_engines.vllm.views import kept_blocks


class InFlight(NamedTuple):
    """A scheduled step whose results vLLM does not have yet."""

    plan: Any
    begun_s: float
    parts: list[Part]


class FairScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not installed for mypy
    """The scheduler named by FAIRBENCH_LOCAL decides admissions; vLLM decides everything else.

    An instance also derives from the class that vLLM would use without this one. Under asynchronous
    scheduling a step is decided while the previous step runs, whose output tokens are charged when
    they are known. A server that cannot run the scheduler ends with exit code 2 and one line.
    """

    now_s: Callable[[], float] = staticmethod(time.monotonic)

    def __new__(cls, vllm_config: Any, *args: Any, **named: Any) -> FairScheduler:
        with one_line():
            made: FairScheduler = super().__new__(_matching(cls, vllm_config.scheduler_config))
        return made

    def __init__(self, vllm_config: Any, *args: Any, **named: Any) -> None:
        with one_line():
            self._config = plugin_of(vllm_config)
        super().__init__(vllm_config, *args, **named)
        self._eviction: BlockEviction | None = None
        if self._config.eviction is not None:  # before the kept matches, which watch the pool too
            with one_line():
                self._eviction = BlockEviction(
                    self._config,
                    self.kv_cache_manager,
                    # looked up in the host that exists at that time
                    lambda name: self.home.request_of(name),
                    self.now_s,
                )
        self._exporter: VLLMExporter | None = None
        if self.log_stats:
            ahead = isinstance(self, AsyncScheduler)
            self._exporter = exporter_of(self._config, self.max_num_active_reqs, asynchronous=ahead)
        aware = self._config.build().cache_aware
        self._kept = kept_blocks(self.kv_cache_manager) if aware else None
        self._in_flight: deque[InFlight] = deque()
        self._settle()

    def _settle(self) -> None:
        ledger = Ledger(self._exporter)
        self.waiting = self.home = Home(self._config, ledger, self, self._kept)

    def is_full(self) -> bool:
        """Return whether vLLM could not admit any request."""
        running = len(self.running) + self.num_waiting_for_streaming_input
        return bool(running >= self.max_num_active_reqs)

    def schedule(self, *args: Any, **named: Any) -> Any:
        """Run one step, in which vLLM asks our queue which requests to admit."""
        self.home.begin_pass()
        self._rank_victims()
        try:
            plan = super().schedule(*args, **named)
        finally:
            self.home.end_pass()
        if self.home.costs is not None:
            counts = plan.num_scheduled_tokens.items()
            parts = [Part(name, self.requests[name].num_computed_tokens, n) for name, n in counts]
            self._in_flight.append(InFlight(plan, self.home.now_s, parts))
        return plan

    def _rank_victims(self) -> None:
        """Set vLLM's priorities to our preemption order before memory may run out.

        vLLM's priority policy preempts the highest number. The number has no other effect, since
        the queue is ours.
        """
        if not self.home.scheduler.orders_retraction:
            return
        self.policy = SchedulingPolicy.PRIORITY
        most = len(self.running) + self.max_num_scheduled_tokens // self.block_size + 1
        if self.kv_cache_manager.block_pool.get_num_free_blocks() > most:
            return  # enough for any demand of this step
        order = self.home.retraction_order(self.running, self.home.now_s)
        for rank, request in enumerate(reversed(order)):
            request.priority = rank

    def _preempt_request(self, request: Any, *args: Any, **named: Any) -> None:
        super()._preempt_request(request, *args, **named)
        if self._eviction is not None:
            self._eviction.preempted(request.request_id)
        self._rank_victims()

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        self.home.end_pass()  # before vLLM adds the step's tokens to what is computed
        super()._update_after_schedule(scheduler_output)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        while self._in_flight:  # steps end in the order in which they were scheduled
            plan, begun_s, parts = self._in_flight.popleft()
            if plan is scheduler_output:
                self.home.took(begun_s, self.now_s(), parts)  # before requests end, and leave
                break
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.home.produced(scheduler_output.num_scheduled_tokens)
        if self._exporter is not None:
            self._exporter.look(self.home)
            if self._eviction is not None:
                self._exporter.residency(self._eviction.residency)
        return outputs

    def _free_request(self, request: Any, *args: Any, **named: Any) -> Any:
        self.home.produced([request.request_id])
        if self._eviction is not None:
            self._eviction.finished(request.request_id)
        self.home.gone(request)
        return super()._free_request(request, *args, **named)

    def reset_prefix_cache(self, *args: Any, **named: Any) -> bool:
        """Wrap ``POST /reset_prefix_cache``: an idle server also gets a new scheduler."""
        success = bool(super().reset_prefix_cache(*args, **named))
        if success and self.home.idle:
            self._settle()
        return success

    @property
    def counters(self) -> dict[str, float]:
        return {what: self.home.ledger.total(what) for what in COUNTED}


def _matching(kind: type, scheduler_config: Any) -> type:
    """Return the class, derived also from the class that vLLM's configuration chooses.

    Raises UsageError for a class that does not work with this configuration.
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
