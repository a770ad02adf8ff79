"""Timing profiles: the formula of an engine iteration's time, its coefficients, and its costs.

Coefficients are quantised once to integer picoseconds where they are multiplied by a count, so that
k decode steps are an exact integer sum. Source and held-out error of every profile are in
``profiles/engine_profiles.json``; the formula is repeated in ``TimingProfile``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from random import Random
from typing import Annotated

from annotated_types import Ge, Lt

from fairbench.core import PS_PER_S
from fairbench.errors import UsageError
from fairbench.hardware.flash_attention import FlashAttention2, flash_attention_2
from fairbench.hardware.gpu_time import PS_PER_MS, Chunk, StepTime

Amount = Annotated[float, Ge(0), Lt(1e12)]
DIMENSIONLESS = frozenset({"p", "q_e"})  # the coefficients of a timing profile that are not times


@dataclass(frozen=True)
class KVPool:
    """The quantities that determine the KV pool (SGLang 0.5.23's formula).

    ``host_gb_s`` is the transfer rate of KV cache to and from host memory, in 10^9 bytes/s; 0 if
    unknown.
    """

    pre_load_avail_gib: Amount
    weights_gib: Amount
    kv_bytes_per_token: Amount
    mem_fraction_static: Amount
    chunked_prefill_size: Annotated[int, Ge(0)]
    host_gb_s: Amount = 0.0

    def tokens(self, mem_fraction_static: float) -> int:
        """Return the pool size in tokens. Raises UsageError if no memory is left."""
        gib = self.pre_load_avail_gib * mem_fraction_static - self.weights_gib
        tokens = int(gib * 2**30 / self.kv_bytes_per_token)
        if tokens <= 0:
            raise UsageError(
                f"mem_fraction_static = {mem_fraction_static}: leaves no memory for KV, "
                f"because the weights take {self.weights_gib} of "
                f"{self.pre_load_avail_gib} GiB; give a larger fraction"
            )
        return tokens

    def host_tokens(self, gib: float) -> int:
        """Return the tokens that ``gib`` GiB of host memory hold; 0 without a known rate."""
        return int(gib * 2**30 / self.kv_bytes_per_token) if self.host_gb_s else 0

    @property
    def host_token_ps(self) -> int:
        """The time to copy a token's KV to host memory or back; 0 if that is impossible."""
        return round(self.kv_bytes_per_token / self.host_gb_s * 1000) if self.host_gb_s else 0


@dataclass(frozen=True, slots=True)
class Frontend:
    """The cost of a request in ms before the engine's scheduler, off the GPU.

    ``request_ms`` and ``token_ms`` (per prompt token) occupy the single process that serves HTTP
    and tokenizes. ``delay_ms`` is latency on the way in and out, during which no process is
    occupied.
    """

    request_ms: Amount = 0.0
    token_ms: Amount = 0.0
    delay_ms: Amount = 0.0


@dataclass(frozen=True, slots=True)
class FitDomain:
    """The decode iterations of the fit; None for the default KV pool."""

    decode_batch: Annotated[int, Ge(0)]
    context_tokens: Annotated[int, Ge(0)] | None = None


@dataclass(frozen=True)
class TimingProfile:
    """Iteration times of one engine on one GPU and model.

    t_ms = c0 + (c_w^p + (c_T*T)^p)^(1/p) + c_npf*n_prefill + c_K*K + c_nd*n_decode + host_ms
           + sum_i max(c_A*new_i*(prefix_i+(new_i+1)/2), c_K*prefix_i)
           + c_pf if anything is prefilled (launched kernel by kernel, not as one CUDA graph)
    with T = new tokens + decode sequences and K = sum of the decode context lengths. A mixture of
    experts reads the experts that some token chooses: c_w + c_e*(1 - q_e^T) instead of c_w, where
    q_e is the fraction of experts that a token leaves out. An iteration that prefills takes at
    least c_l + c_lp*n_prefill, the time in which the host launches its kernels while the GPU
    already computes. The attention of SGLang's decode steps takes at least c_tail times the
    longest context, which few thread blocks read (``tail_ps``). Where a profile lacks c_pf, c_e,
    c_l, c_lp or c_tail, that coefficient is 0.
    """

    profile_id: str
    coefficients_ms: dict[str, float]
    host_ms: float
    grade: str
    pool: KVPool
    frontend: Frontend = Frontend()
    fit_domain: FitDomain | None = None  # None: unknown
    # relative cost of context that another sequence of the batch has already read
    shared_read: float = 1.0

    @cached_property
    def context_ps(self) -> int:
        """The time that one token of decode context adds to a step."""
        return round(self.coefficients_ms["c_K"] * PS_PER_MS)

    @cached_property
    def fixed_ps(self) -> Callable[[int], int]:
        """A function from batch size to a decode step's duration without context."""
        return cache(self._batch_time)

    @cached_property
    def _step_time(self) -> StepTime:
        return StepTime(self.coefficients_ms, self.context_ps, cache(self._linear_ms))

    def decode_ps(self, sequences: int, context_tokens: int) -> int:
        """Return a decode step's duration, by sequences and their total context."""
        return self.fixed_ps(sequences) + self.context_ps * context_tokens

    def saved_ps(self, shared_tokens: int) -> int:
        """Return the time that a decode step saves on context shared by several sequences.

        Shared tokens are counted once for each sequence but the first. The result is 0 if
        ``shared_read`` is 1.
        """
        return round((1 - self.shared_read) * self.context_ps * shared_tokens)

    @cached_property
    def longest_ps(self) -> int:
        """The least time (ps) of an SGLang decode step per token of its longest context, or 0."""
        return round(self.coefficients_ms.get("c_tail", 0.0) * PS_PER_MS)

    def tail_ps(self, contexts: Collection[int]) -> int:
        """Return the time that the longest decode context of an SGLang step adds to the formula.

        The sequences of a step are computed side by side, and each in a limited number of parts.
        """
        if not self.longest_ps or not contexts:
            return 0
        return max(0, self.longest_ps * max(contexts) - self.context_ps * sum(contexts))

    @cached_property
    def vllm_attention(self) -> FlashAttention2 | None:
        """The attention kernel of vLLM on this GPU, if it costs more than the formula."""
        return flash_attention_2(self.profile_id)

    def vllm_extra_ps(self, sequences: int, context_tokens: int, longest: int = 0) -> int:
        """Return the time of a vLLM step beyond the formula, in picoseconds.

        Args:
            sequences: Decoding sequences of the step.
            context_tokens: Their context in all, in tokens.
            longest: Tokens of the longest context in a step that only decodes; 0 if the step
                prefills as well.
        """
        kernel = self.vllm_attention
        if kernel is None or not sequences:
            return 0
        if not longest:
            return kernel.extra_reads * self.context_ps * context_tokens
        tokens = kernel.tail_tokens(sequences, longest)
        return round(self.coefficients_ms["c_A"] * tokens * PS_PER_MS)

    def prefill_ps(self, chunks: list[Chunk], rows: int = 0) -> int:
        """Return a prefill iteration's duration; padding may raise linear layers to ``rows``."""
        return self._step_time.of(chunks, 0, 0, rows)

    def step_ps(
        self, chunks: list[Chunk], sequences: int, context_tokens: int, rows: int = 0
    ) -> int:
        """Return the duration of an iteration of prefill chunks and decoding sequences.

        All tokens pass through the linear layers together; padding may raise their number to
        ``rows``. Without chunks the result equals ``decode_ps``.
        """
        return self._step_time.of(chunks, sequences, context_tokens, rows)

    def _batch_time(self, sequences: int) -> int:
        ms = self._linear_ms(sequences) + self.coefficients_ms["c_nd"] * sequences
        return round(ms * PS_PER_MS)

    def _linear_ms(self, tokens: int) -> float:
        c = self.coefficients_ms
        weights, compute, p = c["c_w"], c["c_T"] * tokens, c["p"]
        if "c_e" in c:
            weights += c["c_e"] * (1 - c["q_e"] ** tokens)
        most = max(weights, compute)
        smooth = most * ((weights / most) ** p + (compute / most) ** p) ** (1 / p)
        return float(c["c0"] + smooth + self.host_ms)


def slowed(profile: TimingProfile, factor: float) -> TimingProfile:
    """Return the profile of a GPU that takes ``factor`` times as long."""
    coefficients = {
        name: value if name in DIMENSIONLESS else value * factor
        for name, value in profile.coefficients_ms.items()
    }
    frontend = Frontend(
        **{name: value * factor for name, value in asdict(profile.frontend).items()}
    )
    return replace(
        profile,
        coefficients_ms=coefficients,
        host_ms=profile.host_ms * factor,
        frontend=frontend,
        pool=replace(profile.pool, host_gb_s=profile.pool.host_gb_s / factor),
    )


@dataclass(frozen=True)
class TimingParams:
    """The possible error of the timing profile (``--set timing.error_pct=10``).

    ``error_pct`` scales the whole profile, and each of its coefficients, by up to that many percent
    in either direction. The errors are drawn once per run from the seed. Attention over a prefix
    shared by several sequences is a separate term.
    """

    error_pct: Annotated[float, Ge(0), Lt(100)] = 0.0


def perturbed(profile: TimingProfile, percent: float, rng: Random) -> TimingProfile:
    """Return the profile with random errors of up to ``percent``: overall and in each term."""

    def factor() -> float:
        return 1 + rng.uniform(-percent, percent) / 100

    bias = factor()
    coefficients = {
        name: value if name in DIMENSIONLESS else value * bias * factor()
        for name, value in sorted(profile.coefficients_ms.items())
    }
    host_ms = profile.host_ms * bias * factor()
    frontend = profile.frontend
    if frontend != Frontend():
        off = {name: value * factor() for name, value in asdict(frontend).items()}
        frontend = Frontend(**off)
    return replace(
        profile,
        coefficients_ms=coefficients,
        host_ms=host_ms,
        frontend=frontend,
        shared_read=profile.shared_read * factor(),
    )


class ProfileCosts:
    """The ``CostModel`` of a timing profile."""

    def __init__(self, profile: TimingProfile) -> None:
        self._profile = profile

    def frontend_s(self, input_tokens: int) -> float:
        """Return the seconds that a request spends outside an otherwise idle engine."""
        frontend = self._profile.frontend
        ms = frontend.request_ms + frontend.token_ms * input_tokens + frontend.delay_ms
        return ms / 1000

    def prefill_s(self, cached_tokens: int, new_tokens: int) -> float:
        return self._profile.prefill_ps([(cached_tokens, new_tokens)]) / PS_PER_S

    def decode_step_s(self, requests: int, context_tokens: int) -> float:
        return self._profile.decode_ps(requests, context_tokens) / PS_PER_S
