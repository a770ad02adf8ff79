"""Facts of SGLang's requests, in every release that the plugin fits."""

from __future__ import annotations

from typing import Any

from fairbench.live.headers import DEFAULT_CLIENT, HEALTH

Req = Any  # SGLang's request
HEALTH_RID = "HEALTH_CHECK"  # the beginning of the ids of SGLang's own requests


def client_of(req: Req) -> str:
    """Return a request's tagged client; SGLang's own health checks have a separate client."""
    if str(getattr(req, "rid", "")).startswith(HEALTH_RID):
        return HEALTH
    return req.routing_key or DEFAULT_CLIENT


def session_of(req: Req) -> str | None:
    """Return the session that the caller has named for a request, None without one."""
    named: str | None = getattr(req, "session_id", None)
    session = getattr(req, "session", None)
    return named or getattr(session, "session_id", None)


def context_of(req: Req) -> int:
    """Return the tokens of prompt and output so far."""
    return len(req.origin_input_ids) + len(req.output_ids)


def outputs_of(req: Req) -> int:
    """Return the output tokens of a request, without drafts that were accepted after its end."""
    length = len(req.output_ids)
    return length if req.finished_len is None else min(length, req.finished_len)


def prefix_len(req: Req) -> int:
    """Return a matched request's cached tokens; 0.5.17 stores their indices instead."""
    length: int = req.prefix_len if hasattr(req, "prefix_len") else len(req.prefix_indices)
    return length


def ids_of(req: Req) -> Any:
    """Return the token ids of all that would be prefilled."""
    return req.origin_input_ids + req.output_ids if req.output_ids else req.origin_input_ids


def namespace_of(owner: Any) -> tuple[Any, Any]:
    """Return the key that separates equal tokens in the cache, of a request or a key."""
    return getattr(owner, "extra_key", None), getattr(owner, "cache_salt", None) or None
