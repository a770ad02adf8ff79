"""Exports of other benchmarks, whose records are nested.

To add a tool, write a file with its ``Tool``, and add it to ``TOOLS``.
"""

from __future__ import annotations

from fairbench.score.tools.genai_perf import GENAI_PERF
from fairbench.score.tools.guidellm import GUIDELLM
from fairbench.score.tools.inference_perf import INFERENCE_PERF
from fairbench.score.tools.tool import Tool
from fairbench.score.tools.untimed import GENAI_BENCH, LLMPERF

TOOLS: tuple[Tool, ...] = (GUIDELLM, INFERENCE_PERF, LLMPERF, GENAI_BENCH, GENAI_PERF)
