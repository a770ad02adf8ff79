"""Timing profiles, whose formula gives the duration of an engine's iterations.

Coefficients per token or request are rounded to integer picoseconds, so that the time of k decode
steps is an exact integer sum. The file ``profiles/engine_profiles.json`` gives the source of every
profile and its error on held-out iterations.

In the formula of ``TimingProfile``, every token of decode context adds the same time. On GPUs of
compute capability 8.x, vLLM uses FlashAttention 2. With FlashAttention 2, two kinds of steps take
longer than the profile's formula says (``flash_api.cpp`` and ``flash_fwd_launch_template.h`` in
``csrc/flash_attn``). FlashAttention 3 (H100, H200) takes no longer than the profile's formula says.

- A mixed step (decoding and prefill) is a single call of the attention kernel. The query heads of a
  KV head are packed into one tile only if every query has length 1 (``seqlenq_ngroups_swapped``).
  In a mixed step, query heads are not packed, so each query head reads the context separately
  (vllm-project/vllm#58013).
- A step that only decodes has a thread block for each sequence, KV head and split of the context.
  The blocks of the longest sequence may still run when all other thread blocks have finished. By
  Graham's bound for list scheduling, uneven blocks lengthen the attention kernel by at most the
  time of the longest block. The simulator lengthens the attention kernel by half of the time of its
  longest thread block.
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
"""The GPUs on which vLLM uses FlashAttention 2, with their numbers of multiprocessors."""

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
"""The numbers of query heads and KV heads of models with heads of 128 elements."""

# tile sizes of FlashAttention's split-KV kernel for heads of 128 elements
TILE_ROWS, TILE_KEYS = 64, 128
# number of thread blocks per multiprocessor that the split-KV kernel's heuristic assumes
BLOCKS_PER_SM = 2
# constants of the heuristic by which the split-KV kernel splits the keys
MOST_SPLITS, FULL_SHARE, GOOD_SHARE = 128, 0.8, 0.85
# extra time of a decode step, divided by the time of the step's longest thread block
TAIL_SHARE = 0.5


class FlashAttention2(NamedTuple):
    """The kernel FlashAttention 2 on a GPU, with the query and KV heads of one TP rank."""

    sms: int
    heads: int
    kv_heads: int

    @property
    def extra_reads(self) -> int:
        """The number of times that a mixed step rereads the context of a decoding sequence."""
        return self.heads // self.kv_heads - 1

    def tail_tokens(self, sequences: int, longest: int) -> float:
        """Return the extra time for a decode step's longest sequence, in units of ``c_A``.

        The tail is the time in which only the longest sequence is computed, as a tile of
        ``TILE_ROWS`` rows on one multiprocessor. The step has ``sequences`` sequences, and the
        longest sequence has ``longest`` tokens of context.
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
    """Return the smallest number of parts into which contexts are split to keep the GPU busy.

    Args:
        tiles: Number of query tiles in the kernel call, before contexts are split.
        key_tiles: Number of key tiles in the longest context.
        sms: Number of streaming multiprocessors.
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
# coefficients of a timing profile that have no unit
DIMENSIONLESS = frozenset({"p", "q_e"})


@dataclass(frozen=True)
class VLLMMemory:
    """The GPU memory of a vLLM server besides weights and KV cache.

    Attributes:
        total_gib: The GPU's total memory, as PyTorch reports it.
        gpu_memory_utilization: The value of vLLM's setting with this name.
        forward_bytes: Size of a token's activations in the forward pass, in bytes.
        hidden_bytes: Size of a token's hidden states during sampling, in bytes.
        logits_bytes: Size of a sequence's logits and probabilities, in bytes.
    """

    total_gib: Amount
    gpu_memory_utilization: Annotated[float, Gt(0), Le(1)]
    forward_bytes: Amount
    hidden_bytes: Amount
    logits_bytes: Amount


@dataclass(frozen=True)
class KVPool:
    """The quantities in SGLang 0.5.23's formula for the size of the KV pool.

    ``host_gb_s`` is the transfer rate of KV cache to and from CPU memory in 10^9 bytes/s, or 0 if
    unknown. A simulated vLLM engine computes its pool size from ``vllm``. If ``vllm`` is None, the
    engine has SGLang's pool size.
    """

    pre_load_avail_gib: Amount
    weights_gib: Amount
    kv_bytes_per_token: Annotated[float, Gt(0), Lt(1e12)]
    mem_fraction_static: Annotated[float, Gt(0), Le(1)]
    chunked_prefill_size: Annotated[int, Ge(1)]
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
        """Return how many tokens of KV cache fit into ``gib`` GiB of CPU memory.

        If ``host_gb_s`` is 0, the result is 0.
        """
        return int(gib * 2**30 / self.kv_bytes_per_token) if self.host_gb_s else 0

    @property
    def host_token_ps(self) -> int:
        """The time (ps) to copy a token's KV cache to CPU memory or back, or 0 if unknown."""
        return round(self.kv_bytes_per_token / self.host_gb_s * 1000) if self.host_gb_s else 0


