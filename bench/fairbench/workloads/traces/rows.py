"""A recorded request, the common form of all trace formats, and their names and fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

AUTO = "auto"
FORMATS = (
    *("weka", "agent", "bailian", "mooncake", "azure", "burstgpt", "servegen", "arena", "vtc"),
    *("serving", "vllm", "sglang", "otel", "litellm", "csv", "jsonl"),
    *("openinference", "langsmith", "langfuse", "helicone", "openrouter", "cloudflare", "nginx"),
    *("envoy", "agentgateway", "vidur", "bedrock", "transcript", "wildchat", "aiperf", "guidellm"),
    *("inference-perf", "llmperf", "genai-bench", "genai-perf", "fairbench"),
)
"""The formats of ``workloads.traces.formats`` and the layouts of ``records``."""

NEEDED = ("time", "input_tokens", "output_tokens")
FIELDS = (
    *("time", "input_tokens", "output_tokens", "client", "max_tokens", "session", "end", "latency"),
    *("delay", "hash_ids", "block_size", "text", "start", "first_token", "ttft", "itls"),
    *("cached_tokens", "program", "worker", "admitted", "status", "error", "gaps", "id"),
)
"""The fields that ``--map`` takes, as ``records.names.MAPPED`` has them."""


ALL = "all"
"""The only client of a trace that names none."""

MAX_INPUT, MAX_OUTPUT = 10**7, 10**6  # in tokens
MAX_S = 4e9  # about the longest time that ``files.times`` reads
MAX_NAME = 1000  # limit on the characters of a client or a session


class Row(NamedTuple):
    """A request; times are in nanoseconds on the file's clock, lengths in tokens.

    ``end_ns`` is the time when its answer was complete; ``session`` names the program of which it
    is a step; ``think_ns`` is the delay after the previous step's answer, None if unknown.
    ``blocks`` are the identities of blocks of ``block_size`` tokens at the beginning of its prompt:
    equal identities mean equal content, and the rest of the prompt is unique. ``synthetic`` names
    the parts that were not recorded. ``estimated`` is the approximate number of tokens in the text
    of the blocks, 0 if the blocks have no text. ``branch`` above 0 numbers the sub-agent of the
    session that made the request; the session's own requests have 0. ``shared`` is the number of
    tokens at the beginning of its prompt that other sessions may also have.
    """

    at_ns: int
    client: str
    input_tokens: int
    output_tokens: int
    max_tokens: int = 0
    session: str = ""
    end_ns: int | None = None
    blocks: Sequence[int] = ()
    block_size: int = 0
    synthetic: str = ""
    estimated: int = 0
    think_ns: int | None = None
    branch: int = 0
    shared: int = 0
