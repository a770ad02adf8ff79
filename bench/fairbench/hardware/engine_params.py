"""Parameters of the simulated engines, under the engines' own names, with defaults.

The engines are SGLang with the rules of several releases, vLLM, and LightLLM as used by S-LoRA.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Lt
from pydantic import PlainValidator

from fairbench.errors import UsageError
from fairbench.hardware.timing import KVPool, TimingProfile, VLLMMemory

Release: TypeAlias = Literal["0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"]

Splits: TypeAlias = Literal["prefilled", "finished", "never"]


@dataclass(frozen=True)
class SGLangRules:
    """The scheduling rules of an SGLang release; the defaults are the rules of 0.5.23.

    Attributes:
        drops_finished: Whether a finished request leaves the batch before the next pass instead of
            at the next decode step.
        counts_chunk_once: Whether a prompt that is computed in chunks takes one slot of
            ``max_running_requests``, not two slots, from its second chunk on.
        tries_within_budget: Whether a scheduling pass ends when a chunk has used up a budget,
            instead of trying one more request.
        touches_waiting: Whether a pass without prefix matching also marks the cached prefixes of
            the first waiting requests as recently used.
        splits: When a retracted request's prompt and recomputed outputs become two nodes of the
            prefix tree: at the prefill, at the end of the request, or never.
    """

    drops_finished: bool = True
    counts_chunk_once: bool = True
    tries_within_budget: bool = True
    touches_waiting: bool = True
    splits: Splits = "prefilled"


# CPU memory in GiB per GPU for preempted requests, as in vLLM's V0 engine
SWAP_GIB = 4.0

NEWEST = SGLangRules()
_0_5_22 = replace(NEWEST, drops_finished=False, counts_chunk_once=False, tries_within_budget=False)
_0_5_20 = replace(_0_5_22, touches_waiting=False, splits="finished")
_0_5_17 = replace(_0_5_20, splits="never")

RULES: dict[Release, SGLangRules] = {
    "0.5.17": _0_5_17,
    "0.5.18": _0_5_17,
    "0.5.19": _0_5_17,
    "0.5.20": _0_5_20,
    "0.5.21": _0_5_20,
    "0.5.22": _0_5_22,
    "0.5.23": NEWEST,
}


def releases_from(first: str) -> list[Release]:
    """Return the known SGLang releases from ``first`` on."""
    return [release for release in RULES if _release_numbers(release) >= _release_numbers(first)]


def _release_numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


PrefixMatchTime: TypeAlias = Annotated[float, Ge(0), Le(10**6)] | None
"""The allowed values of ``prefix_match_us``, the CPU time (us) to match a request's prefix."""


def _load_cap_setting(value: Any) -> str | int | None:
    tokens = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if value in ("auto", "none", None) or tokens:
        found: str | int | None = value
        return found
    raise ValueError("the load cap must be auto, none or a number of tokens above 0")


LoadCapSetting: TypeAlias = Annotated[str | int | None, PlainValidator(_load_cap_setting)]


@dataclass(frozen=True)
class EngineParams:
    """Settings of every simulated SGLang worker (``--set engine.NAME=VALUE``).

    ``fairbench list engines`` describes each engine setting. A setting of 0 means the value that
    SGLang 0.5.23 chooses for the GPU and model. ``mem_fraction_static`` of an A10G is 0.88. SGLang
    chooses a ``max_running_requests`` between 2,048 and 4,096, so memory is the limit in practice.
    ``full_reservation`` reserves memory for all output tokens at admission, as ``ignore_eos`` does.
    [DLPM] §5.1 sets ``num_continuous_decode_steps`` to 10. ``in_batch_prefix_caching`` (on by
    default) has been part of SGLang since December 2024 (PR 2442). By default, an admission pass
    that runs out of memory or slots marks the batch as full (``batch_is_full``), unlike SGLang in
    summer 2024. ``enable_mixed_chunk`` is off by default, as in SGLang. See docs/appendix/engine.md
    for ``load_cap``, docs/appendix/speed.md for ``prefix_match_us``, and docs/reference/releases.md
    for ``release``.
    """

    chunked_prefill_size: Annotated[int, Ge(0)] = 0
    max_prefill_tokens: Annotated[int, Gt(0)] = 16_384
    max_running_requests: Annotated[int, Gt(0)] = 2_048
    schedule_conservativeness: Annotated[float, Gt(0)] = 1.0
    mem_fraction_static: Annotated[float, Ge(0), Le(1)] = 0.0
    max_total_tokens: Annotated[int, Ge(0), Le(10**9)] = 0
    full_reservation: bool = False
    step_by_step: bool = False
    num_continuous_decode_steps: Annotated[int, Ge(1), Le(10_000)] | None = None
    in_batch_prefix_caching: bool | None = None
    batch_is_full: bool | None = None
    load_cap: LoadCapSetting = None
    prefix_match_us: PrefixMatchTime = None
    release: Release | None = None
    enable_mixed_chunk: bool | None = None


