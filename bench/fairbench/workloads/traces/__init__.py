"""Traces: recorded traffic of any format, read into a common table.

Module ``table`` defines a request and the table of all requests of a file. Module ``read`` detects
the format of a file and reads the file. To add a format whose records are programs, write a class
like ``weka.Weka`` in a new file, and add an object of the class to ``read.PROGRAMS``.
"""

from __future__ import annotations

AUTO = "auto"
FORMATS = (
    *("weka", "agent", "bailian", "mooncake", "azure", "burstgpt", "servegen", "arena", "vtc"),
    *("serving", "vllm", "sglang", "otel", "litellm", "csv", "jsonl"),
    *("openinference", "langsmith", "langfuse", "helicone", "openrouter", "cloudflare", "nginx"),
    *("envoy", "agentgateway", "vidur", "bedrock", "transcript", "wildchat", "aiperf", "guidellm"),
    *("inference-perf", "llmperf", "genai-bench", "genai-perf", "fairbench"),
)
"""The names of all trace formats: formats of programs (``read.PROGRAMS``) and of requests."""

NEEDED = ("time", "input_tokens", "output_tokens")
ALL = "all"  # Requests without the name of a client belong to this single client.

MAX_INPUT, MAX_OUTPUT = 10**7, 10**6
MAX_S = 4e9  # A trace lasts at most this many seconds; ``files.times`` refuses longer times.
MAX_NAME = 1000
