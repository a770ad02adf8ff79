"""A reader of seeded faults: small human mistakes, each a replacement of text in one file.

``faults/ROOM.toml`` lists them. ``file`` is relative to the package, ``old`` occurs in it exactly
once, ``breaks`` names the damage, and ``tests`` (from the repository's root) should catch the
fault. If they do not, the ``tests`` of the whole ``ROOM.toml`` run, and then the whole fast suite.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("bench/fairbench")
FOLDER = Path(__file__).parent / "faults"


@dataclass(frozen=True)
class Fault:
    """A fault. ``room`` is the file that lists it, and ``room_tests`` are that file's tests."""

    name: str
    room: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    room_tests: tuple[str, ...]

    def seeded(self, text: str) -> str:
        """Return the file's text with the fault. Raises ValueError unless ``old`` occurs once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: {self.file} has its text {found} times, not once")
        return text.replace(self.old, self.new)


def read_faults(folder: Path = FOLDER) -> list[Fault]:
    """Read all faults, file by file."""
    faults = []
    for path in sorted(folder.glob("*.toml")):
        listed = tomllib.loads(path.read_text(encoding="utf-8"))
        faults += [
            Fault(
                room=path.stem,
                room_tests=tuple(listed["tests"]),
                **{**entry, "tests": tuple(entry["tests"])},
            )
            for entry in listed["fault"]
        ]
    return faults
