"""Formats whose records are programs or distributions; ``auto`` tries them first.

Every other format is a layout of ``fairbench.records``, which all commands read.
"""

from __future__ import annotations

from fairbench.workloads.traces.format import Format, Measured
from fairbench.workloads.traces.formats.servegen import SERVEGEN
from fairbench.workloads.traces.formats.weka import WEKA

PROGRAMS: dict[str, Format | Measured] = {one.name: one for one in (WEKA, SERVEGEN)}
