"""A check of a running server: its scheduler, and whether a flood of one client harms another.

The load is two clients of our own in closed loops. The light client asks one request at a time,
first alone and then beside the flood. Under a fair scheduler its requests overtake those of the
flood; in arrival order they wait as long.
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
from fairbench.live.driver.caller import Caller, ProgramCall
from fairbench.live.driver.clock import RunClock
from fairbench.live.driver.connection import Pool
from fairbench.live.driver.server_apis import AskCompletions
from fairbench.live.driver.target import Target
from fairbench.live.headers import SESSION
from fairbench.live.plugin_config import PROOF
from fairbench.live.processes.http import get_json, get_text
from fairbench.live.records import RequestRecord
from fairbench.live.server_facts import MOST_RUNNING, info_in

LIGHT, FLOOD = "fairbench-doctor-light", "fairbench-doctor-flood"
PROMPT_TOKENS = 128
OUTPUT_TOKENS = range(16, 49)  # different lengths, so that requests do not end all at once
ALONE = 0.25  # part of the time in which the light client is alone
PAUSE_S = 0.2  # between two requests of the light client, and after a refusal
UNKNOWN_FLOOD, MOST_FLOOD = 64, 512  # requests at a time
OVERFILL = 3  # times the number of requests that the server runs: two of three wait
WAITS = 2.0  # times the light client's time to first token alone: a slower flood waits
SPARED = 0.5  # of the flood's time to first token: a light client above this waits like the flood
ROUTER = "fairbench_router_info"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a server reports; ``local`` is "" if none of our schedulers is visible."""

    server: str
    local: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    most_running: int | None = None
    hint: str = ""

    def flood(self) -> int:
        """Return how many requests at a time fill the server's queue."""
        if self.most_running is None:
            return UNKNOWN_FLOOD
        return min(MOST_FLOOD, OVERFILL * self.most_running)


def facts_of(root: str, headers: Mapping[str, str]) -> Facts:
    """Ask the server which scheduler runs. Raises RunFailed if the server cannot be reached."""
    info: dict[str, Any] | None = None
    with suppress(RunFailed):
        info = get_json(f"{root}/server_info", headers=headers)
    try:
        if info is not None:
            return _from_info(info)
        return _from_metrics(get_text(f"{root}/metrics", headers=headers))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFailed(f"{root}: the server's report cannot be read: {error!r}") from None


def _from_info(info: Mapping[str, Any]) -> Facts:
    """Read ``/server_info`` of SGLang, whose schedulers report one by one, or of the emulator."""
    server = "emulator" if info.get("emulated") else "SGLang"
    places = [info, *info.get("internal_states", ())]
    reports = [place["fairbench"] for place in places if "fairbench" in place]
    most = said if isinstance(said := info.get(MOST_RUNNING), int) else None
    if not reports:
        hint = "install fairbench in SGLang's environment and set FAIRBENCH_LOCAL"
        return Facts(server, most_running=most, hint=hint)
    one = reports[0]
    versions = one.get("versions") or {}
    return Facts(server, one["local"], one["params"], one["weights"], versions, most)


def _from_metrics(page: str) -> Facts:
    """Read ``/metrics`` of vLLM or of ``fairbench serve``."""
    from prometheus_client.parser import text_string_to_metric_families  # of the extra `live`

    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == ROUTER:
                return Facts("fairbench serve", sample.labels["router"])
    info = info_in(page)
    most = info.get(MOST_RUNNING)
    if (report := info.get("fairbench")) is not None:
        return Facts("vLLM", report["local"], report["params"], report["weights"], {}, most)
    if "vllm:" not in page:
        return Facts("unknown server", hint="neither /server_info nor /metrics names a scheduler")
    hint = f"vllm serve does not export {PROOF}: start python -m {plugin_of('vllm')}"
    return Facts("vLLM", hint=f"{hint} with --scheduler-cls")


@dataclass(frozen=True, slots=True)
class Waits:
    """The times to first token of a client in a phase, in seconds.

    A request that had no token at the end counts with its time so far. The mean, unlike the median,
    hardly depends on the order in which a client's own requests are served.
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
        """Return the waits as JSON types; undefined is null."""
        times = {"mean_ttft_s": self.mean_s, "max_ttft_s": self.max_s}
        defined = {name: None if value != value else value for name, value in times.items()}
        return {"requests": len(self.ttft_s), "failed": self.failed, **defined}


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of the flood."""

    at_once: int
    seconds: float
    alone: Waits
    beside: Waits
    flood: Waits

    def parts(self) -> dict[str, Waits]:
        """Return the waits of each client and phase by name."""
        return {"light_alone": self.alone, "light_beside": self.beside, "flood": self.flood}

    @property
    def waits(self) -> bool:
        """Return whether the flood waited, so that the order of requests mattered."""
        return self.flood.mean_s > WAITS * self.alone.mean_s

    @property
    def harmed(self) -> bool:
        """Return whether the light client waited like the flood, or got errors from it."""
        failing = self.beside.failed > len(self.beside.ttft_s)
        return failing or (self.waits and self.beside.mean_s > SPARED * self.flood.mean_s)


