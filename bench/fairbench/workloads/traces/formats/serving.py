"""Runs measured on servers, one per line, which ``fairbench validate`` reads, too.

Lists ``submit_s``, ``prompt_tokens``, ``output_tokens``, ``client`` and ``latency_s`` under
``columns`` (``validate/serving/measured.py``). What failed has no output.
"""

from __future__ import annotations

from fairbench.workloads.traces.formats.columnwise import Columnwise

SERVING = Columnwise(
    "serving",
    {
        "time": "submit_s",
        "client": "client",
        "input_tokens": "prompt_tokens",
        "output_tokens": "output_tokens",
        "latency": "latency_s",
    },
    inside="columns",
)
