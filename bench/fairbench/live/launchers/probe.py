"""A probe of a remote Python's software, so that machines with other versions are rejected.

    python -m fairbench.live.launchers.probe versions [MODULE...]
    python -m fairbench.live.launchers.probe ports COUNT

prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairbench.errors import UsageError
from fairbench.live.launchers.base import Wanted
from fairbench.live.processes.ports import free_ports
from fairbench.results.manifest import environment, library_version

OWN_CODE = "fairbench"  # the key under which ``environment`` has the version of our own code


def versions(*modules: str) -> dict[str, str]:
    """Return the versions that affect results, including those of the engine's ``modules``."""
    found = {name: f"{library_version(name)}" for name in modules}
    return {**environment(), **found}


def ports(count: str) -> list[int]:
    """Return distinct ports that are free on this machine."""
    return free_ports(int(count))


WORDS: Mapping[str, Callable[..., Any]] = {"versions": versions, "ports": ports}


def engine_modules(wanted: Wanted) -> Sequence[str]:
    """Return the engine's modules, whose versions must be equal at all places."""
    return [name for name in wanted.python.modules if name != OWN_CODE]


def check_alike(found: Mapping[str, Mapping[str, str]], wanted: Wanted) -> None:
    """Raise UsageError, naming the machine, if the software of a machine differs.

    ``found`` are ``versions`` by machine. An emulator is our own code, so all versions must be
    equal to ours; for the Python of an engine, only our code's version must.
    """
    here = versions()
    if wanted.python.modules:
        here = {OWN_CODE: here[OWN_CODE]}
    first = next(iter(found), "")
    for name, theirs in found.items():
        for expected, where in ((here, "here"), (found[first], f"on {first}")):
            for key, value in expected.items():
                if theirs.get(key) != value:
                    raise UsageError(
                        f"{name} has {key} {theirs.get(key)}, and {where} it is {value}: "
                        "servers would differ; install the same version on both"
                    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(WORDS[sys.argv[1]](*sys.argv[2:])) + "\n")
