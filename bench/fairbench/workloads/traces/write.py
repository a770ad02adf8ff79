"""Writing traces in fairbench's format, a JSON line for each request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ConfigDict, Field

from fairbench.errors import UsageError
from fairbench.workloads.traces.rows import MAX_INPUT, MAX_NAME, MAX_OUTPUT
from fairbench.workloads.traces.table import Table

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class TraceLine(BaseModel):
    """A request of a written trace. Times are in seconds by any clock, lengths in tokens."""

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


def lines_of(table: Table) -> Iterator[dict[str, Any]]:
    """Yield the requests of a table as objects without unknown values."""
    synthetic = "; ".join(table.synthetic)[:MAX_NAME]
    for row in range(len(table)):
        line: dict[str, Any] = {
            "time": float(table.arrival_s[row]),
            "client": table.clients[table.client[row]],
            "input_tokens": int(table.input_tokens[row]),
            "output_tokens": int(table.output_tokens[row]),
        }
        if most := int(table.max_tokens[row]):
            line["max_tokens"] = most
        if table.session[row] >= 0:
            line["session"] = f"s{table.session[row]}"
        if not np.isnan(table.think_s[row]):
            line["delay_s"] = float(table.think_s[row])
        if not np.isnan(table.end_s[row]):
            line["end"] = float(table.end_s[row])
        blocks = table.blocks[table.first_block[row] : table.first_block[row + 1]]
        if len(blocks):
            line |= {"hash_ids": blocks.tolist(), "block_size": int(table.block_size[row])}
        if branch := int(table.branch[row]):
            line["branch"] = branch
        if synthetic:
            line["synthetic"] = synthetic
        yield line


def write_trace(table: Table, path: Path) -> None:
    """Write a trace to a new file. Raises UsageError if the file exists or cannot be written."""
    part = path.with_name(f".{path.name}.part")  # a file under the final name is always complete
    try:
        if path.exists():
            raise UsageError(f"--output-file {path}: the file exists already; choose another name")
        try:
            with part.open("w", encoding="utf-8") as file:
                for line in lines_of(table):
                    file.write(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n")
            part.rename(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    except (OSError, ValueError) as error:
        raise UsageError(f"--output-file {path}: cannot be written: {error}") from None