@dataclass(frozen=True)
class EngineLimits:
    """The parameters of an SGLang engine after all defaults are filled in.

    ``host_tokens`` is the size of the CPU memory for swapped KV cache, in tokens. ``rules`` are the
    scheduling rules of the release. ``EngineParams`` explains all attributes except ``host_tokens``
    and ``rules``.
    """

    pool_tokens: int
    chunked_prefill_size: int
    max_prefill_tokens: int
    max_running_requests: int
    schedule_conservativeness: float = 1.0
    full_reservation: bool = False
    step_by_step: bool = False
    num_continuous_decode_steps: int = 1
    in_batch_prefix_caching: bool = True
    marks_full_batch: bool = True
    host_tokens: int = 0
    load_cap: LoadCapSetting = None
    prefix_match_us: PrefixMatchTime = None
    rules: SGLangRules = NEWEST
    enable_mixed_chunk: bool = False


def _common_settings(params: Any, limits: type[Any]) -> dict[str, Any]:
    """Return the settings of ``params`` that are not None and are also fields of ``limits``."""
    names = {field.name for field in fields(limits)}
    given = asdict(params).items()
    return {name: value for name, value in given if name in names and value is not None}


def mem_fraction(params: EngineParams, profile: TimingProfile) -> float:
    """Return the fraction of GPU memory for weights and KV cache, as given or by default."""
    return params.mem_fraction_static or profile.pool.mem_fraction_static


def engine_limits(params: EngineParams, profile: TimingProfile) -> EngineLimits:
    """Return SGLang's parameters with default values for the GPU and model.

    Raises UsageError for ``enable_mixed_chunk`` with the scheduling rules of a release before
    0.5.23.
    """
    pool, rules = profile.pool, NEWEST if params.release is None else RULES[params.release]
    if params.enable_mixed_chunk and rules != NEWEST:
        raise UsageError(
            "engine.enable_mixed_chunk = True: simulated only as in SGLang 0.5.23; leave out "
            f"engine.release = {params.release!r}"
        )
    chunk = params.chunked_prefill_size or pool.chunked_prefill_size
    return EngineLimits(
        **_common_settings(params, EngineLimits) | {"chunked_prefill_size": chunk},
        pool_tokens=params.max_total_tokens or pool.tokens(mem_fraction(params, profile)),
        marks_full_batch=params.batch_is_full is not False,
        host_tokens=pool.host_tokens(SWAP_GIB),
        rules=rules,
    )


@dataclass(frozen=True)
class VLLMLimits:
    """The settings of a vLLM 0.32.0 engine after all defaults are filled in.

    ``pool_tokens`` is the "GPU KV cache size" that vLLM prints; one block of the pool stays unused.
    With ``goes_on_after_self`` (from vLLM 0.33 on), a step continues after a request preempts
    itself. ``VLLMParams`` describes the settings. Raises ValueError for settings that vLLM itself
    refuses.
    """

    pool_tokens: int
    max_num_batched_tokens: int = 2_048
    max_num_seqs: int = 256
    block_size: int = 16
    enable_prefix_caching: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    step_by_step: bool = False
    host_tokens: int = 0
    goes_on_after_self: bool = False
    async_scheduling: bool = False
    load_cap: LoadCapSetting = None
    prefix_match_us: PrefixMatchTime = None
    long_prefill_token_threshold: int = 0

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens}: must be at "
                f"least max_num_seqs = {self.max_num_seqs}"
            )
        if self.blocks < 1:
            raise ValueError(
                f"pool_tokens = {self.pool_tokens}: must be at least two blocks of "
                f"{self.block_size} tokens"
            )

    @property
    def all_blocks(self) -> int:
        return self.pool_tokens // self.block_size

    @property
    def blocks(self) -> int:
        """The number of usable blocks, without the block that vLLM keeps as a placeholder."""
        return self.all_blocks - 1

    @property
    def watermark_blocks(self) -> int:
        """The number of blocks that admission leaves free while a request runs."""
        return int(self.watermark * self.all_blocks)


