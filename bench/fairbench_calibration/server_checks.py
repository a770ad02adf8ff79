"""Checks of a running server: its scheduler, and whether a flood makes another client wait.

The load consists of two test clients in closed loops. The well-behaved client sends one request at
a time, first alone and then beside a heavy client that floods the server. Under a fair scheduler,
the well-behaved client's requests overtake the heavy client's queued requests. In order of arrival,
both clients wait equally long.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from math import nan
from statistics import fmean
from typing import Any

from fairbench.core import Segment
from fairbench.doors import plugin_of
from fairbench.errors import ProgramFailed, RunFailed
from fairbench_load.driver.caller import Caller, ProgramCall
from fairbench_load.driver.connection import Pool, RunClock
from fairbench_load.driver.server_apis import AskCompletions
from fairbench_load.driver.target import DriverTarget
from fairbench_load.headers import SESSION
from fairbench_load.plugin_config import PROOF
from fairbench_load.records import RequestRecord
from fairbench_load.server_facts import MOST_RUNNING, get_json, get_text, info_in

LIGHT, FLOOD = "fairbench-doctor-light", "fairbench-doctor-flood"
PROMPT_TOKENS = 128
OUTPUT_TOKENS = range(16, 49)  # output lengths, varied so that requests end at different times
ALONE = 0.25  # fraction of the trial in which only the well-behaved client sends requests
PAUSE_S = 0.2  # seconds that a client pauses between requests or after a failed request
# The flood of test requests keeps ``UNKNOWN_FLOOD`` requests in flight if the server's limit on
# running requests is unknown, and never more than ``MOST_FLOOD``.
UNKNOWN_FLOOD, MOST_FLOOD = 64, 512
OVERFILL = 3  # ratio of the flood's requests in flight to the requests that the server can run
# The heavy client counts as waiting if its mean time to first token (TTFT) exceeds ``WAITS``
# times the well-behaved client's mean TTFT without the flood.
WAITS = 2.0
# The well-behaved client counts as delayed if its mean TTFT exceeds ``SPARED`` times the heavy
# client's mean TTFT.
SPARED = 0.5
ROUTER = "fairbench_router_info"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server's report about its scheduler.

    ``local`` is "" if no scheduler of fairbench is active.
    """

    server: str
    local: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    most_running: int | None = None
    hint: str = ""

    def flood(self) -> int:
        """Return the number of concurrent requests that fill the server's queue."""
        if self.most_running is None:
            return UNKNOWN_FLOOD
        return min(MOST_FLOOD, OVERFILL * self.most_running)


def facts_of(root: str, headers: Mapping[str, str]) -> ServerFacts:
    """Ask a server which scheduler it runs. Raises RunFailed if the server cannot be reached."""
    info: dict[str, Any] | None = None
    with suppress(RunFailed):
        info = get_json(f"{root}/server_info", headers=headers)
    try:
        if info is not None:
            return _from_info(info)
        return _from_metrics(get_text(f"{root}/metrics", headers=headers))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFailed(f"{root}: the server's report cannot be read: {error!r}") from None


def _from_info(info: Mapping[str, Any]) -> ServerFacts:
    server = "emulator" if info.get("emulated") else "SGLang"
    places = [info, *info.get("internal_states", ())]
    reports = [place["fairbench"] for place in places if "fairbench" in place]
    most = said if isinstance(said := info.get(MOST_RUNNING), int) else None
    if not reports:
        hint = "install fairbench in SGLang's environment and set FAIRBENCH_LOCAL"
        return ServerFacts(server, most_running=most, hint=hint)
    one = reports[0]
    versions = one.get("versions") or {}
    return ServerFacts(server, one["local"], one["params"], one["weights"], versions, most)


def _from_metrics(page: str) -> ServerFacts:
    # The parser is imported here, because its package belongs to the extra `live`.
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == ROUTER:
                return ServerFacts("fairbench serve", sample.labels["router"])
    info = info_in(page)
    most = info.get(MOST_RUNNING)
    if (report := info.get("fairbench")) is not None:
        return ServerFacts("vLLM", report["local"], report["params"], report["weights"], {}, most)
    if "vllm:" not in page:
        return ServerFacts(
            "unknown server", hint="neither /server_info nor /metrics names a scheduler"
        )
    hint = f"vllm serve does not export {PROOF}: start python -m {plugin_of('vllm')}"
    return ServerFacts("vLLM", hint=f"{hint} with --scheduler-cls")


