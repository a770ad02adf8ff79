"""Mooncake's traces: JSON lines with times in milliseconds, lengths, and 512-token blocks.

``hash_ids`` are of blocks with all that is before them (FAST25-release/traces of
kvcache-ai/Mooncake at 3b5a594). Many requests have the same time; ``--trace-spread`` sets them
apart. There are no clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from fairbench.files.json_text import Place
from fairbench.workloads.traces.format import Asked, PlacedRow, Record
from fairbench.workloads.traces.formats.plain import Plain

FOREIGN = frozenset({"client", "session", "block_size", "time"})
SINCE_1970_S = 10**9


class Mooncake(Plain):
    """A format recognised by its columns and by times that can be milliseconds.

    If somebody says that it is Mooncake's, a first time that can only be seconds since 1970 makes
    all of them seconds.
    """

    def fits(self, first: Record) -> bool:
        # Turns of sessions may say how long after the answer they came, in place of a time.
        named = (
            {"timestamp": 0, **first} if "session_id" in first and "time" not in first else first
        )
        return super().fits(named) and not _since_1970(first) and not FOREIGN & set(first)

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[PlacedRow]:
        first = next(records, None)
        if first is None:
            return
        whole = chain((first,), records)
        if isinstance(first[1], Mapping) and _since_1970(first[1]):
            yield from Plain("mooncake", block_size=self.block_size).rows(whole, asked)
        else:
            yield from super().rows(whole, asked)


def _since_1970(first: Record) -> bool:
    at = first.get("timestamp")
    return isinstance(at, int | float) and SINCE_1970_S <= at < 100 * SINCE_1970_S


MOONCAKE = Mooncake(
    "mooncake",
    needs=("timestamp", "input_length", "output_length", "hash_ids"),
    unit="ms",
    block_size=512,
)
