"""Runs measured by VTC-artifact's ``run_exp.py``, as lists.

Fields as in its ``all_results*.jsonl`` (Ying1123/VTC-artifact at 192c2e2).
"""

from __future__ import annotations

from fairbench.workloads.traces.formats.columnwise import Columnwise

VTC = Columnwise(
    "vtc",
    {
        "time": "req_time",
        "client": "client",
        "input_tokens": "prompt_len",
        "output_tokens": "output_len",
    },
)
