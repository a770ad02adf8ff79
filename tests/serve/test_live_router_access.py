"""Test the keys file: clients' weights and quotas, and the effect of changes."""

import asyncio
import json
import os
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import DataError
from fairbench.schedulers.routing.fair_finish import FairFinish
from fairbench_load.http_server import Problem
from fairbench_serve import keys_file as access_module
from fairbench_serve.answers import Charge
from fairbench_serve.client_limits import Quota, Quotas
from fairbench_serve.keys_file import Access, KeysFile, read_keys
from tests.serve.live_router import CHAT, COMPLETIONS, GENERATE, PATHS, cluster, until

FILE = """\
"secret-1" = "ann"
"secret-2" = "bob"
[clients.ann]
weight = 4
tokens_per_min = 6_000
[clients.bob]
requests_per_min = 2
"""


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(FILE)
    return path


def test_a_keys_file_has_weights_and_quotas(keys):
    quotas = {"ann": Quota(tokens=6_000), "bob": Quota(requests=2)}
    owners = {"secret-1": "ann", "secret-2": "bob"}
    assert read_keys(keys) == KeysFile(owners, {"ann": 4.0}, quotas)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('"secret-3" = "cat"', "field 2 must be one of weight, tokens_per_min, requests_per_min"),
        ("weight = 0", "Cannot overwrite a value"),
        ("[clients.secret-1]", "clients: entry 3 must be a table named after a client that"),
        ("[clients.bob.secret-1]", "clients.bob: field 2 must be one of weight"),
        ("[clients]\nsecret-1 = 'ann'", "clients: entry 3 must be a table named after a client"),
        ("tokens_per_min = 0", "clients.bob: tokens_per_min = 0: must be a whole number from 1"),
        ("tokens_per_min = 1.5", "tokens_per_min = 1.5: must be a whole number"),
        ("tokens_per_min = true", "tokens_per_min = True: must be a whole number"),
    ],
)
def test_errors_in_the_keys_file_do_not_show_keys(keys, line, complaint):
    end = "" if "weight" not in line else "weight = 1\n"
    keys.write_text(f"{FILE}{end}{line}\n")
    with pytest.raises(DataError) as raised:
        read_keys(keys)
    assert complaint in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_weight_has_the_usual_limits(keys):
    keys.write_text(FILE.replace("weight = 4", "weight = -4"))
    with pytest.raises(DataError, match=r"clients.ann: weight = -4: must be a number from 1e-06"):
        read_keys(keys)


def access(path, **weights):
    return Access(None, path, weights, lambda: 0)


def changed(path, text):
    """Change the file, and make sure that its modification time differs."""
    before = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def test_a_changed_file_is_read_once_it_has_stayed_the_same(keys, caplog):
    caplog.set_level("INFO")
    at = access(keys, bob=2.0)
    weights, told = at.weights, []
    at.on_weights = lambda: told.append(dict(weights))
    assert (at.keys.get("secret-1"), weights) == ("ann", {"ann": 4.0, "bob": 2.0})
    at.reload_if_changed()
    changed(keys, '"secret-3" = "ann"\n')
    at.reload_if_changed()
    assert at.keys.get("secret-1") == "ann"  # the file may not be complete yet
    at.reload_if_changed()
    assert (at.keys.get("secret-1"), at.keys.get("secret-3")) == (None, "ann")
    assert at.weights is weights
    assert weights == {"bob": 2.0}
    assert told == [weights]
    assert at.quotas.limits == {}
    assert [one.partition("keys.toml: ")[2] for one in caplog.messages] == [
        "reloaded: 1 keys of 1 clients"
    ]


