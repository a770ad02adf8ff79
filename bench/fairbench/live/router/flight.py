"""A flight: one request at one worker, with the state at the time it was created."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from fairbench.core import Prompt, Request
from fairbench.live.json_errors import Problem
from fairbench.schedulers.token_pages import segments_of


@dataclass(slots=True, eq=False)
class Flight:
    """A request at a worker, until ``Dispatcher.finish``.

    ``routed`` is the worker where the router believes the request to be. ``first_token_s`` is
    the time at which its answer began to stream. ``on_lost`` is called once if the worker
    leaves meanwhile; ``died`` then says that its process ended, or that it says so itself.
    """

    request: Request
    worker: int
    routed: int
    on_lost: Callable[[], None] = lambda: None
    died: bool = False
    first_token_s: float | None = None


class Wish(NamedTuple):
    """Workers to avoid, or the only target of a probe, even if out of rotation."""

    avoid: Collection[int] = ()
    probe: int | None = None


ANYWHERE = Wish()
OnSent: TypeAlias = Callable[[Flight | Problem], None]


def pages_of(ids: array[int], page_tokens: int) -> Prompt:
    """Return a prompt as routers see it, without its last, incomplete page.

    The incomplete page could only match an identical ending, and no KV event would ever report it.
    """
    whole = ids[: len(ids) - len(ids) % page_tokens]
    whole.append(0)
    return segments_of(whole)[:-1]  # so that the page left out is the last in any case
