"""Test the engine on the wall clock: no drift, slow workers, and bounded memory."""

import asyncio
import json

import pytest

from fairbench.core import PS_PER_S
from fairbench.engine.clock import ARRIVE
from fairbench_emulator import live_engine
from fairbench_emulator.live_engine import WallClock
from tests.emulator.live_emulator import generate, running


def test_late_events_run_at_their_own_times_and_do_not_delay_the_next():
    now_s = [100.0]
    wall = WallClock(2.0, lambda: now_s[0])
    ran = []

    def every_second():
        ran.append(wall.clock.now_ps)
        wall.clock.at(wall.clock.now_ps + PS_PER_S, ARRIVE, 0, every_second)

    wall.clock.at(0, ARRIVE, 0, every_second)
    for now_s[0] in (100.0, 100.7, 103.1):  # 0, 1.4 and 6.2 emulated seconds
        wall.catch_up()
    assert ran == [second * PS_PER_S for second in range(7)]
    assert wall.clock.now_ps == pytest.approx(6.2 * PS_PER_S)
    assert wall.real_s(wall.clock.next_ps()) == pytest.approx(103.5)


def ran_for_ps(**config):
    """Return how long one request took on the engine's clock."""

    async def main():
        async with running(asyncio.get_running_loop(), **config) as (emulator, session):
            done = []
            deliver = emulator.engine._on_end
            emulator.engine._on_end = lambda sequence: (done.append(sequence), deliver(sequence))
            await generate(session, range(500), new=50)
            return done[0].finish_ps - done[0].arrival_ps

    return asyncio.run(main())


def test_a_slow_worker_is_slowed_by_its_factor_at_any_time_scale():
    usual = ran_for_ps()
    assert ran_for_ps(time_scale=50.0) == usual
    assert ran_for_ps(slowdown=3.0) == pytest.approx(3 * usual, rel=1e-6)


def test_uncached_and_idle_prompts_are_forgotten(monkeypatch):
    monkeypatch.setattr(live_engine, "MAX_STREAM_TOKENS", 1_000)

    async def main():
        settings = {"engine.max_total_tokens": 600}
        loop = asyncio.get_running_loop()
        async with running(loop, settings=settings) as (emulator, session):
            for number in range(40):
                await generate(session, range(100 * number, 100 * number + 100), new=20)
            hit = await generate(session, range(3_900, 4_000), new=1)
            return emulator.engine.streams.tokens, hit["meta_info"]["cached_tokens"]

    tokens, cached = asyncio.run(main())  # of 4,800 prompts
    assert tokens < 2_000
    assert cached == 99


def test_a_tokenizer_file_counts_prompts_and_outputs_are_its_words(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{number}": number for number in range(500)} | {"<unk>": 500}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))

    async def main():
        loop = asyncio.get_running_loop()
        async with running(loop, tokenizer=str(path)) as (_, session):
            usages, prompt = [], "w1 w2 w3"
            for _ in range(2):
                body = {"prompt": prompt, "max_tokens": 8}
                async with session.post("/v1/completions", json=body) as answer:
                    answered = json.loads(await answer.read())
                usages.append(answered["usage"])
                prompt += answered["choices"][0]["text"] + " w4"
            return usages

    first, second = asyncio.run(main())
    assert (first["prompt_tokens"], first["completion_tokens"]) == (3, 8)
    assert second["prompt_tokens"] == 12
    assert second["prompt_tokens_details"]["cached_tokens"] == 10  # all but the last output token
