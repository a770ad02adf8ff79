"""Test that commands of the README and the tutorials run and give the pages' numbers."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs" / "start").glob("*.md"))
# A block of commands, possibly with its exit code, or an excerpt of their output.
BLOCK = re.compile(
    r"(?:^<!-- exit code (\d) -->\n)?^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
NUMBER = re.compile(r"\d[\d.,]*\d|\d")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_is_short(page):
    assert len(page.read_text(encoding="utf-8").split()) <= 690


# The other page needs an engine (see tests/load/test_live_installation.py and test_live_doctor.py).
@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem != "cluster"], ids=lambda page: page.stem
)
def test_a_tutorial_runs_as_printed(page, tmp_path):
    run_blocks(page.read_text(encoding="utf-8"), tmp_path)


@pytest.mark.slow
def test_the_jobs_of_the_readme_run_as_printed(tmp_path):
    one = Path("results", "baseline", "fcfs-chat")  # all baselines together take a minute
    shutil.copytree(ROOT / one, tmp_path / one)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    # the fourth job needs an engine (see tests/load/test_live_installation.py)
    jobs = text.partition("## Four jobs")[2].partition("**Make my cluster fair.**")[0]
    assert len(BLOCK.findall(jobs)) == 4
    run_blocks(jobs, tmp_path)


def test_both_workflows_of_a_gate_have_the_scheduler_and_baseline_of_the_tutorial():
    page = (ROOT / "docs" / "start" / "ci.md").read_text(encoding="utf-8")
    scheduler = re.search(r"^export FAIRBENCH_SCHEDULERS=(\S+)", page, re.MULTILINE)
    folder = re.search(r"^fairbench baseline check (\S+)$", page, re.MULTILINE)
    for name in ("fairbench-gate.yml", "workflows/pull-request.yml"):
        workflow = (ROOT / "examples" / name).read_text(encoding="utf-8")
        assert f"FAIRBENCH_SCHEDULERS: {scheduler[1]}\n" in workflow
        assert f"fairbench baseline check {folder[1]} " in workflow


def run_blocks(text, folder):
    """Run the commands of a text in a new folder with only the examples."""
    (folder / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    settings, output = "", ""
    for code, language, block in BLOCK.findall(text):
        if language == "text":
            missing = [number for number in NUMBER.findall(block) if number not in output]
            assert missing == [], output
            continue
        settings += "".join(re.findall(r"^export .+\n", block, re.MULTILINE))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", settings + block],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == int(code or 0), block + done.stdout + done.stderr
        output = done.stdout
