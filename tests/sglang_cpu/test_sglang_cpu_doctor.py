"""Test `fairbench doctor` and the metrics of clients on a real SGLang server on the CPU."""

import json
import subprocess
import sys
import urllib.request

import pytest

from fairbench_calibration.server_checks import FLOOD, LIGHT
from tests.load.live_scrapes import samples
from tests.sglang_cpu.sglang_cpu_server import sglang_server, why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

FLAGS = ("--max-total-tokens=8000", "--max-running-requests=4")


@pytest.mark.parametrize(("local", "code"), [("vtc", 0), ("fcfs", 1)])
def test_a_flood_harms_the_light_client_only_in_order_of_arrival(tmp_path, local, code):
    with sglang_server(tmp_path, *FLAGS, environment={"FAIRBENCH_LOCAL": local}) as server:
        command = [sys.executable, "-m", "fairbench", "doctor", "--base-url", server.url]
        command += ["--yes", "--seconds", "20", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            page = samples(answer.read().decode())
    told = json.loads(done.stdout)
    assert (told["server"], told["local"], told["most_running"]) == ("SGLang", local, 4)
    assert told["trial"]["flood_waited"]
    assert done.returncode == code
    name = "fairbench_client_time_to_first_token_seconds"
    for client in (LIGHT, FLOOD):
        labels = (("client", client),)
        assert page[f"{name}_count", labels] > 0
        assert (
            page["fairbench_client_queue_time_seconds_sum", labels] <= page[f"{name}_sum", labels]
        )
        assert ("fairbench_client_fair_share_ratio", labels) in page
