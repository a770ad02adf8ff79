"""Formats that only map columns: who writes them, and which column holds which field."""

from __future__ import annotations

from fairbench.workloads.traces.formats.columnwise import Columnwise
from fairbench.workloads.traces.formats.plain import Plain

# Sessions of agents in the form of LMCache/lmcache-agent-trace (at 16a14ad) and of Exgentic
# (inference-sim/inference-sim at c358946): one space of block identities for all. ``src`` says
# which collection a session is of, and is the client. Sessions are of different days: those of one
# source follow each other as they were recorded.
AGENT = Plain(
    "agent",
    needs=("t", "session", "step", "input_length", "output_length", "hash_ids"),
    usual={"client": "src"},
    block_size=16,
)
# The trace of Chatbot Arena that VTC-artifact samples ([VTC] §5.3), a model being a client; as
# ``arrivals`` of kind ``trace`` has it too.
ARENA = Plain("arena", needs=("t", "client", "prompt_len", "output_len"), unit="s")
# Azure's LLM inference traces of 2023 and 2024, without clients: Azure/AzurePublicDataset at
# b469a11, AzureLLMInferenceDataset2023.md.
AZURE = Plain("azure", texts=True, needs=("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
# HPMLL/BurstGPT (releases 1.1 and 2.0), in later releases with conversations and durations:
# failures have no response tokens. ``--clients-from Model`` takes the two models for clients.
BURSTGPT = Plain(
    "burstgpt",
    texts=True,
    needs=("Timestamp", "Request tokens", "Response tokens", "Log Type"),
    usual={"latency": "Elapsed time"},
    unit="s",
)
# Runs measured by VTC-artifact's ``run_exp.py``, ``all_results*.jsonl`` (Ying1123/VTC-artifact at
# 192c2e2): only what was asked for is taken.
VTC = Columnwise(
    "vtc",
    {
        "time": "req_time",
        "client": "client",
        "input_tokens": "prompt_len",
        "output_tokens": "output_len",
    },
)
# Runs measured on servers, a run a line, as ``fairbench validate`` reads them too. What failed has
# no output.
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
# A run of ``vllm bench serve --save-result --save-detailed``, as vllm/benchmarks/serve.py writes
# it: one client; requests that failed have no output.
VLLM = Columnwise(
    "vllm",
    {"time": "start_times", "input_tokens": "input_lens", "output_tokens": "output_lens"},
)
