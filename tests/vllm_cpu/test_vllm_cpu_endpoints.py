"""Test the endpoints of `serve` in front of a real vLLM server on the CPU."""

import pytest

from tests.load.live_endpoints import check_endpoints
from tests.vllm_cpu.vllm_cpu_server import WHY_ABSENT, stock_vllm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_ABSENT), reason=WHY_ABSENT or "present"),
]


def test_every_endpoint_is_charged_as_vllm_counts(tmp_path):
    with stock_vllm(tmp_path) as url:
        check_endpoints(url)
