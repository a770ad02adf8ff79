"""Mooncake's traces: JSON lines of times in milliseconds, lengths, and blocks of 512 tokens.

``hash_ids`` are of blocks with all that is before them (FAST25-release/traces of
kvcache-ai/Mooncake at 3b5a594). Many requests have the same time; ``--trace-spread`` sets them
apart. There are no clients.
"""

from __future__ import annotations

from fairbench.workloads.traces.format import Record
from fairbench.workloads.traces.formats.plain import Plain

FOREIGN = frozenset({"client", "session", "block_size", "time"})
SINCE_1970_S = 10**9


class Mooncake(Plain):
    """Known by its columns, and by having none of ours and times that can be milliseconds."""

    def fits(self, first: Record) -> bool:
        at = first.get("timestamp")
        seconds = isinstance(at, int | float) and SINCE_1970_S <= at < 100 * SINCE_1970_S
        return super().fits(first) and not seconds and not FOREIGN & set(first)


MOONCAKE = Mooncake(
    "mooncake",
    needs=("timestamp", "input_length", "output_length", "hash_ids"),
    unit="ms",
    block_size=512,
)
