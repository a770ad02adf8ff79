"""The program kinds, by their names in workload files. A new kind is one file and one line here."""

from __future__ import annotations

from fairbench.errors import unknown_name
from fairbench.named import Named, imported, named
from fairbench.workloads.programs.base import Program
from fairbench.workloads.programs.user_files import user_kinds

_HERE = "fairbench.workloads.programs"
_HOMES = {
    "tree-of-thought": f"{_HERE}.tree_of_thought:TreeOfThought",
    "judge": f"{_HERE}.judge:Judge",
    "long-qa": f"{_HERE}.long_qa:LongQA",
    "chat": f"{_HERE}.chat:Chat",
    "single": f"{_HERE}.single:Single",
    "tool-use": f"{_HERE}.tool_use:ToolUse",
    "agent": f"{_HERE}.agent:Agent",
    "samples": f"{_HERE}.samples:Samples",
    "replay": f"{_HERE}.replay:Replay",
    "session": f"{_HERE}.session:Session",
}


def _bundled(kind: str) -> type[Program]:
    found: type[Program] = imported(_HOMES[kind])
    return found


KINDS: Named[type[Program]] = named(_HOMES, _bundled)


def program_class(kind: str) -> type[Program]:
    """Return the class of a program kind, also a user's. Raises UsageError for an unknown kind."""
    if kind in KINDS:
        return KINDS[kind]
    own = user_kinds(KINDS)
    if kind not in own:
        raise unknown_name("program kind", kind, [*KINDS, *own])
    return own[kind]
