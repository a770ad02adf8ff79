"""Exact conversion of text to token ids, of token ids to prompt segments, and back.

If a later prompt repeats an output, that part of the prompt has the token ids of the output. The
shared prefix of two prompts ends at their first different token. The schedulers, not the emulator,
round the lengths of shared prefixes down to whole pages (``schedulers.token_pages``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from functools import cache
from itertools import islice
from random import Random
from string import ascii_lowercase
from typing import Any, NamedTuple, Protocol, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fairbench.core import Prompt, Segment
from fairbench.errors import DataError
from fairbench.workloads.tokens import load_tokenizer, tokenizer_errors

Ids: TypeAlias = NDArray[np.int32]
FORK_TRIES = 16  # maximum number of draws for an output that differs from earlier outputs
VOCABULARY = 128_000  # number of token ids of the emulator's approximate tokenizer
OUTPUT_WORDS = 4096  # different words in the emulator's outputs
# The emulator's tokenizer cuts text into tokens of at most ten letters, three digits or two other
# characters. English prose has about 4.5 characters per token of the emulator's tokenizer.
PIECE = re.compile(r"\s*(?:[^\W\d_]{1,10}|\d{1,3}|[^\w\s]{1,2}|_)|\s+")


class _Stream:
    """A sequence of tokens, and the sequences that branch off from it.

    The key of a branch is (offset, first token id).
    """

    __slots__ = ("forks", "ids", "key", "place")

    def __init__(self, key: str, ids: Ids, place: StreamPosition | None) -> None:
        self.key = key
        self.ids = ids
        # ``place`` is the position in the parent sequence at which this sequence branches off.
        self.place = place
        self.forks: dict[tuple[int, int], _Stream] = {}


class StreamPosition(NamedTuple):
    """A position in a token sequence, after its first ``offset`` tokens."""

    stream: _Stream
    offset: int


class TokenStreams:
    """A tree of the tokens of all prompts and outputs so far, which branches where tokens differ.

    ``tokens`` is the number of stored tokens. Only ``keep_only`` deletes tokens.
    """

    def __init__(self) -> None:
        self._root = _Stream("", np.empty(0, np.int32), None)
        # ``_streams`` holds sequences in order of creation, so a parent precedes its branches.
        self._streams: dict[str, _Stream] = {}
        self._created = 0
        self.tokens = 0

    def prompt_of(self, ids: Ids) -> tuple[Prompt, StreamPosition]:
        """Return the prompt with the token ids ``ids``, and its end position in the token tree."""
        segments = []
        at, start = StreamPosition(self._root, 0), 0
        while start < len(ids):
            rest = ids[start:]
            stream = at.stream.forks.get((at.offset, int(rest[0])))
            if stream is None:
                stream = self._fork(at, rest.copy())
            shorter = min(len(stream.ids), len(rest))
            differ = stream.ids[:shorter] != rest[:shorter]
            first = int(differ.argmax())
            taken = first if differ[first] else shorter
            segments.append(Segment(stream.key, taken))
            at, start = StreamPosition(stream, taken), start + taken
        return tuple(segments), at

    def output_at(self, place: StreamPosition, draw: Callable[[], Ids]) -> tuple[Segment, Ids]:
        """Draw a random output for the prompt up to ``place``; return its segment and tokens.

        ``draw`` is called again while the first token of its output continues a known sequence.
        After ``FORK_TRIES`` calls, the output of the last call is used.
        """
        stream, offset = place
        follows = int(stream.ids[offset]) if offset < len(stream.ids) else None
        for _ in range(FORK_TRIES):
            ids = draw()
            first = int(ids[0])
            if first != follows and (offset, first) not in stream.forks:
                break
        return Segment(self._fork(place, ids).key, len(ids)), ids

    def _fork(self, place: StreamPosition, ids: Ids) -> _Stream:
        self._created += 1
        stream = _Stream(str(self._created), ids, place)
        place.stream.forks[place.offset, int(ids[0])] = stream
        self._streams[stream.key] = stream
        self.tokens += len(ids)
        return stream

    def ids_of(self, prompt: Prompt, start: int, end: int) -> list[int]:
        """Return the tokens from ``start`` to ``end`` of a prompt that ``prompt_of`` returned."""
        found: list[int] = []
        for key, length in prompt:
            if start < length and end > 0:
                ids = self._streams[key].ids[max(start, 0) : min(end, length)]
                found.extend(ids.tolist())
            start, end = start - length, end - length
        return found

    def keep_only(self, keys: Collection[str]) -> None:
        """Delete token sequences that are not in ``keys`` and have no descendants in ``keys``."""
        for stream in reversed(list(self._streams.values())):
            if stream.forks or stream.key in keys:
                continue
            assert stream.place is not None
            parent, offset = stream.place
            name = offset, int(stream.ids[0])
            if parent.forks.get(name) is stream:
                del parent.forks[name]
            del self._streams[stream.key]
            self.tokens -= len(stream.ids)


class Text(Protocol):
    """The interface of the emulator's tokenizers.

    Outputs are drawn from the token ids ``output_ids``, and ``method`` says how tokens are counted.
    """

    method: str
    output_ids: Ids
    vocab_size: int

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""

    def decode(self, output_ids: list[int]) -> str:
        """Return the text of token ids, which must all be in ``output_ids``."""


class ApproximateText:
    """A tokenizer that hashes words and parts of words. Outputs are random words of four letters.

    Tokenizing stops after ``most_tokens`` tokens of a text, because millions would take too long.
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
    """A tokenizer that wraps a ``tokenizers`` object. Outputs consist of whole words.

    Raises DataError if no token is a whole word.
    """

    def __init__(self, path: str) -> None:
        self._tokenizer, self._name = load_tokenizer(path)
        self.method = f"tokenizer file {self._name}"
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        with tokenizer_errors(path):
            self._words = dict(islice(_whole_words(self._tokenizer), OUTPUT_WORDS))
        if not self._words:
            raise DataError(
                f"tokenizer {path}: must have at least one token that is a whole word, "
                "because outputs consist of whole words"
            )
        self.output_ids = np.array(list(self._words), np.int32)

    def encode(self, text: str) -> list[int]:
        # ``encode_batch`` lets other threads run, but ``encode`` would block them.
        with tokenizer_errors(self._name):
            ids: list[int] = self._tokenizer.encode_batch([text], add_special_tokens=False)[0].ids
        return ids

    def decode(self, output_ids: list[int]) -> str:
        return "".join(map(self._words.__getitem__, output_ids))


def _whole_words(tokenizer: Any) -> Iterator[tuple[int, str]]:
    """Yield each token id that is a whole word, with its text (a space and the word)."""
    for token in range(tokenizer.get_vocab_size()):
        word = tokenizer.decode([token]).strip()
        text = f" {word}"
        if word.isalnum() and tokenizer.encode(text, add_special_tokens=False).ids == [token]:
            yield token, text
