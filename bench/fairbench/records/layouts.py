"""The known formats, in the order in which they are tried, and the choice for a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fairbench.errors import unknown_name
from fairbench.records.exports import EXPORTS
from fairbench.records.layout import Layout, Record
from fairbench.records.tables import (
    AGENT,
    ARENA,
    AZURE,
    BAILIAN,
    BURSTGPT,
    FAIRBENCH,
    MOONCAKE,
    SERVING_RUNS,
    SGLANG_RUNS,
    VLLM_RUNS,
    VTC_COLUMNS,
    VTC_RESPONSES,
)
from fairbench.records.tools import TOOLS

PLAIN = Layout("lines")
"""Records whose columns have common names."""
LOOKED_AT = 100  # number of records in which a format of programs is looked for

LAYOUTS: tuple[Layout, ...] = (
    *(AGENT, BAILIAN, MOONCAKE, AZURE, BURSTGPT, ARENA, *EXPORTS, *TOOLS, VTC_RESPONSES),
    *(VTC_COLUMNS, SERVING_RUNS, VLLM_RUNS, SGLANG_RUNS, FAIRBENCH, PLAIN),
)

NAMES = tuple(dict.fromkeys(one.name for one in reversed(LAYOUTS)))

OURS = ("client", "start", "input_tokens", "output_tokens")


def kinds_of(records: Sequence[Record]) -> list[Record]:
    """Return the first record of each kind, that is, with the same keys."""
    return list({tuple(one): one for one in reversed(records)}.values())[::-1]


def _is_ours(record: Record) -> bool:
    """Return whether a record has fairbench's own names, so that other formats fit by chance."""
    first = "first_token" in record or "ttft" in record
    last = "end" in record or "latency" in record or "itls" in record
    return first and last and all(name in record for name in OURS)


def layout_of(
    name: str | None, records: Iterable[Record], calls: Mapping[str, str] | None = None
) -> Layout:
    """Return the layout with a name, or the first that fits one of the first records.

    ``calls`` maps names that a command uses to names of layouts. Raises UsageError for an unknown
    name.
    """
    seen = list(records)
    if name is not None:
        called = {name, (calls or {}).get(name, name)}
        named = [one for one in LAYOUTS if one.name in called]
        if not named:
            raise unknown_name("layout", name, NAMES)
        right = (one for one in named if any(map(one.fits, seen)))
        return next(right, named[-1])
    for record in seen:
        if _is_ours(record):
            return PLAIN
        for one in LAYOUTS:
            if one.fits(record):
                return one
    return PLAIN
