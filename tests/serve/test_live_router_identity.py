"""Test how the client of a request is identified."""

import asyncio

import pytest

from fairbench.errors import DataError, UsageError
from fairbench_load.headers import (
    BODY_CLIENTS,
    CLIENT_ALIASES,
    DEFAULT_CLIENT,
    HEALTH,
    OTHERS,
    PROGRAM,
    ROUTING_KEY,
    SESSION_ALIASES,
)
from fairbench_load.http_server import Problem
from fairbench_serve.identity import NO_SESSION, Keyring, client_of, is_name, session_of
from fairbench_serve.keys_file import read_keys
from fairbench_serve.plan import client_fields
from tests.serve.live_router import CHAT, COMPLETIONS, PATHS, cluster

KEYS = {"k1": "ann"}


def test_the_most_trusted_name_counts():
    sent = {name: name[:5] for name in CLIENT_ALIASES}
    for name in CLIENT_ALIASES:
        assert client_of(sent, "user", None) == name[:5]
        del sent[name]
    assert client_of(sent, "user", None) == "user"
    assert client_of(sent, None, None) == DEFAULT_CLIENT


@pytest.mark.parametrize("name", ["a" * 129, "ä", "a\x00", "a\r\nx: y"])
def test_names_that_a_header_cannot_carry_are_refused(name):
    with pytest.raises(Problem, match="printable"):
        client_of({CLIENT_ALIASES[0]: name}, None, None)


@pytest.mark.parametrize(
    "said", ["é", "ユーザー" * 128, "a" * 129, "a\r\nx: y", OTHERS, "\U0001f600"]
)
def test_a_bodys_name_in_any_script_becomes_ascii(said):
    name = client_of({}, said, None)
    assert is_name(name)
    assert len(name) == len("user-") + 20
    assert client_of({}, said, None) == name
    assert client_of({}, said[:-1] + "!", None) != name


def test_the_name_derived_from_a_text_never_changes():
    """The value is from ``printf %s é | b2sum -l 80``. Another hash would reset all credits."""
    assert client_of({}, "é", None) == "user-767822563e908a245afc"


def test_a_bodys_name_has_a_length_limit():
    assert is_name(client_of({}, "é" * 512, None))
    with pytest.raises(Problem, match="at most 512"):
        client_of({}, "é" * 513, None)


def test_with_keys_only_the_key_counts():
    sent = {"Authorization": "bearer  k1", CLIENT_ALIASES[0]: "bob"}
    assert client_of(sent, "bob", KEYS) == "ann"


SAID = {"user": "u", "safety_identifier": "s", "prompt_cache_key": "p"}


def served(body, sent=None, path=CHAT, **router):
    """Return the name of the request's client that the worker received."""

    async def run():
        async with cluster(1, router=router) as (under_test, (worker,)):
            async with under_test.post(path, {**PATHS[path], **body}, **(sent or {})) as answer:
                assert answer.status == 200
            return worker.seen[0][1][ROUTING_KEY]

    return asyncio.run(run())


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_the_operator_chooses_which_fields_of_a_body_name_the_client(path):
    assert served(SAID, path=path) == "u"
    assert served(SAID, path=path, client_from=("prompt_cache_key", "user")) == "p"
    assert served({"user": "u"}, path=path, client_from=("prompt_cache_key", "user")) == "u"
    assert served(SAID, {CLIENT_ALIASES[0]: "ann"}, path, client_from=BODY_CLIENTS) == "ann"
    only_safety = {"client_from": ("safety_identifier",)}
    assert served({"user": "u"}, path=path, **only_safety) == DEFAULT_CLIENT


def test_with_keys_no_field_of_a_body_counts():
    sent = {"Authorization": "Bearer k1", CLIENT_ALIASES[0]: "bob"}
    assert served(SAID, sent, client_from=BODY_CLIENTS, keys=KEYS) == "ann"


@pytest.mark.parametrize(
    "authorization", ["", "k1", "Basic k1", "Bearer", "Bearer k2", "Bearer k1 x"]
)
def test_any_other_key_is_refused(authorization):
    with pytest.raises(Problem, match="unknown API key") as raised:
        client_of({"Authorization": authorization, CLIENT_ALIASES[0]: "ann"}, "ann", KEYS)
    assert raised.value.status == 401


