"""Prompt limits: rejects prompts that no worker can take, before they cost much."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from http import HTTPStatus

from fairbench.live.router.problem import Problem
from fairbench.live.router.text_tokens import TextTokens

# Assumed for workers that do not report the size of their pool.
UNKNOWN_POOL_TOKENS = 2**21
# Far more than text has on the average, in any language and any vocabulary.
TOKEN_BYTES = 16
# Limit on each structural character of a body: per token of the longest prompt, and in addition.
SIGNS = ((b",", 1.0), (b"\\", 4.0), (b":", 0.25))
OTHER_SIGNS = 100_000


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """``most_tokens`` is the largest pool of a worker, ``vocab_size`` the size of the vocabulary.

    None is not known. ``patterns`` says that the operator allows regular expressions and grammars.
    To decode JSON holds up everyone: milliseconds for a megabyte of text, but a second for many
    small values. Those are told by signs that are counted in no time.
    """

    most_tokens: int = UNKNOWN_POOL_TOKENS
    vocab_size: int | None = None
    patterns: bool = False

    def check_body(self, raw: bytes) -> None:
        """Raise Problem for a body with more values than a prompt can have."""
        most = self.most_tokens
        for sign, per_token in SIGNS:
            if len(raw) > OTHER_SIGNS < raw.count(sign) - per_token * most:
                raise self._too_long()

    def check_tokens(self, tokens: int) -> None:
        """Raise Problem if the prompt has too many tokens."""
        if tokens > self.most_tokens:
            raise self._too_long()

    def ids_of(self, text: TextTokens, prompt: str) -> array[int]:
        """Return a text's token ids. Raises Problem, immediately if the text is far too long."""
        if len(prompt) > TOKEN_BYTES * self.most_tokens:
            raise self._too_long()
        return text.ids(prompt)

    def _too_long(self) -> Problem:
        return Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the prompt has more than {self.most_tokens} tokens, the limit of the largest worker",
        )


NO_LIMITS = PromptLimits()
