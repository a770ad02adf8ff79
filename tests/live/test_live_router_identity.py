"""Whose a request is."""

import pytest

from fairbench.errors import DataError
from fairbench.live.headers import CLIENT_ALIASES, DEFAULT_CLIENT, HEALTH, OTHERS
from fairbench.live.router.identity import Keyring, client_of
from fairbench.live.router.keys_file import read_keys
from fairbench.live.router.problem import Problem

KEYS = {"k1": "ann"}


def test_the_strongest_name_counts():
    sent = {name: name[:5] for name in CLIENT_ALIASES}
    for name in CLIENT_ALIASES:
        assert client_of(sent, "user", None) == name[:5]
        del sent[name]
    assert client_of(sent, "user", None) == "user"
    assert client_of(sent, None, None) == DEFAULT_CLIENT


@pytest.mark.parametrize("name", ["a" * 129, "ä", "a\x00", "a\r\nx: y"])
def test_what_cannot_travel_in_a_header_is_no_name(name):
    with pytest.raises(Problem, match="printable"):
        client_of({CLIENT_ALIASES[0]: name}, None, None)


def test_with_keys_only_the_key_counts():
    sent = {"Authorization": "bearer  k1", CLIENT_ALIASES[0]: "bob"}
    assert client_of(sent, "bob", KEYS) == "ann"


@pytest.mark.parametrize(
    "authorization", ["", "k1", "Basic k1", "Bearer", "Bearer k2", "Bearer k1 x"]
)
def test_anything_but_a_known_key_is_turned_away(authorization):
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
        ("", "holds no key"),
        ("k1 = 7", "key 1: its client must be a text"),
        ('[k1]\nname = "a"', "key 1"),
        ('k1 = ""', "key 1"),
        ("k1", "line 1"),
    ],
)
def test_a_wrong_key_file_is_named_and_its_keys_are_not(tmp_path, content, complaint):
    path = tmp_path / "keys.toml"
    path.write_text(content)
    with pytest.raises(DataError, match=complaint) as raised:
        read_keys(path)
    assert "keys.toml" in str(raised.value)


def test_a_keyring_knows_the_keys_and_keeps_none():
    keyring = Keyring(KEYS | {"k2": "bob"})
    assert [keyring.get(key) for key in ("k1", "k2", "k", "k11", "", "\udcff")] == [
        *("ann", "bob"),
        *[None] * 4,
    ]
    assert client_of({"Authorization": "Bearer k2"}, None, keyring) == "bob"
    assert "k1" not in repr(vars(keyring))


@pytest.mark.parametrize("name", [OTHERS, HEALTH])
def test_a_name_of_ours_is_nobodys(name):
    with pytest.raises(Problem):
        client_of({CLIENT_ALIASES[0]: name}, None, None)
