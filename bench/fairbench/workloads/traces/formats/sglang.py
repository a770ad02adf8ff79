"""SGLang's request log of ``--log-requests --log-requests-format json``.

Taken are the lines ``request.finished``, of srt/utils/request_logger.py of sgl-project/sglang
(01bb912): a request began its ``out.meta_info.e2e_latency`` before their time. Those of level 2 and
up have the text, of level 2 shortened, so that only level 3 tells what prompts share. There is no
client but where one is named, such as ``--clients-from obj.custom_labels.tenant``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairbench.files.times import Nanoseconds, nanoseconds, unit_of
from fairbench.workloads.traces.format import Record
from fairbench.workloads.traces.formats.flattened import Flattened, inner

FINISHED = "request.finished"


def _recognise(first: Record) -> bool:
    return str(first.get("event", "")).startswith("request.") and "rid" in first


def _requests(record: Record) -> Iterator[Mapping[str, Any] | None]:
    if record.get("event") != FINISHED:
        return
    meta = inner(record, "out", "meta_info")
    time, end = _times(record.get("timestamp"), inner(meta, "e2e_latency"))
    yield {
        "time": time,
        "end": end,
        "input_tokens": inner(meta, "prompt_tokens"),
        "output_tokens": inner(meta, "completion_tokens"),
        "max_tokens": inner(record, "obj", "sampling_params", "max_new_tokens"),
        "text": inner(record, "obj", "text"),
        "session": inner(record, "obj", "session_params", "id"),
    }


def _times(end: Any, latency_s: Any) -> tuple[Any, Any]:
    """Return the start and end of a request; both are the end if either cannot be read."""
    try:
        end_ns = nanoseconds(end, unit_of(end))
        return Nanoseconds(end_ns - nanoseconds(latency_s, "s")), Nanoseconds(end_ns)
    except (ValueError, OverflowError):
        return end, end


SGLANG = Flattened("sglang", _recognise, _requests)
