"""The construction of an emulated worker from its configuration."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from dataclasses import dataclass

from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.costs import ProfileCosts
from fairbench.hardware.engine_params import engine_limits
from fairbench.hardware.timing import TimingProfile, slowed
from fairbench.live.emulator.config import EmulatorConfig
from fairbench.live.emulator.kv_blocks import PublishingCache
from fairbench.live.emulator.live_engine import LiveEngine
from fairbench.live.emulator.service_totals import ServiceTotals
from fairbench.live.emulator.text import ApproximateText, Text, TokenizerText
from fairbench.live.emulator.token_streams import TokenStreams
from fairbench.live.emulator.wall_clock import WallClock
from fairbench.live.kv_events.publisher import Publisher
from fairbench.schedulers.base import LocalScheduler, Setup
from fairbench.schedulers.registry import build_local
from fairbench.sim.engine.sglang.worker import Worker


@dataclass(frozen=True, slots=True)
class EmulatedWorker:
    """The parts of a worker that answer HTTP requests."""

    config: EmulatorConfig
    profile: TimingProfile
    engine: LiveEngine
    totals: ServiceTotals
    text: Text
    publisher: Publisher | None

    @property
    def worker(self) -> Worker:
        return self.engine.worker


def build(config: EmulatorConfig, loop: AbstractEventLoop) -> EmulatedWorker:
    """Build an idle emulator with an empty cache, whose time starts now.

    Raises UsageError for settings, a tokenizer or a port that cannot be used.
    """
    profile = load_profile(config.gpu)
    limits = engine_limits(config.engine_params(), profile)
    text = _text_of(config.tokenizer, limits.pool_tokens)
    publisher = None
    if config.kv_events_port is not None:
        publisher = Publisher(config.host, config.kv_events_port, config.kv_replay_port)
    streams, totals = TokenStreams(), ServiceTotals()
    send = None if publisher is None else publisher.publish
    cache = PublishingCache(limits.pool_tokens, streams, send)
    wall = WallClock(config.time_scale, loop.time)
    timing = slowed(profile, config.slowdown)
    setup = Setup(
        weights=config.weights, pool_tokens=limits.pool_tokens, costs=ProfileCosts(timing)
    )

    def new_scheduler() -> LocalScheduler:
        scheduler = build_local(config.local, config.settings)
        scheduler.prepare(setup)
        return scheduler

    worker = Worker(0, wall.clock, new_scheduler(), timing, limits, totals, cache)
    engine = LiveEngine(
        worker, cache, streams, wall, text, loop, config.stream_interval, new_scheduler
    )
    return EmulatedWorker(config, profile, engine, totals, text, publisher)


def _text_of(tokenizer: str | None, pool_tokens: int) -> Text:
    if tokenizer is not None:
        return TokenizerText(tokenizer)
    return ApproximateText(most_tokens=pool_tokens + 1)  # one too many: it is refused
