"""The costs of vLLM servers that operator tables lack, and the size of vLLM's KV pool.

Operator tables hold the times of single GPU operations. Servers on an H100 were measured to need
more time for the linear layers, and time for sampling, which the tables lack. vLLM determines the
KV pool by a profiling step at start.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairbench.hardware.timing import KVPool, VLLMMemory

HOPPER_GB_S = {"h100-80gb": 3_350, "gh200-96gb": 4_000, "h200-141gb": 4_800}
"""``HOPPER_GB_S`` maps the GPUs with the H100's chip to memory bandwidths in 10^9 bytes/s."""

LINEAR_FACTOR = 1.10
"""``LINEAR_FACTOR`` is the measured time of an H100's linear layers (c_T) over operator times.

Two servers were measured: Llama-3.1-8B in SGLang (1.10, profile ``measured-sglang-triton``) and
Qwen3-14B in vLLM (1.09, profile ``measured-vllm``). A published TTFT agrees: for prompts of 28,650
tokens on an H100, the published value is 1,077 ms, and the operators' value is 976 ms.
"""

SAMPLING_MS, SAMPLING_VOCABULARY = 0.012, 151_936
"""``SAMPLING_MS`` is vLLM's time for each sequence of a step on an H100, with the vocabulary.

The sampling time was measured with Qwen3-14B (profile ``measured-vllm``). The likely cause is
sampling with ``top_p`` over all logits, which moves memory, so the time grows with the vocabulary
and shrinks with the bandwidth.
"""


def with_serving(
    coefficients_ms: Mapping[str, float], gpu: str, vocabulary: int
) -> dict[str, float]:
    """Return the coefficients of vLLM's operators with the costs that servers on Hopper add.

    Args:
        coefficients_ms: The coefficients of a ``TimingProfile``.
        gpu: Name of the GPU; coefficients of other GPUs than Hopper are unchanged.
        vocabulary: Tokens of the model's vocabulary.
    """
    found = dict(coefficients_ms)
    if gpu in HOPPER_GB_S:
        slower = HOPPER_GB_S["h100-80gb"] / HOPPER_GB_S[gpu]
        sampling_ms = SAMPLING_MS * vocabulary / SAMPLING_VOCABULARY * slower
        found["c_T"] *= LINEAR_FACTOR
        found["c_nd"] = max(found["c_nd"], sampling_ms)
    return found


OTHER_GIB = 0.79
"""``OTHER_GIB`` is the memory in GiB that libraries, workspaces and input buffers take.

Three logs of vLLM 0.19 with Llama-3.1-8B show 0.81 (H100), 0.79 (A100) and 0.77 GiB (RTX 4090) in
addition to weights, KV cache and activations.
"""

BLOCK = 16  # tokens of a KV block


def vllm_pool_tokens(
    pool: KVPool, memory: VLLMMemory, *, tokens: int, sequences: int, block: int = BLOCK
) -> int:
    """Return the size of vLLM's KV pool in tokens, or 0 if no memory is left.

    vLLM takes a part of the GPU's memory and subtracts weights, activations and other memory
    (``determine_available_memory`` in ``vllm/v1/worker/gpu_worker.py``). The activations are the
    peak of a profiling step, which computes the largest number of tokens and then samples for the
    largest number of sequences.

    Args:
        pool: The memory of the weights and of a token.
        memory: Other memory of the server.
        tokens: vLLM's ``max_num_batched_tokens``.
        sequences: vLLM's ``max_num_seqs``.
        block: Number of tokens in a KV block.
    """
    forward = tokens * memory.forward_bytes
    sampling = tokens * memory.hidden_bytes + min(sequences, tokens) * memory.logits_bytes
    activations_gib = max(forward, sampling) / 2**30
    gib = memory.total_gib * memory.gpu_memory_utilization
    gib -= pool.weights_gib + activations_gib + OTHER_GIB
    return max(0, int(gib * 2**30 / (block * pool.kv_bytes_per_token))) * block
