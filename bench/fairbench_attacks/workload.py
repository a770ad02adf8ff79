"""The workload of an attack: a scenario with the attack, and a scenario without the attack.

Client 0 is the attacker, and the next clients are the victims. Further identities of the attacker
have the highest client numbers, so that the victims' requests are equal with and without the
attack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from pydantic import ValidationError

from fairbench.errors import UsageError, explain
from fairbench.targets import parse_targets
from fairbench.workloads.model import WorkloadSpec
from fairbench_attacks.behaviour import Behaviour

HONEST, ATTACK = "honest", "attack"
OWNER = "client-0"

Params = Mapping[str, Any]


class Stakes(NamedTuple):
    """The number of victims, and the attacker's load divided by a victim's load."""

    victims: int = 3
    multiple: float = 4.0


def attack_workload(
    base: WorkloadSpec,
    scenario: str,
    behaviour: Behaviour,
    stakes: Stakes,
    *,
    name: str = "attack",
    rate_part: float = 1.0,
) -> WorkloadSpec:
    """Return a workload in which the clients of an attack run the programs of ``base``.

    ``behaviour`` describes how the attacker differs from an honest client. ``rate_part`` is the
    attacker's load divided by the load of the honest client. Raises UsageError if the clients of
    ``base`` are unequal, if ``base`` does not support the behaviour, or if ``stakes`` are invalid.
    """
    chosen = base.scenario(scenario)
    if chosen.others or base.classes or base.arrivals:
        raise UsageError(
            f"workload {base.name}: attacks need a workload with equal clients; choose "
            "a workload without the tables others, classes and arrivals"
        )
    data = base.model_dump(mode="json", exclude_none=True)
    usual = chosen.model_dump(mode="json", exclude_none=True) | {"misbehaving": []}
    params = {**base.params, **chosen.params}
    ids = [0, *range(stakes.victims + 1, stakes.victims + behaviour.identities)]
    owners = {f"client-{number}": OWNER for number in ids[1:]}
    wrong = [
        {
            "client": number,
            **_sends(base.program, behaviour, stakes, params, turn, rate_part),
            **_claims(base, behaviour),
        }
        for turn, number in enumerate(ids)
    ]
    data |= {
        "name": name,
        "description": f"{base.name}: {behaviour}",
        "clients": stakes.victims + len(ids),
        "scenarios": {
            HONEST: usual
            | {
                "description": f"client 0 sends {stakes.multiple:g} times as much",
                "clients": stakes.victims + 1,
                "misbehaving": [{"client": 0, "rate_multiple": stakes.multiple}],
            },
            ATTACK: usual | {"description": str(behaviour), "misbehaving": wrong},
        },
    }
    for key in ("client_names", "client_weights"):
        data.pop(key, None)
    try:
        return WorkloadSpec.model_validate(data | ({"client_owners": owners} if owners else {}))
    except ValidationError as error:
        raise UsageError(f"an attack on {base.name} is not valid: {explain(error)}") from None


_SENT_AS_CALLED = ("max_new_multiple", "output_multiple", "in_flight", "reaction")


def _sends(
    program: str, one: Behaviour, stakes: Stakes, params: Params, turn: int, rate_part: float
) -> dict[str, Any]:
    rate = stakes.multiple * rate_part
    sends: dict[str, Any] = {}
    if one.in_turn:
        on = {"on_s": one.period_s, "off_s": (one.identities - 1) * one.period_s}
        phases = [{"for_s": turn * one.period_s, "multiple": 0.0}] if turn else []
        phases += [{"for_s": 1.0, "multiple": 1.0, **on}]
        sends["arrivals"] = {"kind": "phases", "params": {"phases": phases, "gaps": "gamma"}}
    elif one.on_share < 1:
        on_s = one.on_share * one.period_s
        times = {"on_s": on_s, "off_s": one.period_s - on_s, "gaps": "gamma"}
        sends["arrivals"] = {"kind": "on-off", "params": times}
        rate /= one.on_share * one.identities
    else:
        rate /= one.identities
    sends["rate_multiple"] = rate
    changed = one.changed()
    if one.padding_tokens:
        sends["padding_tokens"] = one.padding_tokens
        if one.padding_of_victim:
            sends["padding_of"] = 1
        sends |= {key: changed[key] for key in ("padding_fresh", "keep_alive") if key in changed}
    sends |= {key: changed[key] for key in _SENT_AS_CALLED if key in changed}
    if one.split > 1:
        if program not in SPLITS:
            known = ", ".join(sorted(SPLITS))
            raise UsageError(
                f"split: programs of kind {program} cannot be split; choose from {known}"
            )
        sends["params"] = SPLITS[program](params, one.split)
    return sends


def _claims(base: WorkloadSpec, one: Behaviour) -> dict[str, Any]:
    claims: dict[str, Any] = {}
    if one.deadline_part < 1:
        if not base.targets:
            raise UsageError(
                f"deadline_part: workload {base.name} has no latency targets; add targets to "
                "it, or leave deadline_part out"
            )
        promised = parse_targets(base.targets, "targets").given()
        claims["targets"] = {
            name: str(target._replace(amount=target.amount * one.deadline_part))
            for name, target in promised
        }
    if one.weight_multiple > 1:
        if not base.client_weights:
            raise UsageError(
                f"weight_multiple: workload {base.name} has no weights; add weights to it, or "
                "leave weight_multiple out"
            )
        claims["weight"] = one.weight_multiple
    return claims


def _split_judge(params: Params, parts: int) -> dict[str, Any]:
    tokens = max(1, round(params["judgement_tokens"] / parts))
    return {"dimensions": min(256, params["dimensions"] * parts), "judgement_tokens": tokens}


def _split_samples(params: Params, parts: int) -> dict[str, Any]:
    tokens = max(1.0, params["output_tokens"] / parts)
    return {"samples": min(1000, params["samples"] * parts), "output_tokens": tokens}


# Each function in ``SPLITS`` divides a program's output among ``parts`` times as many calls.
SPLITS: Mapping[str, Callable[[Params, int], dict[str, Any]]] = {
    "judge": _split_judge,
    "samples": _split_samples,
}


def choices(
    base: WorkloadSpec, all_choices: Mapping[str, tuple[Any, ...]]
) -> dict[str, tuple[Any, ...]]:
    """Return the values to try for each field of ``Behaviour`` that ``base`` supports."""
    honest = asdict(Behaviour())
    there = {
        "split": base.program in SPLITS,
        "deadline_part": bool(base.targets),
        "weight_multiple": bool(base.client_weights),
    }
    return {
        name: values if there.get(name, True) else (honest[name],)
        for name, values in all_choices.items()
    }
