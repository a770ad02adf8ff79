"""Test the plugin in a real decode server of SGLang, whose prompts arrive at once without content.

A prefill server needs a transfer engine, which a machine without a GPU lacks.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairbench_load.plugin_config import plugin_config
from fairbench_load.server_facts import fetch_report
from tests.sglang_cpu.sglang_cpu_server import sglang_server, why_absent
from tests.sglang_cpu.test_sglang_cpu_features import generate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

PROMPT, OUTPUT, NOWHERE = 300, 5, "2.2.2.2"  # SGLang's name of a server that sends nothing
FLAGS = (
    *("--max-total-tokens=2000", "--max-running-requests=4", "--disaggregation-mode=decode"),
    "--disaggregation-transfer-backend=fake",
    "--disaggregation-decode-retraction-backup=cpu_tensor",
)
SENT = [*["heavy"] * 9, *["light"] * 3]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder, environment = tmp_path_factory.mktemp("server"), plugin_config("vtc", {}).environment()
    with sglang_server(folder, *FLAGS, environment=environment) as started:
        yield started.url


def test_a_decode_server_serves_and_charges_each_output_but_the_first(server):
    def ask(number):
        prompt, facts = [*range(100 + number, 100 + number + PROMPT)], {"bootstrap_room": number}
        sampling = {"max_new_tokens": OUTPUT}
        return generate(server, prompt, SENT[number], sampling, bootstrap_host=NOWHERE, **facts)[0]

    with ThreadPoolExecutor(len(SENT)) as pool:
        answers = list(pool.map(ask, range(len(SENT))))
    assert {one["meta_info"]["completion_tokens"] for one in answers} == {OUTPUT}
    time.sleep(1)  # the last request leaves at the next pass
    (report,) = fetch_report(server)
    for client in ("heavy", "light"):
        totals, number = report.clients[client], SENT.count(client)
        assert totals["output_tokens"] == number * (OUTPUT - 1)
        assert totals["extend_tokens"] == 0
        assert totals["admissions"] == totals["finished"] == number
