"""Test the site of the documents: its navigation has every page, and every link works."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import CHROMIUM, Browser

ROOT = Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "pages.py")
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    out = tmp_path_factory.mktemp("site") / "docs"
    pages.stage(out)
    return out


def test_the_navigation_has_every_page(staged):
    named = re.findall(r"^ +- .+: (\S+\.md)$", CONFIG, re.MULTILINE)
    there = {path.relative_to(staged).as_posix() for path in staged.rglob("*.md")}
    appendices = {name for name in there if name.startswith("appendix/")} - {"appendix/index.md"}
    assert sorted(named) == sorted(there - appendices)
    index = (staged / "appendix" / "index.md").read_text(encoding="utf-8")
    assert [name for name in appendices if f"]({Path(name).name})" not in index] == []


def test_every_link_leads_to_a_staged_file(staged):
    found = 0
    for path in staged.rglob("*.md"):
        for link in pages.LINK.findall(pages.CODE.sub("", path.read_text(encoding="utf-8"))):
            if "://" not in link:
                found += 1
                assert (path.parent / link).is_file(), f"{path.name}: {link}"
    assert found > 50


def test_unused_parts_of_a_page_are_left_out(staged):
    suffixes = {path.suffix for path in staged.rglob("*") if path.is_file()}
    assert suffixes <= {
        ".md",
        ".svg",
        ".png",
        ".csv",
        ".py",
        ".toml",
        ".yml",
        ".json",
        ".css",
        ".patch",
    }
    assert not (staged / "pages.py").exists()


def test_links_are_changed_outside_of_code_only(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "a.csv").write_text("1\n")
    text = "[a](../a.csv) [r](../README.md#x)\n\n```md\n[a](../a.csv)\n```\n[h](https://a/b.md)\n"
    (tmp_path / "docs" / "b.md").write_text(text)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setitem(pages.PAGES, "docs/b.md", "b.md")
    wanted = set()
    assert pages.page("docs/b.md", wanted) == (
        "[a](files/a.csv) [r](index.md#x)\n\n```md\n[a](../a.csv)\n```\n[h](https://a/b.md)\n"
    )
    assert wanted == {"a.csv"}


@pytest.fixture(scope="module")
def built(staged, tmp_path_factory):
    """Return the folder of the site that zensical builds from the staged documents."""
    zensical = shutil.which("zensical", path=str(Path(sys.executable).parent))
    if zensical is None:
        pytest.skip('no zensical beside this Python, which builds the site: pip install ".[docs]"')
    folder = tmp_path_factory.mktemp("built")
    moved = CONFIG.replace("docs_dir: build/docs", "docs_dir: docs")
    moved = moved.replace("site_dir: build/site", "site_dir: site")
    (folder / "mkdocs.yml").write_text(moved, encoding="utf-8")
    shutil.copytree(staged, folder / "docs")
    command = [zensical, "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(built):
    home = (built / "index.html").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert home.count("<table") == len(re.findall(r"^\|[-:|]+\|$", readme, re.MULTILINE)) > 0


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on PATH, which shows the pages")
def test_a_browser_shows_pages_of_each_kind_whole(built, tmp_path):
    browser = Browser(tmp_path)
    kinds = ("", "start/operator", "guide/compare", "reference/metrics", "studies/workloads", "run")
    for kind in kinds:
        for width in (1280, 390):
            browser.show((built / kind / "index.html").as_uri(), width)
            assert browser.faults() == [], f"{kind} at {width} px"
    browser.close()
