"""Test KV pools by the documented formula."""

import pytest

from fairbench.errors import UsageError
from fairbench.hardware.catalogue import load_profile, resolve_profile


def test_default_pools_equal_the_documented_ones():
    a100 = resolve_profile("a100", "llama-3.1-8b").pool
    assert a100.tokens(a100.mem_fraction_static) == 412_745
    a10g = resolve_profile("a10g", "llama-3.2-3b").pool
    assert a10g.tokens(a10g.mem_fraction_static) == 124_892


def test_the_pool_formula_equals_a_hand_computation():
    pool = resolve_profile("a100", "llama-3.1-8b").pool
    # (78.8 * 0.83 - 15.02) GiB, at 2 * 2 bytes * 32 layers * 8 heads * 128 per token
    assert pool.tokens(0.83) == int((78.8 * 0.83 - 15.02) * 2**30 / (2 * 2 * 32 * 8 * 128))


def test_the_pool_of_a_public_log_is_reproduced():
    """The log shows 78.81 GB before the weights and 63.72 GB after: 444,500 tokens, not 444,520."""
    pool = resolve_profile("a100", "llama-3.1-8b").pool
    logged = type(pool)(78.81, 78.81 - 63.72, pool.kv_bytes_per_token, 0.88, 8192)
    assert logged.tokens(0.88) == 444_520


def test_a_gpu_without_room_for_kv_is_a_usage_error():
    pool = resolve_profile("a10g", "llama-3.1-8b").pool
    with pytest.raises(UsageError, match=r"^mem_fraction_static = 0\.5: leaves no memory for KV"):
        pool.tokens(0.5)


def test_tensor_parallelism_divides_weights_and_kv():
    one = load_profile("h100-80gb/llama-3.1-8b/tp1/sglang-0.5.14").pool
    four = load_profile("h100-80gb/llama-3.1-8b/tp4/sglang-0.5.14").pool
    assert four.weights_gib == one.weights_gib / 4
    assert four.kv_bytes_per_token == one.kv_bytes_per_token / 4


def test_the_pool_of_a_large_model_on_four_gpus_equals_a_hand_computation():
    """The model has 70.55 x 10^9 parameters of 2 bytes, a quarter of them on each GPU.

    It has 80 layers of 8 heads of size 128.
    """
    pool = load_profile("a100-80gb/llama-3.1-70b/tp4/sglang-0.5.10").pool
    assert pool.weights_gib == pytest.approx(70.55e9 * 2 / 2**30 / 4, rel=1e-3)
    assert pool.kv_bytes_per_token == 2 * 2 * 80 * 8 * 128 / 4
    assert pool.tokens(0.83) == int((78.8 * 0.83 - 131.4 / 4) * 2**30 / (2 * 2 * 80 * 8 * 128 / 4))
