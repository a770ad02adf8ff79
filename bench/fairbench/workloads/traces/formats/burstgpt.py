"""BurstGPT: CSV of seconds and lengths, in later releases with conversations and durations.

Columns as in the README of HPMLL/BurstGPT (releases 1.1 and 2.0): failures have no response tokens.
There are no clients; ``--clients-from Model`` takes the two models for them.
"""

from __future__ import annotations

from fairbench.workloads.traces.formats.plain import Plain

BURSTGPT = Plain(
    "burstgpt",
    texts=True,
    needs=("Timestamp", "Request tokens", "Response tokens", "Log Type"),
    usual={"latency": "Elapsed time"},
    unit="s",
)
