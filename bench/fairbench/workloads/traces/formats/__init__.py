"""The formats of traces by name. A new one is one file and one line here.

The first that fits is what ``auto`` chooses: those that know more of a file come first.
"""

from __future__ import annotations

from fairbench.errors import DataError, unknown_name
from fairbench.workloads.traces.format import Format, Measured, Record
from fairbench.workloads.traces.formats.agent import AGENT
from fairbench.workloads.traces.formats.arena import ARENA
from fairbench.workloads.traces.formats.azure import AZURE
from fairbench.workloads.traces.formats.burstgpt import BURSTGPT
from fairbench.workloads.traces.formats.litellm import LITELLM
from fairbench.workloads.traces.formats.mooncake import MOONCAKE
from fairbench.workloads.traces.formats.otel import OTEL
from fairbench.workloads.traces.formats.plain import CSV, JSON_LINES
from fairbench.workloads.traces.formats.servegen import SERVEGEN
from fairbench.workloads.traces.formats.sglang import SGLANG
from fairbench.workloads.traces.formats.vllm import VLLM
from fairbench.workloads.traces.formats.vtc import VTC

AUTO = "auto"

_ALL: tuple[Format | Measured, ...] = (
    *(AGENT, MOONCAKE, AZURE, BURSTGPT, SERVEGEN, ARENA, VTC),
    *(VLLM, SGLANG, OTEL, LITELLM),
    *(CSV, JSON_LINES),  # which fit anything
)
FORMATS: dict[str, Format | Measured] = {one.name: one for one in _ALL}


def format_of(name: str, first: Record, where: str) -> Format | Measured:
    """The format called ``name``, or the first that fits.

    Raises UsageError for an unknown name, DataError for a file that is not in that format.
    """
    if name == AUTO:
        return next(one for one in FORMATS.values() if one.fits(first))
    if name not in FORMATS:
        raise unknown_name("trace format", name, [AUTO, *FORMATS])
    if not FORMATS[name].fits(first):
        fitting = next(one.name for one in FORMATS.values() if one.fits(first))
        raise DataError(f"{where}: not in the format {name}; it looks like {fitting}")
    return FORMATS[name]
