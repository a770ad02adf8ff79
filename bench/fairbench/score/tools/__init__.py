"""Exports of other benchmarks, whose records are nested.

One tool a file. To add one: write its file with a ``Tool``, and add it to ``TOOLS``.
"""

from __future__ import annotations

from fairbench.score.tools.genai_bench import GENAI_BENCH
from fairbench.score.tools.genai_perf import GENAI_PERF
from fairbench.score.tools.guidellm import GUIDELLM
from fairbench.score.tools.inference_perf import INFERENCE_PERF
from fairbench.score.tools.llmperf import LLMPERF
from fairbench.score.tools.tool import Tool

TOOLS: tuple[Tool, ...] = (GUIDELLM, INFERENCE_PERF, LLMPERF, GENAI_BENCH, GENAI_PERF)
