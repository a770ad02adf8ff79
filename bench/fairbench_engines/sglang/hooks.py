"""The hooks around SGLang's functions, and their installation."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fairbench.errors import UsageError
from fairbench.version import __version__
from fairbench_engines.rank_accounts import ranks_of
from fairbench_engines.ranks import FOLDER, RankLink, open_folder
from fairbench_engines.sglang.admission import Original, PluginAdmission
from fairbench_engines.sglang.disaggregated import Disaggregation
from fairbench_engines.sglang.eviction import Eviction
from fairbench_engines.sglang.kept_tree import KeptTree, kept_tree
from fairbench_engines.sglang.match_order import MatchOrderHooks
from fairbench_engines.sglang.preemption import Preemption
from fairbench_engines.sglang.release import (
    SUPPORTED,
    Hook,
    check_evicting,
    check_eviction,
    check_server,
    check_target,
    check_version,
    dp_rank_of,
    require_applied,
    resolved,
)
from fairbench_engines.sglang.requests import Req, contexts_of, keep_key, read_key
from fairbench_engines.sglang.scheduler_host import SGLangHome
from fairbench_engines.step_times import FittedCosts
from fairbench_load.client_metrics import COUNTED, Exporter, Ledger
from fairbench_load.plugin_config import Classes, PluginConfig, check_classes, plugin_config

SERVER_ARGS = "sglang.srt.server_args.ServerArgs"
INPUT = "sglang.srt.managers.io_struct.GenerateReqInput"
TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
POLICY = "sglang.srt.managers.schedule_policy.SchedulePolicy"
ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"
BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch"


class Hooks:
    """Hooks of an SGLang scheduler, which receive the wrapped function and its arguments."""

    def __init__(self, config: PluginConfig, release: str) -> None:
        self._config = config
        self._release = release
        self.calls: Counter[str] = Counter()
        self._exporter: Exporter | None = None
        self._vocab_size: int | None = None
        # stored prefix look-ups of waiting requests, or None if SGLang's tree reports no changes
        self._tree: KeptTree | None = None
        # whether this is a decode server, for which other servers compute the prompts
        self._decodes = False
        self.eviction = Eviction(config, self._now_s) if config.eviction else None
        self.preemption = Preemption()
        self.order = MatchOrderHooks(config.build().cache_aware)
        self.admission = PluginAdmission(self.order, self.preemption, self._now_s, self.eviction)
        self.disaggregation = Disaggregation(self._now_s)
        self._settle()

    @staticmethod
    def _now_s() -> float:
        return time.monotonic()

    def _settle(self) -> None:
        ledger = Ledger(self._exporter)
        queue = self.disaggregation if self._decodes else self.order
        self.home = SGLangHome(self._config, ledger, queue.sort, queue.match, self.preemption)
        self.home.share_memory(self.eviction)
        self.admission.home = self.disaggregation.home = self.home
        self._look()

    def _look(self) -> None:
        """Let the scheduler's queue use stored prefix look-ups if SGLang's tree reports changes."""
        if self._tree is not None:
            self.home.kept_view(self._tree, self.order)

    def by_target(self) -> dict[str, Hook]:
        """Map each wrapped SGLang function to its hook."""
        more = self.eviction.by_target(BATCH) if self.eviction else {}
        return (
            more
            | self.disaggregation.by_target()
            | {
                f"{SERVER_ARGS}.check_server_args": Hook(self.check_arguments),
                f"{INPUT}.__getitem__": Hook(keep_key, ("i",)),
                f"{TOKENIZER}.generate_request": Hook(read_key, ("obj", "request")),
                f"{SCHEDULER}.__init__": Hook(self.start, ("server_args",)),
                f"{SCHEDULER}._abort_on_queued_limit": Hook(self.refuse, ("recv_req",)),
                f"{SCHEDULER}._add_request_to_queue": Hook(self.enqueue, ("req", "is_retracted")),
                f"{SCHEDULER}._get_new_batch_prefill_raw": Hook(self.admission.admit),
                f"{POLICY}._validate_and_adjust_policy": Hook(
                    self.choose_policy, ("policy", "tree_cache")
                ),
                f"{POLICY}._determine_active_policy": Hook(
                    self.order.active_policy, ("waiting_queue",)
                ),
                f"{POLICY}.calc_priority": Hook(self.admission.prioritize, ("waiting_queue",)),
                f"{ADDER}.__init__": Hook(self.preemption.adds),
                f"{ADDER}.add_one_req": Hook(self.admission.add, ("req",)),
                f"{ADDER}.preempt_to_schedule": Hook(self.admission.make_way, ("req",)),
                f"{SCHEDULER}.process_batch_result": Hook(self.results, ("batch",)),
                f"{BATCH}.retract_decode": Hook(self.retract),
                f"{BATCH}._get_decode_retraction_order": Hook(
                    self.order_retraction, ("reqs",), static=True
                ),
                f"{SCHEDULER}.flush_cache": Hook(self.flush),
                f"{SCHEDULER}.get_internal_state": Hook(self.internal_state),
            }
        )

    def check_arguments(self, original: Original, server_args: Any) -> None:
        """Wrap ``check_server_args``, which SGLang's first process calls before loading a model.

        For an unsupported server, print a line of text and raise SystemExit with code 2.
        """
        original(server_args)
        arguments = resolved(server_args)
        try:
            self._check(arguments)
        except UsageError as error:
            sys.stderr.write(f"fairbench: {error}\n")
            raise SystemExit(2) from None
        if getattr(arguments, "dp_size", 1) > 1:
            open_folder()
        if getattr(arguments, "is_embedding", False):
            sys.stderr.write(
                "fairbench: --is-embedding: requests are served in order of arrival, because "
                "SGLang's scheduler does not know the client of an embedding request\n"
            )

    def _check(self, arguments: Any) -> None:
        measures = self.home.costs is not None
        check_server(arguments, self.home.scheduler, measures=measures)
        if getattr(arguments, "enable_priority_scheduling", False):
            check_classes("--enable-priority-scheduling", self._config)
        check_eviction(arguments, self._config.eviction)

    def obey(self, arguments: Any) -> None:
        """Configure the plugin for a server with disaggregation, priorities or embeddings.

        Embeddings are served in order of arrival.
        """
        if getattr(arguments, "disaggregation_mode", "null") == "decode":
            self._decodes, self.order.cache_aware = True, False
        if getattr(arguments, "is_embedding", False):
            self._config, self.order.cache_aware = plugin_config("fcfs", {}), False
        elif getattr(arguments, "enable_priority_scheduling", False):
            low_first = arguments.schedule_low_priority_values_first
            order = Classes.LOWEST_FIRST if low_first else Classes.HIGHEST_FIRST
            self._config = replace(self._config, classes=order)
            self.admission.theirs_preempts = not arguments.disable_priority_preemption
        self._settle()

    def start(
        self, original: Original, scheduler: Any, server_args: Any, *args: Any, **named: Any
    ) -> None:
        """Wrap ``__init__`` to configure the host; raise UsageError for an unsupported server."""
        require_applied(self.by_target())
        self._check(arguments := resolved(server_args))
        self.obey(arguments)
        original(scheduler, server_args, *args, **named)
        self._vocab_size = getattr(getattr(scheduler, "model_config", None), "vocab_size", None)
        context = scheduler.metrics_reporter.metrics_collector_context
        if context.enable_metrics and context.is_stats_logging_rank:
            self._exporter = Exporter(COUNTED)
            self._settle()
        self.home.ranks = self._link(scheduler)

    def _link(self, scheduler: Any) -> RankLink | None:
        folder = os.environ.get(FOLDER)
        if not folder:
            return None
        return RankLink(Path(folder), dp_rank_of(scheduler), ranks_of(self.home.scheduler))

    def choose_policy(self, original: Original, policy: Any, name: str, tree: Any) -> Any:
        """Wrap ``_validate_and_adjust_policy``, and begin to observe the prefix tree."""
        chosen = self.order.choose_policy(original, policy, name, tree)
        self._tree = kept_tree(policy, chosen, tree) if self.order.cache_aware else None
        self._look()
        if self.eviction is not None:
            self.eviction.watch(tree, self._tree)
        return chosen

    def refuse(
        self, original: Original, scheduler: Any, req: Req, *args: Any, **named: Any
    ) -> bool:
        """Wrap ``_abort_on_queued_limit``, so that the local scheduler can refuse requests."""
        if req in self.preemption.taken:
            return False  # SGLang's own queue limit applies, as without the plugin
        if original(scheduler, req, *args, **named):
            # Forget the request, which may have run before a request of higher priority preempted
            # it.
            self.home.gone(req)
            return True
        if self.home.accepts(req, self._now_s()):
            return False
        from sglang.srt.managers.io_struct import AbortReq

        message = f"refused by {self._config.local}"
        reason = {"type": "abort", "status_code": HTTPStatus.TOO_MANY_REQUESTS, "message": message}
        aborted = AbortReq(rid=req.rid, finished_reason=reason)
        scheduler.ipc_channels.send_to_tokenizer.send_output(aborted, req)
        return True

    def enqueue(
        self,
        original: Original,
        scheduler: Any,
        req: Req,
        is_retracted: bool = False,
        *args: Any,
        **named: Any,
    ) -> None:
        """Wrap ``_add_request_to_queue`` so that the scheduler also receives the request."""
        original(scheduler, req, is_retracted, *args, **named)
        queue = scheduler.waiting_queue
        if is_retracted and (held := getattr(scheduler, "disagg_decode_prealloc_queue", None)):
            queue = held.retracted_queue
        if queue and queue[-1] is req:
            self.home.queued(req, is_retracted, self._now_s())

    def results(
        self, original: Original, scheduler: Any, batch: Any, *args: Any, **named: Any
    ) -> Any:
        """Wrap ``process_batch_result`` to report new tokens and ended requests."""
        result = original(scheduler, batch, *args, **named)
        if self.home.costs is not None:
            self._observe(self.home, self.home.costs, batch, self._now_s())
        self.home.produced(batch.reqs)
        if self._exporter:
            self._exporter.update_gauges(self.home)
        return result

    @staticmethod
    def _observe(home: SGLangHome, costs: FittedCosts, batch: Any, now_s: float) -> None:
        """Fit the cost model to an iteration's time, which overlap scheduling inflates."""
        started_s = getattr(batch, "launch_ts", None)
        if not started_s or not batch.reqs:
            return
        if batch.forward_mode.is_decode():
            costs.observe_decode(len(batch.reqs), contexts_of(batch.reqs), now_s - started_s)
            home.took(started_s, now_s, decoding=batch.reqs)
        elif batch.forward_mode.is_extend() and batch.extend_lens:
            chunks = list(zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True))
            pairs = [chunk[1:] for chunk in chunks]
            costs.observe_prefill(pairs, now_s - started_s, home.loaded(batch.reqs))
            home.took(started_s, now_s, prompts=chunks)

    def retract(self, original: Original, batch: Any, *args: Any, **named: Any) -> Any:
        """Wrap ``retract_decode`` to report aborted requests, which no other hook reports."""
        self.home.batch.show_batch(batch)
        result = original(batch, *args, **named)
        for req in result[2]:
            self.home.gone(req)
        return result

    def order_retraction(
        self, original: Original, reqs: list[Req], *args: Any, **named: Any
    ) -> list[int]:
        """Wrap ``_get_decode_retraction_order``; SGLang retracts the order's last request first."""
        if self.home.scheduler.retraction_order is None:
            return list(original(reqs, *args, **named))
        at = {req: index for index, req in enumerate(reqs)}
        return [at[req] for req in reversed(self.home.retraction_order(reqs, self._now_s()))]

    def flush(self, original: Original, scheduler: Any, *args: Any, **named: Any) -> Any:
        """Wrap ``flush_cache``; if the server is idle, also forget all charges to clients.

        Charges at data-parallel ranks are kept, because each rank counts charges of all ranks.
        """
        success = original(scheduler, *args, **named)
        self.home.sweep(scheduler.waiting_queue)
        if success and self.home.idle and self.home.ranks is None:
            self._settle()
        return success

    def internal_state(self, original: Original, scheduler: Any, *args: Any, **named: Any) -> Any:
        """Wrap ``get_internal_state``, which answers ``GET /server_info``."""
        answer = original(scheduler, *args, **named)
        answer.internal_state["fairbench"] = self.report()
        return answer

    def report(self) -> dict[str, Any]:
        """Return the configuration, how often each hook was called, and each client's counters."""
        ledger, balances = self.home.ledger, self.home.scheduler.balances()
        return {
            "local": self._config.local,
            "params": dict(self._config.params),
            "weights": dict(self._config.weights),
            **(
                {"eviction": self._config.eviction, "residency": self.eviction.residency()}
                if self.eviction
                else {}
            ),
            "vocab_size": self._vocab_size,
            "versions": {"fairbench": __version__, "sglang": self._release},
            "hooks": {target: self.calls[target] for target in self.by_target()},
            "counters": {what: ledger.total(what) for what in COUNTED},
            "clients": {
                client: {what: totals[what] for what in COUNTED} | {"balance": balances.get(client)}
                for client, totals in ledger.items()
            },
        }


def install(config: PluginConfig) -> None:
    """Register the hooks in this process, so that SGLang applies them.

    Raises UsageError for an unsupported SGLang, or if a wrapped function has changed parameters.
    """
    release = check_evicting() if config.eviction else check_version()
    hooks = Hooks(config, release=release)
    targets = hooks.by_target()
    for target, hook in targets.items():
        check_target(target, hook.expected)
    if release not in SUPPORTED:
        sys.stderr.write(
            f"fairbench: SGLang {release} is untested: all {len(targets)} functions that the "
            f"plugin wraps are as expected, and nothing else is known\n"
        )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in targets.items():
        HookRegistry.register(target, partial(_count, hooks, target, hook.method), HookType.AROUND)


def _count(hooks: Hooks, target: str, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
    hooks.calls[target] += 1
    return method(*args, **named)
