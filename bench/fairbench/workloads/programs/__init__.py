"""The program kinds, by their names in workload files. A new kind is one file and one line here."""

from __future__ import annotations

from fairbench.errors import unknown_name
from fairbench.workloads.items import Item
from fairbench.workloads.programs.agent import Agent
from fairbench.workloads.programs.base import Job, Program
from fairbench.workloads.programs.chat import Chat
from fairbench.workloads.programs.judge import Judge
from fairbench.workloads.programs.long_qa import LongQA
from fairbench.workloads.programs.replay import Replay
from fairbench.workloads.programs.samples import Samples
from fairbench.workloads.programs.session import Session
from fairbench.workloads.programs.single import Single
from fairbench.workloads.programs.tool_use import ToolUse
from fairbench.workloads.programs.tree_of_thought import TreeOfThought
from fairbench.workloads.programs.user_files import user_kinds

__all__ = [
    "KINDS",
    "Agent",
    "Chat",
    "Item",
    "Job",
    "Judge",
    "LongQA",
    "Program",
    "Replay",
    "Samples",
    "Session",
    "Single",
    "ToolUse",
    "TreeOfThought",
    "program_class",
]

KINDS: dict[str, type[Program]] = {
    program.kind: program
    for program in (
        TreeOfThought,
        Judge,
        LongQA,
        Chat,
        Single,
        ToolUse,
        Agent,
        Samples,
        Replay,
        Session,
    )
}


def program_class(kind: str) -> type[Program]:
    """Return the class of a program kind, also a user's. Raises UsageError for an unknown kind."""
    if kind in KINDS:
        return KINDS[kind]
    own = user_kinds(KINDS)
    if kind not in own:
        raise unknown_name("program kind", kind, {**KINDS, **own})
    return own[kind]
