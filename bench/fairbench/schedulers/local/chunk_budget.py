"""Chunk sizes: the prompt tokens that a step may compute without slowing running requests."""

from __future__ import annotations

from bisect import bisect_right
from math import inf

from fairbench.schedulers.base import RunningView, Setup
from fairbench.schedulers.local.slack import Slack

LEAST_TOKENS, MOST_TOKENS = 64, 16_384  # of prompts in a step that is sized


def step_tokens(slack: Slack, setup: Setup, running: RunningView, now_s: float) -> int:
    """Return the token limit that keeps the tightest pace among requests that can keep theirs.

    [Sarathi] sizes chunks by the promised time between tokens. This function uses what is left
    of that time now. Prompt and outputs are counted as if computed one after the other.

    Args:
        slack: Deadlines and states of the requests.
        setup: Facts of the experiment, with the engine's costs.
        running: Running requests of the worker.
        now_s: Current time on the host's clock, in seconds.
    """
    costs = setup.costs
    if costs is None:
        return MOST_TOKENS
    slack.look(running, costs)
    step_s, states = slack.step_s, slack.states
    decoding = [one.request for one in running if states[one.request].produced]
    paces = [slack.pace_s(request, now_s) for request in decoding]
    left_s = min((pace for pace in paces if pace >= step_s), default=inf) - step_s
    fitting = bisect_right(
        range(LEAST_TOKENS, MOST_TOKENS), left_s, key=lambda tokens: costs.prefill_s(0, tokens)
    )
    return len(decoding) + LEAST_TOKENS + max(fitting - 1, 0)
