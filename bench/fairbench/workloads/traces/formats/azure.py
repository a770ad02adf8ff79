"""Azure's LLM inference traces of 2023 and 2024: CSV of times and lengths, no clients.

Columns as in Azure/AzurePublicDataset at b469a11, AzureLLMInferenceDataset2023.md.
"""

from __future__ import annotations

from fairbench.workloads.traces.formats.plain import Plain

AZURE = Plain("azure", texts=True, needs=("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
