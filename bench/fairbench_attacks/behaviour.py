"""The choices of an attacker.

Each choice has an honest value; the honest twin has only honest values.

An attacker runs the same programs as its twin, and as often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field

from fairbench.errors import UsageError, of_file, unknown_name, validated

T = TypeVar("T")
NO_MORE = ConfigDict(extra="forbid")
"""The ``__pydantic_config__`` of a dataclass that refuses unknown keys."""


def checked(shape: type[T], data: Any, where: str) -> T:
    """Return ``data`` validated as ``shape``, a dataclass or named tuple of numbers and texts.

    Raises DataError: one line that names ``where``, the key, its value and what is allowed.
    """
    with of_file(where):
        return validated(shape, data)


AtLeast1 = Annotated[int, Field(ge=1, le=1000)]
Multiple = Annotated[float, Field(ge=1, le=1e6)]
Part = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The behaviour of a client. The defaults are honest.

    - ``identities`` share the programs, at the same time or ``in_turn`` for ``period_s`` each.
    - ``padding_tokens`` are prepended to every prompt. The padding is the attacker's own text, or
      repeats the first tokens of a victim's latest prompt. ``padding_fresh`` gives each call unique
      text, which floods the cache (scan flooding).
    - ``keep_alive`` times after each program its padding is sent alone, which pins it in the cache.
    - ``split`` is the number of smaller calls that replace each call of a program.
    - ``max_new_multiple`` is the factor by which the reserved output exceeds the real output.
    - ``on_share`` below 1 sends all load within that fraction of each ``period_s``.
    - ``in_flight`` limits the running programs per identity. 0 means no limit.
    - ``reaction`` starts programs when the identity's own requests show the named event.
    - ``deadline_part`` is the claimed fraction of the promised time.
    - ``weight_multiple`` is the factor by which the claimed weight exceeds the real weight.
    - ``output_multiple`` is the factor by which its answers are longer than the twin's.
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
        """Return the behaviour with honest values for all choices that have no effect."""
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
        """Return the choices that are not honest, by name."""
        return {key: one for key, one in asdict(self).items() if one != getattr(HONEST, key)}

    def __str__(self) -> str:
        return ", ".join(_words(self)) or "honest"


HONEST = Behaviour()

# The choices of a search, the honest value first.
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
    """Build a behaviour from its dishonest choices. Raises UsageError for an unknown name."""
    names = [field.name for field in fields(Behaviour)]
    for name in data:
        if name not in names:
            raise unknown_name("behaviour", name, names)
    try:
        return Behaviour(**data)
    except TypeError as error:
        raise UsageError(str(error)) from None


# Texts of the choices that stand alone, in the order of the description.
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
