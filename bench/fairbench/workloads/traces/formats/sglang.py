"""SGLang's request log: ``--log-requests --log-requests-format json``, best to a file of its own.

Taken are the lines ``request.finished``, of srt/utils/request_logger.py of sgl-project/sglang
(01bb912): a request began its ``out.meta_info.e2e_latency`` before their time. Those of level 2 and
up have the text, of level 2 shortened, so that only level 3 tells what prompts share. There is no
client but where one is named, such as ``--clients-from obj.custom_labels.tenant``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairbench.files.times import nanoseconds
from fairbench.workloads.traces.format import Record
from fairbench.workloads.traces.formats.flattened import Flattened, inner

FINISHED = "request.finished"


def _recognise(first: Record) -> bool:
    return str(first.get("event", "")).startswith("request.") and "rid" in first


def _requests(record: Record) -> Iterator[Mapping[str, Any] | None]:
    if record.get("event") != FINISHED:
        return
    meta = inner(record, "out", "meta_info")
    end, latency_s = record.get("timestamp"), inner(meta, "e2e_latency")
    yield {
        "time": _before(end, latency_s),
        "end": end,
        "input_tokens": inner(meta, "prompt_tokens"),
        "output_tokens": inner(meta, "completion_tokens"),
        "max_tokens": inner(record, "obj", "sampling_params", "max_new_tokens"),
        "text": inner(record, "obj", "text"),
        "session": inner(record, "obj", "session_params", "id"),
    }


def _before(end: Any, latency_s: Any) -> Any:
    """When a request came, in nanoseconds; as it is where one of both cannot be read."""
    try:
        return nanoseconds(end, "s") - nanoseconds(latency_s, "s")
    except ValueError:
        return end


SGLANG = Flattened("sglang", _recognise, _requests)
