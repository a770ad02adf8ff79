"""The service log of a live run, computed from what clients of the server see.

Each request that produced output gets two rows. The prefill row lasts from admission to the first
token. Its input counts at the start of the row; the first token and the computed part of the input
count at the end. The decode row lasts from the first token to the last token. Its tokens are
divided evenly among at most ``DECODE_STEPS`` steps. Metrics expand each step, so one step per token
would take gigabytes.

A simulated log has a row for each change of the batch, and rows of one worker do not overlap. In
this log rows overlap, ``batch_size`` is 1, and ``context_tokens`` is 0. The difference in service
between two clients at an instant is exact to one step of each request in progress.
"""

from __future__ import annotations

import numpy as np

from fairbench.metrics.records import Floats, Ints, Requests, Service

DECODE_STEPS = 16


def service_of(requests: Requests, last_token_s: Floats) -> Service:
    """Return the prefill and decode rows of all requests, ordered by start time and worker.

    ``last_token_s`` has the time of each request's last received token in seconds, or NaN without a
    token.
    """
    answered = requests.take(~np.isnan(requests.first_token_s))
    several = ~np.isnan(last_token_s) & (requests.output_tokens > 1)
    longer = requests.take(several)
    prefill = _log_rows(
        answered,
        answered.admitted_s,
        answered.first_token_s,
        output_tokens=np.minimum(answered.output_tokens, 1),
        input_tokens=answered.input_tokens,
        extend_tokens=answered.extend_tokens,
    )
    nothing = np.zeros(len(longer), dtype=np.int64)
    decode = _log_rows(
        longer,
        longer.first_token_s,
        last_token_s[several],
        output_tokens=longer.output_tokens - 1,
        input_tokens=nothing,
        extend_tokens=nothing,
    )
    both = {name: np.concatenate([prefill[name], decode[name]]) for name in prefill}
    log = Service.from_columns(both)
    return log.take(np.lexsort((log.worker, log.start_s)))


def _log_rows(
    requests: Requests,
    start_s: Floats,
    end_s: Floats,
    *,
    output_tokens: Ints,
    input_tokens: Ints,
    extend_tokens: Ints,
) -> dict[str, Floats | Ints]:
    count = len(requests)
    return {
        "worker": requests.worker,
        "client": requests.client,
        "start_s": start_s,
        "end_s": end_s,
        "steps": np.clip(output_tokens, 1, DECODE_STEPS),
        "step_growth_s": np.zeros(count),
        "batch_size": np.ones(count),
        "context_tokens": np.zeros(count),
        "input_tokens": input_tokens,
        "extend_charged_tokens": extend_tokens,
        "extend_tokens": extend_tokens,
        "recompute_tokens": np.zeros(count),
        "output_tokens": output_tokens,
    }
