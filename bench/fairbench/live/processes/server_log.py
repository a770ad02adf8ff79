"""The log of a server: its last lines, and the cause of the server's end."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

from fairbench.errors import printable
from fairbench.live.processes.gpus import WITHOUT_GPU

TAIL_BYTES = 4_000
TAIL_LINES = 20
CAUSE_BYTES = 2**20  # end of the log in which the cause is looked for
LONGEST = 500  # characters of a line that are shown

# Engines write a process, a level with a time, a file or a rank before a message.
_BEFORE = re.compile(
    r"(?:\([^()]{1,80}\) |(?:ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d [\d:]{8} |\[[^\[\]]{1,80}\] )"
)
_RAISED = re.compile(r"[A-Za-z_][\w.]{0,100}(?:Error|Exception|Exit|Failure): ?\S")
_REFUSED = re.compile(r"(?:\S{1,80}: error: |fairbench: )\S")
_KILLED = re.compile(r"\S.{0,80} (?:was killed by signal|died unexpectedly)")

# Later messages of processes that ended because another process had ended.
_ECHOES = (
    *("See root cause above", "Engine core initialization failed", "EngineDeadError"),
    *("CancelledError", "BrokenPipeError", "ConnectionResetError", "EOFError", "SystemExit"),
    "Rank 0 scheduler died",
)

GPU_MISSING = (
    *("Failed to infer device type", "No accelerator (CUDA", "Found no NVIDIA driver"),
    *("No CUDA GPUs are available", "not compiled with CUDA", "libcuda.so"),
)
"""Parts of the messages of engines that find no GPU."""


def log_end(path: Path, begin: int, most: int = TAIL_BYTES, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log after byte ``begin``; earlier bytes are another process's."""
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(begin, size - most))
        text = log.read().decode("utf-8", "replace")
    return "\n".join(text.splitlines()[-lines:])


def cause_in(path: Path, begin: int) -> str:
    """Return ``cause_of`` the log's part after byte ``begin``, or of the part's last MiB."""
    return cause_of(log_end(path, begin, CAUSE_BYTES, lines=CAUSE_BYTES))


def cause_of(text: str) -> str:
    """Return the message that says why a server ended, with advice if there is any.

    The message is the last exception, usage error or killed process of the log that is no
    consequence of an earlier one; without such a message, the last line. The text is printable.
    """
    plain = [_without_prefix(line) for line in text.splitlines() if line.strip()]
    causes = [
        f"{line}: {below.strip()}" if "validation error" in line else line
        for line, below in pairwise([*plain, ""])
        if _is_cause(line)
    ]
    said = (causes or plain or [""])[-1].strip().removeprefix("fairbench: ")
    said = printable(said)[:LONGEST]
    missing = any(part in line for line in causes for part in GPU_MISSING)
    return f"{said}; {WITHOUT_GPU}" if missing else said


def _without_prefix(line: str) -> str:
    while found := _BEFORE.match(line):
        line = line[found.end() :]
    return line


def _is_cause(line: str) -> bool:
    if any(echo in line for echo in _ECHOES):
        return False
    return any(kind.match(line) for kind in (_RAISED, _REFUSED, _KILLED))
