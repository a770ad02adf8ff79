"""Test the check of a running server: its facts, the verdict, and a flood of an emulator."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import RunFailed
from fairbench_calibration import server_checks as doctor
from fairbench_calibration.server_checks import (
    Findings,
    FloodTrial,
    PhaseWaits,
    ServerFacts,
    facts_of,
    lines_of,
)
from tests.emulator.live_emulator import running
from tests.serve.live_router import Worker, cluster


def trial(alone, beside, flood, failed=0):
    return FloodTrial(
        24, 60.0, PhaseWaits(alone, 0), PhaseWaits(beside, failed), PhaseWaits(flood, 0)
    )


@pytest.mark.parametrize(
    ("beside", "flood", "waits", "harmed"),
    [
        ((0.3, 0.5), (2.0, 2.0), True, False),
        ((1.9, 2.1), (2.0, 2.0), True, True),  # in order of arrival
        ((0.1, 9.0), (0.1, 3.9), True, True),  # the median hides who starves
        ((0.15, 0.15), (0.15, 0.19), False, False),  # everything fits into the batch
        ((40.0,), (0.19, 0.19), False, False),
    ],
)
def test_a_light_client_that_waits_like_the_flood_is_harmed(beside, flood, waits, harmed):
    found = trial((0.1, 0.1), beside, flood)
    assert (found.waits, found.harmed) == (waits, harmed)


@pytest.mark.parametrize(("failed", "harmed"), [(0, False), (1, False), (3, True)])
def test_a_light_client_whose_requests_mostly_fail_is_harmed(failed, harmed):
    assert trial((0.1,), (0.1, 0.1), (0.1,), failed).harmed == harmed


def test_a_light_client_without_any_answer_is_harmed():
    found = trial((0.1,), (), (0.1,), 5)
    assert found.harmed
    assert json.loads(json.dumps(Findings("u", ServerFacts("vLLM", "vtc"), found).as_dict()))[
        "trial"
    ]["light_beside"] == {"requests": 0, "failed": 5, "mean_ttft_s": None, "max_ttft_s": None}


CALM, HARM = trial((0.1,), (0.2,), (2.0,)), trial((0.1,), (2.0,), (2.0,))


@pytest.mark.parametrize(
    ("facts", "of", "fine", "first"),
    [
        (
            ServerFacts("SGLang", "vtc"),
            CALM,
            True,
            "active: vtc in SGLang; fair: the well-behaved client",
        ),
        (
            ServerFacts("SGLang", "fcfs"),
            HARM,
            False,
            "active: fcfs in SGLang; unfair: the well-behaved client",
        ),
        (ServerFacts("vLLM", "dlpm"), None, True, "active: dlpm in vLLM; the flood was not tried"),
        (
            ServerFacts("vLLM", hint="x"),
            None,
            False,
            "not active: no scheduler of fairbench is visible",
        ),
        (ServerFacts("vLLM"), CALM, False, "not active: no scheduler"),
    ],
)
def test_the_first_line_is_the_answer(facts, of, fine, first):
    found = Findings("http://host", facts, of)
    assert found.fine == fine
    assert next(lines_of(found)).startswith(first)


def test_a_harmed_client_of_a_scheduler_with_a_quantum_gets_a_hint():
    facts = ServerFacts("SGLang", "dlpm", {"dlpm.quantum": 10_000})
    assert "lower dlpm.quantum" in "\n".join(lines_of(Findings("u", facts, HARM)))
    assert "lower" not in "\n".join(lines_of(Findings("u", facts, CALM)))


REPORT = {"local": "vtc", "params": {"vtc.form": "paper"}, "weights": {"a": 2.0}}
PAGE = 'fairbench_scheduler{local="vtc",params="{\\"vtc.form\\":\\"paper\\"}",weights="{}"} 1\n'


@pytest.mark.parametrize(
    ("info", "page", "server", "local", "most"),
    [
        ({"fairbench": REPORT, "emulated": True}, "", "emulator", "vtc", None),
        (
            {"internal_states": [{"fairbench": REPORT}], "max_running_requests": 8},
            "",
            "SGLang",
            "vtc",
            8,
        ),
        ({"internal_states": [{}], "max_running_requests": 8}, "", "SGLang", "", 8),
        (None, PAGE + "fairbench_max_running_requests 16\nvllm:x 1\n", "vLLM", "vtc", 16),
        (None, "vllm:num_requests_running 0\n", "vLLM", "", None),
        (None, 'fairbench_router_info{router="d2lpm"} 1\n', "fairbench serve", "d2lpm", None),
        (None, "up 1\n", "unknown server", "", None),
    ],
)
def test_a_server_says_what_it_runs(monkeypatch, info, page, server, local, most):
    def get_json(url, headers):
        if info is None:
            raise RunFailed("404")
        return info

    monkeypatch.setattr(doctor, "get_json", get_json)
    monkeypatch.setattr(doctor, "get_text", lambda url, headers: page)
    found = facts_of("http://host", {})
    assert (found.server, found.local, found.most_running) == (server, local, most)
    assert bool(found.hint) == (not local)


@pytest.mark.parametrize(
    "info",
    [{"fairbench": {}}, {"fairbench": 3}, {"internal_states": 7}, {"internal_states": ["x", 1]}],
)
def test_a_report_that_is_none_of_ours_ends_with_one_line(monkeypatch, info):
    monkeypatch.setattr(doctor, "get_json", lambda url, headers: info)
    with pytest.raises(RunFailed, match="report cannot be read"):
        facts_of("http://host", {})


@pytest.mark.parametrize(("most", "flood"), [(None, 64), (8, 24), (256, 512), (1, 3)])
def test_a_flood_overfills_the_server_within_a_limit(most, flood):
    assert ServerFacts("SGLang", most_running=most).flood() == flood


def flooded(local, **settings):
    """Return the trial of an emulator with four places."""

    async def run():
        settings["engine.max_running_requests"] = 4
        loop = asyncio.get_running_loop()
        async with running(loop, local=local, settings=settings, time_scale=4.0) as (_, session):
            return await doctor.flood(str(session._base_url).rstrip("/"), None, 12, 2.5, {}, {})

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize(("local", "harmed"), [("vtc", False), ("fcfs", True)])
def test_a_fair_scheduler_spares_the_light_client(local, harmed):
    found = flooded(local)
    assert found.waits
    assert found.harmed == harmed


ENDING = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}


def at_router(use, **router):
    """Return ``use(url)``, called in a thread beside a router."""

    async def run():
        async with cluster(1, router=router, ending=ENDING) as (under_test, (one,)):
            return await asyncio.to_thread(use, under_test.url), one.seen

    return asyncio.run(run())


def invoked(*arguments):
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


def test_a_server_is_not_loaded_without_consent():
    found, seen = at_router(lambda url: invoked("--base-url", url), router="d2lpm")
    assert (found.exit_code, seen) == (0, [])
    assert found.output.startswith("active: d2lpm in fairbench serve; the flood was not tried")


@pytest.mark.slow
def test_a_router_is_flooded_with_consent():
    flags = ("--yes", "--seconds", 1, "--flood", 2, "--json")
    found, seen = at_router(lambda url: invoked("--base-url", f"{url}/v1", *flags))
    told = json.loads(found.stdout)
    assert told["trial"]["flood_requests"] == 2
    assert (found.exit_code == 0) == told["fine"]
    clients = {sent["x-smg-routing-key"] for path, sent, _ in seen if path == "/v1/completions"}
    assert clients == {doctor.LIGHT, doctor.FLOOD}


@pytest.mark.slow
def test_a_key_of_each_client_is_sent():
    keys = {"one": "ann", "two": "bob"}
    flags = ("--yes", "--seconds", 1, "--flood", 2, "--header", "Authorization=Bearer one")
    crowd = ("--flood-header", "Authorization=Bearer two")
    _, seen = at_router(lambda url: invoked("--base-url", url, *flags, *crowd), keys=keys)
    assert {sent["x-smg-routing-key"] for _, sent, body in seen if body} == {"ann", "bob"}


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--base-url", "host:80"), 2, "must start with http://"),
        (("--base-url", "http://127.0.0.1:9"), 1, "refused"),
        ((), 2, "--base-url"),
        (("--base-url", "http://h", "--flood", 0), 2, "--flood"),
        (("--base-url", "http://h", "--flood-header", "x"), 2, "--flood-header: write NAME=VALUE"),
        (("--base-url", "http://h", "--seconds", 0), 2, "--seconds"),
    ],
)
def test_wrong_input_ends_with_one_line(flags, code, said):
    found = invoked(*flags)
    assert found.exit_code == code
    assert said in found.output
    assert "Traceback" not in found.output


def test_a_server_that_answers_nothing_fails_with_its_error():
    async def run():
        worker = Worker(status=500)
        await worker.start()
        try:
            return await doctor.flood(worker.url, None, 2, 1.0, {}, {})
        finally:
            await worker.stop()

    with pytest.raises(
        RunFailed, match=r"well-behaved client alone got no answer in 0.25 s: .*500"
    ):
        asyncio.run(run())
