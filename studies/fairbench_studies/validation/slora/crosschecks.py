"""Published numbers compared with predictions of the bundled timing profiles.

A JSON file describes the published numbers. A prediction is computed with a ``_Formula`` of this
module, or else quoted from the JSON file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairbench.core import PS_PER_S
from fairbench.errors import DataError
from fairbench.files.formats import json_file
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.gpu_time import PS_PER_MS
from fairbench.hardware.timing import TimingProfile
from fairbench_studies.kit.trace import Trace
from fairbench_studies.validation.slora.artifact import build_scheduler
from fairbench_studies.validation.slora.replay import (
    DERIVED_PROFILE,
    FITTED_PROFILE,
    PREFILL_OVERHEAD_MS,
    replay,
    server_limits,
)

LONG_PROMPT_TOKENS = 28_650
CHAT_CONTEXT_TOKENS = 314  # mean ShareGPT prompt (214) plus half of the mean output (199)
BENCH_CONTEXT_TOKENS = 1_024
SATURATED_REQUESTS = 1_000


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """A published number and its prediction, which is computed or ``quoted`` from a JSON file."""

    what: str
    source: str
    published: float | None = None
    unit: str = ""
    predicted: float | None = None
    profile: str = ""
    quoted: str = ""

    @property
    def error_pct(self) -> float | None:
        """The error of ``predicted`` in percent of ``published``."""
        if self.published is None or self.predicted is None:
            return None
        return 100 * (self.predicted / self.published - 1)

    def as_dict(self) -> dict[str, Any]:
        """Return the cross-check's fields and ``error_pct`` as values for a JSON file."""
        return {**asdict(self), "error_pct": self.error_pct}


@dataclass(frozen=True, slots=True)
class _Formula:
    """A formula for the published number of each JSON entry whose text has all ``words``."""

    words: tuple[str, ...]
    what: str
    published: float
    unit: str
    profile: str
    predict: Callable[[TimingProfile], float]


def crosschecks(path: Path) -> list[CrossCheck]:
    """Return the cross-checks in a JSON file, whose entries may each contain several cross-checks.

    Each entry of the file has the texts ``what``, ``source`` and ``predicted``. Raises DataError
    for an invalid field; the message names the file, the entry and the field.
    """
    found: list[CrossCheck] = []
    for number, entry in enumerate(_entries(path), start=1):
        for field in ("what", "source", "predicted"):
            if not isinstance(entry, dict) or not isinstance(entry.get(field), str):
                raise DataError(f"{path}, entry {number}: field {field!r} must be text")
        computed = [f for f in _formulas() if all(word in entry["what"] for word in f.words)]
        found += [_predicted(formula, entry["source"]) for formula in computed]
        if not computed:
            found.append(CrossCheck(entry["what"], entry["source"], quoted=entry["predicted"]))
    return found


def _entries(path: Path) -> list[Any]:
    entries = json_file(path, f"{path}")
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{path}: must be a list of entries")
    return entries


def _predicted(formula: _Formula, source: str) -> CrossCheck:
    predicted = formula.predict(load_profile(formula.profile))
    return CrossCheck(
        formula.what, source, formula.published, formula.unit, predicted, formula.profile
    )


def _long_prompt_ms(profile: TimingProfile) -> float:
    return profile.prefill_ps([(0, LONG_PROMPT_TOKENS)]) / PS_PER_MS


def _chat_step_ms(profile: TimingProfile) -> float:
    return profile.decode_ps(1, CHAT_CONTEXT_TOKENS) / PS_PER_MS


def _bench_tok_s(profile: TimingProfile) -> float:
    return PS_PER_S / profile.decode_ps(1, BENCH_CONTEXT_TOKENS)


def _capacity_per_min(profile: TimingProfile) -> float:
    """Return how many requests (256 input, 256 output tokens) the server completes per minute."""
    n = SATURATED_REQUESTS
    lengths, at_once = np.full(n, 256), np.zeros(n)
    trace = Trace(np.arange(n) % 2, lengths, lengths, at_once, at_once, at_once)
    overhead_ms = PREFILL_OVERHEAD_MS if profile.profile_id == FITTED_PROFILE else 0.0
    simulated = replay(trace, build_scheduler("FCFS"), profile, server_limits(overhead_ms))
    return 60 * n / simulated.duration_s


def _formulas() -> list[_Formula]:
    a100, h100, h200 = (
        f"{gpu}/llama-3.1-8b/tp1/vllm-{version}"
        for gpu, version in (
            ("a100-80gb", "0.14.0"), ("h100-80gb", "0.24.0"), ("h200-141gb", "0.24.0"),
        )
    )  # fmt: skip
    sglang = "h100-80gb/llama-3.1-8b/tp1/sglang-0.5.14"
    long, chat, vtc = ("TTFT p50", "28.65k"), ("batch-1 TPOT ShareGPT",), ("VTC", "97.5 req/min")
    ttft, tpot = "vLLM TTFT P50, 28.65k tokens", "vLLM TPOT at batch 1, ShareGPT"
    capacity = "VTC server's capacity at 256/256 tokens"
    return [
        _Formula(long, f"{ttft}: A100 (0.7.3)", 2_839, "ms", a100, _long_prompt_ms),
        _Formula(long, f"{ttft}: A100 (0.20.1)", 3_179, "ms", a100, _long_prompt_ms),
        _Formula(long, f"{ttft}: H100", 1_077, "ms", h100, _long_prompt_ms),
        _Formula(long, f"{ttft}: H200", 1_166, "ms", h200, _long_prompt_ms),
        _Formula(chat, f"{tpot}: A100 (0.20.1)", 10.77, "ms", a100, _chat_step_ms),
        _Formula(chat, f"{tpot}: A100 (0.7.3)", 13.19, "ms", a100, _chat_step_ms),
        _Formula(chat, f"{tpot}: H100 (0.7.3)", 7.74, "ms", h100, _chat_step_ms),
        _Formula(chat, f"{tpot}: H200 (0.7.3)", 7.62, "ms", h200, _chat_step_ms),
        _Formula(("SGLang CI gate", "135 tok/s"), "SGLang CI gate at batch 1, more than",
                 135, "tok/s", sglang, _bench_tok_s),
        _Formula(vtc, f"{capacity}, derived", 97.5, "req/min", DERIVED_PROFILE, _capacity_per_min),
        _Formula(vtc, f"{capacity}, fitted", 97.5, "req/min", FITTED_PROFILE, _capacity_per_min),
    ]  # fmt: skip
