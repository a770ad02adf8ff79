"""The hooks of SGLang's admission pass, whose candidates fairbench's scheduler chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fairbench_engines.sglang.eviction import Eviction
from fairbench_engines.sglang.match_order import MatchOrderHooks
from fairbench_engines.sglang.preemption import Preemption
from fairbench_engines.sglang.requests import Req, prefix_len
from fairbench_engines.sglang.scheduler_host import Next, SGLangHome
from fairbench_engines.sglang.views import ArmedQueue

Original = Callable[..., Any]


@dataclass(eq=False)
class PluginAdmission:
    """Hooks through which fairbench's scheduler decides on SGLang's admissions.

    Each hook receives the wrapped SGLang function and the function's arguments.
    """

    order: MatchOrderHooks
    preemption: Preemption
    now_s: Callable[[], float]
    eviction: Eviction | None
    home: SGLangHome = field(init=False)

    def __post_init__(self) -> None:
        # the SGLang scheduler whose admission pass is in progress, or None
        self._scheduler: Any = None
        # whether the admission pass continued after a request that did not fit
        self._passed_over = False
        # the request that the pass skipped because the batch had no free slot
        self._no_slot: Req | None = None
        self._leaves_out = False  # whether ``calc_priority`` runs only to mark prefixes as used
        self.theirs_preempts = False  # whether SGLang itself preempts requests of lower priority

    def admit(self, original: Original, scheduler: Any, *args: Any, **named: Any) -> Any:
        """Wrap ``_get_new_batch_prefill_raw``: order the queue during an admission pass only."""
        self.home.sweep(scheduler.waiting_queue)
        self.home.discover(scheduler.waiting_queue, self.now_s())
        self._scheduler = scheduler
        self._passed_over = self.home.capped = False
        self.home.chunked = scheduler.chunked_req
        self.preemption.began(scheduler)
        batch = named.get("running_batch", scheduler.running_batch)
        self.home.batch.show_batch(batch, scheduler)
        if self.home.scheduler.preempts:
            # With priority preemption enabled, SGLang runs a scheduling pass even if the batch is
            # full, and then calls ``preempt_to_schedule``.
            scheduler.enable_priority_preemption = self._needs_pass(scheduler, batch)
        new_batch, running_batch = original(scheduler, *args, **named)
        self.home.end_pass()
        self.home.tell(self.now_s())
        # A plain list replaces the ArmedQueue, so that iterations after the pass yield SGLang's
        # order.
        if isinstance(scheduler.waiting_queue, ArmedQueue):
            scheduler.waiting_queue = scheduler.waiting_queue[:]
        # Queue preempted requests again: SGLang 0.5.17 loses preempted requests if the pass admits
        # no request.
        for req in self.preemption.taken:
            scheduler._add_request_to_queue(req, is_retracted=True)
        self.preemption.began(scheduler)
        refused = self._passed_over or self.home.capped
        if refused and (new_batch is not None or not running_batch.is_empty()):
            running_batch.batch_is_full = True
        return new_batch, running_batch

    def _needs_pass(self, scheduler: Any, batch: Any) -> bool:
        """Return whether a pass may admit or preempt a request.

        Before ``_needs_pass`` returns False, it marks the cached prefixes of waiting requests as
        recently used, as an admission pass would.
        """
        queue, now_s = scheduler.waiting_queue, self.now_s()
        if not queue or scheduler.chunked_req is not None:
            return True
        if scheduler.get_num_allocatable_reqs(len(batch.reqs)) > 0:
            return True
        if self.theirs_preempts or self.home.scheduler.may_preempt(self.home.view, now_s):
            return True
        self._leaves_out = True
        scheduler.policy.calc_priority(queue, batch)
        self._leaves_out = False
        return False

    def prioritize(
        self, original: Original, policy: Any, waiting_queue: list[Req], *args: Any, **named: Any
    ) -> None:
        """Wrap ``calc_priority`` so that SGLang tries requests in the fairbench scheduler's order.

        A decode server makes no admission pass, and calls ``calc_priority`` only to sort requests.
        """
        if self._scheduler is None:
            original(policy, waiting_queue, *args, **named)
            return
        if self._leaves_out:
            self.order.begin_pass(original, policy, waiting_queue, *args, **named)
            return
        queue = self._scheduler.waiting_queue = ArmedQueue(waiting_queue)
        self.order.begin_pass(original, policy, queue, *args, **named)
        self.home.arm(queue, self.now_s())

    def add(self, original: Original, adder: Any, req: Req, *args: Any, **named: Any) -> Any:
        """Wrap ``add_one_req``, and report whether SGLang has admitted ``req``.

        The result NO_TOKEN ends SGLang's loop over waiting requests, and the batch counts as full.
        With ``no_room=skip``, SGLang's loop may continue with another request. If the scheduler has
        preempted a running request for ``req``, SGLang matches the prefix of ``req`` again and
        retries.
        """
        if req is self._no_slot:
            self._no_slot = None
            return type(adder.budget_state()).CONTINUE
        before = len(adder.can_run_list)
        while True:
            result = original(adder, req, *args, **named)
            if len(adder.can_run_list) > before:
                admitted = self.home.admitted(
                    req, len(req.full_untruncated_fill_ids) - prefix_len(req)
                )
                if self.eviction is not None:
                    self.eviction.claim_admitted(req, admitted)
                return result
            if result is not type(result).NO_TOKEN:
                return result
            wanted = self.home.no_room(req)
            if wanted is Next.ANOTHER:
                self._passed_over = True
                return type(result).CONTINUE
            if wanted is Next.NOBODY:
                return result
            req.init_next_round_input(adder.tree_cache)

    def make_way(self, original: Original, adder: Any, req: Req, *args: Any, **named: Any) -> bool:
        """Wrap ``preempt_to_schedule``, which SGLang calls if no slot is free for a candidate.

        Return whether SGLang's loop over waiting requests continues.

        If the server has priority classes, SGLang first tries to preempt requests of lower classes.
        If SGLang preempts nothing, fairbench's scheduler may preempt requests or replace the
        candidate ``req``.
        """
        if self.theirs_preempts and original(adder, req, *args, **named):
            return True
        taken = len(self.preemption.taken)
        while (wanted := self.home.no_room(req)) is Next.AGAIN:
            if len(self.preemption.taken) > taken:
                return True
        if wanted is Next.NOBODY:
            return False
        self._no_slot = req
        return True
