"""The model of a line in a written trace, from which ``workloads/trace.schema.json`` is made."""

import json
from typing import Annotated

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ConfigDict, Field

from fairbench.workloads.traces import MAX_INPUT, MAX_NAME, MAX_OUTPUT

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class TraceLine(BaseModel):
    """A request of a written trace: times in seconds on any clock, lengths in tokens."""

    model_config = ConfigDict(extra="forbid")

    time: Annotated[float, Field(description="Arrival time (s).")]
    client: Annotated[str, Field(max_length=MAX_NAME, description="Client.")] = "all"
    input_tokens: Annotated[int, Gt(0), Le(MAX_INPUT), Field(description="Tokens of the prompt.")]
    output_tokens: Annotated[int, Gt(0), Le(MAX_OUTPUT), Field(description="Tokens of the answer.")]
    max_tokens: Annotated[
        int,
        Ge(0),
        Le(MAX_OUTPUT),
        Field(description="Limit on the answer in tokens; 0 if unknown."),
    ] = 0
    session: Annotated[
        str, Field(max_length=MAX_NAME, description="Program to which the request belongs.")
    ] = ""
    delay_s: Annotated[
        float | None, Field(ge=0, description="Delay after the answer to the previous step (s).")
    ] = None
    end: Annotated[float | None, Field(description="End of the answer (s).")] = None
    hash_ids: Annotated[list[int], Field(description="Blocks at the beginning of the prompt.")] = []
    block_size: Annotated[int, Ge(0), Field(description="Tokens of each block in hash_ids.")] = 0
    branch: Annotated[int, Ge(0), Field(description="Sub-agent of the session; 0 means none.")] = 0
    synthetic: Annotated[
        str, Field(max_length=MAX_NAME, description="Parts that were not recorded, if any.")
    ] = ""


def trace_schema() -> str:
    """Return the published JSON Schema of a line."""
    schema = TraceLine.model_json_schema()
    return json.dumps({"$schema": DIALECT} | schema | {"title": "fairbench trace"}, indent=2) + "\n"
