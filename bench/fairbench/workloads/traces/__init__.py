"""Traces: recorded traffic in a common form, whatever the format of its file.

Module ``table`` defines the table of a trace's requests, and ``programs`` the programs that replay
the requests. Module ``read`` has the parameters of a trace file; an installed package reads the
file.
"""

from __future__ import annotations

AUTO = "auto"
FORMATS = (
    *("weka", "agent", "bailian", "mooncake", "azure", "burstgpt", "servegen", "arena", "vtc"),
    *("serving", "vllm", "sglang", "otel", "litellm", "csv", "jsonl"),
    *("openinference", "langsmith", "langfuse", "helicone", "openrouter", "cloudflare", "nginx"),
    *("envoy", "agentgateway", "vidur", "bedrock", "transcript", "wildchat", "aiperf", "guidellm"),
    *("inference-perf", "llmperf", "genai-bench", "genai-perf", "fairbench", "caddy"),
)
"""The names of all trace formats, whose records are programs or requests."""

MAPPED = (
    *("time", "input_tokens", "output_tokens", "client", "max_tokens", "session", "end", "latency"),
    *("delay", "hash_ids", "block_size", "text", "start", "first_token", "ttft", "itls"),
    *("cached_tokens", "program", "worker", "admitted", "status", "error", "gaps", "id"),
)
"""The fields of a request record that the user can assign to columns by ``--map``."""

NEEDED = ("time", "input_tokens", "output_tokens")
DRAWN = "times and lengths are drawn from measured windows"  # such a trace depends on the seed
ALL = "all"  # Requests without the name of a client belong to this single client.

MAX_INPUT, MAX_OUTPUT = 10**7, 10**6
MAX_S = 4e9  # A trace lasts at most this many seconds; logs with longer times are refused.
MAX_NAME = 1000
