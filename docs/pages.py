"""The pages of the site for MkDocs and Zensical: ``python docs/pages.py OUT_DIR``.

README, RUN, the changelog, how to contribute and docs/ become one tree. Links that lead elsewhere
in the repository lead to a copy of that file.
"""

from __future__ import annotations

import html
import posixpath
import re
import shutil
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
# Map from a document of the repository to its page on the site.
PAGES = {
    "README.md": "index.md",
    "RUN.md": "run.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    **{
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "results").glob("*.md"))
    },
    **{
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix()
        for path in sorted((ROOT / "docs").rglob("*.md"))
    },
}
STYLE = "site.css"
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# Code in a table with a bar, which GitHub wants escaped and MkDocs shows with its backslash.
BAR = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")


def place_of(target: str) -> str:
    """Return the path of a repository file on the site."""
    return PAGES.get(target, f"files/{target}")


def page(document: str, wanted: set[str]) -> str:
    """Return a document with links that hold on the site; add files they need to ``wanted``."""
    text = (ROOT / document).read_text(encoding="utf-8")
    here = PurePosixPath(document).parent

    def moved(match: re.Match[str]) -> str:
        link = match[1]
        if "://" in link:
            return link
        target = posixpath.normpath(str(here / link))
        if (ROOT / target).is_dir():
            return f"{link}/" if target not in _FOLDERS else _relative(_FOLDERS[target], document)
        if target not in PAGES:
            wanted.add(target)
        return _relative(place_of(target), document)

    kept: list[str] = CODE.findall(text)
    parts = [BAR.sub(_bar, LINK.sub(moved, part)) for part in CODE.split(text)]
    return "".join(part + code for part, code in zip(parts, [*kept, ""], strict=True))


def _bar(match: re.Match[str]) -> str:
    return f"<code>{html.escape(match[1]).replace(chr(92) + '|', '&#124;')}</code>"


def _relative(place: str, document: str) -> str:
    return posixpath.relpath(place, posixpath.dirname(place_of(document)) or ".")


# A link to a folder leads to the document that describes it.
_FOLDERS = {"workloads": "files/workloads/tot.toml"}


def stage(out: Path) -> None:
    """Write every page, and the files to which pages link."""
    shutil.rmtree(out, ignore_errors=True)
    wanted = {"workloads/tot.toml"}
    for document, place in PAGES.items():
        target = out / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(document, wanted), encoding="utf-8")
    shutil.copyfile(ROOT / "docs" / STYLE, out / STYLE)
    for file in sorted(wanted):
        target = out / place_of(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, target)


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
