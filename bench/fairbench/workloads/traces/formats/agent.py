"""Sessions of agents: calls with their session, and blocks of 16 tokens.

The form in which sessions of LMCache/lmcache-agent-trace (at 16a14ad) and of Exgentic
(inference-sim/inference-sim at c358946) are kept: ``t`` in seconds, ``session``, ``step``,
``input_length``, ``output_length`` and ``hash_ids``, one space of identities for all. ``src`` says
which collection a session is of, and is the client. Sessions are of different days: those of one
source follow each other as they were recorded.
"""

from __future__ import annotations

from fairbench.workloads.traces.formats.plain import Plain

AGENT = Plain(
    "agent",
    needs=("t", "session", "step", "input_length", "output_length", "hash_ids"),
    usual={"client": "src"},
    block_size=16,
)
