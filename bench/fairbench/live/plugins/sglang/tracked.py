"""A SGLang request as our schedulers see it."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.core import Request
from fairbench.live.headers import DEFAULT_CLIENT, HEALTH
from fairbench.live.plugins.sglang.live_view import Req
from fairbench.live.request_tag import untagged
from fairbench.schedulers.token_pages import segments_of

HEALTH_RID = "HEALTH_CHECK"  # how the ids of SGLang's own requests begin


def client_of(req: Req) -> str:
    """Return a request's tagged client; SGLang's own health checks have a separate client."""
    if str(getattr(req, "rid", "")).startswith(HEALTH_RID):
        return HEALTH
    return req.routing_key or DEFAULT_CLIENT


def context_of(req: Req) -> int:
    """Return the tokens of prompt and output so far."""
    return len(req.origin_input_ids) + len(req.output_ids)


@dataclass(slots=True)
class Tracked:
    """A request of SGLang's, from its arrival to its end."""

    request: Request
    produced: int = 0  # output tokens that the scheduler has been told of
    admitted: bool = False  # so the next admission is a second one


def request_of(req: Req, number: int, now_s: float) -> Request:
    """Return the scheduler's view of a request; SGLang has no programs, hence the zeros.

    Args:
        req: SGLang's request.
        number: Number of the request for the scheduler.
        now_s: Arrival time on the scheduler's clock, in seconds.
    """
    client, due = untagged(client_of(req), now_s)
    return Request(
        request_id=number,
        client=client,
        program_id=0,
        depth=0,
        prompt=segments_of(req.origin_input_ids),
        input_tokens=len(req.origin_input_ids),
        max_new_tokens=req.sampling_params.max_new_tokens,
        arrival_s=now_s,
        deadline_s=due.end_s,
        first_token_by_s=due.first_token_s,
        token_every_s=due.token_every_s,
    )
