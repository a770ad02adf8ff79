"""Measurements of a running server, and the fit of a timing profile to the measurements."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbench.errors import RunFailed
from fairbench.hardware.timing import FitDomain, KVPool, TimingProfile
from fairbench_calibration.profiling.fit import Column, Iterations, fitted, predicted_ms

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from fairbench_load.openai import Answered

BATCHES = (1, 2, 4, 8, 16, 32, 64)
BATCH_PROMPT, BATCH_OUTPUT = 128, 129
LONG_BATCHES, LONG_PROMPT = (8, 32), 2_048
REPEATS = 5  # measurements per prompt length; the fastest counts, because disturbances add time
WINDOWS = 4  # time windows per batch measurement; only the window with the fastest steps counts
TOKEN_IDS = range(1_000, 30_000)  # token ids that nearly all vocabularies contain
SEED = 0
_WAIT_S = 300.0  # seconds after which a request to the server fails


@dataclass(frozen=True)
class PromptTime:
    """The length of a single prompt in tokens, and its time to first token in seconds."""

    tokens: int
    ttft_s: float


@dataclass(frozen=True)
class Batch:
    """A batch of decoding requests: their number, total context tokens, and seconds per step."""

    requests: int
    context_tokens: float
    step_s: float


@dataclass(frozen=True)
class Probed:
    """Measurements of a server: times of single prompts and of batches that decode."""

    prompts: list[PromptTime] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)


@dataclass(frozen=True)
class _Answer:
    """The times at which a request was sent and pieces of its output arrived."""

    sent_s: float
    pieces_s: list[float]

    def tokens_at(self, moment_s: float) -> float:
        """Return how many tokens had arrived by a time, if all later pieces have equal sizes."""
        counts = np.linspace(1, BATCH_OUTPUT, len(self.pieces_s))
        return float(np.interp(moment_s, self.pieces_s, counts))


class ProbedServer:
    """An OpenAI-compatible server that is measured with requests over HTTP."""

    def __init__(self, session: ClientSession, base_url: str, model: str) -> None:
        self._session = session
        self._url = f"{root_of(base_url)}/v1/completions"
        self._model = model
        self._rng = np.random.default_rng(SEED)

    async def measure(self, chunk: int, say: Callable[[str], None]) -> Probed:
        """Measure single prompts of up to ``chunk`` tokens, and then batches of requests.

        Raises RunFailed if the server gives no usable answer.
        """
        # The first request is not measured, because the server may do one-time work.
        await self._timed_answer(BATCH_PROMPT, 8)
        probed = Probed()
        for tokens in prompt_lengths(chunk):
            say(f"lone prompts of {tokens:,} tokens")
            taken = [await self._timed_answer(tokens, 1) for _ in range(REPEATS)]
            ttft_s = min(one.pieces_s[0] - one.sent_s for one in taken)
            probed.prompts.append(PromptTime(tokens, ttft_s))
        wanted = [(n, BATCH_PROMPT) for n in BATCHES]
        for requests, tokens in wanted + [(n, min(LONG_PROMPT, chunk)) for n in LONG_BATCHES]:
            say(f"{requests} requests of {tokens:,} tokens at once")
            probed.batches.append(await self._batch(requests, tokens))
        return probed

    async def _batch(self, requests: int, tokens: int) -> Batch:
        """Measure decode steps while all requests of a batch decode."""
        asked = (self._timed_answer(tokens, BATCH_OUTPUT) for _ in range(requests))
        answers = await asyncio.gather(*asked)
        begin_s = max(one.pieces_s[0] for one in answers)
        end_s = min(one.pieces_s[-1] for one in answers)
        if begin_s >= end_s:
            raise RunFailed(
                f"{requests} requests of {tokens:,} tokens did not decode at the same "
                "time: the server runs fewer requests at once, or is busy"
            )
        moments_s = np.linspace(begin_s, end_s, WINDOWS + 1).tolist()
        windows = [self._window(answers, tokens, *ends) for ends in pairwise(moments_s)]
        return min(windows, key=lambda one: one.step_s)

    def _window(self, answers: list[_Answer], tokens: int, begin_s: float, end_s: float) -> Batch:
        made = [(one.tokens_at(begin_s), one.tokens_at(end_s)) for one in answers]
        step_s = float(np.median([(end_s - begin_s) / max(1e-9, b - a) for a, b in made]))
        context = sum(tokens + (a + b) / 2 for a, b in made)
        return Batch(len(answers), context, step_s)

    async def _timed_answer(self, tokens: int, output: int) -> _Answer:
        """Send a prompt of random tokens, and record when each piece of the answer arrives."""
        ids = self._rng.integers(TOKEN_IDS.start, TOKEN_IDS.stop, tokens).tolist()
        body = {
            "model": self._model, "prompt": ids, "max_tokens": output, "temperature": 0,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        data, json_type = json.dumps(body).encode(), {"Content-Type": "application/json"}
        sent_s = time.monotonic()
        async with self._session.post(self._url, data=data, headers=json_type) as answer:
            if answer.status != 200:
                said = " ".join((await answer.text()).split())[:200]
                raise RunFailed(
                    f"{self._url}: the server answers a prompt of {tokens:,} tokens with "
                    f"status {answer.status}: {said}"
                )
            events = _events(answer.content.iter_any())
            pieces_s = [time.monotonic() async for event in events if event.choices]
        if not pieces_s:
            raise RunFailed(
                f"{self._url}: the server streams no output for a prompt of {tokens:,} tokens"
            )
        return _Answer(sent_s, pieces_s)


@asynccontextmanager
async def session_of(base_url: str, headers: Mapping[str, str]) -> AsyncIterator[ClientSession]:
    """Yield an HTTP session for requests to a server.

    Raises RunFailed if the server cannot be reached.
    """
    import aiohttp

    limits = aiohttp.ClientTimeout(total=_WAIT_S)
    connector = aiohttp.TCPConnector(limit=0)
    try:
        async with aiohttp.ClientSession(
            headers=headers, timeout=limits, connector=connector
        ) as session:
            yield session
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise RunFailed(f"base_url {base_url}: cannot be probed: {reason}") from None


async def served_model(session: ClientSession, base_url: str) -> str:
    """Return the first model in the server's list of models.

    Raises RunFailed if the server lists no model.
    """
    url = f"{root_of(base_url)}/v1/models"
    async with session.get(url) as answer:
        listed = await answer.json(content_type=None) if answer.status == 200 else {}
    models = listed.get("data") or [{}]
    if not (name := models[0].get("id")):
        raise RunFailed(f"{url}: the server lists no model; give --served-model-name")
    return str(name)


async def pool_tokens(session: ClientSession, base_url: str) -> int | None:
    """Return the size of an SGLang server's KV pool in tokens, or None for another server."""
    async with session.get(f"{root_of(base_url)}/server_info") as answer:
        if answer.status != 200:
            return None
        try:
            said: Mapping[str, Any] = await answer.json(content_type=None)
        except ValueError:
            return None
    found = said.get("max_total_num_tokens") if isinstance(said, Mapping) else None
    return found if isinstance(found, int) and found > 0 else None


