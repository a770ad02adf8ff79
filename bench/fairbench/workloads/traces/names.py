"""Names of trace formats and of the fields of a trace, which the help of a command needs."""

AUTO = "auto"
FORMATS = (
    *("weka", "agent", "bailian", "mooncake", "azure", "burstgpt", "servegen", "arena", "vtc"),
    *("serving", "vllm", "sglang", "otel", "litellm", "csv", "jsonl"),
)
"""The formats of ``workloads.traces.formats``, in the order in which ``auto`` tries them."""

NEEDED = ("time", "input_tokens", "output_tokens")
FIELDS = (
    *NEEDED,
    *("client", "max_tokens", "session", "end", "latency", "delay", "hash_ids", "block_size"),
    "text",
)
