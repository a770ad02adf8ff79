"""LiteLLM's logs: its standard payload, or its spend table.

Fields as docs.litellm.ai, "StandardLoggingPayload Specification", and LiteLLM_SpendLogs have them.
The client is the end user, else the user, the team or the key. What LiteLLM answered from its own
cache never reached a server and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairbench.workloads.traces.format import Record
from fairbench.workloads.traces.formats.flattened import Flattened, first_given, inner

NEEDS = frozenset({"startTime", "endTime", "prompt_tokens", "completion_tokens", "call_type"})
OWNERS = ("end_user", "user", "team_id", "api_key")
KEYS = ("end_user_id", "user_id", "team_id", "alias", "hash")


def _recognise(first: Record) -> bool:
    return set(first) >= NEEDS


def _requests(record: Record) -> Iterator[Mapping[str, Any] | None]:
    if str(record.get("cache_hit")).lower() == "true":
        yield None
        return
    metadata = [inner(record, "metadata", f"user_api_key_{name}") for name in KEYS]
    yield {
        "time": record.get("startTime"),
        "end": record.get("endTime"),
        "client": first_given(*(record.get(name) for name in OWNERS), *metadata),
        "input_tokens": record.get("prompt_tokens"),
        "output_tokens": record.get("completion_tokens"),
        "max_tokens": inner(record, "model_parameters", "max_tokens"),
        "session": first_given(record.get("session_id"), record.get("trace_id")),
        "text": first_given(record.get("messages")),
    }


LITELLM = Flattened("litellm", _recognise, _requests)