@dataclass(frozen=True)
class VLLMParams:
    """Settings of every simulated vLLM worker (``--set vllm.NAME=VALUE``).

    ``fairbench list engines`` describes each engine setting. A setting of 0 means the value that
    the API server of vLLM 0.32.0 chooses for the GPU. If ``num_gpu_blocks_override`` is 0, the KV
    pool has the size that vLLM computes from the profile's ``VLLMMemory``, or SGLang's size if the
    profile has none. The default ``release`` follows the rules of vLLM 0.31 and 0.32. From release
    0.33 on, vLLM continues with later requests if a request that needs memory is itself preempted.
    With ``async_scheduling``, vLLM decides on each step while the previous step runs.
    ``async_scheduling`` is off by default in fairbench, but on by default in vLLM on GPUs.
    ``long_prefill_token_threshold`` is off by default (0), as in vLLM.
    """

    max_num_batched_tokens: Annotated[int, Ge(0)] = 0
    max_num_seqs: Annotated[int, Ge(0)] = 0
    block_size: Annotated[int, Gt(0)] = 16
    num_gpu_blocks_override: Annotated[int, Ge(0), Lt(10**9)] = 0
    enable_prefix_caching: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark: Annotated[float, Ge(0), Lt(1)] = 0.0
    step_by_step: bool = False
    load_cap: LoadCapSetting = None
    prefix_match_us: PrefixMatchTime = None
    release: Literal["0.31", "0.32", "0.33"] | None = None
    async_scheduling: bool | None = None
    long_prefill_token_threshold: Annotated[int, Ge(0), Le(10**9)] | None = None


def vllm_limits(params: VLLMParams, profile: TimingProfile) -> VLLMLimits:
    """Return vLLM's parameters with default values for the GPU and model.

    Raises UsageError for parameters with which vLLM would not start.
    """
    most_tokens, most_sequences = default_batch(profile)
    values = _common_settings(params, VLLMLimits)
    batch_tokens = values["max_num_batched_tokens"] = params.max_num_batched_tokens or most_tokens
    sequences = values["max_num_seqs"] = params.max_num_seqs or most_sequences
    pool, size = profile.pool, params.block_size
    tokens = params.num_gpu_blocks_override * size
    if not tokens and pool.vllm is not None:
        tokens = vllm_pool_tokens(
            pool, pool.vllm, tokens=batch_tokens, sequences=sequences, block=size
        )
    elif not tokens:
        tokens = pool.tokens(pool.mem_fraction_static)
    try:
        return VLLMLimits(
            **values,
            pool_tokens=tokens,
            host_tokens=pool.host_tokens(SWAP_GIB),
            goes_on_after_self=params.release == "0.33",
        )
    except ValueError as error:
        raise UsageError(f"the settings of vllm are not valid: {error}") from None


OTHER_GIB = 0.79
"""The GPU memory in GiB for libraries, workspaces and input buffers of vLLM.

In logs of vLLM 0.19 with Llama-3.1-8B, libraries, workspaces and buffers take 0.81 GiB (H100), 0.79
GiB (A100) and 0.77 GiB (RTX 4090).
"""

BLOCK = 16


