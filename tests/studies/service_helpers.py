"""Hand-made tables of requests and of a service log."""

from dataclasses import fields

from fairbench.metrics.records import Requests, Service

NEVER = float("nan")


def requests_of(*waits):
    """Return one request per wait: client, arrival, admission, and possibly more columns.

    The columns after the admission are the end, the input tokens and the output tokens.
    """
    names = ("client", "arrival_s", "admitted_s", "finish_s", "input_tokens", "output_tokens")
    nothing = {column.name: [0] * len(waits) for column in fields(Requests)}
    never = dict.fromkeys(("retracted_s", "readmitted_s"), [NEVER] * len(waits))
    del nothing["routed_s"]
    given = dict(zip(names, zip(*waits, strict=True), strict=False))
    return Requests.from_columns({**nothing, **never, **given})


def service_of(*rows):
    """Return one row per stretch: client, start, end, charged prompt tokens, output tokens."""
    columns = zip(*rows, strict=True)
    names = ("client", "start_s", "end_s", "extend_charged_tokens", "output_tokens")
    others = ("worker", "steps", "step_growth_s", "batch_size", "context_tokens", "input_tokens",
              "extend_tokens", "recompute_tokens")  # fmt: skip
    nothing = {name: [0] * len(rows) for name in others}
    return Service.from_columns({**nothing, **dict(zip(names, columns, strict=True))})
