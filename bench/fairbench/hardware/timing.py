"""Timing profiles, which give the duration of an engine's iterations by a formula.

Coefficients that are multiplied by a count are rounded once to integer picoseconds, so that the
time of k decode steps is an exact integer sum. ``profiles/engine_profiles.json`` states the source
of every profile and its error on held-out iterations; ``TimingProfile`` has the formula.

A timing profile charges the same time for every token of decode context. vLLM uses FlashAttention 2
on GPUs of compute capability 8.x. FlashAttention 2 is slower than a profile's formula in two cases,
which its public code shows (``csrc/flash_attn``: ``flash_api.cpp``,
``flash_fwd_launch_template.h``). The tile scheduler of FlashAttention 3 (H100, H200) avoids both
slow cases of FlashAttention 2.

1. A decode step that also prefills is a single call of the attention kernel. Only a call in which
   every query has length 1 packs the query heads of a KV head into one tile
   (``seqlenq_ngroups_swapped``). In a mixed call each query head reads the context separately
   (vllm-project/vllm#58013 describes and repairs this behaviour).
2. A step that only decodes gives each sequence and KV head one thread block for each split of the
   context. A thread block processes its context in order, so the longest sequence may still run
   when all other blocks have finished. By Graham's bound for list scheduling, the duration of the
   attention is at least the time of the mean load, and at most this time plus the time of the
   longest block. The timing profile uses the middle of the lower and the upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from random import Random
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt, Le, Lt

from fairbench.core import PS_PER_S
from fairbench.errors import UsageError
from fairbench.hardware.gpu_time import PS_PER_MS, Chunk, StepTime

SMS = {"a100-80gb": 108, "a10g-24gb": 80, "l40s-48gb": 142}
"""``SMS`` maps the GPUs on which vLLM uses FlashAttention 2 to numbers of multiprocessors."""

HEADS = {
    "llama-2-7b": (32, 32),
    "llama-3.2-3b": (24, 8),
    "llama-3.1-8b": (32, 8),
    "llama-3.1-70b": (64, 8),
    "qwen3-8b": (32, 8),
    "qwen3-14b": (40, 8),
    "qwen3-32b": (64, 8),
    "qwen3-30b-a3b": (32, 4),
    "mixtral-8x7b": (32, 8),
}
"""``HEADS`` maps models with heads of 128 elements to numbers of query heads and KV heads."""

# ``TILE_ROWS, TILE_KEYS`` are the tile sizes of FlashAttention's split-KV kernel for heads of 128
# elements.
TILE_ROWS, TILE_KEYS = 64, 128
# The kernel's heuristic assumes that ``BLOCKS_PER_SM`` thread blocks run on a multiprocessor.
BLOCKS_PER_SM = 2
# ``MOST_SPLITS, FULL_SHARE, GOOD_SHARE`` are constants of the kernel's heuristic that splits the
# keys.
MOST_SPLITS, FULL_SHARE, GOOD_SHARE = 128, 0.8, 0.85
# ``TAIL_SHARE`` is the fraction of the longest thread block's time that the model charges.
TAIL_SHARE = 0.5


class FlashAttention2(NamedTuple):
    """The kernel FlashAttention 2 on a GPU, with the query and KV heads of one TP rank."""

    sms: int
    heads: int
    kv_heads: int

    @property
    def extra_reads(self) -> int:
        """The number of additional times that a mixed step reads each decoding context token."""
        return self.heads // self.kv_heads - 1

    def tail_tokens(self, sequences: int, longest: int) -> float:
        """Return the context tokens whose attention takes as long as the tail of a decode step.

        The tail is the time in which only the longest sequence is computed, as a tile of
        ``TILE_ROWS`` rows on one multiprocessor. The decode step has ``sequences`` sequences, the
        longest with ``longest`` tokens of context. The duration of the tail is the result
        multiplied by a profile's ``c_A``.
        """
        splits = 1
        if self.heads > self.kv_heads:
            splits = _context_splits(sequences * self.kv_heads, -(-longest // TILE_KEYS), self.sms)
        return TAIL_SHARE * TILE_ROWS * self.sms / self.heads * longest / splits


def flash_attention_2(profile_id: str) -> FlashAttention2 | None:
    """Return the kernel for a profile id, or None if vLLM uses another kernel."""
    gpu, model, parallel, *_ = (*profile_id.split("/"), "", "")
    if gpu not in SMS or model not in HEADS:
        return None
    heads, kv_heads = HEADS[model]
    degree = int(parallel.removeprefix("tp"))
    return FlashAttention2(SMS[gpu], heads // degree, max(1, kv_heads // degree))


@cache
def _context_splits(tiles: int, key_tiles: int, sms: int) -> int:
    """Return the smallest number of parts of a context with which the GPU is busy.

    Args:
        tiles: Number of query tiles in the call, without splits.
        key_tiles: Number of key tiles in the longest context.
        sms: Streaming multiprocessors.
    """
    slots = BLOCKS_PER_SM * sms
    if tiles >= FULL_SHARE * slots:
        return 1
    shares: dict[int, float] = {}
    for splits in range(1, min(MOST_SPLITS, slots, key_tiles) + 1):
        if splits == 1 or -(-key_tiles // splits) != -(-key_tiles // (splits - 1)):
            waves = -(-tiles * splits // slots)
            shares[splits] = tiles * splits / slots / waves
    good = GOOD_SHARE * max(shares.values(), default=0.0)
    return next((splits for splits, share in shares.items() if share >= good), 1)


Amount = Annotated[float, Ge(0), Lt(1e12)]
# The coefficients of a timing profile that ``DIMENSIONLESS`` names are not times.
DIMENSIONLESS = frozenset({"p", "q_e"})


@dataclass(frozen=True)
class VLLMMemory:
    """The memory of a vLLM server beside weights and KV, which a profiling step at start measures.

    Attributes:
        total_gib: The GPU's total memory, as PyTorch reports it.
        gpu_memory_utilization: The value of vLLM's setting with this name.
        forward_bytes: Activations of each token in the forward pass.
        hidden_bytes: Hidden states of each token that sampling keeps.
        logits_bytes: Logits and probabilities of each sequence.
    """

    total_gib: Amount
    gpu_memory_utilization: Annotated[float, Gt(0), Le(1)]
    forward_bytes: Amount
    hidden_bytes: Amount
    logits_bytes: Amount


@dataclass(frozen=True)
class KVPool:
    """The quantities that determine the size of the KV pool by the formula of SGLang 0.5.23.

    ``host_gb_s`` is the transfer rate of KV cache to and from CPU memory in 10^9 bytes/s, or 0 if
    unknown. ``vllm`` is given if a simulated vLLM has the pool size that vLLM computes; without
    ``vllm``, all engines have pools of equal size.
    """

    pre_load_avail_gib: Amount
    weights_gib: Amount
    kv_bytes_per_token: Amount
    mem_fraction_static: Amount
    chunked_prefill_size: Annotated[int, Ge(0)]
    host_gb_s: Amount = 0.0
    vllm: VLLMMemory | None = None

    def tokens(self, mem_fraction_static: float) -> int:
        """Return the size of the KV pool in tokens.

        Raises UsageError if no memory is left for the KV pool.
        """
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
        """Return how many tokens ``gib`` GiB of CPU memory hold; 0 if the rate is unknown."""
        return int(gib * 2**30 / self.kv_bytes_per_token) if self.host_gb_s else 0

    @property
    def host_token_ps(self) -> int:
        """The time in ps to copy the KV cache of a token to CPU memory or back, or 0 if unknown."""
        return round(self.kv_bytes_per_token / self.host_gb_s * 1000) if self.host_gb_s else 0


@dataclass(frozen=True, slots=True)
class Frontend:
    """The CPU time of a request in ms, in front of the engine's scheduler.

    ``request_ms`` and ``token_ms`` (per prompt token) are times of the single process that serves
    HTTP and tokenizes. ``delay_ms`` is the latency on the way in and out, which occupies no
    process.
    """

    request_ms: Amount = 0.0
    token_ms: Amount = 0.0
    delay_ms: Amount = 0.0


@dataclass(frozen=True, slots=True)
class FitDomain:
    """The largest decode batch of a fit and its context tokens; None means the default KV pool."""

    decode_batch: Annotated[int, Ge(0)]
    context_tokens: Annotated[int, Ge(0)] | None = None


@dataclass(frozen=True)
class TimingProfile:
    """The iteration times of an engine on a GPU and model.

      t_ms = c0 + (c_w^p + (c_T*T)^p)^(1/p) + c_npf*n_prefill + c_K*K + c_nd*n_decode + host_ms
             + sum_i max(c_A*new_i*(prefix_i+(new_i+1)/2), c_K*prefix_i)
             + c_pf if anything is prefilled (launched kernel by kernel, not as one CUDA graph)

    T is the number of new tokens and decode sequences, and K is the sum of the decode context
    lengths. A mixture of experts reads the experts that at least one token chooses. In a mixture of
    experts, the term c_w + c_e*(1 - q_e^T) replaces c_w, where q_e is the fraction of experts that
    a token does not use. An iteration that prefills takes at least c_l + c_lp*n_prefill, the time
    in which the host launches its kernels while the GPU computes. The attention of SGLang's decode
    steps takes at least c_tail times the longest context, which few thread blocks read
    (``tail_ps``). Coefficients that a profile lacks (c_pf, c_e, c_l, c_lp, c_tail) are 0.
    """

    profile_id: str
    coefficients_ms: dict[str, float]
    host_ms: float
    grade: str
    pool: KVPool
    frontend: Frontend = Frontend()
    # ``fit_domain`` is None if the domain of the fit is unknown.
    fit_domain: FitDomain | None = None
    # ``shared_read`` is the relative cost of reading context that another sequence of the batch
    # reads, too.
    shared_read: float = 1.0

    @cached_property
    def context_ps(self) -> int:
        """The time in ps that one token of decode context adds to a step."""
        return round(self.coefficients_ms["c_K"] * PS_PER_MS)

    @cached_property
    def fixed_ps(self) -> Callable[[int], int]:
        """A function from batch size to the duration in ps of a decode step without context."""
        return cache(self._batch_time)

    @cached_property
    def _step_time(self) -> StepTime:
        return StepTime(self.coefficients_ms, self.context_ps, cache(self._linear_ms))

    def decode_ps(self, sequences: int, context_tokens: int) -> int:
        """Return the duration in ps of a decode step for this many sequences and context tokens."""
        return self.fixed_ps(sequences) + self.context_ps * context_tokens

    def saved_ps(self, shared_tokens: int) -> int:
        """Return the time in ps that a decode step saves on context shared by several sequences.

        Tokens shared by several sequences count once for each sequence except the first. If
        ``shared_read`` is 1, the saved time is 0.
        """
        return round((1 - self.shared_read) * self.context_ps * shared_tokens)

    @cached_property
    def longest_ps(self) -> int:
        """The lowest time in ps of an SGLang decode step for each token of its longest context."""
        return round(self.coefficients_ms.get("c_tail", 0.0) * PS_PER_MS)

    def tail_ps(self, contexts: Collection[int]) -> int:
        """Return the time in ps that the longest context of an SGLang step adds to the formula.

        Sequences of a step are computed in parallel, and each sequence in a limited number of
        parts.
        """
        if not self.longest_ps or not contexts:
            return 0
        return max(0, self.longest_ps * max(contexts) - self.context_ps * sum(contexts))

    @cached_property
    def vllm_attention(self) -> FlashAttention2 | None:
        """The attention kernel of vLLM on the GPU, or None if the formula describes the kernel."""
        return flash_attention_2(self.profile_id)

    def vllm_extra_ps(self, sequences: int, context_tokens: int, longest: int = 0) -> int:
        """Return the time in ps that a vLLM step takes beyond the formula.

        Args:
            sequences: Decoding sequences of the step.
            context_tokens: Total context of the decoding sequences, in tokens.
            longest: Tokens of the longest context in a step that only decodes; 0 if the step
                prefills.
        """
        kernel = self.vllm_attention
        if kernel is None or not sequences:
            return 0
        if not longest:
            return kernel.extra_reads * self.context_ps * context_tokens
        tokens = kernel.tail_tokens(sequences, longest)
        return round(self.coefficients_ms["c_A"] * tokens * PS_PER_MS)

    def prefill_ps(self, chunks: list[Chunk], rows: int = 0) -> int:
        """Return the duration of a prefill iteration in ps; ``step_ps`` explains ``rows``."""
        return self._step_time.duration_ps(chunks, 0, 0, rows)

    def step_ps(
        self, chunks: list[Chunk], sequences: int, context_tokens: int, rows: int = 0
    ) -> int:
        """Return the duration in ps of an iteration of prefill chunks and decoding sequences.

        All tokens pass through the linear layers together, and are padded to at least ``rows``.
        Without prompt chunks, the result equals ``decode_ps``.
        """
        return self._step_time.duration_ps(chunks, sequences, context_tokens, rows)

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
    """Return the profile of a GPU on which every iteration takes ``factor`` times as long."""
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

    ``error_pct`` is the largest error of a step time in percent. The error multiplies the whole
    profile, each coefficient, and the cost of context that several sequences share, independently
    and in either direction. Errors are drawn once per run from the seed.
    """

    error_pct: Annotated[float, Ge(0), Lt(100)] = 0.0


def perturbed(profile: TimingProfile, percent: float, rng: Random) -> TimingProfile:
    """Return the profile with random errors of up to ``percent`` percent.

    One error is common to all times of a step; each coefficient also has an error of its own.
    """

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
    """The ``CostModel`` that a timing profile defines."""

    def __init__(self, profile: TimingProfile) -> None:
        self._profile = profile

    def frontend_s(self, input_tokens: int) -> float:
        """Return the seconds that a lone request spends in the HTTP server and tokenizer."""
        frontend = self._profile.frontend
        ms = frontend.request_ms + frontend.token_ms * input_tokens + frontend.delay_ms
        return ms / 1000

    def prefill_s(self, cached_tokens: int, new_tokens: int) -> float:
        return self._profile.prefill_ps([(cached_tokens, new_tokens)]) / PS_PER_S

    def decode_step_s(self, requests: int, context_tokens: int) -> float:
        return self._profile.decode_ps(requests, context_tokens) / PS_PER_S
