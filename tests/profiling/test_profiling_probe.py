"""Test that the probe of an emulator finds the emulator's own profile."""

import asyncio
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import RunFailed
from fairbench.hardware.catalogue import load_profile, read_profile
from fairbench_calibration.profiling.derived_profile import derive
from fairbench_calibration.profiling.probe import (
    BATCHES,
    Batch,
    Probed,
    ProbedServer,
    PromptTime,
    fit_probe,
    prompt_lengths,
    session_of,
)
from tests.emulator.test_live_emulator_process import emulating

DECODE, PREFILL, SHORT_PREFILL = 0.05, 0.06, 0.12  # largest relative errors of a probe's fit
SERVED = {
    "a100": "a100-80gb/llama-3.1-8b/tp1/measured-sglang",
    "h100": "h100-80gb/llama-3.1-8b/tp1/sglang-0.5.14",
}


def off(found, true):
    """Return the largest relative errors of decode steps, of prefills, and of a short prefill."""
    decodes = [
        found.decode_ps(n, n * context) / true.decode_ps(n, n * context) - 1
        for n in (1, 4, 16, 64)
        for context in (200, 1_000, 4_000)
    ]
    prefills = [
        found.prefill_ps([(0, tokens)]) / true.prefill_ps([(0, tokens)]) - 1
        for tokens in (128, 512, 2_048, 8_192)
    ]
    return max(map(abs, decodes)), max(map(abs, prefills[1:])), abs(prefills[0])


def as_a_client_sees(profile_id):
    """Return the profile with the tokenizer's time in its prefills, as a probe finds it."""
    profile = load_profile(profile_id)
    costs = profile.coefficients_ms
    costs = costs | {"c_T": costs["c_T"] + profile.frontend.token_ms}
    return replace(profile, coefficients_ms=costs)


def measured(profile, delay_ms):
    """Probe a server that takes exactly the profile's times."""
    prompts = [
        PromptTime(n, (profile.prefill_ps([(0, n)]) / 1e9 + delay_ms) / 1e3)
        for n in prompt_lengths(8_192)
    ]
    sizes = [(n, 192) for n in BATCHES] + [(8, 2_100), (32, 2_100)]
    batches = [Batch(n, n * k, profile.decode_ps(n, n * k) / 1e12) for n, k in sizes]
    return Probed(prompts, batches)


@pytest.mark.parametrize("gpu", SERVED)
@pytest.mark.parametrize("start", ["h100", "a100", "l40s"])
def test_a_fit_ends_near_the_truth_from_any_start(gpu, start):
    true = load_profile(SERVED[gpu])
    begun = derive("llama-3.1-8b", start, roofline=True).profile
    found = fit_probe(measured(true, 9.0), begun, 50_000)
    decode, prefill, short = off(found, true)
    assert decode < DECODE
    assert prefill < 2 * PREFILL
    assert short < 3 * SHORT_PREFILL
    assert found.pool.tokens(found.pool.mem_fraction_static) == 50_000
    assert found.grade.startswith("measured: fitted to a probe, at most ")


@pytest.mark.slow
@pytest.mark.alone
def test_a_probe_of_the_emulator_finds_its_profile(tmp_path):
    path = tmp_path / "probed.toml"
    with emulating("--gpu", "a100", "--stream-interval", "1") as (_, url):
        flags = ["--base-url", url, "--gpu", "a100", "-o", str(path)]
        result = CliRunner().invoke(app, ["profile", "probe", *flags])
    assert result.exit_code == 0, result.output
    decode, prefill, short = off(read_profile(str(path)), as_a_client_sees(SERVED["a100"]))
    assert decode < DECODE
    assert prefill < PREFILL
    assert short < SHORT_PREFILL


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "broke"}},
        {"object": "error", "message": "broke"},
        {"choices": [{"text": "", "finish_reason": "broke"}]},
        {"choices": [{"text": "a", "error": {"message": "broke"}}]},
    ],
)
def test_a_probe_ends_at_an_answer_that_a_server_gave_up(event):
    async def probe():
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: %b\n\n" % json.dumps(event).encode())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, session_of(url, {}) as session:
            await ProbedServer(session, url, "m").measure(64, lambda said: None)

    with pytest.raises(RunFailed, match=r"ended a stream with an error: .*broke"):
        asyncio.run(probe())
