"""The formats of traces by name.

A new format is an entry of ``tables`` or a file, a line here and its name in ``names``. ``auto``
chooses the first format that fits: the more specific ones come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from fairbench.errors import unknown_name
from fairbench.files.json_text import Place
from fairbench.workloads.traces.format import Format, Measured
from fairbench.workloads.traces.formats.blocks import BAILIAN, MOONCAKE
from fairbench.workloads.traces.formats.logs import LITELLM, OTEL, SGLANG
from fairbench.workloads.traces.formats.servegen import SERVEGEN
from fairbench.workloads.traces.formats.tables import (
    AGENT,
    ARENA,
    AZURE,
    BURSTGPT,
    CSV,
    JSON_LINES,
    SERVING,
    VLLM,
    VTC,
)
from fairbench.workloads.traces.formats.weka import WEKA
from fairbench.workloads.traces.rows import AUTO, FORMATS

LOOKED_AT = 100  # number of records examined

_ANY = (CSV, JSON_LINES)  # these formats fit anything
_ALL: tuple[Format | Measured, ...] = (
    *(WEKA, AGENT, BAILIAN, MOONCAKE, AZURE, BURSTGPT, SERVEGEN, ARENA, VTC, SERVING),
    *(VLLM, SGLANG, OTEL, LITELLM),
    *_ANY,
)
_BY_NAME: dict[str, Format | Measured] = {one.name: one for one in _ALL}


def format_of(name: str, records: Iterator[Place]) -> tuple[Format | Measured, Iterator[Place]]:
    """Return the format with the name ``name``, or the first that fits, and all records.

    ``auto`` skips records that no format fits: logs may begin with other events. Raises UsageError
    for an unknown name.
    """
    if name in _BY_NAME:
        return _BY_NAME[name], records
    if name != AUTO:
        raise unknown_name("trace format", name, [AUTO, *FORMATS])
    seen: list[Place] = []
    for record in islice(records, LOOKED_AT):
        seen.append(record)
        for one in _ALL[: -len(_ANY)]:
            if one.fits(record.value):
                return one, chain(seen, records)
    return next(one for one in _ANY if one.fits(seen[0].value)), chain(seen, records)