@pytest.mark.parametrize("broken", ['"secret-3" = ', '"secret-3" = 7\n', "", None])
def test_a_broken_or_lost_file_changes_nothing_and_is_reported_once(keys, broken, caplog):
    at = access(keys)
    if broken is None:
        keys.unlink()
    else:
        changed(keys, broken)
    for _ in range(4):
        at.reload_if_changed()
    assert (at.keys.get("secret-1"), at.weights["ann"]) == ("ann", 4.0)
    assert at.quotas.limits["bob"].requests == 2
    [warning] = caplog.messages
    assert "the previous content stays in force" in warning
    assert "secret" not in warning
    keys.write_text('"secret-4" = "ann"\n')
    at.reload_if_changed()
    at.reload_if_changed()
    assert at.keys.get("secret-4") == "ann"


class Minutes:
    """Quotas on a clock that the test sets."""

    def __init__(self, **quota):
        self.now = 0.0
        self.quotas = Quotas(lambda: self.now)
        self.quotas.replace_limits({"ann": Quota(**quota)})

    def ask(self):
        """Return the seconds until the next try, or 0 if the request is accepted."""
        try:
            self.quotas.check_quota("ann")
        except Problem as problem:
            return problem.retry_after_s
        return 0

    def serve(self, wanted, *charge):
        with self.quotas.lease("ann", wanted) as bill:
            for one in charge:
                bill.add_charge(one)


def test_requests_per_minute_are_limited():
    at = Minutes(requests=2)
    assert [at.ask(), at.ask(), at.ask()] == [0, 0, 30]
    at.now = 29.0
    assert at.ask() == 1
    at.now = 30.0
    assert [at.ask(), at.ask()] == [0, 30]
    at.quotas.check_quota("bob")  # a client without a quota


def test_tokens_per_minute_are_actual_usage_and_debts_are_repaid():
    at = Minutes(tokens=600)  # 10 tokens a second
    assert at.ask() == 0
    at.serve(100, Charge(100, 50, 80))
    # two workers; the request asked for more tokens than it used
    at.serve(5_000, Charge(10, 0), Charge(10, 10))
    assert at.ask() == 0  # 420 tokens are left
    at.serve(0, Charge(420, 300))
    assert at.ask() == 30
    at.now = 29.0
    assert at.ask() == 1
    at.now = 30.5
    assert at.ask() == 0


def test_requested_tokens_count_until_the_usage_is_known():
    at = Minutes(tokens=600)
    at.ask()
    with at.quotas.lease("ann", 600):
        assert at.ask() == 1
    # The request was refused later, or its client left, so there was no service.
    assert at.ask() == 0


def test_another_quota_holds_immediately_and_debts_stay():
    at = Minutes(tokens=600)
    at.ask()
    at.serve(0, Charge(6_000, 0))
    assert at.ask() == 60  # 420 tokens and not 540
    at.quotas.replace_limits({"ann": Quota(tokens=5_000)})
    assert at.ask() == 12  # 1,000 of 5,000 tokens a minute are still owed
    at.quotas.replace_limits({"ann": Quota(tokens=6_001)})
    assert at.ask() == 0
    at.quotas.replace_limits({})
    at.quotas.replace_limits({"ann": Quota(tokens=600)})
    assert at.ask() == 0


@given(
    st.lists(st.tuples(st.floats(0, 40), st.integers(1, 900), st.integers(0, 900)), max_size=40),
    st.integers(1, 2_000),
)
def test_no_client_exceeds_its_rate_by_more_than_one_request(steps, per_min):
    """Requests are served one after the other, so only one request is in flight."""
    at, had, most = Minutes(tokens=per_min), 0, 0
    for wait_s, prompt, output in steps:
        at.now += wait_s
        if not at.ask():
            at.serve(prompt, Charge(prompt, output))
            had, most = had + prompt + output, max(most, prompt + output)
        assert had <= per_min * (1 + at.now / 60) + most + 1e-6


def test_requests_that_were_let_in_are_checked_again():
    """All may arrive before the first has a body, and so before any token is reserved."""
    at, served = Minutes(tokens=600), 0
    assert [at.ask() for _ in range(100)] == [0] * 100
    with ExitStack() as leases:
        for _ in range(100):
            with suppress(Problem):
                leases.enter_context(at.quotas.lease("ann", 150))
                served += 1
    assert served == 4


