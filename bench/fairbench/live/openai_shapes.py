"""OpenAI's shapes: what more than one of driver, router and emulator reads of bodies."""

from __future__ import annotations

import msgspec

DEFAULT_NEW_TOKENS = 128  # SGLang's, where a request does not say


class Part(msgspec.Struct):
    """A piece of a message; one that is no text counts as empty."""

    text: str | None = None


class Message(msgspec.Struct):
    """A turn of a conversation."""

    role: str
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        """All of its text."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""


class UsageDetails(msgspec.Struct):
    """``prompt_tokens_details`` of a usage."""

    cached_tokens: int | None = None


class ReportedUsage(msgspec.Struct):
    """An answer's ``usage``. Counts are None where the server does not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: UsageDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens found in the cache."""
        details = self.prompt_tokens_details
        return None if details is None else details.cached_tokens
