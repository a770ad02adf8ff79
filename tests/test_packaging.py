"""Test that the shipped package works where only Python is installed."""

import json
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from fairbench import __version__
from fairbench.workloads.spec import workload_names

pytest.importorskip("build", reason="building needs the dev extra")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the sdist, and the wheel from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def fresh(built, tmp_path_factory):
    """Return the programs of a fresh environment with only the wheel."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    install = [programs / "python", "-m", "pip", "install", "--quiet", built[1]]
    subprocess.run(install, check=True)
    return programs


def test_the_wheel_holds_the_core_its_doors_and_the_workloads(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = wheel.namelist()
    packages = {path.name for path in (ROOT / "bench").glob("fairbench*")}
    assert len(packages) == 12
    assert {name.split("/")[0] for name in names} == {
        *packages,
        f"fairbench_llm-{__version__}.dist-info",
    }
    for workload in workload_names():
        assert f"fairbench/workloads/specs/{workload}.toml" in names
    assert "fairbench/workloads/specs/schema.json" in names
    assert "fairbench/hardware/profiles/engine_profiles.json" in names
    assert "fairbench/py.typed" in names
    assert f"fairbench_llm-{__version__}.dist-info/licenses/LICENSE" in names


def test_the_sdist_holds_the_files_of_the_repository(built):
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"README.md", "RUN.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", ".ci/run"}
    wanted |= {f"workloads/{workload}.toml" for workload in workload_names()}
    wanted |= {"workloads/schema.json"}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    for folder in ("tests", "studies"):
        wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")}
    wanted |= {"studies/pyproject.toml", "studies/fairbench_studies/frontier/frozen.toml"}
    assert sorted(wanted - names) == []


def test_the_command_runs_from_the_wheel(fresh, tmp_path):
    for arguments in (["--help"], ["--version"], ["list"]):
        done = subprocess.run(
            [fresh / "fairbench", *arguments], cwd=tmp_path, check=True, stdout=subprocess.PIPE
        )
        assert done.stdout
    tiny = ["--workload", "chat", "--scenario", "none", "--num-programs", "1", "--json"]
    done = subprocess.run(
        [fresh / "fairbench", "run", *tiny], cwd=tmp_path, check=True, stdout=subprocess.PIPE
    )
    summary = json.loads(done.stdout)
    (saved,) = (tmp_path / "results" / "runs").iterdir()
    assert json.loads((saved / "summary.json").read_text()) == summary
    assert json.loads((saved / "manifest.json").read_text())["git"] is None
    assert summary["completed"] > 0


def test_a_wheel_names_the_installation_of_the_studies(fresh, tmp_path):
    preble = ["run", "--scheduler", "preble-code"]
    for arguments in (["reproduce", "claims"], ["reproduce", "--help"], ["plot", "fig7"], preble):
        done = subprocess.run(
            [fresh / "fairbench", *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "needs the package fairbench_studies, which is not installed" in line
        assert "fairbench-llm[studies]" in line


def test_a_wheel_finds_the_studies_of_a_checkout(fresh, tmp_path):
    """This also works from a folder below the repository."""
    command = [fresh / "fairbench", "reproduce", "textbook", "--claims-dir", tmp_path]
    subprocess.run(command, cwd=ROOT / "docs", check=True, stdout=subprocess.PIPE)
    assert (tmp_path / "textbook-claims.md").exists()


def test_the_studies_are_of_this_version():
    project = tomllib.loads((ROOT / "studies" / "pyproject.toml").read_text(encoding="utf-8"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == __version__
    assert project["project"]["dependencies"] == [f"fairbench-llm[plot]=={__version__}"]
    wanted = [f"{project['project']['name']}=={__version__}"]
    assert extras["project"]["optional-dependencies"]["studies"] == wanted


def test_the_wheel_needs_no_package_for_tests_or_development(fresh):
    listed = subprocess.run(
        [fresh / "python", "-m", "pip", "list", "--format", "json"],
        check=True,
        stdout=subprocess.PIPE,
    )
    names = {package["name"] for package in json.loads(listed.stdout)}
    assert "fairbench-llm" in names
    assert not names & {"pytest", "hypothesis", "mypy", "ruff", "pandas", "datasets", "tokenizers"}


def test_the_sdist_holds_all_files_that_documents_need(built):
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"mkdocs.yml", "results/claims.md", "results/claims.csv"}
    for folder in ("docs", "plots", "results/tables", "results/validation"):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        wanted |= {str(path.relative_to(ROOT)) for path in files if path.suffix != ".pyc"}
    assert sorted(wanted - names) == []
