"""Test two real SGLang servers on the CPU behind the router: client A floods, B is well-behaved.

Under fairbench's schedulers, both get the same service while both wait. Under SGLang's own, B waits
for A. A large request fills each server's KV pool until all requests of A and B wait.
"""

import contextlib
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairbench_load.plugin_config import plugin_config
from fairbench_load.server_facts import fetch_report, require_active
from tests.sglang_cpu.sglang_cpu_client import Sent, burst, run_behind, services_while_all_wait
from tests.sglang_cpu.sglang_cpu_server import sglang_server, why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

FLAGS = ("--max-total-tokens=16000", "--max-running-requests=8")
BLOCKER, BLOCKER_OUTPUT = 500, 15_400
# SGLang reserves at most 4,096 output tokens for a request by default. With this limit, it
# reserves all output tokens of the blocker, so no other request fits into the KV pool.
RESERVE_ALL = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": str(BLOCKER_OUTPUT)}
SETTINGS = {"dlpm.quantum": 500}


@contextlib.contextmanager
def two_servers(folder, *flags, environment=None):
    """Start two servers at once, each with its own folder for its log and its model."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as pool:
        waiting = []
        for number in range(2):
            own = folder / f"server-{number}"
            own.mkdir()
            settings = RESERVE_ALL | (environment or {})
            waiting.append(sglang_server(own, *FLAGS, *flags, environment=settings))
        yield list(pool.map(stack.enter_context, waiting))


@contextlib.contextmanager
def our_router(name, servers, folder):
    """Yield the URL of ``fairbench serve`` in front of the servers."""
    command = [sys.executable, "-m", "fairbench", "serve", "--router", name, "--port=0"]
    command += ["--no-client-limit"]  # the queues should be at the servers
    for server in servers:
        command += ["--worker-url", server.url]
    with (folder / "router.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        url = process.stdout.readline().strip()
        assert url, (folder / "router.log").read_text()
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def flood(router, servers, folder, requests):
    """Return B's ``requests`` after four times as many of A. Each client has its own prefix."""
    flooding = burst("A", 4 * requests, prefix=512, suffix=64, output=32)
    modest = burst("B", requests, prefix=512, suffix=64, output=32)
    blockers = {s.url: Sent("blocker", [7] * BLOCKER, BLOCKER_OUTPUT) for s in servers}
    with our_router(router, servers, folder) as url:
        assert run_behind(blockers, url, [flooding, modest]), "B was queued after A's first token"
    assert [server.calls_while_serving() for server in servers] == [0, 0]
    return flooding, modest


def jain(values):
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def last(requests):
    return max(sent.finish_s for sent in requests)


def served_when_last_finish(modest, requests):
    """Return the fraction of all service given until the last ``modest`` request finishes.

    Service is that of ``requests``, server by server. The fraction does not depend on the speed of
    a server, which varies on a busy machine.
    """
    until = {}
    for sent in modest:
        until[sent.worker] = max(until.get(sent.worker, 0), sent.finish_s)
    served = sum(sent.service_until(until[sent.worker]) for sent in requests)
    return served / sum(sent.service_until(sent.finish_s) for sent in requests)


@pytest.mark.parametrize(
    ("router", "local", "requests"),
    [
        ("client-round-robin", "vtc", 60),
        ("d2lpm", "dlpm", 120),  # the router keeps 60 requests of one prefix at one server
    ],
)
def test_our_schedulers_share_the_servers_fairly(router, local, requests, tmp_path):
    environment = plugin_config(local, SETTINGS).environment()
    with two_servers(tmp_path, environment=environment) as servers:
        for server in servers:
            require_active(fetch_report(server.url), plugin_config(local, SETTINGS))
        flooding, modest = flood(router, servers, tmp_path, requests)
        reports = [report for server in servers for report in fetch_report(server.url)]
    got = services_while_all_wait(flooding + modest)
    assert min(got.values()) > 5 * SETTINGS["dlpm.quantum"], "the window says nothing"
    assert jain(got.values()) >= 0.95
    # B asks for a fifth of all service, so B's last request ends after about 40% of all service.
    assert served_when_last_finish(modest, flooding + modest) < 0.6
    assert len(reports) == 2
    for client, requests in (("A", flooding), ("B", modest)):
        booked = [report.clients[client] for report in reports if client in report.clients]
        assert sum(b["finished"] for b in booked) == len(requests)
        assert sum(b["extend_tokens"] for b in booked) == sum(sent.extend for sent in requests)
        assert sum(b["output_tokens"] for b in booked) == sum(sent.output for sent in requests)


def test_stock_sglang_does_not_share_the_servers_fairly(tmp_path):
    with two_servers(tmp_path, "--schedule-policy=fcfs") as servers:
        assert [fetch_report(server.url) for server in servers] == [[], []]
        flooding, modest = flood("round-robin", servers, tmp_path, requests=60)
    assert jain(services_while_all_wait(flooding + modest).values()) < 0.7
    assert last(modest) > last(flooding)
