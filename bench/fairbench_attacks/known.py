"""Known attacks, from which the files in ``workloads/attacks/`` are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fairbench.errors import unknown_name
from fairbench_attacks.behaviour import Behaviour

if TYPE_CHECKING:
    from fairbench.workloads.model import WorkloadSpec

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
    # Found by a search against `fair-finish` with all defences.
    "long-context-bursts": Behaviour(
        identities=2, padding_tokens=20_000, split=8, max_new_multiple=4.0, on_share=0.1
    ),
    "long-answers": Behaviour(output_multiple=16),
    "long-decoder": Behaviour(padding_tokens=8000, output_multiple=16),
    # Found by a search against `fair-finish` with client limits, except the limit on requests.
    "long-answer-bursts": Behaviour(identities=5, on_share=0.1, output_multiple=16),
}

HEADER = """#:schema ../schema.json
# An attack and its honest twin: fairbench attack workloads/attacks/{name}.toml --scheduler vtc
# Written from bench/fairbench_attacks/known.py; see docs/guide/attack.md.

"""


def named_workload(name: str) -> WorkloadSpec:
    """Return a known attack, or that of a bundled workload or file."""
    from fairbench.files.toml_text import is_path
    from fairbench.workloads.spec import load_workload, workload_names

    if name in KNOWN:
        return known_workload(name)
    if not is_path(name) and name not in workload_names():
        raise unknown_name("attack", name, KNOWN)
    return load_workload(name)


def known_workload(name: str) -> WorkloadSpec:
    """Return a known attack on workload judge: three victims, and an attacker of 4x load."""
    from fairbench.workloads.spec import load_workload
    from fairbench_attacks.workload import Stakes, attack_workload

    title = f"attack-{name}"
    return attack_workload(load_workload("judge"), "none", KNOWN[name], Stakes(), name=title)


def known_file(name: str) -> str:
    """Return the text of ``workloads/attacks/NAME.toml``."""
    from fairbench_attacks.store import attack_file

    return HEADER.format(name=name) + attack_file(known_workload(name))
