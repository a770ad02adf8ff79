"""Prompts: the token ids of a text, and limits on what a worker can take."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from fairbench.live.json_errors import Problem
from fairbench.workloads.tokens import load_tokenizer, tokenizer_errors

TOKEN_BYTES = array("I").itemsize
# Assumed for workers that do not report the size of their pool.
UNKNOWN_POOL_TOKENS = 2**21
# Far more than the mean of text in any language and any vocabulary.
LONGEST_TOKEN_BYTES = 16
# Limit on each structural character of a body: per token of the longest prompt, and in addition.
SIGNS = ((b",", 1.0), (b"\\", 4.0), (b":", 0.25))
OTHER_SIGNS = 100_000


class TextTokens(Protocol):
    """The interface; ``method`` describes it for the log and the metrics."""

    @property
    def method(self) -> str: ...

    def ids(self, text: str) -> array[int]:
        """Return the token ids of a text; texts with equal beginnings have equal first ids."""


class ApproximateTokens:
    """Tokens of four bytes of UTF-8, roughly the size of a token of English prose."""

    method = f"approximated: {TOKEN_BYTES} bytes a token"

    def ids(self, text: str) -> array[int]:
        data = text.encode()
        return array("I", data + bytes(-len(data) % TOKEN_BYTES))


class TokenizerTokens:
    """Token ids of a ``tokenizers`` object, including special tokens, as in engines."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._tokenizer, self._name = tokenizer, name
        self.method = f"tokenizer file {name}"

    def ids(self, text: str) -> array[int]:
        # Unlike ``encode``, a batch lets other threads run meanwhile.
        with tokenizer_errors(self._name):
            return array("I", self._tokenizer.encode_batch([text])[0].ids)


def load_text_tokens(tokenizer_path: str | None) -> TextTokens:
    """Load a tokenizer file, or approximate without one.

    Raises the errors of ``load_tokenizer``.
    """
    if tokenizer_path is None:
        return ApproximateTokens()
    return TokenizerTokens(*load_tokenizer(tokenizer_path))


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """``most_tokens`` is the largest pool of a worker, ``vocab_size`` the size of the vocabulary.

    None means unknown. ``patterns`` is true if the operator allows regular expressions and
    grammars. ``keeps_clients`` is false if a worker orders requests by client, but does not learn
    the client of several answers and of the Responses API. Decoding JSON blocks the event loop:
    milliseconds for a megabyte of text, but a second for many small values. Such bodies are
    recognised by counting structural characters, which is fast.
    """

    most_tokens: int = UNKNOWN_POOL_TOKENS
    vocab_size: int | None = None
    patterns: bool = False
    keeps_clients: bool = True

    def check_body(self, raw: bytes) -> None:
        """Raise Problem for a body with more values than a prompt can have."""
        most = self.most_tokens
        for sign, per_token in SIGNS:
            if len(raw) > OTHER_SIGNS < raw.count(sign) - per_token * most:
                raise self._too_long()

    def check_tokens(self, tokens: int) -> None:
        if tokens > self.most_tokens:
            raise self._too_long()

    def ids_of(self, text: TextTokens, prompt: str) -> array[int]:
        """Return a text's token ids. Raises Problem, immediately if the text is far too long."""
        if len(prompt) > LONGEST_TOKEN_BYTES * self.most_tokens:
            raise self._too_long()
        return text.ids(prompt)

    def _too_long(self) -> Problem:
        return Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the prompt has more than {self.most_tokens} tokens, the limit of the largest worker",
        )


NO_LIMITS = PromptLimits()
