"""The replay of measured S-LoRA runs: a simulation with the same arrivals and lengths.

The measured server ran S-LoRA ([VTC-artifact]), so the engine is ``lightllm`` with settings from
S-LoRA's code. Decode times are derived from the GPU's data sheet. The cost of a prefilled token
comes from VTC-artifact's profile. The module ``calibrate`` fits only two costs to the runs of
``FITTED_SCENARIOS``: the host's time per minibatch and per running request.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from fairbench.core import PS_PER_S, Request, Segment
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.contract import WorkerParts
from fairbench.engine.lightllm import LightLLMWorker
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sequence import NEVER, Sequence
from fairbench.errors import DataError
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engine_params import LightLLMLimits
from fairbench.hardware.timing import TimingProfile
from fairbench.metrics.records import Floats
from fairbench.schedulers.base import LocalScheduler
from fairbench_studies.kit.trace import Trace
from fairbench_studies.validation.slora.measured import MeasuredRun
from fairbench_studies.validation.slora.recorded import Recorded

FITTED_SCENARIOS = ("overload", "proportional")
# The constants of the replay were fitted to six runs of VTC-artifact.
FITTED_RUNS = frozenset(
    {
        *(f"{name}/overload" for name in ("FCFS", "VTC", "VTC_oracle", "VTC_pred_50")),
        *(f"{name}/proportional" for name in ("FCFS", "VTC")),
    }
)
# Runs of the VTC paper's sections in ``OTHER_SERVERS`` used other GPUs (fair_bench/REVISION.md).
OTHER_SERVERS = {"sec6.4": "Llama-2-13b on an A100"}
# ``DERIVED_PROFILE`` was computed without measurements of the S-LoRA server.
DERIVED_PROFILE = "a10g-24gb/llama-2-7b/tp1/sglang-e2e"
FITTED_PROFILE = "a10g-24gb/llama-2-7b/tp1/slora-fitted"
PREFILL_OVERHEAD_MS = 14.0  # time that the server takes to start and merge a minibatch
# Each running request adds ``REQUEST_STEP_MS`` to a decode step, mostly in the server's Python
# loops. The fit used two runs from December 2023 and, on a faster host, four runs from 2024.
REQUEST_STEP_MS: dict[Recorded, float] = {"2023-12": 0.1, "2024-04": 0.03, "2024-06": 0.03}
# HTTP and the tokenizer add ``RESPONSE_MS`` to the latency of a request, but do not delay other
# requests. ``RESPONSE_MS`` is fitted to one request, which took 131 ms for 258 tokens. All other
# requests of the fitted runs reached a server that was busy or not yet warm.
RESPONSE_MS = 4.0
# Matrix products compute tiles of ``PREFILL_TILE`` rows, so 258 tokens take as long as 512.
PREFILL_TILE = 256
IDLE_POLL_MS = 10.0  # pause of ``loop_for_fwd`` in S-LoRA's manager.py, in milliseconds

# A prompt of n tokens was sent as the text "Hello " * n (fair_bench/trace.py, dummy_prompt). The
# tokenizer adds a BOS token at the start, and turns the blank at the end into a token.
ADDED_PROMPT_TOKENS = 2
# ``POOL_TOKENS`` is the size of the KV pool. The server's req_queue.py reserves ``CLIENT_TOKENS``
# (four times the adapter's rank of 8) for each client's LoRA adapter, even with --no-lora.
POOL_TOKENS, CLIENT_TOKENS = 10_000, 32


def server_limits(
    prefill_overhead_ms: float = PREFILL_OVERHEAD_MS, pool_tokens: int = POOL_TOKENS
) -> LightLLMLimits:
    """Return the engine limits of the measured server, with the given overhead and KV pool."""
    return LightLLMLimits(
        pool_tokens,
        client_tokens=CLIENT_TOKENS,
        prefill_overhead_ms=prefill_overhead_ms,
        prefill_tile=PREFILL_TILE,
        idle_poll_ms=IDLE_POLL_MS,
    )


def with_request_step(profile: TimingProfile, step_ms: float) -> TimingProfile:
    """Return the profile with ``step_ms`` as the time per running request in a decode step."""
    return replace(profile, coefficients_ms={**profile.coefficients_ms, "c_nd": step_ms})


def fitted_profile(date: Recorded) -> TimingProfile:
    """Return the timing profile fitted to the server whose runs were measured on ``date``."""
    return with_request_step(load_profile(FITTED_PROFILE), REQUEST_STEP_MS[date])


def replay_run(
    run: MeasuredRun, profile: TimingProfile | None = None, pool_tokens: int = POOL_TOKENS
) -> Trace:
    """Simulate a measured run, by default with the fitted timing profile.

    Raises: DataError: no profile was fitted to the run's server, and no profile is given.
    """
    if profile is None and run.section in OTHER_SERVERS:
        raise DataError(
            f"{run.section}: measured with {OTHER_SERVERS[run.section]}, not with Llama-2-7b on an "
            "A10G; give --profile and --pool to choose the simulated server"
        )
    used = profile or fitted_profile(run.recorded)
    return replay(run.trace, run.build_scheduler(), used, server_limits(pool_tokens=pool_tokens))


def replay(
    trace: Trace, scheduler: LocalScheduler, profile: TimingProfile, limits: LightLLMLimits
) -> Trace:
    """Return a trace with simulated latencies, which are NaN for refused requests."""
    clock = Clock()
    worker = LightLLMWorker(WorkerParts(0, clock, scheduler, profile, ServiceLog([])), limits)
    ended: dict[int, Sequence] = {}

    def done(sequence: Sequence) -> None:
        ended[sequence.request.request_id] = sequence

    def arrive(index: int) -> None:
        request = _request(trace, index)
        output = Segment(f"r{index}/out", int(trace.output_tokens[index]))
        worker.submit(Sequence(request, output, clock.now_ps, done))

    start_s = float(trace.req_time_s.min())
    for index, time_s in enumerate(trace.req_time_s):
        at_ps = round((float(time_s) - start_s) * PS_PER_S)
        clock.at(at_ps, ARRIVE, 0, partial(arrive, index))
    while clock.next_ps() is not None:
        clock.step()
    sequences = [ended[index] for index in range(len(trace))]
    return Trace(
        trace.client,
        trace.prompt_tokens,
        trace.output_tokens,
        trace.req_time_s,
        _latencies_s([s.first_token_ps for s in sequences], sequences),
        _latencies_s([s.finish_ps for s in sequences], sequences),
    )


def _request(trace: Trace, index: int) -> Request:
    tokens = int(trace.prompt_tokens[index]) + ADDED_PROMPT_TOKENS
    prompt = (Segment(f"r{index}", tokens),)
    client, output = str(trace.client[index]), int(trace.output_tokens[index])
    return Request(index, client, index, 0, prompt, tokens, output)


def _latencies_s(times_ps: list[int], sequences: list[Sequence]) -> Floats:
    return np.array(
        [
            np.nan if at == NEVER else (at - sequence.arrival_ps) / PS_PER_S + RESPONSE_MS / 1_000
            for at, sequence in zip(times_ps, sequences, strict=True)
        ]
    )
