"""Functions that read SGLang's requests, in all supported releases."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import compress
from operator import attrgetter
from typing import Any

from fairbench_load.headers import DEFAULT_CLIENT, HEALTH, ROUTING_KEY

Req = Any  # SGLang's request
INPUT_IDS, OUTPUT_IDS, FINISHED_REASON = map(
    attrgetter, ("origin_input_ids", "output_ids", "finished_reason")
)
HEALTH_RID = "HEALTH_CHECK"  # prefix of the ids of SGLang's own health checks


def client_of(req: Req) -> str:
    """Return the client of a request; SGLang's health checks have their own client."""
    if str(getattr(req, "rid", "")).startswith(HEALTH_RID):
        return HEALTH
    return req.routing_key or DEFAULT_CLIENT


def keep_key(original: Callable[..., Any], batch: Any, index: Any) -> Any:
    """Wrap ``GenerateReqInput.__getitem__`` so that each prompt of a batch keeps its client.

    Without this hook, SGLang copies ``session_id`` to each prompt, but not ``routing_key``.
    """
    one = original(batch, index)
    one.routing_key = batch.routing_key
    return one


def read_key(
    original: Callable[..., Any], manager: Any, obj: Any, request: Any = None, *args: Any, **n: Any
) -> Any:
    """Wrap ``generate_request`` to read the client from the header, also for ``/v1/responses``."""
    if request is not None and getattr(obj, "routing_key", "") is None:
        obj.routing_key = request.headers.get(ROUTING_KEY)
    return original(manager, obj, request, *args, **n)


def session_of(req: Req) -> str | None:
    """Return the session of a request, or None if it has no session."""
    named: str | None = getattr(req, "session_id", None)
    session = getattr(req, "session", None)
    return named or getattr(session, "session_id", None)


def context_of(req: Req) -> int:
    """Return the total number of tokens of a request's prompt and present output."""
    return len(req.origin_input_ids) + len(req.output_ids)


def contexts_of(reqs: Collection[Req]) -> int:
    """Return the total number of prompt and output tokens of the requests."""
    return sum(map(len, map(INPUT_IDS, reqs))) + sum(map(len, map(OUTPUT_IDS, reqs)))


def ended_of(reqs: Collection[Req]) -> list[Req]:
    """Return the requests that have finished or were aborted."""
    return list(compress(reqs, map(FINISHED_REASON, reqs)))


def outputs_of(req: Req) -> int:
    """Return a request's number of output tokens, without draft tokens after the output's end."""
    length = len(req.output_ids)
    return length if req.finished_len is None else min(length, req.finished_len)


def prefix_len(req: Req) -> int:
    """Return a request's number of cached tokens; SGLang 0.5.17 stores only their indices."""
    length: int = req.prefix_len if hasattr(req, "prefix_len") else len(req.prefix_indices)
    return length


def cached_len(req: Req) -> int:
    """Return the cached tokens of a matched request, on the GPU or in the host's memory.

    At admission, SGLang loads the tokens in host memory to the GPU, and counts them as cached.
    """
    return prefix_len(req) + int(getattr(req, "host_hit_length", 0))


def loaded_len(req: Req) -> int:
    """Return the prefix tokens that SGLang loads from host memory at a request's admission.

    SGLang 0.5.17 does not report loaded tokens, so the number of tokens found in host memory is
    returned.
    """
    return int(getattr(req, "host_loaded_length", getattr(req, "host_hit_length", 0)))


def ids_of(req: Req) -> Any:
    """Return the token ids that a prefill of the request would compute."""
    return req.origin_input_ids + req.output_ids if req.output_ids else req.origin_input_ids


def namespace_of(owner: Any) -> tuple[Any, Any]:
    """Return the cache namespace of a request or cache key; namespaces share no cached tokens."""
    return getattr(owner, "extra_key", None), getattr(owner, "cache_salt", None) or None
