"""Prompts of requests: conversion of text to token ids, and limits on the length."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from fairbench.workloads.tokens import load_tokenizer, tokenizer_errors
from fairbench_load.http_server import Problem

TOKEN_BYTES = array("I").itemsize
# assumed size of a worker's KV pool, in tokens, if the worker does not report the size
UNKNOWN_POOL_TOKENS = 2**21
# maximum number of bytes per token, far above the mean of any language and vocabulary
LONGEST_TOKEN_BYTES = 16
# allowed numbers of commas, backslashes and colons in a body, per token of the longest prompt
SIGNS = ((b",", 1.0), (b"\\", 4.0), (b":", 0.25))
# additional number of each of the three signs that is allowed in a body
OTHER_SIGNS = 100_000


class TextTokens(Protocol):
    """The interface of tokenizers; ``method`` describes the tokenizer in logs and metrics."""

    @property
    def method(self) -> str: ...

    def ids(self, text: str) -> array[int]:
        """Return the token ids of a text; texts with equal beginnings have equal first ids."""


class ApproximateTokens:
    """A tokenizer that makes a token of each four bytes of UTF-8."""

    method = f"approximated: {TOKEN_BYTES} bytes a token"

    def ids(self, text: str) -> array[int]:
        data = text.encode()
        return array("I", data + bytes(-len(data) % TOKEN_BYTES))


class TokenizerTokens:
    """A tokenizer that wraps a ``tokenizers`` object and adds special tokens, as engines do."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._tokenizer, self._name = tokenizer, name
        self.method = f"tokenizer file {name}"

    def ids(self, text: str) -> array[int]:
        # ``encode_batch`` lets other threads run; ``encode`` would block them.
        with tokenizer_errors(self._name):
            return array("I", self._tokenizer.encode_batch([text])[0].ids)


def load_text_tokens(tokenizer_path: str | None) -> TextTokens:
    """Load a tokenizer file, or return an approximate tokenizer if the path is None.

    Raises the same errors as ``load_tokenizer``.
    """
    if tokenizer_path is None:
        return ApproximateTokens()
    return TokenizerTokens(*load_tokenizer(tokenizer_path))


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """Limits on the length of a request's prompt.

    - ``most_tokens`` is the number of tokens in the largest KV memory of any worker.
    - ``vocab_size`` is the number of token ids of the model, or None if unknown.
    - ``patterns`` is True if the operator allows regular expressions and grammars.

    JSON decoding blocks the event loop. Decoding a megabyte of text takes milliseconds, but
    decoding a megabyte of small values takes a second. To find bodies with many small values
    without decoding, ``check_body`` counts commas, colons and backslashes.
    """

    most_tokens: int = UNKNOWN_POOL_TOKENS
    vocab_size: int | None = None
    patterns: bool = False

    def check_body(self, raw: bytes) -> None:
        """Raise Problem if a body has more JSON values than the longest prompt needs."""
        most = self.most_tokens
        for sign, per_token in SIGNS:
            if len(raw) > OTHER_SIGNS < raw.count(sign) - per_token * most:
                raise self._too_long()

    def check_tokens(self, tokens: int) -> None:
        if tokens > self.most_tokens:
            raise self._too_long()

    def ids_of(self, text: TextTokens, prompt: str) -> array[int]:
        """Return a prompt's token ids; raise Problem if the prompt is much too long."""
        if len(prompt) > LONGEST_TOKEN_BYTES * self.most_tokens:
            raise self._too_long()
        return text.ids(prompt)

    def _too_long(self) -> Problem:
        return Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the prompt has more than {self.most_tokens} tokens, the limit of the largest worker",
        )


NO_LIMITS = PromptLimits()
