"""Test the example workflow for a fork of an engine, and the script that makes a fork's Python."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairbench.config.sweep import points, read_sweep
from tests.test_workflows import ROOT, commands, parsed, steps

yaml = pytest.importorskip("yaml")
FOLDER = ROOT / "examples" / "own-code"
WORKFLOW = FOLDER / "fork.yml"
CONTENT = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
SCRIPTS = [step["run"] for step in steps(WORKFLOW) if "run" in step]


def test_the_workflow_is_a_valid_and_bounded_job():
    assert list(CONTENT[True]) == ["pull_request"]  # YAML 1.1 reads `on` as a boolean
    assert CONTENT["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert all(job["timeout-minutes"] <= 15 for job in CONTENT["jobs"].values())
    for script in SCRIPTS:
        assert "${{" not in script  # an input in a script is code, but in env it is a value
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, "")
    named = set(re.findall(r"\$\{?([A-Z_]+)", "\n".join(SCRIPTS)))
    known = {*CONTENT["env"], "PULL_REQUEST", "RUNNER_TEMP", "GITHUB_PATH", "GITHUB_STEP_SUMMARY"}
    assert named == known


def test_the_command_line_accepts_the_commands():
    base, head, check = (parsed(line) for line in commands(WORKFLOW))
    assert [name for name, _ in (base, head, check)] == ["sweep", "sweep", "check"]
    assert [one["engine_code"] for _, one in (base, head)] == ["base/bin/python", "head/bin/python"]
    folders = [str(Path("runs", one["name"])) for _, one in (base, head)]
    assert [str(check[1][key]) for key in ("baseline", "current")] == folders
    assert check[1]["allow"] == ["engine_code", "scheduler"]


def test_the_workflow_names_existing_files():
    text = "\n".join(SCRIPTS)
    found = re.findall(r"\bfairbench/((?:tests|examples)/[\w./-]+)", text)
    assert len(found) == 5
    assert [name for name in found if not (ROOT / name).is_file()] == []
    checkouts = [step["with"]["path"] for step in steps(WORKFLOW) if "path" in step.get("with", {})]
    assert re.findall(r"(\w+)/python/sglang\b", text) == checkouts[::-1]
    watched = [
        path.removeprefix("python/sglang/") for path in CONTENT[True]["pull_request"]["paths"]
    ]
    from fairbench_engines.replica.inside.sglang_bridge import DECIDING

    assert watched == [f"{folder}/**" for folder in DECIDING]


def test_the_sweep_has_three_small_configurations():
    (line, *_) = commands(WORKFLOW)
    file = FOLDER / Path(parsed(line)[1]["file"]).name
    specs = points(read_sweep(str(file)))
    assert len({spec.workload.name for spec in specs}) == 3
    assert len(specs) == 9


WHERE = "from importlib.util import find_spec; print(find_spec('sglang').origin)"


@pytest.fixture
def engine(tmp_path):
    """Return a Python with a stand-in for SGLang, and the package's folder."""
    folder = tmp_path / "engine"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "sglang").mkdir()
    (site / "sglang" / "__init__.py").write_text("")
    (site / "beside.py").write_text("")
    return folder / "bin" / "python", site / "sglang"


def fork(python, target, *folder):
    command = ["bash", str(FOLDER / "fork.sh"), str(python), str(target), *map(str, folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def origin(target):
    command = [str(target / "bin" / "python"), "-c", f"import beside; {WHERE}"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def test_a_fork_without_a_folder_is_a_copy(engine, tmp_path):
    python, package = engine
    site = Path(fork(python, tmp_path / "fork"))
    assert origin(tmp_path / "fork") == site / "sglang" / "__init__.py"
    (site / "sglang" / "__init__.py").write_text("CHANGED = True\n")
    assert (package / "__init__.py").read_text() == ""


def test_a_fork_of_a_checkout_runs_the_files_of_the_checkout(engine, tmp_path):
    package = tmp_path / "checkout" / "python" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    assert fork(engine[0], tmp_path / "fork", package) == ""
    assert origin(tmp_path / "fork").resolve() == (package / "__init__.py").resolve()
