"""An emulated worker: its configuration, its parts, and the token counts of each client."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairbench.config.settings import ENGINE
from fairbench.engine.contract import WorkerParts
from fairbench.engine.logs import InBatch, ServiceLog, Shares, Stretch
from fairbench.engine.sglang import SGLangReplica
from fairbench.engine.sglang_variants import replica_class
from fairbench.errors import UsageError, unknown_name
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engine_params import EngineParams, engine_limits
from fairbench.hardware.timing import ProfileCosts, TimingProfile, slowed
from fairbench.schedulers.base import LocalScheduler, Setup
from fairbench.schedulers.params import make_params
from fairbench.schedulers.registry import build_local, local_class
from fairbench.streams import stream
from fairbench_emulator.kv_events import Publisher, PublishingCache
from fairbench_emulator.live_engine import LiveEngine, WallClock
from fairbench_emulator.tokens import ApproximateText, Text, TokenizerText, TokenStreams
from fairbench_load.kinds import MAX_TIME_SCALE, MIN_TIME_SCALE


@dataclass(frozen=True, slots=True)
class EmulatorConfig:
    """The configuration of an emulated worker.

    - ``gpu`` is the full id of a timing profile.
    - ``settings`` maps NAME.PARAM to a value; NAME is the local scheduler or the engine.
    - ``weights`` maps client names to weights; the default weight is 1.
    - ``port`` and ``kv_replay_port`` are TCP ports; 0 means any free port.
    - ``kv_events_port`` is the TCP port of KV events; None means that no events are published.
    - ``time_scale`` is the number of emulated seconds per real second.
    - ``slowdown`` multiplies the duration of each iteration in the timing profile.
    - ``stream_interval`` is the number of decode steps between two chunks of a streamed answer.
    - ``tokenizer`` is the path of a file tokenizer.json for prompts that are texts.
    - ``number`` identifies the worker in its answers; None means that answers do not identify it.
    """

    gpu: str
    model: str
    local: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0
    kv_events_port: int | None = None
    kv_replay_port: int = 0
    time_scale: float = 1.0
    slowdown: float = 1.0
    stream_interval: int = 16
    tokenizer: str | None = None
    number: int | None = None

    def __post_init__(self) -> None:
        """Raise UsageError if ``time_scale``, ``slowdown`` or another value is out of range."""
        for name in ("time_scale", "slowdown"):
            value = getattr(self, name)
            if not MIN_TIME_SCALE <= value <= MAX_TIME_SCALE:
                raise UsageError(
                    f"{name} = {value}: must be from {MIN_TIME_SCALE:g} to {MAX_TIME_SCALE:g}"
                )
        used: dict[str, type] = {self.local: local_class(self.local).Params, ENGINE: EngineParams}
        for key in self.settings:
            owner = key.partition(".")[0]
            if owner not in used:
                raise unknown_name("prefix of a setting", owner, used)
        for owner, params in used.items():
            make_params(owner, params, self.settings)


@dataclass(slots=True)
class ClientTokens:
    """The token counts of one client: admitted, computed and recomputed prompts, and output."""

    input_tokens: int = 0
    extend_tokens: int = 0
    recompute_tokens: int = 0
    output_tokens: int = 0


class ServiceTotals(ServiceLog):
    """A service log that keeps sums instead of rows, because servers run for unlimited time."""

    def __init__(self) -> None:
        super().__init__([])
        self.clients: defaultdict[str, ClientTokens] = defaultdict(ClientTokens)

    def prefill(
        self,
        worker: int,
        start_ps: int,
        end_ps: int,
        batch: int,
        shares: Shares,
        context_tokens: int = 0,
    ) -> None:
        for client, share in shares.items():
            total = self.clients[client]
            total.input_tokens += share.input_tokens
            total.extend_tokens += share.extend_tokens
            total.recompute_tokens += share.recompute_tokens
            total.output_tokens += share.output_tokens

    def decode(self, worker: int, stretch: Stretch, batch: InBatch) -> None:
        for client, requests in batch.per_client.items():
            self.clients[client].output_tokens += stretch.steps * requests


@dataclass(frozen=True, slots=True)
class EmulatedWorker:
    """The parts of an emulated worker that the HTTP server uses."""

    config: EmulatorConfig
    profile: TimingProfile
    engine: LiveEngine
    totals: ServiceTotals
    text: Text
    publisher: Publisher | None

    @property
    def worker(self) -> SGLangReplica:
        return self.engine.worker


def build(config: EmulatorConfig, loop: AbstractEventLoop) -> EmulatedWorker:
    """Build an idle emulator with an empty cache and a clock that starts now.

    Raises UsageError for an invalid setting, an invalid tokenizer or an unavailable port.
    """
    profile = load_profile(config.gpu)
    limits = engine_limits(make_params(ENGINE, EngineParams, config.settings), profile)
    text: Text = (
        # A prompt that exceeds the KV pool is refused, so its remaining text need not be tokenized.
        ApproximateText(most_tokens=limits.pool_tokens + 1)
        if config.tokenizer is None
        else TokenizerText(config.tokenizer)
    )
    publisher = None
    if config.kv_events_port is not None:
        publisher = Publisher(config.host, config.kv_events_port, config.kv_replay_port)
    streams, totals = TokenStreams(), ServiceTotals()
    send = None if publisher is None else publisher.publish
    cache = PublishingCache(limits.pool_tokens, streams, send)
    wall = WallClock(config.time_scale, loop.time)
    timing = slowed(profile, config.slowdown)
    setup = Setup(
        weights=config.weights,
        pool_tokens=limits.pool_tokens,
        costs=ProfileCosts(timing),
        shuffle=stream(0, "scheduler").shuffle,
    )

    def new_scheduler() -> LocalScheduler:
        scheduler = build_local(config.local, config.settings)
        scheduler.prepare(setup)
        return scheduler

    parts = WorkerParts(0, wall.clock, new_scheduler(), timing, totals)
    worker = replica_class(limits)(parts, limits, cache)
    engine = LiveEngine(
        worker, cache, streams, wall, text, loop, config.stream_interval, new_scheduler
    )
    return EmulatedWorker(config, profile, engine, totals, text, publisher)
