"""The Chatbot Arena trace that VTC-artifact samples ([VTC] §5.3); a model is a client.

JSON lines of ``t`` (s), ``client``, ``prompt_len`` and ``output_len``, as ``arrivals`` of kind
``trace`` has them too.
"""

from __future__ import annotations

from fairbench.workloads.traces.formats.plain import Plain

ARENA = Plain("arena", needs=("t", "client", "prompt_len", "output_len"), unit="s")
