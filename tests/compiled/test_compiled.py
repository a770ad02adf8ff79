"""Test that the compiled package (build.sh) makes the same records as Python, byte for byte.

``FAIRBENCH_COMPILED`` names the folder of the compiled package. Without it, the tests are skipped.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "bench"
COMPILED = os.environ.get("FAIRBENCH_COMPILED")
OWN = HERE.parents[1] / "examples" / "fewest_running.py"
CELLS = {
    "chat-fcfs": {"workload": "chat", "scheduler": "fcfs"},
    "chat-vtc": {"workload": "chat", "scheduler": "vtc"},
    "chat-d2lpm": {"workload": "chat", "scheduler": "d2lpm"},
    "tot-lpm": {"workload": "tot", "scheduler": "lpm"},
    "tot-preble": {"workload": "tot", "scheduler": "preble"},
    "tot-d2lpm": {"workload": "tot", "scheduler": "d2lpm"},
    "judge-dlpm": {"workload": "judge", "scheduler": "dlpm"},
    "judge-vtc": {"workload": "judge", "scheduler": "vtc"},
    "long-qa-d2lpm": {"workload": "long-qa", "scheduler": "d2lpm"},
    "long-qa-dlpm": {"workload": "long-qa", "scheduler": "dlpm"},
    "preemption": {"workload": "chat", "router": "least-loaded", "local": "sglang-priority"},
    "deadlines": {
        "workload": "three-class",
        "local": "edf",
        "dp": 1,
        "request_rate": 0.74,
        "duration_s": 60.0,
    },
    "router-trees": {"workload": "tot", "router": "cache-aware", "local": "mdrr"},
    "vllm": {"workload": "chat", "scheduler": "fcfs", "engine": "vllm"},
    "lightllm": {"workload": "chat", "scheduler": "vtc", "engine": "lightllm"},
    "a user's own": {"workload": "chat", "router": "round-robin", "local": "fewest-running"},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILED is None, reason="FAIRBENCH_COMPILED is not set"),
]


def one_run(package, flags):
    asked = json.dumps([{"scenario": "s1", "dp": 2, "duration_s": 15.0} | flags, {}])
    found = {"PYTHONPATH": str(package), "FAIRBENCH_SCHEDULERS": str(OWN)}
    done = subprocess.run(
        [sys.executable, HERE / "one_run.py", asked],
        env=os.environ | found,
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("flags", CELLS.values(), ids=CELLS)
def test_the_records_are_the_same(flags):
    interpreted, compiled = one_run(SOURCE, flags), one_run(COMPILED, flags)
    assert (interpreted.pop("compiled"), compiled.pop("compiled")) == (False, True)
    assert interpreted == compiled
