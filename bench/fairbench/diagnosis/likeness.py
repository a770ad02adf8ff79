"""The log of a plan compared with its replay: does the simulated cluster resemble the user's?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairbench.capacity.question import Question
from fairbench.config.flags.flag import placed
from fairbench.config.flags.run import RUN
from fairbench.config.resolve import trace_params
from fairbench.diagnosis import FCFS
from fairbench.diagnosis.access_log import FIRST_TOKEN, AccessLog, read_log
from fairbench.diagnosis.diagnosis import Asked, compared_waits, diagnose, is_alike
from fairbench.errors import UsageError
from fairbench.execute.context import RunContext

MACHINE = ("model", "engine")  # flags of a plan that describe the user's cluster, besides the GPU


def recorded_waits(question: Question, context: RunContext) -> dict[str, Any] | None:
    """Return the recorded and the replayed waits of a plan's trace, as ``answer.json`` has them.

    The replay is that of ``diagnose``: under FCFS on the first GPU, with the fewest replicas that
    serve the load without floods. The result is None without recorded times to first token.
    """
    log = _log_of(question)
    if log is None or log.measured != FIRST_TOKEN:
        return None
    known = {key: one for key in MACHINE if (one := question.flags.get(key)) is not None}
    asked = Asked({"gpu": question.gpus[0], **known}, schedulers=(FCFS,), plan=False)
    try:
        found = diagnose(log, asked, context)
    except UsageError:  # such as a log without clients, which can be planned for all the same
        return None
    waits = compared_waits(found)
    if found.first is None or waits is None:
        return None
    return {
        "logged_ttft_p95_s": waits.logged_s,
        "replayed_ttft_p95_s": waits.replayed_s,
        "alike": is_alike(waits),
        "scheduler": FCFS,
        "replicas": found.dp,
        "timing_profile": found.first.summary["timing_profile"],
        "of": "the other clients" if found.floods else "all clients",
    }


def _log_of(question: Question) -> AccessLog | None:
    if not question.flags.get("trace"):
        return None
    flags = {
        key: one for key, one in question.flags.items() if one is not None and one is not False
    }
    try:
        return read_log(replace(trace_params(placed(flags, RUN)), time_scale=1.0))
    except UsageError:  # the plan itself says what is wrong
        return None
