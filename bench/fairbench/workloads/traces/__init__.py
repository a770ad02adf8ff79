"""Traces: recorded traffic, read into one model from every format.

``table`` defines a request and the table of all requests of a file. ``read`` detects the format of
a file and reads the file. To add a format whose records are programs, write a file with a class
like ``weka.Weka``, and add an object of the class to ``read.PROGRAMS``.
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
"""The names of all formats: those of programs, which ``read`` lists, and layouts of ``records``."""

NEEDED = ("time", "input_tokens", "output_tokens")
ALL = "all"  # the only client of a trace whose requests name no client

MAX_INPUT, MAX_OUTPUT = 10**7, 10**6  # maximum number of tokens of a prompt and of an answer
MAX_S = 4e9  # maximum length of a trace in seconds; files.times reads only slightly longer times
MAX_NAME = 1000  # maximum number of characters of the name of a client or a session
