"""The chunk budget: the tokens of a step, sized by the slack of the running requests."""

from __future__ import annotations

from bisect import bisect_right
from math import inf

from fairbench.schedulers.base import RunningView
from fairbench.schedulers.local.slack import Slack

LEAST_TOKENS, MOST_TOKENS = 64, 16_384  # prompt tokens in a step whose size is chosen


def chunk_budget(slack: Slack, running: RunningView, now_s: float) -> int:
    """Return the token limit that keeps the tightest pace among requests that can keep theirs.

    [Sarathi] sizes chunks by the promised time between tokens; this function uses the remaining
    time. Prompt and outputs are counted as if computed one after the other.
    """
    costs = slack.costs
    if costs is None:
        return MOST_TOKENS
    slack.look(running)
    decoding = [one.request for one in running if slack.states[one.request].produced]
    paces = [slack.pace_s(request, now_s) for request in decoding]
    left_s = min((pace for pace in paces if pace >= slack.step_s), default=inf) - slack.step_s
    fitting = bisect_right(
        range(LEAST_TOKENS, MOST_TOKENS), left_s, key=lambda tokens: costs.prefill_s(0, tokens)
    )
    return len(decoding) + LEAST_TOKENS + max(fitting - 1, 0)
