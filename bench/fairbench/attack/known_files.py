"""The files in ``workloads/attacks/``, written from the known attacks."""

from __future__ import annotations

from fairbench.attack.known import KNOWN
from fairbench.attack.store import attack_file
from fairbench.attack.workload import Stakes, attack_workload
from fairbench.errors import unknown_name
from fairbench.workloads.inherit import is_path
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.spec import load_workload, workload_names

HEADER = """#:schema ../schema.json
# An attack and its honest twin: fairbench attack workloads/attacks/{name}.toml --scheduler vtc
# Written from bench/fairbench/attack/known.py; see docs/guide/attack.md.

"""


def named_workload(name: str) -> WorkloadSpec:
    """Return a known attack, or that of a bundled workload or file."""
    if name in KNOWN:
        return known_workload(name)
    if not is_path(name) and name not in workload_names():
        raise unknown_name("attack", name, KNOWN)
    return load_workload(name)


def known_workload(name: str) -> WorkloadSpec:
    """Return a known attack on workload judge: three victims, and an attacker of 4x load."""
    title = f"attack-{name}"
    return attack_workload(load_workload("judge"), "none", KNOWN[name], Stakes(), name=title)


def known_file(name: str) -> str:
    """Return the text of ``workloads/attacks/NAME.toml``."""
    return HEADER.format(name=name) + attack_file(known_workload(name))
