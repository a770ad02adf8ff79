"""The flags of experiments as a table for the documentation."""

from __future__ import annotations

from collections.abc import Iterator

from fairbench.config.flags import COMPARE, PLAN, RUN, SWEEP
from fairbench.config.parse_flags import PANELS, Flag
from fairbench.report.pages.markdown import escaped, table

HEADINGS = ("flag", "meaning", "commands", "key in a file", "unit", "default")
TABLES = {"run": RUN, "compare": COMPARE, "plan": PLAN, "sweep": SWEEP}


def flag_table() -> str:
    """Return a table with a row per flag and meaning, in the order of ``--help``."""
    found: dict[Flag, list[str]] = {}
    for command, flags in TABLES.items():
        for one in flags.values():
            found.setdefault(one, []).append(command)
    rows = sorted(found.items(), key=lambda row: PANELS.index(row[0].panel))
    lines = table(HEADINGS, (list(_row(one, commands)) for one, commands in rows), str)
    return "\n".join(lines) + "\n"


def _row(one: Flag, commands: list[str]) -> Iterator[str]:
    yield f"`{one.option}`"
    yield escaped(one.help).replace("\\`", "`")
    yield ", ".join(commands)
    yield "" if one.key.startswith("trace.") else f"`{one.key}`"
    yield one.unit
    yield escaped(str(one.default))
