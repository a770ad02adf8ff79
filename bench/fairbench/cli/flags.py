"""Flags: what several commands need to read their texts."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from fairbench.config.toml import parse_assignment
from fairbench.errors import UsageError
from fairbench.files.secret import read_key

DEFAULT_RESULT_DIR = Path("results/runs")


Gateway = Annotated[
    str | None,
    Option(
        metavar="POLICY",
        help="Hold requests before the router, see `list gateways`. [default: none]",
    ),
]
AllowUntested = Annotated[
    bool,
    Option(
        "--allow-untested-release",
        help="Try a release of SGLang or vLLM that is newer than the supported ones.",
    ),
]
Eviction = Annotated[
    str | None,
    Option(
        metavar="POLICY",
        help="Eviction policy of simulated replicas, see `list evictions`; records who holds KV "
        "memory. "
        "[default: lru, without records]",
    ),
]
MemoryRecords = Annotated[
    bool | None,
    Option(
        "--memory-records",
        help="Record who holds KV memory, and who evicts whom, without another policy.",
    ),
]
Goodput = Annotated[
    list[str] | None,
    Option(
        "--goodput",
        metavar="[NAME.]LATENCY:TIME",
        help="Target of every request, or of those of a client or class NAME: ttft, tpot or e2el, "
        "in ms, s, or x as a multiple of the latency alone; may be repeated. "
        "[default: the workload's]",
    ),
]
Settings = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="NAME.PARAM=VALUE",
        help="Any parameter of a scheduler, the engine or the workload; may be repeated.",
    ),
]
Preset = Annotated[
    str | None,
    Option(
        metavar="NAME|FILE.toml",
        help="Start from a paper's documented settings, see `list presets`; other flags override "
        "them. [default: none]",
    ),
]
Percentiles = Annotated[
    str | None,
    Option(
        metavar="P,P,...",
        help="Percentiles of latency to compute and show, such as 50,90,95,99. "
        "[default: P50, and P95 or P99]",
    ),
]


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None."""
    return {key: value for key, value in options.items() if value is not None}


def assigned(texts: Iterable[str] | None) -> dict[str, Any]:
    """Parse ``--set`` texts. Raises UsageError for a text that is not NAME.PARAM=VALUE."""
    return dict(parse_assignment(text) for text in texts or ())


def goodput_flag(texts: Iterable[str] | None) -> dict[str, str] | None:
    """Parse ``--goodput`` words, ``[NAME.]LATENCY:TIME``, by their part before the colon.

    Returns None without words. Raises UsageError for another shape or a duplicate.
    """
    given: dict[str, str] = {}
    for word in [word for text in texts or () for word in text.replace(",", " ").split()]:
        key, colon, time = word.partition(":")
        if not (key and colon and time) or key in given:
            shape = "[NAME.]LATENCY:TIME, such as ttft:500ms or gold.e2el:5x, each once"
            raise UsageError(f"--goodput {word}: write {shape}")
        given[key] = time
    return given or None


def split_commas(flag: str, text: str) -> list[str]:
    """Split a text at commas. Raises UsageError for an empty or a repeated word."""
    words = [word.strip() for word in text.split(",")]
    if "" in words or len(set(words)) < len(words):
        raise UsageError(f"{flag} {text}: must be different words with commas between")
    return words


def split_args(texts: list[str] | None) -> list[str] | None:
    """Split every ``--server-arg`` as a shell would; None stays None. Raises UsageError."""
    try:
        return [word for text in texts for word in shlex.split(text)] if texts else None
    except ValueError as error:
        raise UsageError(f"--server-arg: {error}") from None


def split_command(flag: str, text: str | None) -> list[str] | None:
    """Split a command as a shell would; None stays None. Raises UsageError."""
    try:
        return None if text is None else shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def parse_headers(texts: list[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` texts as a mapping. A wrong one is not repeated, since it may be secret."""
    pairs = [text.partition("=") for text in texts or ()]
    for name, equals, _ in pairs:
        if not (equals and name.strip()):
            raise UsageError("--header: write NAME=VALUE, such as Authorization='Bearer KEY'")
    return {name.strip(): value for name, _, value in pairs}


def with_key(headers: dict[str, str], file: Path | None) -> dict[str, str]:
    """Add the key of ``--api-key-file`` to headers. Raises UsageError if they have a key."""
    if file is None:
        return headers
    if any(name.lower() == "authorization" for name in headers):
        raise UsageError("--api-key-file: --header gives Authorization too: choose one")
    return {**headers, "Authorization": f"Bearer {read_key(file, str(file))}"}


def above_0(flag: str, value: float | None) -> float | None:
    """Return the value of a flag. Raises UsageError unless it is above 0 and finite."""
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"{flag} {value:g}: must be above 0, and finite")
    return value
