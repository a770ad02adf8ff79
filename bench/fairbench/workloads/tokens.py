"""Token counts of texts: exact with a Hugging Face tokenizer file, otherwise approximate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fairbench.errors import DataError, UsageError
from fairbench.files.reader import MissingFile, decoded, read_whole

PANIC = "PanicException"  # Rust packages raise this exception class, but do not export it.
TRIED = "A word, and 3 more."  # Every tokenizer must be able to split this text.


def estimated_tokens(text: str) -> int:
    """Return the approximate number of tokens in a text, at 4.6 characters per token."""
    # The negative signs make the integer division round up.
    return max(1, -(-10 * len(text) // 46))


class TokenCounter(Protocol):
    """A token counter, which ``method`` describes in the summary of a run."""

    @property
    def method(self) -> str: ...

    def count(self, text: str) -> int:
        """Return the number of tokens in a text, at least 1: an engine refuses an empty prompt."""
        ...


class ApproximateCounter:
    """A counter that assumes 4.6 characters per token (English prose, 100k-entry vocabulary)."""

    method = "approximated: 4.6 characters a token"

    def count(self, text: str) -> int:
        return estimated_tokens(text)


class TokenizerCounter:
    """A counter that uses a ``tokenizers`` object and does not count special tokens."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._tokenizer, self._name = tokenizer, name
        self.method = f"tokenizer file {name}"

    def count(self, text: str) -> int:
        with tokenizer_errors(self._name):
            return max(1, len(self._tokenizer.encode(text, add_special_tokens=False).ids))


def load_counter(tokenizer_path: str | None) -> TokenCounter:
    """Return a token counter for a tokenizer file, or an approximate counter without a file."""
    if tokenizer_path is None:
        return ApproximateCounter()
    return TokenizerCounter(*load_tokenizer(tokenizer_path))


class LoadedTokenizer(NamedTuple):
    """A tokenizer of the package ``tokenizers``, and the name of the tokenizer's file."""

    tokenizer: Any
    file_name: str


def load_tokenizer(tokenizer_path: str) -> LoadedTokenizer:
    """Load a tokenizer.json, given as a file or as the folder that contains the file.

    Raises UsageError if the file or the package ``tokenizers`` is missing, and DataError if the
    file does not define a tokenizer.
    """
    path, text = _tokenizer_text(tokenizer_path)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError(
            "a tokenizer file needs the package tokenizers: in a clone of fairbench, pip "
            'install ".[tokenizers]"'
        ) from None
    with tokenizer_errors(tokenizer_path, "not a tokenizer.json"):
        tokenizer = Tokenizer.from_str(text)
    # Padding is switched off, because a tokenizer file may ask for a billion padding tokens.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    with tokenizer_errors(tokenizer_path):
        tokenizer.encode(TRIED)
    return LoadedTokenizer(tokenizer, path.name)


@contextmanager
def tokenizer_errors(name: str, problem: str = "cannot split a text") -> Iterator[None]:
    """Re-raise every error of the package ``tokenizers`` as a DataError with a message of one line.

    ``tokenizers`` also raises panics of its Rust code, which are not derived from ``Exception``.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"tokenizer {name}: {problem} ({reason})") from None


def _tokenizer_text(tokenizer_path: str) -> tuple[Path, str]:
    path, shown = Path(tokenizer_path), f"tokenizer {tokenizer_path}"
    try:
        path = path / "tokenizer.json" if path.is_dir() else path
        return path, decoded(read_whole(path, shown), shown)
    except MissingFile:
        raise UsageError(f"{shown}: no such file (a tokenizer.json is needed)") from None
    except OSError as error:
        raise DataError(f"{shown}: cannot be read: {error.strerror}") from None