def test_keys_are_read_from_a_file(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text('"k1" = "ann"\nk2 = "ann"\n')
    assert read_keys(path).keys == {"k1": "ann", "k2": "ann"}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "must contain at least one key"),
        ("k1 = 7", "key 1: the client must be a string"),
        ('[k1]\nname = "a"', "key 1"),
        ('k1 = ""', "key 1"),
        ("k1", "line 1"),
    ],
)
def test_an_invalid_key_file_is_named_and_its_keys_are_not_shown(tmp_path, content, complaint):
    path = tmp_path / "keys.toml"
    path.write_text(content)
    with pytest.raises(DataError, match=complaint) as raised:
        read_keys(path)
    assert "keys.toml" in str(raised.value)


def test_a_keyring_recognises_keys_without_storing_them():
    keyring = Keyring(KEYS | {"k2": "bob"})
    assert [keyring.get(key) for key in ("k1", "k2", "k", "k11", "", "\udcff")] == [
        *("ann", "bob"),
        *[None] * 4,
    ]
    assert client_of({"Authorization": "Bearer k2"}, None, keyring) == "bob"
    assert "k1" not in repr(vars(keyring))


@pytest.mark.parametrize("name", [OTHERS, HEALTH])
def test_reserved_names_belong_to_no_client(name):
    with pytest.raises(Problem):
        client_of({CLIENT_ALIASES[0]: name}, None, None)


def test_the_flag_accepts_known_fields_and_no_keys_beside_it():
    assert client_fields(None, keys=True) == client_fields(None, keys=False) == ("user",)
    assert client_fields("safety_identifier, user", keys=False) == ("safety_identifier", "user")
    with pytest.raises(UsageError, match="Did you mean 'user'"):
        client_fields("users", keys=False)
    with pytest.raises(UsageError, match="--client-from user cannot be combined with --keys"):
        client_fields("user", keys=True)


@pytest.mark.parametrize("name", SESSION_ALIASES)
def test_a_header_names_the_session_before_the_body(name):
    number = session_of({name: "s1"}, "s2")
    assert number == session_of({SESSION_ALIASES[0]: "s1"}, None) > 0
    assert number != session_of({}, "s2") != NO_SESSION
    assert session_of({name: ""}, "s2") == session_of({}, "s2")
    assert session_of({}, None) == session_of({}, "") == NO_SESSION


@pytest.mark.parametrize("name", ["é" * 512, "task 7", "\ud800", "-1"])
def test_any_text_can_name_a_session(name):
    assert 0 < session_of({}, name) < 2**63
    assert session_of({}, name) != session_of({}, name + "!" if len(name) < 512 else "x")


def test_a_sessions_name_has_a_length_limit():
    with pytest.raises(Problem, match="at most 512"):
        session_of({SESSION_ALIASES[1]: "s" * 513}, None)


def answers_of(requests, **router):
    """Return the status and error of each (body, headers), sent to ``CHAT`` one by one."""

    async def run():
        async with cluster(1, router=router) as (under_test, _):
            found = []
            for body, sent in requests:
                async with under_test.post(CHAT, {**PATHS[CHAT], **body}, **sent) as answer:
                    said = await answer.json()
                    found.append((answer.status, said.get("error", {}).get("message", "")))
            return found

    return asyncio.run(run())


@pytest.mark.parametrize("gate", ["thunderagent", "session-cap", "fair-sessions"])
def test_a_gate_refuses_a_request_without_a_session_in_one_line(gate):
    requests = [
        ({}, {SESSION_ALIASES[0]: "s"}),
        ({"prompt_cache_key": "s"}, {}),
        ({}, {PROGRAM: "7"}),
        ({"user": "u"}, {}),
    ]
    *good, (status, said) = answers_of(requests, gateway=gate, saturation="none")
    assert {code for code, _ in good} == {200}
    assert status == 400
    assert said == (
        f"the gateway {gate} needs the session of each request: send the header "
        "x-fairbench-session, or prompt_cache_key in the body"
    )
    assert answers_of([({}, {})], gateway="fcfs", saturation="none") == [(200, "")]
