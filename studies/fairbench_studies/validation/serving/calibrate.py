"""The fit of a GPU's timing profile to a few measured runs of SGLang (``measured.FITTED``).

Ten parameters of the profile (eleven for the H100) are fitted by Gauss-Newton steps on their
logarithms, so that the parameters stay positive. The fit matches the median time per output token
and the median time to first token, for every prompt length in every run. A time to first token
below ``LONG_TTFT_S`` consists mostly of HTTP overhead, and has a low weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.timing import Frontend, TimingProfile
from fairbench.metrics.records import Floats
from fairbench_studies.validation.report import LONG_TTFT_S
from fairbench_studies.validation.serving.measured import ServingRun
from fairbench_studies.validation.serving.replay import replay

OPERATOR_PROFILES = {
    "a100-sxm4-80gb": "a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10",
    "h100-sxm5-80gb": "h100-80gb/llama-3.1-8b/tp1/sglang-0.5.14",
}
# Hugging Face tokenizers take 1.8 to 3.0 us per token on one core. ``TOKEN_MS`` is not fitted,
# because runs with one prompt at a time show only the sum of tokenizer time and prefill time per
# prompt token. The H100 runs sent token ids, which need no tokenizer.
TOKEN_MS = {"a100-sxm4-80gb": 0.003, "h100-sxm5-80gb": 0.0}
# Triton's attention on an H100 takes 7.07 to 20.68 ms per token (sgl-project/sglang#21775) if one
# sequence of Qwen3-8B is decoded with contexts of 1,000 to 32,000 tokens. Llama-3.1-8B has the same
# attention heads as Qwen3-8B, in 32 instead of 36 layers.
H100_TAIL_MS = (20.68 - 7.07) / 31_000 * 32 / 36
FIXED = {"a100-sxm4-80gb": {}, "h100-sxm5-80gb": {"c_tail": round(H100_TAIL_MS, 6)}}
# The fit starts from estimates: the coefficients of ``OPERATOR_PROFILES``, plus time for launching
# kernels one by one, for HTTP and for a slower attention kernel.
A100_START = {
    "c0": 8.4, "c_w": 3.4, "p": 2.0, "c_T": 0.0575, "c_A": 3.2e-6, "c_K": 8.3e-5, "c_nd": 0.045,
    "c_pf": 2.0, "request_ms": 1.3, "delay_ms": 7.0,
}  # fmt: skip
H100_START = {
    "c0": 1.0, "c_w": 5.5, "p": 1.9, "c_T": 0.0225, "c_A": 1.5e-6, "c_K": 6e-5, "c_nd": 0.01,
    "c_l": 22.0, "c_lp": 0.8, "request_ms": 0.9, "delay_ms": 6.0,
}  # fmt: skip
STARTS = {"a100-sxm4-80gb": A100_START, "h100-sxm5-80gb": H100_START}
_FRONTEND = ("request_ms", "delay_ms")
# ``_LONG_WEIGHT`` and ``_SHORT_WEIGHT`` weigh errors in long and in short times to first token,
# relative to errors in times per output token.
_LONG_WEIGHT, _SHORT_WEIGHT = 0.5, 0.15
_STEPS, _TRIAL, _LONGEST_STEP, _DAMPING, _LEAST_GAIN = 25, 1e-3, 0.3, 1e-3, 0.01


@dataclass(frozen=True, slots=True)
class ServingFit:
    """The fitted coefficients of a timing profile in milliseconds, and their weighted error."""

    gpu: str
    values: dict[str, float]
    error: float

    @property
    def profile(self) -> TimingProfile:
        """The timing profile that is made from the operator tables and the fitted coefficients."""
        return _profile(self.gpu, self.values)


def fit(runs: list[ServingRun]) -> Iterator[ServingFit]:
    """Yield each step of the fit to the runs marked ``fitted``, which must be from one GPU."""
    # Like the fit of the bundled profiles, this fit ignores the time in which the load generator
    # counts prompt tokens.
    chosen = [
        replace(run, counts_prompts=False) for run in runs if run.fitted and run.engine == "sglang"
    ]
    (gpu,) = {run.gpu for run in chosen}
    start = STARTS[gpu]
    measured = [_features(run) for run in chosen]
    weights = np.concatenate([weight for _, weight in measured])
    target = np.log(np.concatenate([feature for feature, _ in measured]))

    def errors(logs: Floats) -> Floats:
        profile = _profile(gpu, dict(zip(start, np.exp(logs).tolist(), strict=True)))
        simulated = [_features(replay(run, profile))[0] for run in chosen]
        return np.asarray(weights * (np.log(np.concatenate(simulated)) - target))

    logs = np.log(np.array(list(start.values())))
    left = errors(logs)
    for _ in range(_STEPS):
        before, tried = float(np.sqrt(left @ left)), _step(logs, left, errors)
        if tried is None:
            return
        logs, left = tried
        values = dict(zip(start, np.exp(logs).tolist(), strict=True))
        yield ServingFit(gpu, values, float(np.sqrt(left @ left)))
        if before - np.sqrt(left @ left) < _LEAST_GAIN * before:
            return


def _step(
    logs: Floats, left: Floats, errors: Callable[[Floats], Floats]
) -> tuple[Floats, Floats] | None:
    """Take a damped Gauss-Newton step, or return None if no step reduces the squared errors."""
    units = _TRIAL * np.eye(len(logs))
    slope = np.array([(errors(logs + unit) - left) / _TRIAL for unit in units]).T
    normal = slope.T @ slope + _DAMPING * np.eye(len(logs))
    step = np.clip(np.linalg.solve(normal, -slope.T @ left), -_LONGEST_STEP, _LONGEST_STEP)
    for part in (1.0, 0.5, 0.25, 0.1):
        after = errors(logs + part * step)
        if after @ after < left @ left:
            return logs + part * step, after
    return None


def _profile(gpu: str, values: dict[str, float]) -> TimingProfile:
    operator = load_profile(OPERATOR_PROFILES[gpu])
    coefficients = {name: value for name, value in values.items() if name not in _FRONTEND}
    return replace(
        operator,
        coefficients_ms={**operator.coefficients_ms, **coefficients, **FIXED[gpu]},
        host_ms=0.0,
        frontend=Frontend(values["request_ms"], TOKEN_MS[gpu], values["delay_ms"]),
    )


def _features(run: ServingRun) -> tuple[Floats, Floats]:
    """Return median TTFT and TPOT for each prompt length in a run, and their weights in the fit."""
    tpot_s = (run.latency_s - run.ttft_s) / (run.output_tokens - 1)
    values, weights = [], []
    for length in np.unique(run.prompt_tokens):
        chosen = run.prompt_tokens == length
        ttft_s = float(np.median(run.ttft_s[chosen]))
        values += [ttft_s, float(np.median(tpot_s[chosen]))]
        weights += [_LONG_WEIGHT if ttft_s > LONG_TTFT_S else _SHORT_WEIGHT, 1.0]
    return np.array(values), np.array(weights)
