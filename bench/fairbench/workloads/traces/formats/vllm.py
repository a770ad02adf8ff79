"""The result file of ``vllm bench serve --save-result --save-detailed``.

Lists ``start_times`` (s), ``input_lens`` and ``output_lens``, as vllm/benchmarks/serve.py writes
them. It is one client; requests that failed have no output.
"""

from __future__ import annotations

from fairbench.workloads.traces.formats.columnwise import Columnwise

VLLM = Columnwise(
    "vllm",
    {"time": "start_times", "input_tokens": "input_lens", "output_tokens": "output_lens"},
)
