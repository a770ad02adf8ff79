"""Test that after a refusal (4xx), only similar requests avoid the worker."""

import asyncio
from dataclasses import dataclass

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from fairbench_load import headers
from fairbench_serve import breaker
from fairbench_serve.breaker import Refusals
from tests.serve.live_router import CHAT, COMPLETIONS, GENERATE, PATHS, Worker, router_before, until


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_only_requests_of_the_kind_that_are_as_large_avoid_a_worker():
    refusals = Refusals(Clock())
    assert [refusals.record_refusal(1, 1, size, "ann") for size in (30, 10, 20)] == [
        False,
        False,
        True,
    ]
    avoided = {size: refusals.avoided(1, size, "ann") for size in (1, 29, 30, 99)}
    assert avoided == {1: [], 29: [], 30: [1], 99: [1]}
    assert refusals.avoided(2, 99, "ann") == []
    refusals.record_refusal(1, 1, 15, "ann")
    assert refusals.avoided(1, 20, "ann") == [1]


def test_refusals_of_one_client_concern_only_its_own_requests():
    """The requests' content may be the cause, and two clients do not send the same content."""
    refusals = Refusals(Clock())
    for _ in range(5):
        refusals.record_refusal(0, 1, 5, "ann")
    assert (refusals.avoided(1, 5, "ann"), refusals.avoided(1, 5, "bob")) == ([0], [])
    refusals.record_refusal(0, 1, 9, "bob")
    assert refusals.avoided(1, 5, "cat") == [0]
    refusals.record_service(0, 1, 9)
    refusals.record_refusal(0, 1, 5, "ann")
    assert refusals.avoided(1, 5, "ann") == [], "a served request clears the clients as well"


def test_a_served_request_clears_refusals_up_to_its_size():
    refusals = Refusals(Clock())
    for size in (10, 20, 30):
        refusals.record_refusal(1, 1, size, "ann")
    refusals.record_service(1, 1, 9)
    assert refusals.avoided(1, 30, "ann") == [1]
    refusals.record_service(1, 1, 10)
    assert refusals.avoided(1, 30, "ann") == []
    assert refusals.record_refusal(1, 1, 40, "ann"), "three refusals in succession again"


def test_one_request_tries_a_refusing_worker_after_each_rest():
    clock = Clock()
    refusals = Refusals(clock)
    for _ in range(3):
        refusals.record_refusal(0, 1, 5, "ann")
    rests = []
    for _ in range(6):
        start = clock.now
        while refusals.avoided(1, 5, "ann"):
            clock.now += 0.5
        rests.append(clock.now - start)
        assert refusals.avoided(1, 5, "ann") == [0], "one request at a time"
        refusals.record_refusal(0, 1, 5, "ann")
    assert rests == [5, 10, 20, 40, 60, 60]


def test_the_refusals_of_a_new_process_are_forgotten():
    refusals = Refusals(Clock())
    for worker in (0, 1):
        for _ in range(3):
            refusals.record_refusal(worker, 1, 5, "ann")
    refusals.forget_worker(0)
    assert refusals.avoided(1, 5, "ann") == [1]


def test_the_number_of_kinds_is_bounded(monkeypatch):
    monkeypatch.setattr(breaker, "MOST_KINDS", 3)
    refusals = Refusals(Clock())
    for kind in range(5):
        for _ in range(3):
            refusals.record_refusal(0, kind, 1, "ann")
    assert [kind for kind in range(5) if refusals.avoided(kind, 1, "ann")] == [2, 3, 4]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=40), st.integers(0, 20))
def test_a_worker_is_avoided_exactly_after_three_refusals_since_a_larger_request_was_served(
    events, size
):
    refusals, left = Refusals(Clock()), []
    for was_served, one in events:
        if was_served:
            refusals.record_service(0, 1, one)
            left = [other for other in left if other > one]
        else:
            refusals.record_refusal(0, 1, one, "ann")
            left = sorted([*left, one])[:3]  # a served request clears what was kept
    assert bool(refusals.avoided(1, size, "ann")) == (sum(one <= size for one in left) == 3)