class _Client:
    """A client of the trial: its requests, and their times."""

    def __init__(self, name: str, target: Target, clock: RunClock) -> None:
        self.records: list[RequestRecord] = []
        self._name, self._clock = name, clock
        self.pool = Pool(target.base_url, target.connect_timeout_s)
        api = AskCompletions(target.model, target.extra_body)
        self._caller = Caller(target, api, clock, self.pool, self.records.append)
        self._numbers = count()

    async def loop(self, pause_s: float) -> None:
        """Ask one request after the other until cancelled."""
        while True:
            number = next(self._numbers)
            prompt = (Segment(f"{self._name} {number}", PROMPT_TOKENS),)
            tokens = OUTPUT_TOKENS[7 * number % len(OUTPUT_TOKENS)]
            call = ProgramCall(number, self._name, 0, prompt, tokens, tokens, self._clock.now_s())
            try:
                await self._caller.call(call, {})
                await asyncio.sleep(pause_s)
            except ProgramFailed:
                await asyncio.sleep(PAUSE_S)

    def between(self, start_s: float, end_s: float) -> Waits:
        """Return the waits of the requests whose first token came in this time, or was due."""
        came = [(one.first_token_s or end_s, one.sent_s) for one in self.records if not one.error]
        waits = tuple(at - sent for at, sent in came if sent is not None and start_s <= at <= end_s)
        failed = [one for one in self.records if one.error and start_s <= one.arrival_s < end_s]
        return Waits(waits, len(failed))

    def fault(self) -> str:
        """Return the first error that a request got."""
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
) -> Trial:
    """Load the server with two clients. Raises RunFailed if the light client alone got no answer.

    Args:
        root: The server's address, without ``/v1``.
        model: The model's name in requests, or None.
        at_once: The flood's number of requests at a time.
        seconds: The length of the whole trial.
        headers: Headers of every request.
        flood_headers: More headers of the flood's requests.
    """
    clock = RunClock()

    def client(name: str, more: Mapping[str, str]) -> _Client:
        sent = {**headers, **more, SESSION: name}
        return _Client(name, Target(root, api="completions", model=model, headers=sent), clock)

    light, crowd = client(LIGHT, {}), client(FLOOD, flood_headers)
    begun_s, tasks = seconds * ALONE, [asyncio.create_task(light.loop(PAUSE_S))]
    try:
        await clock.sleep_until(begun_s)
        alone = light.between(0.0, begun_s)
        if not alone.ttft_s:
            why = f"the light client alone got no answer in {begun_s:g} s: {light.fault()}"
            raise RunFailed(f"{root}: {why}")
        tasks += [asyncio.create_task(crowd.loop(0.0)) for _ in range(at_once)]
        await clock.sleep_until(seconds)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(light.pool.close(), crowd.pool.close())
    beside, theirs = light.between(begun_s, seconds), crowd.between(begun_s, seconds)
    if not theirs.ttft_s:
        raise RunFailed(f"{root}: the flood got no answer: {crowd.fault()}")
    return Trial(at_once, seconds, alone, beside, theirs)


@dataclass(frozen=True, slots=True)
class Findings:
    """The facts of a server, and the trial if there was one."""

    url: str
    facts: Facts
    trial: Trial | None = None

    @property
    def fine(self) -> bool:
        """Return whether one of our schedulers is active, and the flood harmed nobody."""
        return bool(self.facts.local) and not (self.trial and self.trial.harmed)

    def as_dict(self) -> dict[str, Any]:
        """Return the findings as JSON types."""
        trial, told = self.trial, None
        if trial is not None:
            told = {
                **{"flood_requests": trial.at_once, "seconds": trial.seconds},
                **{"harmed": trial.harmed, "flood_waited": trial.waits},
                **{name: waits.as_dict() for name, waits in trial.parts().items()},
            }
        return {"url": self.url, "fine": self.fine, **asdict(self.facts), "trial": told}


def lines_of(found: Findings) -> Iterator[str]:
    """Yield the findings as lines of text, the answer first."""
    facts, trial = found.facts, found.trial
    yield f"{_activity(facts)}; {_harm(trial)}"
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
    if hint := facts.hint or (trial is not None and trial.harmed and _quantum(facts)):
        yield f"{'to do':<12}{hint}"
    if trial is not None:
        yield ""
        yield from _table(trial)


def _activity(facts: Facts) -> str:
    if not facts.local:
        return f"not active: no scheduler of fairbench is visible in {facts.server}"
    return f"active: {facts.local} in {facts.server}"


def _quantum(facts: Facts) -> str:
    """Return what to change if a light client waits because of the scheduler's quantum."""
    for name in facts.settings:
        if name.endswith("quantum"):
            return f"lower {name}: a client in credit may go first until it has used this"
    return ""


def _harm(trial: Trial | None) -> str:
    if trial is None:
        return "the flood was not tried (--yes tries it)"
    if trial.harmed:
        return "harmed: the light client waits like the flood"
    if not trial.waits:
        return f"unharmed, but a flood of {trial.at_once} requests did not wait (raise --flood)"
    return "unharmed: the light client does not wait like the flood"


def _table(trial: Trial) -> Iterator[str]:
    yield f"{'time to first token':<32}{'requests':>9}{'failed':>8}{'mean, s':>9}{'max, s':>9}"
    names = "light client alone", f"light client beside {trial.at_once} requests", "flood"
    for name, one in zip(names, trial.parts().values(), strict=True):
        times = "".join(
            f"{'-' if x != x else format(x, '.3f'):>9}" for x in (one.mean_s, one.max_s)
        )
        yield f"{name:<32}{len(one.ttft_s):>9}{one.failed:>8}{times}"
