"""The ``profile_export.json`` of genai-perf or Perf Analyzer, in nanoseconds.

Each entry of ``experiments`` is a run. Its requests have the times of their responses and, if
stored, the texts sent and answered; token counts come from the server's answers. Without the
server's counts, each response with text counts as a token, and the length of a prompt's text as its
number of tokens.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from fairbench.errors import DataError
from fairbench.files.json_text import inner, objects_in, parsed
from fairbench.records.layout import Object, Record, Run
from fairbench.records.texts import text_of, tokens_of
from fairbench.records.tools.tool import layout, numbers_in, request

NS = 1e-9
ESTIMATED = (
    "genai-perf exports no token counts: each response counts as one token, prompts are estimated"
)


def _recognise(item: Record) -> bool:
    return any("requests" in one for one in objects_in(item.get("experiments")))


def _runs(objects: list[Object], where: str) -> list[Run]:
    return [_run(one) for item in objects for one in objects_in(item.get("experiments"))]


def _run(experiment: Object) -> Run:
    rows = [_request(row) for row in objects_in(experiment.get("requests"))]
    estimated = any(row.pop("estimated") for row in rows)
    return Run(rows, remarks=(ESTIMATED,) if estimated else ())


def _request(row: Object) -> Object:
    moments = numbers_in(row.get("response_timestamps"))
    outputs = row.get("response_outputs")
    answers = [_parsed(one) for one in outputs] if isinstance(outputs, list) else []
    if len(answers) == len(moments):  # the last answer may only report its end
        kept = [moment for moment, one in zip(moments, answers, strict=True) if _text(one)]
        moments = kept or moments
    usage = next((one for answer in answers if (one := inner(answer, "usage"))), None)
    read, written = inner(usage, "prompt_tokens"), inner(usage, "completion_tokens")
    start = numbers_in([row.get("timestamp")])
    since = start[0] if start else 0.0
    return request(
        {key: value for key, value in row.items() if key != "timestamp"},
        start=since * NS if start else None,
        ttft=(moments[0] - since) * NS if moments else None,
        latency=(moments[-1] - since) * NS if moments else None,
        input_tokens=tokens_of(_prompt(row.get("request_inputs"))) if read is None else read,
        output_tokens=len(moments) if written is None else written,
        gaps=[(after - at) * NS for at, after in pairwise(moments)],
        estimated=read is None or written is None,
    )


def _parsed(output: Any) -> Any:
    """Return an answer as an object: OpenAI's chunk, perhaps of a stream, or Triton's."""
    text = inner(output, "response")
    if not isinstance(text, str):
        return output
    return _json(text.strip().removeprefix("data:"))


def _json(text: str) -> Any:
    try:
        return parsed(text.encode(), "")
    except DataError:
        return {}


def _text(answer: Any) -> bool:
    """Return whether an answer has some text."""
    choices = objects_in(inner(answer, "choices"))
    texts = [inner(answer, "text_output"), *(inner(choice, "text") for choice in choices)]
    for choice in choices:
        texts += [inner(choice, part, "content") for part in ("delta", "message")]
        texts += [inner(choice, "delta", name) for name in ("reasoning_content", "reasoning")]
    return any(texts)


def _prompt(inputs: Any) -> str:
    """Return the prompt text; empty if it was not stored."""
    payload = inner(inputs, "payload")
    found = _json(payload) if isinstance(payload, str) else inputs
    for name in ("messages", "prompt", "text_input"):
        if (value := inner(found, name)) is not None:
            return text_of(value)
    return ""


GENAI_PERF = layout("genai-perf", _recognise, _runs)
