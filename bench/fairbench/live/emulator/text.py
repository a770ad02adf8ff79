"""Conversion of text to token ids and back; an output in a later prompt gives the same ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from random import Random
from string import ascii_lowercase
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from fairbench.errors import DataError
from fairbench.live.emulator.token_streams import Ids
from fairbench.workloads.tokens import load_tokenizer, tokenizer_errors

VOCABULARY = 128_000
OUTPUT_WORDS = 4096
# A word of up to ten letters, three digits, two signs: prose has about 4.5 characters in one.
PIECE = re.compile(r"\s*(?:[^\W\d_]{1,10}|\d{1,3}|[^\w\s]{1,2}|_)|\s+")


class Text(Protocol):
    """The interface: ``output_ids`` are tokens for outputs.

    ``method`` says how tokens are counted.
    """

    method: str
    output_ids: Ids
    vocab_size: int

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        ...

    def decode(self, output_ids: list[int]) -> str:
        """Return the text of tokens that are all among ``output_ids``."""
        ...


class ApproximateText:
    """A tokenizer by hash: a token is a word or a part of a word. Outputs are four-letter words.

    Of a text with more than ``most_tokens`` only the first are found: to find millions takes long.
    """

    method = "approximated: a word of up to 10 letters is a token"

    vocab_size = VOCABULARY

    def __init__(self, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self._words = _made_up_words()
        self.output_ids = np.array(list(self._words), np.int32)

    def encode(self, text: str) -> list[int]:
        return [_hashed(found[0]) for found in islice(PIECE.finditer(text), self._most_tokens)]

    def decode(self, output_ids: list[int]) -> str:
        return "".join(map(self._words.__getitem__, output_ids))


@cache
def _made_up_words() -> dict[int, str]:
    rng = Random(0)
    words: dict[int, str] = {}
    while len(words) < OUTPUT_WORDS:
        word = " " + "".join(rng.choices(ascii_lowercase, k=4))
        words[_hashed(word)] = word
    return words


def _hashed(piece: str) -> int:
    return crc32(piece.encode("utf-8", "surrogatepass")) % VOCABULARY


class TokenizerText:
    """A tokenizer that uses a ``tokenizers`` object. Outputs are whole words of its vocabulary.

    Raises DataError if the vocabulary has no whole words.
    """

    def __init__(self, path: str) -> None:
        self._tokenizer, self._name = load_tokenizer(path)
        self.method = f"tokenizer file {self._name}"
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        with tokenizer_errors(path):
            self._words = dict(islice(_whole_words(self._tokenizer), OUTPUT_WORDS))
        if not self._words:
            raise DataError(
                f"tokenizer {path}: must have at least one token that is a whole word, to "
                "make outputs"
            )
        self.output_ids = np.array(list(self._words), np.int32)

    def encode(self, text: str) -> list[int]:
        # Unlike ``encode``, a batch lets other threads run meanwhile.
        with tokenizer_errors(self._name):
            ids: list[int] = self._tokenizer.encode_batch([text], add_special_tokens=False)[0].ids
        return ids

    def decode(self, output_ids: list[int]) -> str:
        return "".join(map(self._words.__getitem__, output_ids))


def _whole_words(tokenizer: Any) -> Iterator[tuple[int, str]]:
    """Yield tokens that are a whole word, each with its text (a space and the word)."""
    for token in range(tokenizer.get_vocab_size()):
        word = tokenizer.decode([token]).strip()
        text = f" {word}"
        if word.isalnum() and tokenizer.encode(text, add_special_tokens=False).ids == [token]:
            yield token, text
