"""The behaviour of an attacker as a set of choices, and the known attacks.

Each choice, such as the number of client names, has an honest value, which honest clients use. The
honest twin of an attacker is a client that runs the same programs with honest values only.

The files in ``workloads/attacks/`` are generated from the known attacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field

from fairbench.errors import UsageError, of_file, unknown_name, validated

T = TypeVar("T")
NO_MORE = ConfigDict(extra="forbid")
"""The value of ``__pydantic_config__`` for dataclasses that refuse unknown keys."""


def checked(shape: type[T], data: Any, where: str) -> T:
    """Return ``data`` validated as ``shape``, a dataclass or named tuple of numbers and strings.

    Raises DataError, whose message names ``where``, the key, its value and the allowed values.
    """
    with of_file(where):
        return validated(shape, data)


AtLeast1 = Annotated[int, Field(ge=1, le=1000)]
Multiple = Annotated[float, Field(ge=1, le=1e6)]
Part = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The behaviour of a client, honest or cheating.

    A client is honest if all its choices have their default values.

    - ``identities`` is the number of client names under which the client sends its programs. With
      ``in_turn``, the client uses its names in turn, each for ``period_s`` seconds.
    - ``padding_tokens`` is the number of tokens put before each prompt. The padding is the
      attacker's own text or, with ``padding_of_victim``, repeats the first tokens of a victim's
      latest prompt. ``padding_fresh`` gives each call different padding, so that the padding
      evicts cached tokens of other clients.
    - ``keep_alive`` is the number of padding-only calls after each program, which keep the padding
      in the prefix cache.
    - ``split`` is the number of smaller calls into which each call of a program is divided.
    - ``max_new_multiple`` is the ratio of ``max_new_tokens`` to the real output length.
    - ``on_share`` is the fraction of each period (``period_s`` seconds) in which the client sends.
    - ``in_flight`` limits the programs that run at once under one client name; 0 means no limit.
    - ``reaction`` names the event after which new programs start: ``refill`` is a queued request,
      and ``eviction`` is an evicted prefix.
    - ``deadline_part`` is the claimed latency target divided by the real target.
    - ``weight_multiple`` is the claimed client weight divided by the real weight.
    - ``output_multiple`` is the attacker's output length divided by the honest output length.
    """

    __pydantic_config__ = NO_MORE

    identities: AtLeast1 = 1
    in_turn: bool = False
    padding_tokens: Annotated[int, Field(ge=0)] = 0
    padding_of_victim: bool = False
    split: AtLeast1 = 1
    max_new_multiple: Multiple = 1.0
    on_share: Part = 1.0
    period_s: Annotated[float, Field(gt=0)] = 60.0
    in_flight: Annotated[int, Field(ge=0)] = 0
    reaction: Literal["", "refill", "eviction"] = ""
    deadline_part: Part = 1.0
    weight_multiple: Multiple = 1.0
    output_multiple: AtLeast1 = 1
    padding_fresh: bool = False
    keep_alive: Annotated[int, Field(ge=0, le=1000)] = 0

    def plain(self) -> Behaviour:
        """Return the behaviour, with fields that have no effect reset to honest values."""
        turns = self.in_turn and self.identities > 1
        paced = turns or self.on_share < 1
        return replace(
            self,
            in_turn=turns,
            padding_of_victim=self.padding_of_victim and self.padding_tokens > 0,
            padding_fresh=self.padding_fresh and self.padding_tokens > 0,
            keep_alive=self.keep_alive if self.padding_tokens else 0,
            on_share=1.0 if turns else self.on_share,
            period_s=self.period_s if paced else HONEST.period_s,
            in_flight=0 if self.reaction else self.in_flight,
        )

    def changed(self) -> dict[str, Any]:
        """Return the fields that differ from honest behaviour, with their values."""
        return {key: one for key, one in asdict(self).items() if one != getattr(HONEST, key)}

    def __str__(self) -> str:
        return ", ".join(_words(self)) or "honest"