def vllm_pool_tokens(
    pool: KVPool, memory: VLLMMemory, *, tokens: int, sequences: int, block: int = BLOCK
) -> int:
    """Return the size of vLLM's KV pool in tokens, or 0 if no memory is left.

    vLLM subtracts weights, activations and other memory from a fraction of the GPU's memory
    (``determine_available_memory`` in ``vllm/v1/worker/gpu_worker.py``). The memory of activations
    is the peak memory of a profiling step, which vLLM runs at start with the maximum numbers of
    tokens and sequences.

    Args:
        pool: Memory of the weights, and KV cache memory per token.
        memory: Memory of the server besides weights and KV cache.
        tokens: The value of vLLM's ``max_num_batched_tokens``.
        sequences: The value of vLLM's ``max_num_seqs``.
        block: Size of a KV block in tokens.
    """
    forward = tokens * memory.forward_bytes
    sampling = tokens * memory.hidden_bytes + min(sequences, tokens) * memory.logits_bytes
    activations_gib = max(forward, sampling) / 2**30
    gib = memory.total_gib * memory.gpu_memory_utilization
    gib -= pool.weights_gib + activations_gib + OTHER_GIB
    return max(0, int(gib * 2**30 / (block * pool.kv_bytes_per_token))) * block


def default_batch(profile: TimingProfile) -> tuple[int, int]:
    """Return the limits of vLLM's API server on the tokens and sequences of a step.

    The limits depend on the GPU's memory, but an A100 gets the limits of GPUs below 70 GiB.
    """
    gib = profile.pool.pre_load_avail_gib
    if gib >= 160:
        return 16_384, 1_024
    if gib >= 70 and not profile.profile_id.startswith("a100"):
        return 8_192, 1_024
    return 2_048, 256


@dataclass(frozen=True)
class LightLLMLimits:
    """The settings of a LightLLM server after all defaults of ``LightLLMParams`` are filled in."""

    pool_tokens: int
    client_tokens: int = 0
    max_running_requests: int = 1_000
    max_wait_tokens: int = 10
    max_prefill_tokens: int = 0
    prefill_overhead_ms: float = 0.0
    prefill_tile: int = 1
    idle_poll_ms: float = 0.0
    load_cap: LoadCapSetting = None

    @property
    def minibatch_tokens(self) -> int:
        """The maximum number of prompt tokens in a minibatch."""
        return self.max_prefill_tokens or max(self.pool_tokens // 6, 3_072)

    def prefill_rows(self, tokens: int) -> int:
        """Return the padded number of rows in the linear layers for a minibatch of ``tokens``."""
        tile = min(self.prefill_tile, 1 << (tokens - 1).bit_length())
        return -(-tokens // tile) * tile


@dataclass(frozen=True)
class LightLLMParams:
    """Settings of every simulated LightLLM worker (``--set lightllm.NAME=VALUE``).

    ``fairbench list engines`` describes each engine setting. The defaults are the values of the
    measured runs (docs/studies/measured.md), except for ``client_tokens``, which was 32. If
    ``max_total_tokens`` is 0, the KV pool takes all memory that the weights leave. If
    ``max_prefill_tokens`` is 0, a prefill has S-LoRA's limit of max(pool / 6, 3072) tokens. A
    minibatch smaller than ``prefill_tile`` is rounded up to a power of two.
    """

    constants: ClassVar[tuple[str, ...]] = ("max_prefill_tokens", "max_wait_tokens")

    max_total_tokens: Annotated[int, Ge(0), Le(10**9)] = 0
    max_running_requests: Annotated[int, Gt(0)] = 1_000
    max_wait_tokens: Annotated[int, Gt(0)] = 10
    max_prefill_tokens: Annotated[int, Ge(0)] = 0
    prefill_overhead_ms: Annotated[float, Ge(0)] = 14.0
    prefill_tile: Annotated[int, Gt(0)] = 256
    idle_poll_ms: Annotated[float, Ge(0)] = 10.0
    client_tokens: Annotated[int, Ge(0)] = 0
    load_cap: LoadCapSetting = None


def lightllm_limits(params: LightLLMParams, profile: TimingProfile) -> LightLLMLimits:
    """Return LightLLM's parameters, and the KV pool size for the GPU and model of ``profile``.

    Raises UsageError if the GPU has no memory left for a KV pool.
    """
    tokens = params.max_total_tokens or profile.pool.tokens(profile.pool.mem_fraction_static)
    return LightLLMLimits(**_common_settings(params, LightLLMLimits), pool_tokens=tokens)
