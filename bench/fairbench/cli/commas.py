"""``A,B`` after a flag."""

from __future__ import annotations

from fairbench.errors import UsageError


def split_commas(flag: str, text: str) -> list[str]:
    """The words between the commas. Raises UsageError for an empty or a repeated one."""
    words = [word.strip() for word in text.split(",")]
    if "" in words or len(set(words)) < len(words):
        raise UsageError(f"{flag} {text}: must be different words with commas between")
    return words
