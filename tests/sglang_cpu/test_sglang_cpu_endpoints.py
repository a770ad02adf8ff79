"""Test the endpoints of `serve` in front of a real SGLang server on the CPU."""

import pytest

from tests.load.live_endpoints import check_endpoints
from tests.serve.live_router import RESPONSES
from tests.sglang_cpu.sglang_cpu_server import sglang_server, why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]


def test_every_endpoint_is_charged_as_sglang_counts(tmp_path):
    with sglang_server(tmp_path, "--served-model-name=m") as server:
        # SGLang subtracts two tokens from the limit on the output of a response.
        check_endpoints(server.url, shorter={RESPONSES: 2})
