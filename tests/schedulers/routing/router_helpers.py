"""Requests, prompts and a token-by-token oracle for the tests of the routers."""

from __future__ import annotations

from hypothesis import strategies as st

from fairbench.core import Prompt, Request, Segment, prompt_tokens
from fairbench.schedulers.base import Setup
from fairbench.schedulers.views import WorkerLoad

Token = tuple[str, int]
Prefix = tuple[Token, ...]


def prompt(*segments: tuple[str, int]) -> Prompt:
    """Return a prompt from (key, length) pairs."""
    return tuple(Segment(key, length) for key, length in segments)


def request(number: int, client: str, *segments: tuple[str, int]) -> Request:
    """Return a request with these segments as its prompt."""
    made = prompt(*segments)
    return Request(number, client, 0, 0, made, prompt_tokens(made), 256)


class Told:
    """A fleet that reports what the test sets: worker -> (queued, running, tokens)."""

    def __init__(self, loads: dict[int, tuple[int, int, int]]) -> None:
        self.loads = loads

    def workers(self) -> list[int]:
        return sorted(self.loads)

    def load(self, worker: int) -> WorkerLoad:
        queued, running, tokens = self.loads[worker]
        return WorkerLoad(queued + running, tokens, queued, running)


def tell(router, loads: dict[int, tuple[int, int, int]], pool_tokens: int = 1000) -> Told:
    """Give a router a fleet. Changing its ``loads`` changes the reports."""
    fleet = Told(loads)
    router.prepare(Setup(fleet=fleet, pool_tokens=pool_tokens))
    return fleet


def answer(tokens: int) -> Segment:
    """Return the output of a finished request. Only its length matters."""
    return Segment("answer", tokens)


def prefixes(of: Prompt) -> list[Prefix]:
    """Return every non-empty prefix of a prompt, shortest first."""
    tokens = [(key, position) for key, length in of for position in range(length)]
    return [tuple(tokens[:end]) for end in range(1, len(tokens) + 1)]


def prompts() -> st.SearchStrategy[Prompt]:
    """Draw short prompts over few keys, which share prefixes and diverge inside segments."""
    segment = st.builds(Segment, st.sampled_from("abc"), st.integers(1, 4))
    return st.lists(segment, min_size=1, max_size=4).map(tuple)


class NaiveLocations:
    """An oracle of the location tree: a set of (worker, prefix) pairs."""

    def __init__(self) -> None:
        self.marks: set[tuple[int, Prefix]] = set()

    def insert(self, of: Prompt, worker: int) -> None:
        self.marks |= {(worker, prefix) for prefix in prefixes(of)}

    def evict(self, of: Prompt, evicted_tokens: int, worker: int) -> None:
        gone = prefixes(of)[prompt_tokens(of) - evicted_tokens :]
        self.marks -= {(worker, prefix) for prefix in gone}

    def purge(self, worker: int) -> None:
        self.marks = {(w, prefix) for w, prefix in self.marks if w != worker}

    def cached_tokens(self, of: Prompt, workers: int) -> dict[int, int]:
        depth = {
            w: max((len(p) for p in prefixes(of) if (w, p) in self.marks), default=0)
            for w in range(workers)
        }
        return {w: tokens for w, tokens in depth.items() if tokens}

    def holders(self, of: Prompt, workers: int) -> tuple[int, set[int]]:
        depth = self.cached_tokens(of, workers)
        longest = max(depth.values(), default=0)
        return longest, {w for w, tokens in depth.items() if tokens == longest}
