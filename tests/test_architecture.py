"""Test that pages on the code name existing files and modules, and every package."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bench" / "fairbench"
PATH = re.compile(r"`((?:[\w.-]+/)*[\w.-]+(?:\.(?:py|toml|json|csv|md)|/))`")
TEXTS = {
    name: (ROOT / "docs" / folder / f"{name}.md").read_text(encoding="utf-8")
    for folder, name in (("contribute", "architecture"), ("appendix", "engine"))
}


def named(name):
    """Return files and folders in code font, without placeholders."""
    return sorted(
        path for path in set(PATH.findall(TEXTS[name])) if not re.search("NAME|figN", path)
    )


@pytest.mark.parametrize("name", TEXTS)
def test_every_named_file_exists(name):
    paths = named(name)
    assert len(paths) >= 4
    missing = [
        path
        for path in paths
        if not any((top / path).exists() for top in (PACKAGE, PACKAGE.parent, ROOT))
    ]
    assert missing == []


def test_every_package_is_described():
    rooms = {
        path.name
        for path in PACKAGE.iterdir()
        if path.is_dir() and not path.name.startswith("_") and any(path.glob("*.py"))
    }
    named = {f"{room}/" for room in rooms} | {path.name for path in PACKAGE.glob("[!_]*.py")}
    assert sorted(name for name in named if f"`{name}`" not in TEXTS["architecture"]) == []


def test_new_parts_belong_beside_their_kind():
    rows = re.findall(r"^\| an? .+ \| `([\w/]+)/(?:NAME|figN)\.\w+`", TEXTS["architecture"], re.M)
    assert len(rows) >= 8
    for folder in rows:
        assert any((top / folder).is_dir() for top in (PACKAGE, PACKAGE.parent, ROOT)), folder
