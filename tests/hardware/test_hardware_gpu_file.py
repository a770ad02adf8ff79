"""Test GPUs that a user describes in a file."""

import json

import pytest

from fairbench.errors import DataError
from fairbench.files.formats import dumps
from fairbench_calibration.profiling.gpus import GPUS, Interconnect, read_gpu

L20 = {"name": "L20-48gb", "memory_gb": 48, "memory_gb_s": 864, "bf16_tflops": 119.5}


@pytest.mark.parametrize(("ending", "text"), [("toml", dumps), ("json", json.dumps)])
def test_a_file_describes_a_gpu(tmp_path, ending, text):
    path = tmp_path / f"gpu.{ending}"
    path.write_text(text({**L20, "fp8_tflops": 239.0, "interconnect": "pcie"}))
    found = read_gpu(path)
    assert found[:5] == ("l20-48gb", None, 119.5, 239.0, 864)
    assert found.interconnect == Interconnect.PCIE
    assert found.link_gb_s == 25.2


@pytest.mark.parametrize(
    ("like", "memory_gb"),
    [
        ("l4-24gb", 24),
        ("l40s-48gb", 48),
        ("a100-80gb", 80),
        ("h200-141gb", 141),
        ("b200-180gb", 180),
    ],
)
def test_the_rules_of_memory_give_the_limits_of_the_known_gpus(tmp_path, like, memory_gb):
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({**L20, "memory_gb": memory_gb}))
    found, known = read_gpu(path), GPUS[like]
    assert found.chunked_prefill_size == known.chunked_prefill_size
    assert found.mem_fraction_static == pytest.approx(known.mem_fraction_static, abs=0.003)
    assert found.pre_load_avail_gib == pytest.approx(known.pre_load_avail_gib, rel=0.07)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_gb_s": -3}, "memory_gb_s = -3: must be greater than 0"),
        ({"memory_gb_s": "fast"}, "memory_gb_s = 'fast'"),
        ({"memory_gb_s": 3.35}, "memory_gb_s = 3.35: must be at least 50, in 10.9 bytes/s"),
        ({"bf16_tflops": 0.989}, "bf16_tflops = 0.989: must be at least 5, in 10.12 FLOP/s"),
        ({"bf16_tflops": 0}, "bf16_tflops = 0: must be greater than 0"),
        ({"interconnect": "nvlnk"}, "interconnect = 'nvlnk': choose from nvlink, pcie, pcie-host"),
        ({"compute_share": 1.5}, "compute_share = 1.5: must be less than or equal to 1"),
        ({"memory_gbs": 864}, "unknown key 'memory_gbs': .*Did you mean 'memory_gb_s'"),
        ({"name": "my gpu"}, "name = 'my gpu': must have only letters"),
        ({"name": "a/b"}, "name = 'a/b': must have only letters"),
        ({"memory_gb": None}, "memory_gb"),
        ({"free_memory_gib": 90.0}, "free_memory_gib = 90: must be at most memory_gb"),
    ],
)
def test_a_wrong_field_is_named_in_one_line(tmp_path, change, message):
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({**L20, **change}))
    with pytest.raises(DataError, match=f"gpu.json: {message}") as raised:
        read_gpu(path)
    assert "\n" not in str(raised.value)