def prompt_lengths(chunk: int) -> list[int]:
    """Return four prompt lengths that a single iteration can prefill."""
    return [chunk // 64, chunk // 8, chunk // 2, chunk]


def root_of(base_url: str) -> str:
    """Return a server's address without the ending ``/v1``."""
    return base_url.rstrip("/").removesuffix("/v1")


_MAX_EVENT_BYTES = 2**22


async def _events(chunks: AsyncIterable[bytes]) -> AsyncIterator[Answered]:
    """Yield the part of the answer in each server-sent event.

    Raises RunFailed if an event reports an error.
    """
    from fairbench_load.openai import DONE, EventSplitter, answered, data_lines, judge

    splitter = EventSplitter(_MAX_EVENT_BYTES)
    async for chunk in chunks:
        lines = [line for event, _ in splitter.feed(chunk) for line in data_lines(event)]
        for data in lines:
            if data in (b"", DONE):
                continue
            found = judge(answered(data))
            if found.fault is not None:
                raise RunFailed(f"the server ended a stream with an error: {found.fault.text}")
            if found.answer is not None:
                yield found.answer


# ``PRIOR`` is the residual for a fitted coefficient that is e (2.72) times its value in the derived
# profile. A predicted time that is wrong by 5% has a residual of about 1.
PRIOR = 0.3
MEASURED = "probed"  # last part of the id of a profile that was fitted to a measured server
# For ``p`` and ``c_nd``, fits start at the values ``UNMEASURED``, because the derived values would
# hide how step times grow with the batch.
UNMEASURED = {"p": 8.0, "c_nd": 0.0}


def fit_probe(probed: Probed, start: TimingProfile, pool_tokens: int | None) -> TimingProfile:
    """Return the timing profile that fits a server's measurements.

    The coefficient ``c_npf`` (the time that each prompt adds to an iteration) has little effect on
    the measurements, so ``c_npf`` stays close to its value in the derived profile.

    Args:
        probed: The measurements.
        start: The derived profile from which the fit starts.
        pool_tokens: The server's KV pool in tokens; None keeps the pool size in ``start``.
    """
    it, times_ms, waits = observations(probed)
    costs = dict(start.coefficients_ms)
    left = costs.get("q_e", 0.0)
    begun = costs | {
        "c0": costs["c0"] + start.host_ms,
        **UNMEASURED,
        "delay_ms": (start.frontend.request_ms + start.frontend.delay_ms),
    }
    found = fitted(it, times_ms, experts_left=left, waits=waits, start=begun, prior=PRIOR)
    delay_ms = max(0.0, found.pop("delay_ms") - start.frontend.request_ms)
    gpu, model, parallel, _ = start.profile_id.split("/")
    return replace(
        start,
        profile_id=f"{gpu}/{model}/{parallel}/{MEASURED}",
        coefficients_ms=found,
        host_ms=0.0,
        grade=f"measured: fitted to a probe, {worst(found, delay_ms, start, probed)}",
        pool=start.pool if pool_tokens is None else _pool_of_size(start, pool_tokens),
        frontend=replace(start.frontend, delay_ms=delay_ms),
        fit_domain=FitDomain(
            max(one.requests for one in probed.batches),
            round(max(one.context_tokens for one in probed.batches)),
        ),
    )


def observations(probed: Probed) -> tuple[Iterations, Column, Column]:
    """Return the measured iterations, their times in ms, and which times include a delay.

    Measured times to first token include a constant delay of the server; step times do not.
    """
    prompts, batches = probed.prompts, probed.batches
    none, nought = np.zeros(len(prompts)), np.zeros(len(batches))
    requests = np.array([one.requests for one in batches], dtype=float)
    context = np.array([one.context_tokens for one in batches]) / requests
    it = Iterations(
        prefills=np.append(none + 1, nought),
        new=np.append([float(one.tokens) for one in prompts], nought),
        prefix=np.append(none, nought),
        decodes=np.append(none, requests),
        context=np.append(none, context),
    )
    seconds = [one.ttft_s for one in prompts] + [one.step_s for one in batches]
    return it, 1_000 * np.array(seconds), np.append(none + 1, nought)


def worst(found: dict[str, float], delay_ms: float, start: TimingProfile, probed: Probed) -> str:
    """Return a text with the largest relative error of a predicted time against a measured time."""
    it, times_ms, waits = observations(probed)
    ours = predicted_ms(found, it) + waits * (delay_ms + start.frontend.request_ms)
    off = np.abs(ours / times_ms - 1)
    return f"at most {100 * off.max():.0f}% off in {len(off)} measurements"


def _pool_of_size(start: TimingProfile, tokens: int) -> KVPool:
    """Return the profile's KV pool, with the memory fraction set so that ``tokens`` tokens fit."""
    pool = start.pool
    gib = pool.weights_gib + (tokens + 0.5) * pool.kv_bytes_per_token / 2**30
    fraction = min(1.0, gib / pool.pre_load_avail_gib)
    return replace(pool, mem_fraction_static=fraction, vllm=None)