HONEST = Behaviour()

# ``CHOICES`` lists the values that the search tries for each field of ``Behaviour``; the honest
# value comes first.
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "identities": (1, 2, 3, 5, 8),
    "in_turn": (False, True),
    "padding_tokens": (0, 1000, 3000, 8000, 20_000),
    "padding_of_victim": (False, True),
    "split": (1, 2, 4, 8),
    "max_new_multiple": (1.0, 2.0, 4.0, 16.0),
    "on_share": (1.0, 0.5, 0.25, 0.1),
    "period_s": (60.0, 20.0, 120.0),
    "in_flight": (0, 2, 4, 8, 16),
    "reaction": ("", "refill", "eviction"),
    "deadline_part": (1.0, 0.5, 0.1),
    "weight_multiple": (1.0, 2.0, 4.0),
    "output_multiple": (1, 2, 4, 16),
    "padding_fresh": (False, True),
    "keep_alive": (0, 4, 16),
}


def behaviour_of(data: Mapping[str, Any]) -> Behaviour:
    """Return the behaviour with the given choices. Raises UsageError for an unknown choice."""
    names = [field.name for field in fields(Behaviour)]
    for name in data:
        if name not in names:
            raise unknown_name("behaviour", name, names)
    try:
        return Behaviour(**data)
    except TypeError as error:
        raise UsageError(str(error)) from None


# ``_TEXTS`` describes changed fields in the order in which ``str(behaviour)`` prints them.
_TEXTS: Mapping[str, str] = {
    "keep_alive": "{} keep-alive turns",
    "split": "calls split in {}",
    "max_new_multiple": "max_new_tokens x{:g}",
    "on_share": "on for {:.0%} of every {period_s:g} s",
    "in_flight": "at most {} programs under way",
    "reaction": "sent at {}",
    "deadline_part": "deadlines x{:g}",
    "weight_multiple": "weight x{:g}",
    "output_multiple": "answers {}x as long",
}


def _words(one: Behaviour) -> Iterator[str]:
    if one.identities > 1:
        turns = f" in turn, {one.period_s:g} s each" if one.in_turn else ""
        yield f"{one.identities} identities{turns}"
    if one.padding_tokens:
        whose = " of a victim's prefix" if one.padding_of_victim else ""
        fresh = ", new for each call" if one.padding_fresh else ""
        yield f"padding of {one.padding_tokens:,} tokens{whose}{fresh}"
    changed = one.changed()
    for name, text in _TEXTS.items():
        if name in changed:
            yield text.format(changed[name], period_s=one.period_s)


KNOWN: Mapping[str, Behaviour] = {
    "sybil": Behaviour(identities=5),
    "fresh-names": Behaviour(identities=8, in_turn=True, period_s=20.0),
    "padding-3k": Behaviour(padding_tokens=3000),
    "padding-20k": Behaviour(padding_tokens=20_000),
    "victims-prefix": Behaviour(padding_tokens=3000, padding_of_victim=True),
    "small-requests": Behaviour(split=8),
    "bursts": Behaviour(on_share=0.25, period_s=60.0),
    "leave-and-rejoin": Behaviour(on_share=0.5, period_s=20.0),
    "large-reservations": Behaviour(max_new_multiple=100.0),
    "one-at-a-time": Behaviour(in_flight=8),
    # The search found the following attacks on ``fair-finish`` with all defences enabled.
    "long-context-bursts": Behaviour(
        identities=2, padding_tokens=20_000, split=8, max_new_multiple=4.0, on_share=0.1
    ),
    "long-answers": Behaviour(output_multiple=16),
    "long-decoder": Behaviour(padding_tokens=8000, output_multiple=16),
    # The search found the following attack on ``fair-finish`` with all client limits except the
    # request limit.
    "long-answer-bursts": Behaviour(identities=5, on_share=0.1, output_multiple=16),
}
