"""The tutorials' commands run as printed, and their output has the numbers that the pages show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs" / "start").glob("*.md"))
# A block of commands, perhaps with the exit code it ends with, or an excerpt of their output.
BLOCK = re.compile(
    r"(?:^<!-- exit code (\d) -->\n)?^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
NUMBER = re.compile(r"\d[\d.,]*\d|\d")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_is_short(page):
    assert len(page.read_text(encoding="utf-8").split()) <= 610


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_printed(page, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    settings, output = "", ""
    for code, language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "text":
            missing = [number for number in NUMBER.findall(block) if number not in output]
            assert missing == [], output
            continue
        settings += "".join(re.findall(r"^export .+\n", block, re.MULTILINE))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", settings + block],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == int(code or 0), block + done.stdout + done.stderr
        output = done.stdout
