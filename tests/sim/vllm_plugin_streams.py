"""Random streams of several clients: vLLM's scheduler with the plugin, and the simulator."""

import os
from collections import Counter
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

from fairbench.core import PS_PER_S, Request, Segment, prompt_tokens
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.contract import WorkerParts
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sequence import Sequence
from fairbench.schedulers.base import Setup
from fairbench_load.plugin_config import OWN_ORDER, plugin_config
from tests.sim.sglang_streams import STEP_PS, Tokens
from tests.sim.vllm_invariants import watch_vllm
from tests.sim.vllm_seam import RealEngine, vllm
from tests.sim.vllm_streams import (
    CLIENTS,
    StepProfile,
    assert_alike,
    client_of,
    drive,
    random_stream,
    telling,
)

SCHEDULERS = ("fcfs", "vtc", "lpm", "dlpm", "edf", "priority")
# so small a quantum that the order is not LPM's
SETTINGS = {
    "dlpm": {"dlpm.quantum": 50},
    "edf": {"edf.preempt": "no"},
    "priority": {"priority.of": {"ann": 2, "bob": 1, "eve": 0}},
}


def fair_engine(
    limits, local, settings, now_s, *, evicting=OWN_ORDER, environment=(), configured=(), **named
):
    """Return a vLLM engine around ``FairScheduler``. ``configured`` changes values by path."""
    vllm()  # which warns when it is imported
    from fairbench_engines.vllm.scheduler import FairScheduler

    class Clocked(FairScheduler):
        pass

    Clocked.now_s = staticmethod(now_s)
    told = plugin_config(local, settings, None, evicting).environment() | dict(environment)
    with patch.dict(os.environ, told):
        return RealEngine(limits, scheduler_cls=Clocked, configured=configured, **named)


def ask_plugin(stream, local, settings, *, watch=None, **named):
    """Return vLLM's steps with the plugin inside. ``watch(engine, tokens)`` sees the start."""
    tokens, clock = Tokens(), SimpleNamespace(step=0)
    named = {"policy": stream.policy} | named
    engine = fair_engine(
        stream.limits, local, settings, lambda: clock.step * STEP_PS / PS_PER_S, **named
    )
    scheduler = engine.scheduler
    if watch is not None:
        watch(engine, tokens)
    scheduler.home.scheduler.prepare(Setup())  # both know no costs
    done = drive(engine, stream, tokens, clock)
    assert scheduler.home.idle
    return done


def ask_ours(
    stream,
    local,
    settings,
    cache_of=lambda clock: None,
    scheduler=None,
    prepare=lambda worker: None,
):
    """Return the simulated engine's steps, with the cache that ``cache_of`` makes or its own.

    ``prepare`` gets the simulated worker before the first request.
    """
    clock, scheduler = Clock(), scheduler or plugin_config(local, settings).build()
    log, cache = ServiceLog(list(CLIENTS)), cache_of(clock)
    worker = telling(WorkerParts(0, clock, scheduler, StepProfile(), log), stream.limits, cache)
    prepare(worker)
    retract = scheduler.on_retract

    def on_retract(request, view, now_s):
        worker.retracted(request)
        retract(request, view, now_s)

    scheduler.on_retract = on_retract
    watch_vllm(clock, [worker])
    for number, arrival in enumerate(stream.arrivals):
        request = Request(
            *(number, client_of(number), 0, 0, stream.prompt(number)),
            *(prompt_tokens(arrival.prompt), arrival.output + stream.spare[number]),
            arrival_s=arrival.step * STEP_PS / PS_PER_S,
            priority=arrival.max_new,
        )
        output = Segment(f"out-{number}", arrival.output)
        sequence = Sequence(request, output, arrival.step * STEP_PS, worker.over)
        clock.at(arrival.step * STEP_PS, ARRIVE, 0, partial(worker.submit, sequence))
    while clock.next_ps() is not None:
        clock.step()
    return worker.done


def compare_plugin(local, seed, settings=None, our_settings=None, asynchronous=None):
    """Assert that both do the same in every step of a stream. Count the events."""
    settings = settings or SETTINGS.get(local, {})
    stream = random_stream(seed, asynchronous)
    stream.policy = "fcfs"
    theirs = ask_plugin(stream, local, settings)
    seen = Counter(_what(theirs))
    assert_alike(theirs, ask_ours(stream, local, our_settings or settings), stream)
    return seen


def _what(steps):
    latest = -1
    for _, step in sorted(steps.items()):
        yield "steps"
        yield from ["scheduled tokens"] * sum(step.scheduled.values())
        yield from ["preemptions"] * len(step.preempted)
        for number, hit in step.hits.items():
            yield "admissions"
            if hit:
                yield "admissions with cached tokens"
            if number < latest:
                yield "requests passed by a later one"
            latest = max(latest, number)