@dataclass
class Choosy(Worker):
    """A worker that refuses requests for which ``refuses(path, body)`` holds, like engines do."""

    refuses: object = lambda path, body: False
    code: int = 400

    async def answer(self, request):
        body = await request.json()
        if self.refuses(request.path, body):
            self.seen.append((request.path, {}, body))
            return web.json_response({"error": {"message": "refused"}}, status=self.code)
        return await super().answer(request)


async def asked(under_test, path, body, requests):
    found = []
    for number in range(requests):
        sent = {headers.CLIENT: f"client-{number % 3}"}
        async with under_test.post(path, {**PATHS[path], **body}, **sent) as answer:
            await answer.read()
            found.append((answer.status, answer.headers[headers.WORKER]))
    return found


def long(path, body):
    return len(body["input_ids"]) > 200


LONG, SHORT = {"input_ids": [7] * 300}, {"input_ids": [8] * 40}
IMAGE = {"response_format": {"type": "json_object"}}
KINDS = {
    "a shorter context": (GENERATE, long, 400, LONG, SHORT),
    "a smaller output": (
        *(COMPLETIONS, lambda _, body: body["max_tokens"] > 99, 400),
        *({"max_tokens": 200}, {"max_tokens": 5}),
    ),
    "a missing model": (
        *(CHAT, lambda _, body: body["model"] == "x", 404),
        *({"model": "x"}, {"model": "y"}),
    ),
    "an adapter": (
        *(COMPLETIONS, lambda _, body: body["model"] != "m", 404),
        *({"model": "m:lora"}, {"model": "m"}),
    ),
    "no grammars": (CHAT, lambda _, body: "response_format" in body, 422, IMAGE, {}),
    "a short body": (GENERATE, long, 413, LONG, SHORT),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("router", ["round-robin", "least-loaded"])
def test_a_worker_that_refuses_some_requests_serves_the_others(kind, router):
    path, refuses, code, refused, served = KINDS[kind]

    async def run():
        workers = [Choosy(refuses=refuses, code=code), Worker()]
        for worker in workers:
            await worker.start()
        try:
            async with router_before(workers, router=router) as under_test:
                first = await asked(under_test, path, refused, 20)
                reached = len(workers[0].seen)
                second = await asked(under_test, path, served, 20)
                return first, reached, second, under_test.up
        finally:
            for worker in workers:
                await worker.stop()

    first, reached, second, up = asyncio.run(run())
    assert first == [(200, "1")] * 20
    assert reached <= 3
    assert {status for status, _ in second} == {200}
    assert sum(worker == "0" for _, worker in second) >= 10 or router == "least-loaded"
    assert ("0" in {worker for _, worker in second}, up) == (True, {0, 1})


@pytest.mark.parametrize("router", ["round-robin", "least-loaded", "d2lpm"])
def test_requests_for_models_of_different_workers_are_all_served(router):
    """Each of three workers has its own model, so a request may need two retries."""

    def only(name):
        return lambda _, body: body["model"] != name

    async def run():
        workers = [Choosy(refuses=only(name), code=404) for name in "xyz"]
        for worker in workers:
            await worker.start()
        try:
            async with router_before(workers, router=router) as under_test:
                found = []
                for model in "xxxxyyyyzzzz" + "xyz" * 10 + "zzyyxx":
                    answered = await asked(under_test, CHAT, {"model": model}, 1)
                    found += [(status, "xyz"[int(worker)] == model) for status, worker in answered]
                return found, under_test.up
        finally:
            for worker in workers:
                await worker.stop()

    found, up = asyncio.run(run())
    assert set(found) == {(200, True)}
    assert up == {0, 1, 2}


def test_a_request_that_no_other_worker_serves_changes_nothing():
    async def run():
        workers = [Choosy(refuses=lambda *_: True), Choosy(refuses=long)]
        for worker in workers:
            await worker.start()
        try:
            async with router_before(workers) as under_test:
                refused = await asked(under_test, GENERATE, LONG, 10)
                served = await asked(under_test, GENERATE, SHORT, 10)
                return refused, served, under_test.up, len(workers[1].seen)
        finally:
            for worker in workers:
                await worker.stop()

    refused, served, up, reached = asyncio.run(run())
    assert {status for status, _ in refused} == {400}
    assert served == [(200, "1")] * 10
    assert (up, reached) == ({0, 1}, 10 + 10)


@pytest.mark.parametrize("code", [401, 403, 429])
def test_a_clients_own_key_does_not_take_a_worker_from_other_clients(code):
    """Without ``--keys``, the router passes keys on, and a worker may not know every key."""

    class Keyed(Worker):
        async def answer(self, request):
            if request.headers.get("Authorization") == "Bearer other":
                return web.json_response({"error": {"message": "who?"}}, status=code)
            return await super().answer(request)

    async def run():
        workers = [Keyed(), Worker()]
        for worker in workers:
            await worker.start()
        try:
            async with router_before(workers) as under_test:
                found = []
                for key in ["other"] * 10 + ["known"] * 10:
                    sent = {"Authorization": f"Bearer {key}"}
                    async with under_test.post(GENERATE, **sent) as answer:
                        found.append((answer.status, answer.headers[headers.WORKER]))
                return found, under_test.up
        finally:
            for worker in workers:
                await worker.stop()

    found, up = asyncio.run(run())
    assert found[:10] == [(200, "1")] * 10
    assert (set(found[10:]), up) == ({(200, "0"), (200, "1")}, {0, 1})


def test_a_worker_whose_bad_answer_meets_a_refusal_leaves_the_client_the_refusal():
    """The refusal says what the client must change."""

    async def run():
        workers = [Choosy(refuses=lambda *_: True), Worker(says={"error": "broken"})]
        for worker in workers:
            await worker.start()
        try:
            async with router_before(workers) as under_test:
                return await asked(under_test, GENERATE, {}, 6)
        finally:
            for worker in workers:
                await worker.stop()

    assert {status for status, _ in asyncio.run(run())} == {400}


def test_a_refusal_does_not_hide_that_the_worker_that_could_serve_has_died():
    async def run():
        workers = [Choosy(refuses=lambda *_: True), Worker(held_at=0)]
        for worker in workers:
            await worker.start()
        async with router_before(workers, health_interval_s=1000.0) as under_test:
            request = asyncio.create_task(asked(under_test, GENERATE, {}, 1))
            await until(lambda: workers[1].seen)
            await workers[1].stop()
            found = await request
        await workers[0].stop()
        return found

    assert asyncio.run(run()) == [(502, "1")]


@pytest.mark.parametrize("odd", [{}, {"error": "no"}, {"data": "x"}, None])
def test_models_are_listed_by_any_worker_that_can(odd):
    class Odd(Worker):
        async def models(self, request):
            return web.json_response(odd, status=200 if odd is not None else 500)

    async def run():
        workers = [Odd(), Worker(listed=[{"id": "x"}]), Worker(listed=[{"id": "y"}])]
        for worker in workers:
            await worker.start()
        try:
            async with router_before(workers) as under_test:
                found = []
                for page in ("", "/x", "/y", "/z"):
                    url = f"{under_test.url}/v1/models{page}"
                    async with under_test.session.get(url) as answer:
                        found.append((answer.status, (await answer.json()).get("id")))
                return found
        finally:
            for worker in workers:
                await worker.stop()

    assert asyncio.run(run()) == [(200, None), (200, "x"), (200, "y"), (404, None)]


REFUSED = {
    "a picture": (CHAT, {"messages": [{"role": "user", "content": "[picture]"}]}),
    "a role": (CHAT, {"messages": [{"role": "developer", "content": "[picture]"}]}),
    "a word": (COMPLETIONS, {"prompt": "[picture]"}),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("code", [400, 415, 422])
def test_a_client_whose_content_a_worker_refuses_takes_it_from_nobody_else(kind, code):
    path, body = REFUSED[kind]

    async def run():
        refuses = {"refuses": lambda _, body: "[picture]" in str(body), "code": code}
        workers = [Choosy(**refuses), Worker()]
        for worker in workers:
            await worker.start()
        async with router_before(workers) as under_test:

            async def workers_of(client, body):
                found = []
                for _ in range(6):
                    sent = {**PATHS[path], **body}
                    async with under_test.post(path, sent, **{headers.CLIENT: client}) as answer:
                        assert answer.status == 200
                        found.append(answer.headers[headers.WORKER])
                return found

            found = await workers_of("ann", body), await workers_of("bob", {})
        for worker in workers:
            await worker.stop()
        return found

    ann, bob = asyncio.run(run())
    assert (set(ann), set(bob)) == ({"1"}, {"0", "1"})
