"""Mooncake's traces: JSON lines of times in milliseconds, lengths, and blocks of 512 tokens.

``hash_ids`` are of blocks with all that is before them (FAST25-release/traces of
kvcache-ai/Mooncake at 3b5a594). Many requests have the same time; ``--trace-spread`` sets them
apart. There are no clients.
"""

from __future__ import annotations

from fairbench.workloads.traces.formats.plain import Plain

MOONCAKE = Plain(
    "mooncake",
    needs=("timestamp", "input_length", "output_length", "hash_ids"),
    unit="ms",
    block_size=512,
)
