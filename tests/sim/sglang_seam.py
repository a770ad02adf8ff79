"""SGLang's own scheduling classes on a CPU, without a model: one engine iteration per call.

The scheduler, batch, policy, adder, radix cache and allocator are SGLang's. Only their surroundings
are replaced: there is no process, model, tokenizer or metric. Overlap scheduling is off.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from unittest import mock

from fairbench.hardware.engine_params import RULES
from fairbench_engines.replica.inside import sglang_seam
from fairbench_engines.replica.inside.sglang_seam import (
    DRAFTS,
    HICACHE,
    HOST_CACHE,
    RADIX,
    Absent,
    extend_len,
    path,
    sglang,
    unified_cache,
)
from fairbench_engines.replica.inside.sglang_seam import SGLangScheduling as RealEngine
from fairbench_engines.sglang.release import DISTRIBUTIONS, SUPPORTED
from fairbench_engines.sglang.requests import prefix_len
from fairbench_load.plugin_config import installed

__all__ = ["DRAFTS", "HICACHE", "HOST_CACHE", "Absent", "sglang", "unified_cache"]  # for tests

VERSION = installed(DISTRIBUTIONS) or SUPPORTED[-1]
BEFORE_0_5_22 = VERSION in ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21")


def why_absent(fits=tuple(RULES)):
    """Return why SGLang cannot be compared with the simulator here, or "". Imports nothing.

    ``fits`` are the comparable releases, by default all whose rules the simulator follows.
    """
    if not installed(DISTRIBUTIONS):
        return f"sglang {VERSION} is not installed"
    return "" if VERSION in fits else f"sglang is {VERSION}, not {' or '.join(fits)}"


def match_limit(wanted):
    """Return how many waiting requests SGLang's LPM still sorts (always 128 before 0.5.22)."""
    return 128 if BEFORE_0_5_22 else wanted


def reserves_all(ignores_eos):
    """Tell whether a running request reserves all of its outputs. Before 0.5.22, none does."""
    return ignores_eos and not BEFORE_0_5_22


@dataclass
class Iteration:
    """The result of one engine iteration. Requests are numbers, in order."""

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


def configured(policy, hooks, **limits):
    """Set SGLang's global configuration and the plugin's hooks around its methods, until closed."""
    stack = sglang_seam.configured(policy, **limits)
    if hooks is not None:
        stack.enter_context(_apply(hooks))
    return stack


def _apply(hooks):
    """Put the plugin's hooks around SGLang's methods. The stack removes them again."""
    stack = ExitStack()
    for target, hook in hooks.by_target().items():
        path, name = target.rsplit(".", 1)
        owner = resolve_name(path)
        around = _around(hook)(getattr(owner, name))
        made = staticmethod(around) if isinstance(vars(owner)[name], staticmethod) else around
        stack.enter_context(mock.patch.object(owner, name, made))
    return stack


class SteppedEngine:
    """An SGLang scheduler that runs iteration by iteration. ``close`` it after use."""

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
        """Run one turn of SGLang's event loop. Return None if there was nothing to do."""
        batch, retracted = self._engine.plan(), self._engine.scheduler.retracted
        if batch is None:
            return None
        return self._done(batch, retracted, self._engine.complete)

    def _done(self, batch, retracted, complete):
        prefill = batch.forward_mode.is_extend()
        beside = getattr(batch, "decoding_reqs", None) if prefill else batch.reqs
        decoding = set(beside or ())  # mixed chunks append the decoding requests
        prefills = [
            (_number(r), prefix_len(r), extend_len(r)) for r in batch.reqs if r not in decoding
        ]
        finished = complete(batch)
        iteration = Iteration(
            prefills,
            [_number(req) for req in retracted],
            list(self._evicted),
            [_number(req) for req in finished],
            len(decoding),
        )
        retracted.clear()
        self._evicted.clear()
        return iteration


class OverlapEngine(SteppedEngine):
    """An SGLang scheduler with overlap schedule, which plans a batch before the last one's results.

    A turn is one turn of SGLang's ``event_loop_overlap``.
    """

    def __init__(self, *args, **limits):
        super().__init__(*args, **limits)
        scheduler = self.scheduler
        scheduler.enable_overlap = scheduler.enable_skip_finishing_decode = True
        scheduler.batch_result_processor = replace(
            scheduler.batch_result_processor, enable_overlap=True
        )
        scheduler.result_queue = deque()  # (a batch in flight, its result, which is made late)

    def iterate(self):
        last = self.scheduler.last_batch
        batch, queue = self._engine.plan(), self.scheduler.result_queue
        while batch is None and queue:  # nothing can be launched before these results
            finished = self._processed()
            if finished:
                return Iteration([], [], [], [_number(req) for req in finished])
            last, batch = None, self._engine.plan()
        if batch is None:
            return None
        at_once = self.scheduler.is_disable_overlap_for_batch(batch, last_batch=last)
        finished = self._processed() if at_once else []

        def complete(batch):
            queue.append((batch.copy(), None))
            return finished if at_once or len(queue) < 2 else self._processed()

        return self._done(batch, self.scheduler.retracted, complete)

    def _processed(self):
        batch, _ = self.scheduler.result_queue.popleft()
        return self._engine.complete(batch)


class PipelinedEngine(SteppedEngine):
    """An SGLang scheduler of a pipeline with two stages, which has two running batches.

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
