"""Exports of benchmarks, whose records are nested.

To add a tool, write a file with its ``layout``, and add it to ``TOOLS``.
"""

from __future__ import annotations

from fairbench.records.layout import Layout
from fairbench.records.tools.aiperf import AIPERF
from fairbench.records.tools.genai_perf import GENAI_PERF
from fairbench.records.tools.guidellm import GUIDELLM
from fairbench.records.tools.inference_perf import INFERENCE_PERF
from fairbench.records.tools.untimed import GENAI_BENCH, LLMPERF

TOOLS: tuple[Layout, ...] = (*(AIPERF, GUIDELLM, INFERENCE_PERF, LLMPERF, GENAI_BENCH, GENAI_PERF),)
