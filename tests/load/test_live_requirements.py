"""Test that live commands without the packages of the extra ``live`` say how to get them."""

import json
import subprocess
import sys

import pytest

from fairbench_load.processes.environment import PACKAGES

PROGRAM = """
import importlib.util, json, sys
words, missing = map(json.loads, sys.argv[1:])

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in missing:
            raise ModuleNotFoundError(name)

there = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in missing else there(name, *rest)
sys.meta_path.insert(0, Absent())
from fairbench.cli.main import main
sys.argv = ["fairbench", *words]
main()
"""


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--backend", "emulator"],
        ["run", "--backend", "vllm", "--model", "m", "--allow-untested-release"],
        ["serve", "--worker-url", "http://127.0.0.1:9", "--worker-key", "x"],
        ["serve", "--backend", "vllm", "--model", "m"],
        ["emulate"],
    ],
    ids=" ".join,
)
def test_a_command_without_the_extra_says_how_to_get_it(words):
    program = [sys.executable, "-c", PROGRAM, json.dumps(words), json.dumps(PACKAGES)]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"fairbench: missing packages {', '.join(PACKAGES)}")
