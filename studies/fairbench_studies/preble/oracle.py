"""The oracle partition: each group of prompts, or each client, always uses the same GPU."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from fairbench.core import Prompt, Request, prompt_tokens
from fairbench.schedulers.base import Router
from fairbench.schedulers.prefix_tree import truncate


class Oracle(Router):
    """A router that sends all prompts with a common prefix to one GPU.

    The oracle of [Preble] §H knows all requests of a workload in advance. The paper's authors
    choose a layer of the prefix tree by hand, and split the layer evenly among the GPUs. Like the
    authors' code, this class sends each new prefix to the next GPU in turn, whatever the GPUs'
    loads and caches.
    """

    name = "oracle"

    @dataclass(frozen=True)
    class Params:
        """Parameters. ``by`` says how prompts are grouped: by their first tokens, or by client.

        The prompts of a group share their first ``layer_tokens`` tokens. If ``layer_tokens`` is 0,
        the prompts of a group share the prefix common to all prompts, and the next token. The
        router remembers only the latest ``groups`` groups.
        """

        by: Literal["prefix", "client"] = "prefix"
        layer_tokens: Annotated[int, Ge(0)] = 0
        groups: Annotated[int, Gt(0)] = 100_000

    def __init__(self, params: Params, workers: int) -> None:
        self.params = params
        self._workers = list(range(workers))
        # ``_placed`` maps each client, or each group of prompts with a shared prefix, to a worker.
        self._placed: OrderedDict[Prompt | str, int] = OrderedDict()
        self._last = -1
        # ``_shared`` is the common prefix of all earlier prompts, or None before the first prompt.
        self._shared: Prompt | None = None

    def route(self, request: Request, now_s: float) -> int:
        group = request.client if self.params.by == "client" else self._group(request.prompt)
        if group not in self._placed:
            self._last = next((w for w in self._workers if w > self._last), self._workers[0])
            self._placed[group] = self._last
            if len(self._placed) > self.params.groups:
                self._placed.popitem(last=False)
        self._placed.move_to_end(group)
        return self._placed[group]

    def _group(self, prompt: Prompt) -> Prompt:
        """Return the first tokens of a prompt, which are the same for all prompts of its group."""
        if self.params.layer_tokens:
            return _first(prompt, self.params.layer_tokens)
        shared = prompt if self._shared is None else _shared(self._shared, prompt)
        layer = prompt_tokens(shared) + 1
        if shared != self._shared:
            self._shared = shared
            # Groups that share their first ``layer`` tokens are merged, and the merged group keeps
            # the position of its first member.
            groups, self._placed = self._placed, OrderedDict()
            for group, worker in groups.items():
                assert not isinstance(group, str)
                self._placed.setdefault(_first(group, layer), worker)
        return _first(prompt, layer)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        self.on_worker_leave(worker, now_s)
        self._workers = sorted([*self._workers, worker])

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        self._workers = [w for w in self._workers if w != worker]
        self._placed = OrderedDict((g, w) for g, w in self._placed.items() if w != worker)


def _first(prompt: Prompt, tokens: int) -> Prompt:
    return truncate(prompt, min(tokens, prompt_tokens(prompt)))


def _shared(one: Prompt, other: Prompt) -> Prompt:
    tokens = 0
    for (key, length), (other_key, other_length) in zip(one, other, strict=False):
        if key != other_key:
            break
        tokens += min(length, other_length)
        if length != other_length:
            break
    return truncate(one, tokens)
