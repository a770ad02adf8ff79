"""Text to token ids, for the router's prefix tree: as the model's tokenizer has them, or nearly."""

from __future__ import annotations

from array import array
from typing import Any, Protocol

from fairbench.workloads.tokens import load_tokenizer, tokenizer_errors

TOKEN_BYTES = array("I").itemsize


class TextTokens(Protocol):
    """``method`` says how, for the log and the metrics."""

    @property
    def method(self) -> str: ...

    def ids(self, text: str) -> array[int]:
        """Token ids of a text, which begin alike for texts that do."""
        ...


class ApproximateTokens:
    """Four bytes of UTF-8 are a token, roughly what English prose takes."""

    method = f"approximated: {TOKEN_BYTES} bytes a token"

    def ids(self, text: str) -> array[int]:
        data = text.encode()
        return array("I", data + bytes(-len(data) % TOKEN_BYTES))


class TokenizerTokens:
    """The ids of a ``tokenizers`` object, special tokens included, as engines encode a prompt."""

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
