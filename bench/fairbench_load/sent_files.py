"""Files to send to the nodes of a cluster, and a check of the nodes' software versions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

from fairbench.errors import UsageError
from fairbench.execute.tasks import Reading, Saving, Task
from fairbench.files.reader import VARIABLE as READ_MIB
from fairbench.files.reader import digest
from fairbench.results.manifest import environment
from fairbench.schedulers.registry import VARIABLE as SCHEDULERS
from fairbench.schedulers.registry import user_files
from fairbench.workloads.programs import VARIABLE as PROGRAMS
from fairbench.workloads.programs import program_files
from fairbench.workloads.traces.read import find_trace_file


@dataclass(frozen=True, slots=True)
class SentFiles:
    """The files and software versions that each node of a cluster receives once.

    - ``files`` maps the paths of the files that tasks read, relative to the working directory, to
      the files' contents.
    - ``fixed`` maps absolute paths to digests of files; these files must exist on every node.
    - ``code`` maps ``FAIRBENCH_SCHEDULERS`` and ``FAIRBENCH_PROGRAMS`` to the names and contents of
      the Python files that these environment variables name.
    """

    environment: Mapping[str, str]
    variables: Mapping[str, str]
    files: Mapping[str, bytes]
    fixed: Mapping[str, str]
    code: Mapping[str, Sequence[tuple[str, bytes]]]

    @classmethod
    def packed(cls, tasks: Iterable[Task]) -> SentFiles:
        """Pack all files that the tasks read, so that the files can be sent to other machines.

        Raises UsageError if a file cannot be sent to other machines.
        """
        readers = [task for task in tasks if isinstance(task, Reading | Saving)]
        return cls.with_files(name for task in readers for name in task.reads)

    @classmethod
    def with_files(cls, names: Iterable[str]) -> SentFiles:
        """Pack the files with the given names for all nodes of the cluster.

        Raises UsageError if a file cannot be sent to other machines.
        """
        files: dict[str, bytes] = {}
        fixed: dict[str, str] = {}
        for name in dict.fromkeys(names):
            if ".." in PurePath(name).parts:
                raise UsageError(
                    f"{name}: cannot be copied to the nodes of the cluster; run fairbench "
                    "in a folder above it, or give an absolute path that is the same on "
                    "every node"
                )
            if Path(name).is_dir():
                paths = (path for path in sorted(Path(name).rglob("*")) if path.is_file())
                found = {str(path): path for path in paths}
            else:
                found = {name: find_trace_file(name)}
            for below, file in found.items():
                if PurePath(name).is_absolute():
                    fixed[below] = digest(file, below)
                else:
                    files[below] = file.read_bytes()
        variables = {READ_MIB: os.environ[READ_MIB]} if READ_MIB in os.environ else {}
        code = {
            variable: [(path.name, path.read_bytes()) for path in paths]
            for variable, paths in ((SCHEDULERS, user_files()), (PROGRAMS, program_files()))
        }
        return cls(environment(), variables, files, fixed, code)

    def check(self, node: str) -> None:
        """Raise UsageError if software or files differ between ``node`` and this machine."""
        for key, theirs in environment().items():
            if (ours := self.environment.get(key)) != theirs:
                raise UsageError(
                    f"{key} is {theirs} on node {node}, but {ours} on this machine; install the "
                    "same version on both machines, because results would differ otherwise"
                )
        for name, expected in self.fixed.items():
            if not Path(name).is_file() or digest(Path(name), name) != expected:
                raise UsageError(
                    f"node {node} does not have the file {name}; give a path relative to "
                    "the folder in which you run fairbench, so that fairbench copies the file"
                )

    @contextmanager
    def unpacked(self, folder: Path) -> Iterator[None]:
        """Unpack the files into ``folder``, the working directory within the ``with`` block."""
        for name, content in self.files.items():
            write_file(folder / name, content)
        variables = dict(self.variables)
        for variable, named in self.code.items():
            own = [folder / f".{variable}" / f"{n}" / name for n, (name, _) in enumerate(named)]
            for path, (_, content) in zip(own, named, strict=True):
                write_file(path, content)
            variables[variable] = os.pathsep.join(map(str, own))
        before, around = Path.cwd(), {key: os.environ.get(key) for key in variables}
        os.environ.update(variables)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
            for key, value in around.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value


def write_file(path: Path, content: bytes) -> None:
    """Write a file, and create missing folders in its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
