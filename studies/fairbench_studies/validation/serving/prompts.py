"""The prompts of a measured serving run as segments, for the simulated prefix cache.

Files of measured runs contain no prompt texts. The load generator made the prompts as follows:

- All closed-loop runs send the same prompts, which share no prefix.
- In an open-loop run without ``prompt_tokens``, prompts repeat eight sentences of 9 to 16 tokens.
- In a run with ``prompt_tokens`` and a gateway, each prompt is a new text of ``prompt_tokens``
  words. Ten words of the load generator make about eight tokens.
- In a run with ``prompt_tokens`` and no gateway, each prompt is a new text that has
  ``prompt_tokens`` tokens according to the server.
"""

from __future__ import annotations

from fairbench.core import Request, Segment
from fairbench_studies.validation.serving.measured import ServingRun

SENTENCES = 8
SHORTEST_SENTENCE_TOKENS = 9
TRUE_SHARE = 0.8
LONGEST_TOKENS = 4_096  # longest prompt that the servers of open-loop runs accepted


def requests_of(run: ServingRun) -> list[Request]:
    """Return every request of the run in order, including refused requests."""
    return [_request(run, index) for index in range(len(run))]


def refused_by_length(run: ServingRun, request: Request) -> bool:
    """Return whether the engine refuses the request as too long, before any GPU work."""
    return not (run.closed or run.direct) and request.input_tokens > LONGEST_TOKENS


def output_tokens(run: ServingRun, index: int) -> int:
    """Return the output length of a request, or the run's output limit for a refused request."""
    return int(run.output_tokens[index]) or run.output_limit


def _request(run: ServingRun, index: int) -> Request:
    prompt = (_segment(run, index),)
    limit = max(_limit(run, index), output_tokens(run, index))
    return Request(index, run.client[index], index, 0, prompt, prompt[0].length, limit)


def _limit(run: ServingRun, index: int) -> int:
    """Return the longest output of the request's kind, or the run's limit if kinds are unknown."""
    if not run.kind:
        return run.output_limit
    alike = [kind == run.kind[index] for kind in run.kind]
    return int(run.output_tokens[alike].max())


def _segment(run: ServingRun, index: int) -> Segment:
    tokens = int(run.prompt_tokens[index])
    if run.closed:
        return Segment(f"prompt-{index}", max(1, tokens))
    if run.direct:
        return Segment(f"{run.name}-{index}", max(1, tokens))
    if not tokens:
        sentence = index % SENTENCES
        return Segment(f"sentence-{sentence}", SHORTEST_SENTENCE_TOKENS + sentence)
    return Segment(f"{run.name}-{index}", max(1, round(TRUE_SHARE * tokens)))
