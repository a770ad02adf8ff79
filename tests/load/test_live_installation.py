"""Test that installing the plugins as README says changes no package of an engine."""

import json
import re
import shlex
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.version import __version__
from tests.engines.test_live_plugins_light import LACKING

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "fairbench-llm"
ENGINES = {
    "sglang": ("tests/sglang_cpu/requirements.txt",),
    "vllm": ("tests/vllm_cpu/requirements.txt",),
    "vllm-serve": ("tests/vllm_cpu/requirements.txt", "tests/vllm_cpu/requirements-serve.txt"),
}
PAGES = ("README.md", "docs/start/cluster.md")


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(files):
    """Return the versions of an engine's packages, by normal name."""
    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in files)
    return {
        normal(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.M)
    }


def install_lines(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^pip install --no-deps .*$", text, re.MULTILINE)


def small_packages():
    """Return the packages that the printed line installs beside fairbench itself."""
    (line,) = {shlex.join(shlex.split(one)) for page in PAGES for one in install_lines(page)}
    words = shlex.split(line)
    assert words[:4] == ["pip", "install", "--no-deps", "."]
    return words[4:]


def test_both_pages_print_the_same_line():
    assert small_packages() == ["sortedcontainers"]
    assert all(install_lines(page) for page in PAGES)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_has_all_that_the_plugins_need_or_gets_it(engine):
    needed = {
        re.match(r"[\w-]+", one)[0] for one in metadata.requires(PROJECT) if "extra ==" not in one
    }
    needed -= set(LACKING)
    assert needed == {"pydantic", "sortedcontainers"}
    assert needed <= {*pins(ENGINES[engine]), *small_packages()}


@pytest.mark.parametrize("page", PAGES)
def test_the_router_of_the_page_is_configured_as_printed(page):
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"^fairbench (serve .*--worker-url .*)$", text, re.MULTILINE)
    made = CliRunner().invoke(app, [*shlex.split(line), "--dry-run"])
    assert made.exit_code == 0, made.output


def wheel(folder, name, version, requires=()):
    """Write a wheel without code that has the metadata of a real one."""
    distribution = f"{name.replace('-', '_')}-{version}"
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    path = folder / f"{distribution}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        inside = f"{distribution}.dist-info"
        file.writestr(f"{inside}/METADATA", "\n".join(["Metadata-Version: 2.1", *lines, ""]))
        file.writestr(
            f"{inside}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{inside}/RECORD", "")
    return path


def has(site, name, version):
    """Make an environment list a package as installed."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / "METADATA").write_text(text, encoding="utf-8")
    (folder / "INSTALLER").write_text("pip", encoding="utf-8")
    (folder / "RECORD").write_text("", encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_pip_installs_nothing_else_beside_an_engine(engine, tmp_path):
    """pip itself decides, in an environment that lists every package of the engine."""
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin")
    (site,) = (one.parent for one in (tmp_path / "env").rglob("site-packages/pip"))
    theirs = pins(ENGINES[engine])
    for name, version in theirs.items():
        has(site, name, version)
    ours = wheel(tmp_path, PROJECT, __version__, metadata.requires(PROJECT))
    for name in small_packages():
        wheel(tmp_path, name, "99.0")  # newer than in any engine
    options = ("--no-deps", "--no-index", "--find-links", tmp_path, "--dry-run", "--quiet")
    command = [programs / "python", "-m", "pip", "install", *options, "--report", "-", ours]
    done = subprocess.run([*command, *small_packages()], capture_output=True, text=True, check=True)
    installed = {normal(one["metadata"]["name"]) for one in json.loads(done.stdout)["install"]}
    assert installed == {PROJECT, *small_packages()} - theirs.keys()
