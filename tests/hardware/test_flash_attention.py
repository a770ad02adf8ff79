"""Test the extra time of vLLM's FlashAttention 2 beyond the profile, by hand-computed values."""

import pytest

from fairbench.hardware.catalogue import load_profile, profile_ids
from fairbench.hardware.gpu_time import PS_PER_MS
from fairbench.hardware.timing import flash_attention_2

A100 = load_profile("a100-80gb/llama-3.1-8b/tp1/measured-sglang")


def test_a_mixed_step_reads_the_context_once_per_query_head():
    # 32 query heads share 8 KV heads, which are read four times instead of once.
    assert A100.vllm_extra_ps(32, 100_000) == 3 * A100.decode_ps(0, 100_000) - 3 * A100.fixed_ps(0)


def test_a_step_without_decoding_sequences_has_no_extra_cost():
    assert A100.vllm_extra_ps(0, 0) == 0


@pytest.mark.parametrize(
    ("sequences", "longest", "splits"),
    [
        (32, 12_800, 1),  # 256 tiles fill more than 0.8 of 216 slots
        (8, 12_800, 3),  # 64 tiles: 3 splits fill 192 of 216 slots
        (8, 256, 2),  # two tiles of keys cannot be split further
        (1, 12_800, 25),  # 8 tiles: 25 splits fill 200 of 216 slots
    ],
)
def test_the_longest_sequence_keeps_one_multiprocessor_busy(sequences, longest, splits):
    # half of 64 rows x longest, on one of 108 multiprocessors, for the work of 32 heads
    tokens = 0.5 * 64 * longest / splits * 108 / 32
    extra_ps = A100.vllm_extra_ps(sequences, sequences * longest, longest)
    assert extra_ps == pytest.approx(A100.coefficients_ms["c_A"] * tokens * PS_PER_MS)


def test_gpus_with_flash_attention_3_and_unknown_gpus_have_no_extra_cost():
    for name in profile_ids():
        newer = name.startswith(("h100", "h200", "b200")) or "/gpt-oss-" in name
        assert (flash_attention_2(name) is None) == newer, name
    assert flash_attention_2("b200/llama-3.1-8b/tp1/vllm") is None


def test_tensor_parallelism_shares_heads():
    kernel = flash_attention_2("a100-80gb/llama-3.1-70b/tp4/sglang")
    assert kernel is not None
    assert (kernel.heads, kernel.kv_heads, kernel.extra_reads) == (16, 2, 7)


def test_without_grouped_queries_the_context_is_read_once():
    kernel = flash_attention_2("a10g-24gb/llama-2-7b/tp1/sglang-e2e")
    assert kernel is not None
    assert kernel.extra_reads == 0