@dataclass(frozen=True, slots=True)
class Frontend:
    """The CPU time (ms) of a request before it reaches the engine's scheduler.

    The process for HTTP and tokenization takes ``request_ms`` per request and ``token_ms`` per
    prompt token, and serves one request at a time. ``delay_ms`` is an additional delay of each
    request, during which the process can serve other requests.
    """

    request_ms: Amount = 0.0
    token_ms: Amount = 0.0
    delay_ms: Amount = 0.0


@dataclass(frozen=True, slots=True)
class FitDomain:
    """The largest decode batch and context (None: a full KV pool) that a profile's fit covers."""

    decode_batch: Annotated[int, Ge(0)]
    context_tokens: Annotated[int, Ge(0)] | None = None


@dataclass(frozen=True)
class TimingProfile:
    """The iteration times of an engine with a model on a GPU.

      t_ms = c0 + (c_w^p + (c_T*T)^p)^(1/p) + c_npf*n_prefill + c_K*K + c_nd*n_decode + host_ms
             + sum_i max(c_A*new_i*(prefix_i+(new_i+1)/2), c_K*prefix_i)
             + c_pf if anything is prefilled (launched kernel by kernel, not as one CUDA graph)

    T is the number of new tokens and decode sequences, and K is the sum of the decode context
    lengths. In a mixture-of-experts model, c_w + c_e*(1 - q_e^T) replaces c_w, because only the
    experts that tokens choose are read. The fraction of experts that a token does not use is q_e.
    An iteration with prefill takes at least c_l + c_lp*n_prefill, the time in which the host
    launches its kernels. In SGLang's decode steps, few thread blocks read the longest context, so
    attention takes at least c_tail per token of this context (``tail_ps``). Coefficients that a
    profile lacks (c_pf, c_e, c_l, c_lp, c_tail) are 0.
    """

    profile_id: str
    coefficients_ms: dict[str, float]
    host_ms: float
    grade: str
    pool: KVPool
    frontend: Frontend = Frontend()
    # ``fit_domain`` is None if the range of the fitted measurements is unknown.
    fit_domain: FitDomain | None = None
    # ``shared_read`` is the cost of reading context that another sequence also reads, relative to
    # other context.
    shared_read: float = 1.0

    @cached_property
    def context_ps(self) -> int:
        """The time (ps) that a token of decode context adds to a step."""
        return round(self.coefficients_ms["c_K"] * PS_PER_MS)

    @cached_property
    def fixed_ps(self) -> Callable[[int], int]:
        """A function from the batch size to the duration (ps) of a decode step without context."""
        return cache(self._batch_time)

    @cached_property
    def _step_time(self) -> StepTime:
        return StepTime(self.coefficients_ms, self.context_ps, cache(self._linear_ms))

    def decode_ps(self, sequences: int, context_tokens: int) -> int:
        return self.fixed_ps(sequences) + self.context_ps * context_tokens

    def saved_ps(self, shared_tokens: int) -> int:
        """Return the time (ps) that a decode step saves by reading shared context once.

        ``shared_tokens`` counts repeated reads: n - 1 for each token that n sequences share.
        """
        return round((1 - self.shared_read) * self.context_ps * shared_tokens)

    @cached_property
    def longest_ps(self) -> int:
        """The coefficient c_tail in ps: minimum attention time per token of the longest context."""
        return round(self.coefficients_ms.get("c_tail", 0.0) * PS_PER_MS)

    def tail_ps(self, contexts: Collection[int]) -> int:
        """Return the time (ps) that the longest context adds to an SGLang decode step.

        A step computes its sequences in parallel, and splits each sequence into a few parts.
        """
        if not self.longest_ps or not contexts:
            return 0
        return max(0, self.longest_ps * max(contexts) - self.context_ps * sum(contexts))

    @cached_property
    def vllm_attention(self) -> FlashAttention2 | None:
        """The kernel FlashAttention 2 if vLLM uses it on this GPU, or else None."""
        return flash_attention_2(self.profile_id)

    def vllm_extra_ps(self, sequences: int, context_tokens: int, longest: int = 0) -> int:
        """Return the time (ps) by which vLLM's attention exceeds the time of the profile's formula.

        Args:
            sequences: Number of decoding sequences in the step.
            context_tokens: Total context of the decoding sequences, in tokens.
            longest: Longest context, in tokens, of a step that only decodes; 0 if the step
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
        """Return the duration (ps) of a prefill iteration, padded to at least ``rows`` tokens."""
        return self._step_time.duration_ps(chunks, 0, 0, rows)

    def step_ps(
        self, chunks: list[Chunk], sequences: int, context_tokens: int, rows: int = 0
    ) -> int:
        """Return the duration (ps) of an iteration of prefill chunks and decoding sequences.

        The linear layers compute all tokens together, padded to at least ``rows`` tokens. Without
        prompt chunks, ``step_ps`` returns the same time as ``decode_ps``.
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

    The whole profile, each coefficient and the cost of shared context are multiplied by independent
    random factors. The factors are drawn once per run from the run's seed, and differ from 1 by at
    most ``error_pct`` percent.
    """

    error_pct: Annotated[float, Ge(0), Lt(100)] = 0.0


def perturbed(profile: TimingProfile, percent: float, rng: Random) -> TimingProfile:
    """Return the timing profile with random errors of up to ``percent`` percent.

    Each coefficient is multiplied by a random factor that all coefficients share, and by a second
    random factor of its own.
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