@dataclass(frozen=True, slots=True)
class PhaseWaits:
    """The TTFTs of one client in one phase of the trial, in seconds.

    If a request gets no token in the phase, ``ttft_s`` has its wait until the end of the phase. The
    checks compare means, because medians depend on the order in which requests of a client are
    served.
    """

    ttft_s: tuple[float, ...]
    failed: int

    @property
    def mean_s(self) -> float:
        return fmean(self.ttft_s) if self.ttft_s else nan

    @property
    def max_s(self) -> float:
        return max(self.ttft_s, default=nan)

    def as_dict(self) -> dict[str, Any]:
        """Return the waits as JSON values; null means that a wait is undefined."""
        times = {"mean_ttft_s": self.mean_s, "max_ttft_s": self.max_s}
        defined = {name: None if value != value else value for name, value in times.items()}
        return {"requests": len(self.ttft_s), "failed": self.failed, **defined}


@dataclass(frozen=True, slots=True)
class FloodTrial:
    """The waits of the well-behaved and of the heavy client in a trial of ``seconds`` seconds.

    ``at_once`` is the number of requests that the heavy client keeps in flight.
    """

    at_once: int
    seconds: float
    alone: PhaseWaits
    beside: PhaseWaits
    flood: PhaseWaits

    def waits_by_phase(self) -> dict[str, PhaseWaits]:
        """Return the waits of each client in each phase of the trial, by the phase's name."""
        return {"light_alone": self.alone, "light_beside": self.beside, "flood": self.flood}

    @property
    def waits(self) -> bool:
        """Whether the heavy client's requests waited, so that a scheduler could reorder them."""
        return self.flood.mean_s > WAITS * self.alone.mean_s

    @property
    def harmed(self) -> bool:
        """Whether the flood delayed the well-behaved client, or made most of its requests fail."""
        failing = self.beside.failed > len(self.beside.ttft_s)
        return failing or (self.waits and self.beside.mean_s > SPARED * self.flood.mean_s)


class _Client:
    """A test client that sends requests to the server, with a record of each request."""

    def __init__(self, name: str, target: DriverTarget, clock: RunClock) -> None:
        self.records: list[RequestRecord] = []
        self._name, self._clock = name, clock
        self.pool = Pool(target.base_url, target.connect_timeout_s)
        api = AskCompletions(target.model, target.extra_body)
        self._caller = Caller(target, api, clock, self.pool, self.records.append)
        self._numbers = count()

    async def loop(self, pause_s: float) -> None:
        while True:
            number = next(self._numbers)
            prompt = (Segment(f"{self._name} {number}", PROMPT_TOKENS),)
            tokens = OUTPUT_TOKENS[7 * number % len(OUTPUT_TOKENS)]
            call = ProgramCall(number, self._name, 0, prompt, tokens, tokens, self._clock.now_s())
            try:
                await self._caller.send_call(call, {})
                await asyncio.sleep(pause_s)
            except ProgramFailed:
                await asyncio.sleep(PAUSE_S)

    def waits_between(self, start_s: float, end_s: float) -> PhaseWaits:
        """Return the waits of requests whose first token came between ``start_s`` and ``end_s``.

        A request without a first token is treated as if the token came at ``end_s``.
        """
        came = [(one.first_token_s or end_s, one.submit_s) for one in self.records if not one.error]
        waits = tuple(at - sent for at, sent in came if sent is not None and start_s <= at <= end_s)
        failed = [one for one in self.records if one.error and start_s <= one.arrival_s < end_s]
        return PhaseWaits(waits, len(failed))

    def fault(self) -> str:
        """Return the first failed request's error, or say that the first request is unfinished."""
        return next(
            (one.error for one in self.records if one.error), "the first request is unfinished"
        )


