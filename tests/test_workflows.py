"""Test the workflows in examples/ and the composite action: their commands parse."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fairbench.cli.app import load

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
FILES = [
    ROOT / "action.yml",
    EXAMPLES / "fairbench-gate.yml",
    *sorted((EXAMPLES / "workflows").glob("*.yml")),
]
OWN = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FLAGS, VALUE = re.compile(r'"\$\{\w+\[@\]\}"'), re.compile(r'"?\$\w+"?')


def steps(path):
    """Return the steps of a workflow, or of a composite action."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if "runs" in content:
        return content["runs"]["steps"]
    return [step for job in content["jobs"].values() for step in job["steps"]]


def commands(path):
    """Return the fairbench command lines of all steps, without redirections."""
    lines = [line.strip() for step in steps(path) for line in step.get("run", "").splitlines()]
    return [re.sub(r"\s*>>?.*", "", line) for line in lines if line.startswith("fairbench ")]


def parsed(line):
    """Return the context of a command line as the application reads it. Nothing runs."""
    words = shlex.split(VALUE.sub("x", FLAGS.sub("", line)))[1:]
    command = load(words.pop(0))
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    return command.name, command.make_context(command.name, words).params


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commands_in_workflows_are_valid(path):
    for line in commands(path):
        assert parsed(line)[0] in {"check", "sweep", "leaderboard"}


@pytest.mark.parametrize("path", [*FILES, *OWN], ids=lambda path: path.name)
def test_scripts_in_workflows_are_bash_and_contain_no_pasted_input(path):
    scripts = [step["run"] for step in steps(path) if "run" in step]
    assert scripts or path.name == "fairbench-gate.yml"
    for script in scripts:
        assert "${{" not in script  # an input in a script is code, but in env it is a value
        result = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("path", FILES[1:], ids=lambda path: path.name)
@pytest.mark.parametrize("place", ["git+https://host.example/fairbench@1a", "https://h/f.whl", ""])
def test_a_workflow_installs_what_its_variable_names(path, place, tmp_path):
    """No release is published, so the package's name alone installs nothing."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content["env"]["FAIRBENCH"] == "${{ vars.FAIRBENCH }}"
    (install,) = (s["run"] for s in steps(path) if "pip install" in s.get("run", ""))
    pip = tmp_path / "pip"
    pip.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    pip.chmod(0o755)
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", install],
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "FAIRBENCH": place},
        capture_output=True,
        text=True,
        check=False,
    )
    if place:
        assert (tmp_path / "asked").read_text() == f"install {place}\n"
    else:
        assert done.returncode != 0
        assert "set the variable FAIRBENCH of this repository to the URL of" in done.stderr
        assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_expressions_in_workflows_name_existing_inputs_and_steps(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    triggers = content.get(True)
    dispatch = triggers.get("workflow_dispatch") if isinstance(triggers, dict) else None
    inputs = content.get("inputs") or (dispatch or {}).get("inputs") or {}
    ids = {step["id"] for step in steps(path) if "id" in step}
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"\binputs\.([\w-]+)", text)) <= set(inputs)
    assert set(re.findall(r"\bsteps\.([\w-]+)\.", text)) <= ids


@pytest.mark.parametrize("path", [*FILES[1:], *OWN], ids=lambda path: path.name)
def test_a_workflow_limits_its_triggers_permissions_and_time(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content[True]  # YAML 1.1 reads `on` as a boolean
    assert "permissions" in content
    assert all(job["timeout-minutes"] for job in content["jobs"].values())


def test_our_own_workflow_runs_parts_of_ci_on_the_supported_pythons_and_the_next():
    (path,) = OWN
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [one.rpartition(" :: ")[2] for one in project["classifiers"] if ":: 3." in one]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == [*named, "3.14"]
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"for version in (.*);", ci) == [" ".join([*named[1:], "3.14"])]
    steps = [step for job in jobs.values() for step in job["steps"]]
    scripts = "\n".join(step.get("run", "") for step in steps)
    for tool in ("ruff check .", "ruff format --check .", "mypy"):
        assert f"{tool}\n" in scripts
        assert f"/{tool}\n" in ci
    assert "zensical build --strict\n" in scripts  # .ci/run builds the site in tests/test_site.py
    assert "-m smoke" in scripts
    assert "-m smoke" in ci
    assert "fairbench baseline check" in scripts


def test_a_pull_request_asks_for_what_contributing_says():
    asked = (ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md").read_text(encoding="utf-8")
    rules = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for word in ("CHANGELOG.md", "ruff check .", "mypy", "-m smoke", "fairbench baseline check"):
        assert word in asked
        assert word in rules
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    entries = [hook["entry"] for repo in hooks["repos"] for hook in repo["hooks"]]
    assert entries == ["ruff check --fix", "ruff format", "mypy"]


def test_every_input_of_the_action_reaches_its_script():
    content = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    used = re.findall(r"inputs\.([a-z-]+)", str(content["runs"]["steps"][-1]["env"]))
    assert set(used) == set(content["inputs"])
    page = (ROOT / "docs" / "guide" / "gate.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert set(yaml.safe_load(example)[0]["with"]) <= set(content["inputs"])


def test_a_comment_gives_the_reason_of_a_failed_check(tmp_path):
    (check,) = (s for s in steps(EXAMPLES / "workflows" / "pull-request.yml") if "id" in s)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", check["run"]],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    said = (tmp_path / "comment.md").read_text(encoding="utf-8")
    assert "must be a baseline" in said
    assert said in done.stderr


def test_gates_judge_the_recommended_metrics():
    """The docs recommend the worst windowed share, the well-behaved tail and the throughput."""
    gates = [
        (kind, params["fail_if"])
        for path in FILES[1:]
        for kind, params in map(parsed, commands(path))
        if kind == "check"
    ]
    wanted = ["min_share_60s:-5%", "victim_p95_s:+10%", "victim_p99_s:+20%"]
    wanted.append("service_rate_tok_s:-3%")
    assert [clauses for _, clauses in gates] == [wanted] * 3
    guide = (ROOT / "docs" / "guide" / "gate.md").read_text(encoding="utf-8")
    assert all(f"`{clause}`" in guide for clause in wanted)
    for page in ("README.md", "docs/reference/index.md", "docs/guide/gate.md"):
        line = next(
            one
            for one in (ROOT / page).read_text().splitlines()
            if one.startswith("fairbench check")
        )
        assert re.findall(r"--fail-if '(\S+)'", line) == wanted
    for command in (load("check"), load("baseline").commands["check"]):
        (option,) = (one for one in command.params if one.name == "fail_if")
        assert all(clause in option.help for clause in wanted)


def test_the_examples_behave_as_their_names_say():
    found = {path.name: [parsed(line) for line in commands(path)] for path in FILES}
    (check,), (gate,) = found["pull-request.yml"], found["fairbench-gate.yml"]
    assert gate[1]["output"].value == "github"
    assert check[1]["output"].value == "markdown"
    sweep, board, nightly, csv = found["nightly.yml"]
    assert (sweep[0], board[0], nightly[0], csv[0]) == (
        *("sweep", "leaderboard", "check", "leaderboard"),
    )
    assert nightly[1]["inconclusive"].value == "pass"
