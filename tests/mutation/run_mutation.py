"""Seed every fault in turn and check that the fast suite catches it.

python -m tests.mutation.run_mutation [FAULT ...] [--missing] [--output FILE] [--rooms-only]

Works on a copy of the repository. Prints a line per fault and updates the JSON record as it goes.
Exits with 1 if less than 95% of the recorded faults were caught, with 2 if the tests fail without a
fault.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

from tests.mutation.mutation_faults import PACKAGE, ROOT, Fault, read_faults

WANTED = 0.95
OUTPUT = ROOT / "results" / "mutation.json"
SUITE = ("tests",)
NOT_COPIED = (".git", ".venv", "__pycache__", ".hypothesis", "build", "dist", "runs", "site")
# a test that runs longer, such as an endless loop, counts as caught
CPU_S = {"own": 180, "room": 600, "suite": 3000}
MEMORY = 8 << 30
FIRST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


Row = dict[str, str | None]


class Counts(NamedTuple):
    """The number of caught faults in a record."""

    caught: int
    of: int


class TestsFail(Exception):
    """The tests fail without a fault, or do not run."""


class Copy:
    """A copy of the repository in which faults are seeded, and its tests."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        shared = ROOT.parent / "shared"
        if shared.exists():  # tests on real data look beside the checkout
            (folder / "shared").symlink_to(shared)
        self._passes: set[tuple[str, ...]] = set()
        self._see_that_it_is_imported()

    def first_failure(self, tests: Sequence[str], stage: str) -> str | None:
        """Return the first failing test, or None if all pass.

        Raises TestsFail if the tests do not run.
        """
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-rfE"),
            *("-p", "no:cacheprovider", "-p", "no_shrinking", "--hypothesis-seed=0"),
            "--ignore=tests/mutation",
            *tests,
        ]
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self._environment(),
            capture_output=True,
            text=True,
            preexec_fn=lambda: _limit(CPU_S[stage]),
            check=False,
        )
        if done.returncode < 0:
            return f"(stopped after {CPU_S[stage]} s of CPU)"
        if done.returncode not in (0, 1):
            raise TestsFail(
                f"{' '.join(tests)}: exit code {done.returncode}\n{done.stdout[-2000:]}"
            )
        failed = FIRST.search(done.stdout)
        assert (failed is None) == (done.returncode == 0), done.stdout[-2000:]
        return failed[1] if failed else None

    def check_without_fault(self, tests: Sequence[str], stage: str) -> None:
        """Raise TestsFail unless these tests pass without a fault."""
        if tuple(tests) not in self._passes:
            if failed := self.first_failure(tests, stage):
                raise TestsFail(f"{failed} fails without any fault")
            self._passes.add(tuple(tests))

    def noticed(self, fault: Fault, stages: dict[str, Sequence[str]]) -> tuple[str, str] | None:
        """Return the stage and the test that catch the fault, or None if it survives."""
        path = self.root / PACKAGE / fault.file
        sound = path.read_text(encoding="utf-8")
        for stage, tests in stages.items():
            self.check_without_fault(tests, stage)
            _write(path, fault.seeded(sound))
            try:
                if failed := self.first_failure(tests, stage):
                    return stage, failed
            finally:
                _write(path, sound)
        return None

    def _environment(self) -> dict[str, str]:
        paths = [self.root / "bench", self.root / "studies", Path(__file__).parent]
        # Bytecode is written, because compiling all sources again would take most of the time.
        kept = {key: one for key, one in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        return kept | {"PYTHONPATH": os.pathsep.join(map(str, paths))}

    def _see_that_it_is_imported(self) -> None:
        command = [sys.executable, "-c", "import fairbench; print(fairbench.__file__)"]
        found = subprocess.run(
            command, cwd=self.root, env=self._environment(), capture_output=True, text=True
        ).stdout.strip()
        if not found.startswith(str(self.root)):
            raise TestsFail(f"the tests would import {found or 'nothing'}, not the copy")


def _write(path: Path, text: str) -> None:
    """Write new source, and remove old bytecode. Python compares times only by whole seconds."""
    path.write_text(text, encoding="utf-8")
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def _limit(cpu_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def run(faults: list[Fault], *, rooms_only: bool) -> Iterator[Row]:
    """Seed each of the faults, and yield a row for each."""
    with tempfile.TemporaryDirectory(prefix="fairbench-mutation-") as folder:
        copy = Copy(Path(folder))
        copy.check_without_fault(sorted({test for fault in faults for test in fault.tests}), "room")
        for fault in faults:
            copy._passes.add(fault.tests)
            stages = {"own": fault.tests, "room": fault.room_tests, "suite": SUITE}
            if rooms_only:
                del stages["suite"]
            stage, test = copy.noticed(fault, stages) or (None, None)
            print(f"{'caught  ' if test else 'SURVIVED'}  {fault.name:52}{test or ''}", flush=True)
            named = {"name": fault.name, "file": fault.file, "breaks": fault.breaks}
            yield named | {"caught_by": test, "stage": stage}


def recorded(path: Path) -> list[Row]:
    """Return the rows of a record, or none without a record."""
    return json.loads(path.read_text(encoding="utf-8"))["faults"] if path.exists() else []


def record(row: Row, faults: list[Fault], path: Path) -> Counts:
    """Update one fault in the record. Return the number of caught faults."""
    by_name = {one["name"]: one for one in [*recorded(path), row]}
    listed = [by_name[fault.name] for fault in faults if fault.name in by_name]
    caught = sum(row["caught_by"] is not None for row in listed)
    whole = {"caught": caught, "of": len(listed), "score": round(caught / len(listed), 4)}
    path.write_text(json.dumps(whole | {"faults": listed}, indent=1) + "\n", encoding="utf-8")
    return Counts(caught, len(listed))


def main() -> int:
    parser = argparse.ArgumentParser(description="Seed faults and see whether tests notice.")
    parser.add_argument("names", nargs="*", metavar="FAULT", help="only these")
    parser.add_argument("--missing", action="store_true", help="those that the record lacks")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE")
    parser.add_argument("--rooms-only", action="store_true", help="do not ask the whole suite")
    given = parser.parse_args()
    faults = read_faults()
    if unknown := set(given.names) - {fault.name for fault in faults}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    known = {row["name"] for row in recorded(given.output)} if given.missing else set()
    chosen = [
        one for one in faults if one.name in (given.names or {one.name}) and one.name not in known
    ]
    began = time.monotonic()
    counts = Counts(0, 0)
    try:
        for row in run(chosen, rooms_only=given.rooms_only):
            counts = record(row, faults, given.output)
    except TestsFail as failed:
        print(failed, file=sys.stderr)
        return 2
    minutes = (time.monotonic() - began) / 60
    print(f"{counts.caught} of {counts.of} caught, {len(faults)} listed; {minutes:.0f} minutes")
    return 0 if counts.caught >= WANTED * counts.of else 1


if __name__ == "__main__":
    sys.exit(main())