async def flood(
    root: str,
    model: str | None,
    at_once: int,
    seconds: float,
    headers: Mapping[str, str],
    flood_headers: Mapping[str, str],
) -> FloodTrial:
    """Send requests of two test clients to the server, and return each client's waits.

    Raises RunFailed if the heavy client gets no answer, or if the well-behaved client gets no
    answer while it is alone.

    Args:
        root: The URL of the server, without ``/v1``.
        model: The model's name in requests, or None.
        at_once: Number of requests that the heavy client keeps in flight.
        seconds: Duration of the whole trial in seconds.
        headers: HTTP headers that every request has.
        flood_headers: Additional HTTP headers of the heavy client's requests.
    """
    clock = RunClock()

    def client(name: str, more: Mapping[str, str]) -> _Client:
        sent = {**headers, **more, SESSION: name}
        return _Client(
            name, DriverTarget(root, api="completions", model=model, headers=sent), clock
        )

    light, crowd = client(LIGHT, {}), client(FLOOD, flood_headers)
    begun_s, tasks = seconds * ALONE, [asyncio.create_task(light.loop(PAUSE_S))]
    try:
        await clock.sleep_until(begun_s)
        alone = light.waits_between(0.0, begun_s)
        if not alone.ttft_s:
            why = f"the well-behaved client alone got no answer in {begun_s:g} s: {light.fault()}"
            raise RunFailed(f"{root}: {why}")
        tasks += [asyncio.create_task(crowd.loop(0.0)) for _ in range(at_once)]
        await clock.sleep_until(seconds)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(light.pool.close(), crowd.pool.close())
    beside, theirs = light.waits_between(begun_s, seconds), crowd.waits_between(begun_s, seconds)
    if not theirs.ttft_s:
        raise RunFailed(f"{root}: no request of the flood test was answered: {crowd.fault()}")
    return FloodTrial(at_once, seconds, alone, beside, theirs)


@dataclass(frozen=True, slots=True)
class Findings:
    """Facts that a server reports, and the result of the flood trial (None without a trial)."""

    url: str
    facts: ServerFacts
    trial: FloodTrial | None = None

    @property
    def fine(self) -> bool:
        """Whether a scheduler of fairbench is active and protects the well-behaved client."""
        return bool(self.facts.local) and not (self.trial and self.trial.harmed)

    def as_dict(self) -> dict[str, Any]:
        """Return the findings of the checks as JSON types."""
        trial, told = self.trial, None
        if trial is not None:
            told = {
                **{"flood_requests": trial.at_once, "seconds": trial.seconds},
                **{"harmed": trial.harmed, "flood_waited": trial.waits},
                **{name: waits.as_dict() for name, waits in trial.waits_by_phase().items()},
            }
        return {"url": self.url, "fine": self.fine, **asdict(self.facts), "trial": told}


def lines_of(found: Findings) -> Iterator[str]:
    """Yield the findings as lines of text, with the verdict first."""
    facts, trial = found.facts, found.trial
    found_in = f"active: {facts.local} in {facts.server}"
    if not facts.local:
        found_in = f"not active: no scheduler of fairbench is visible in {facts.server}"
    yield f"{found_in}; {_harm(trial)}"
    yield ""
    yield f"{'server':<12}{found.url} ({facts.server})"
    if facts.local:
        yield f"{'scheduler':<12}{facts.local}"
        yield f"{'settings':<12}{json.dumps(dict(facts.settings), sort_keys=True)}"
        yield f"{'weights':<12}{json.dumps(dict(facts.weights), sort_keys=True)}"
    for name, version in facts.versions.items():
        yield f"{name:<12}{version}"
    if facts.most_running is not None:
        yield f"{'runs':<12}{facts.most_running} requests at once"
    hint = facts.hint
    quantum = next((name for name in facts.settings if name.endswith("quantum")), None)
    if not hint and trial is not None and trial.harmed and quantum:
        hint = f"lower {quantum}: a client in credit may go first until it has used this"
    if hint:
        yield f"{'to do':<12}{hint}"
    if trial is not None:
        yield ""
        yield from _waits_table(trial)


def _harm(trial: FloodTrial | None) -> str:
    if trial is None:
        return "the flood was not tried (--yes starts the flood)"
    light_s, flood_s = trial.beside.mean_s, trial.flood.mean_s
    waited = ""
    if light_s >= 0 and flood_s > 0:  # False if a client had no answers, so that its mean is NaN
        waited = f" ({light_s / flood_s:.0%} of its mean wait; fair: at most {SPARED:.0%})"
    if trial.harmed:
        return f"unfair: the well-behaved client waits like the flood{waited}"
    if not trial.waits:
        return f"fair, but a flood of {trial.at_once} requests did not wait (raise --flood)"
    return f"fair: the well-behaved client does not wait like the flood{waited}"


def _waits_table(trial: FloodTrial) -> Iterator[str]:
    yield f"{'time to first token':<40}{'requests':>9}{'failed':>8}{'mean, s':>9}{'max, s':>9}"
    first = "well-behaved client"
    names = f"{first} alone", f"{first} beside {trial.at_once} requests", "flood"
    for name, one in zip(names, trial.waits_by_phase().values(), strict=True):
        times = "".join(
            f"{'-' if x != x else format(x, '.3f'):>9}" for x in (one.mean_s, one.max_s)
        )
        yield f"{name:<40}{len(one.ttft_s):>9}{one.failed:>8}{times}"