@pytest.mark.parametrize(
    ("path", "body", "served"),
    [
        (GENERATE, {"input_ids": [1] * 50}, 6),  # 178 tokens each, because SGLang's default is 128
        (COMPLETIONS, {"prompt": "t" * 800, "max_tokens": 60}, 4),
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}, 1),  # 4,096 are reserved
        (CHAT, {"messages": [], "tools": [{"description": "t" * 1_900}], "max_tokens": 20}, 2),
    ],
)
def test_bodies_that_are_held_back_pass_no_quota(keys, path, body, served):
    keys.write_text('"secret" = "ann"\n[clients.ann]\ntokens_per_min = 1_000\n')
    raw = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer secret\r\n"
        f"Content-Length: {len(raw)}\r\n\r\n"
    )

    async def run():
        async with cluster(1, held_at=0, router={"keys_file": keys}) as (router, [worker]):
            port = int(router.url.rsplit(":", 1)[1])
            streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            for _, writer in streams:
                writer.write(head.encode())
            await asyncio.sleep(0.1)
            for _, writer in streams:
                writer.write(raw)
            heads = [asyncio.create_task(reader.readline()) for reader, _ in streams]
            await until(lambda: sum(task.done() for task in heads) + len(worker.seen) == 20)
            done = [task.result() for task in heads if task.done()]
            seen = len(worker.seen)
            worker.released.set()
            await asyncio.gather(*heads)
            for _, writer in streams:
                writer.close()
            return done, seen

    done, seen = asyncio.run(run())
    assert done == [b"HTTP/1.1 429 Too Many Requests\r\n"] * (20 - served)
    assert seen == served


def test_over_quota_is_429_before_the_body_is_read(keys):
    async def run():
        async with cluster(1, router={"keys_file": keys}) as (under_test, [worker]):

            async def status(key, body=None):
                sent = {"Authorization": f"Bearer {key}"}
                async with under_test.post(GENERATE, body, **sent) as answer:
                    assert ("Retry-After" in answer.headers) == (answer.status == 429)
                    return answer.status

            broken = {"input_ids": "no"}
            assert [await status("secret-2") for _ in range(3)] == [200, 200, 429]
            assert await status("secret-2", broken) == 429
            assert await status("secret-1") == 200
            long = {**PATHS[GENERATE], "sampling_params": {"max_new_tokens": 10_000}}
            assert await status("secret-1", long) == 200  # 103 tokens were used
            assert await status("secret-1") == 200
            assert await status("secret-9") == 401
            assert len(worker.seen) == 5

    asyncio.run(run())


def test_a_tenant_has_a_weight_and_no_quota(keys):
    keys.write_text('"secret-1" = "acme/ml/ann"\n[clients."acme/ml/"]\nweight = 2\n')
    assert read_keys(keys).weights == {"acme/ml/": 2.0}
    keys.write_text(keys.read_text() + "tokens_per_min = 100\n")
    with pytest.raises(
        DataError, match=r"clients\.acme/ml/: a tenant can have a weight, and no other"
    ):
        read_keys(keys)
    keys.write_text('"secret-1" = "acme/ml/ann"\n[clients."acme/web/"]\nweight = 2\n')
    with pytest.raises(DataError, match="entry 1 must be a table named after a client"):
        read_keys(keys)


@pytest.mark.parametrize("behind", ["fair-finish", "fair-finish behind a queue"])
def test_a_router_learns_changed_weights(keys, behind, monkeypatch):
    monkeypatch.setattr(access_module, "LOOK_S", 0.01)
    told = []
    monkeypatch.setattr(
        FairFinish, "on_weights", lambda self: told.append(dict(self.setup.weights))
    )

    async def run():
        settings = {"router": "fair-finish", "keys_file": keys}
        if behind.endswith("queue"):
            settings |= {"gateway": "vtc", "saturation": "concurrency"}
        async with cluster(1, router=settings):
            changed(keys, FILE.replace("weight = 4", "weight = 5"))
            await until(lambda: told)
            assert told == [{"ann": 5.0}]

    asyncio.run(run())
