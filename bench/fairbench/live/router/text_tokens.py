"""Text to token ids for the router's prefix tree, with the model's tokenizer or approximately."""

from __future__ import annotations

from array import array
from typing import Any, Protocol

from fairbench.workloads.tokens import load_tokenizer, tokenizer_errors

TOKEN_BYTES = array("I").itemsize


class TextTokens(Protocol):
    """The interface; ``method`` describes it for the log and the metrics."""

    @property
    def method(self) -> str: ...

    def ids(self, text: str) -> array[int]:
        """Return the token ids of a text; texts with equal beginnings have equal first ids."""
        ...


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
    """Load a tokenizer file, or approximate without one. Raises as ``load_tokenizer`` does."""
    if tokenizer_path is None:
        return ApproximateTokens()
    return TokenizerTokens(*load_tokenizer(tokenizer_path))
