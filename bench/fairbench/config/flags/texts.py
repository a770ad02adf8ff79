"""Texts of flags, read as the values that Python gives, and the names of backends."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fairbench.config.toml import parse_assignment
from fairbench.errors import UsageError

# The simulator, and the backends whose servers a run starts itself.
SIM = "sim"
STARTED = ("emulator", "sglang", "vllm")


def split_commas(flag: str, text: str) -> list[str]:
    """Split a text at commas. Raises UsageError for an empty or a repeated word."""
    words = [word.strip() for word in text.split(",")]
    if "" in words or len(set(words)) < len(words):
        raise UsageError(f"{flag} {text}: must be different words, separated by commas")
    return words


def values_of(read: Callable[[str], Any]) -> Callable[[str, str], list[Any]]:
    """Return what reads values with commas between."""

    def values(flag: str, text: str) -> list[Any]:
        try:
            return [read(word) for word in split_commas(flag, text)]
        except ValueError:
            kind = "whole numbers" if read is int else "numbers"
            raise UsageError(f"{flag} {text}: must be {kind}, separated by commas") from None

    return values


def goodput_flag(texts: Iterable[str] | None, flag: str = "--goodput") -> dict[str, str] | None:
    """Parse ``--goodput`` words ``[NAME.]LATENCY:TIME`` into a table by [NAME.]LATENCY.

    Returns None without words. Raises UsageError for another shape or a duplicate.
    """
    given: dict[str, str] = {}
    for word in [word for text in texts or () for word in text.replace(",", " ").split()]:
        key, colon, time = word.partition(":")
        if not (key and colon and time) or key in given:
            shape = "[NAME.]LATENCY:TIME, such as ttft:500ms or gold.e2el:5x, each once"
            raise UsageError(f"{flag} {word}: write {shape}")
        given[key] = time
    return given or None


def split_words(flag: str, text: str | Iterable[str]) -> list[str] | None:
    """Split a text, or each of several, as a shell would. Raises UsageError."""
    texts = [text] if isinstance(text, str) else text
    try:
        return [word for one in texts for word in shlex.split(one)]
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def parse_weights(text: str | None) -> dict[str, float] | None:
    """Parse ``NAME=WEIGHT,NAME=WEIGHT``; None for None. Raises UsageError for others."""
    if text is None:
        return None
    pairs = [word.rpartition("=") for word in text.split(",")]
    try:
        weights = {name.strip(): float(weight) for name, _, weight in pairs}
    except ValueError:
        weights = {}
    if "" in weights or len(weights) < len(pairs):
        raise UsageError(f"--weights {text}: write NAME=WEIGHT,NAME=WEIGHT with each NAME once")
    return weights


def weight_flags(weights: Mapping[str, float] | None) -> list[str]:
    """Return the flag from which ``parse_weights`` reads these weights; empty for none."""
    text = ",".join(f"{name}={weight!r}" for name, weight in (weights or {}).items())
    return ["--weights", text] if text else []


def weights_of(_: str, text: str) -> dict[str, float]:
    """Parse ``--weights``. Raises UsageError."""
    return parse_weights(text) or {}


def goodput_of(_: str, texts: Iterable[str]) -> dict[str, str] | None:
    """Parse ``--goodput``. Raises UsageError."""
    return goodput_flag(texts)


def assigned(texts: Iterable[str] | None) -> dict[str, Any]:
    """Parse ``--set`` texts. Raises UsageError for a text that is not NAME.PARAM=VALUE."""
    return dict(parse_assignment(text) for text in texts or ())


def columns_of(_: str, texts: list[str]) -> dict[str, str]:
    """Parse ``--map`` texts, ``FIELD=COLUMN``. Raises UsageError."""
    from fairbench.workloads.traces.columns import parse_names

    return parse_names(texts)
