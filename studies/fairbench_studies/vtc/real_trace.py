"""A converter for the VTC paper's Arena trace, ``fair_bench/real_trace.pkl`` of [VTC-artifact].

    python studies vtc-trace real_trace.pkl vtc_arena_trace.jsonl.gz

A malicious pickle can execute code when it is read, so this reader creates only lists, strings,
numbers and the trace's requests, and refuses every other class in a pickle.
"""

from __future__ import annotations

import gzip
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairbench.errors import DataError
from fairbench.files.reader import opened

REQUEST = "Request"
FIELDS = ("adapter_dir", "req_time", "prompt_len", "output_len")


class _Request:
    """A request of the Arena trace, with the attributes that the file contains."""


class _OnlyRequests(pickle.Unpickler):
    """An unpickler that loads only the class of requests in the trace."""

    def find_class(self, module: str, name: str) -> type:
        if name == REQUEST:
            return _Request
        raise pickle.UnpicklingError(f"the file is refused: loading {module}.{name} may be unsafe")


def trace_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield ``{t, client, prompt_len, output_len}`` for each request, in order of arrival.

    A client's number is its position in the list of adapters at the beginning of the file. Raises
    DataError if the file is not the pickle of a trace.
    """
    try:
        with opened(path, f"trace {path}") as file:
            loaded = _OnlyRequests(file).load()
        adapters, requests = loaded
        number = {adapter: index for index, adapter in enumerate(adapters)}
        found = [tuple(vars(one)[field] for field in FIELDS) for one in requests]
        rows = [(float(t), number[a], int(prompt), int(output)) for a, t, prompt, output in found]
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise any error
        reason = str(error) or type(error).__name__
        raise DataError(f"trace {path} is not a pickle of a VTC trace ({reason})") from None
    for t, client, prompt_len, output_len in sorted(rows, key=lambda row: row[0]):
        yield {
            "t": round(t, 6), "client": client, "prompt_len": prompt_len, "output_len": output_len,
        }  # fmt: skip


def main(source: str, target: str) -> None:
    """Convert the pickle ``source`` to JSON lines in ``target``, which ends in .jsonl.gz."""
    if not target.endswith(".jsonl.gz"):
        raise SystemExit(f"{target}: must end in .jsonl.gz")
    try:
        rows = list(trace_rows(Path(source)))
    except DataError as error:
        raise SystemExit(str(error)) from None
    lines = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    Path(target).write_bytes(gzip.compress(lines.encode(), mtime=0))
    clients = len({row["client"] for row in rows})
    sys.stdout.write(f"{target}: {len(rows):,} requests of {clients} clients\n")
