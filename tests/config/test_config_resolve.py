"""Test the resolution of flags, settings and a file into one full spec, and its storage."""

import tomllib
from math import inf, nan

import pytest

from fairbench.config import to_toml
from fairbench.config.resolve import resolve
from tests.config.config_helpers import message


def test_flags_override_the_file_and_the_rest_of_it_stays():
    saved = tomllib.loads(to_toml(resolve({"seed": 7}, {"dlpm.quantum": 123})))
    again = resolve({"scheduler": "vtc"}, {"vtc.charge": "input"}, saved)
    assert (again.scheduler, again.router, again.local) == ("vtc", "client-round-robin", "vtc")
    assert again.seed == 7
    assert again.settings["vtc.charge"] == "input"
    assert resolve({"local": "vtc"}, {}, saved).scheduler == "d2lpm+vtc"
    assert resolve({}, {"dlpm.quantum": 9}, saved).settings["dlpm.quantum"] == 9


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"dp": 0}, "dp = 0: must be greater than or equal to 1"),
        ({"dp": 10**30}, f"dp = {10**30}: must be less than or equal to 4096"),
        ({"clients": 10_001}, "clients = 10001: must be less than or equal to 10000"),
        ({"seed": 2**63}, f"seed = {2**63}: must be less than {2**63}"),
        ({"tag": "t" * 65}, f"tag = '{'t' * 65}': must have at most 64 characters"),
        (
            {"num_programs": 1_000_000, "dp": 8},
            "num_programs = 1000000, clients = 3: this gives about 3,000,000 programs in total, "
            "and at most 2,000,000 are allowed",
        ),
        # 0.035 programs/s for each of 3 clients and 8 GPUs, over 4 x 10^6 s
        (
            {"duration_s": 4e6, "dp": 8},
            "duration_s = 4000000.0, dp = 8, clients = 3: this gives about 3,360,000 programs in "
            "total, and at most 2,000,000 are allowed",
        ),
        # 900 s of three clients
        (
            {"request_rate": 1e4},
            "duration_s = 900.0, request_rate = 10000.0, clients = 3: this gives about 27,000,000 "
            "programs in total, and at most 2,000,000 are allowed",
        ),
        ({"clients": 0}, "clients = 0: must be greater than or equal to 1"),
        ({"num_programs": -1}, "num_programs = -1: must be greater than or equal to 1"),
        ({"request_rate": -2.0}, "request_rate = -2.0: must be greater than 0"),
        ({"request_rate": float("nan")}, "request_rate = nan: must be greater than 0"),
        ({"burstiness": 0.0}, "burstiness = 0.0: must be greater than or equal to 0.001"),
        ({"burstiness": nan}, "burstiness = nan: must be greater than or equal to 0.001"),
        ({"duration_s": -1.0}, "duration_s = -1.0: must be greater than 0"),
        ({"duration_s": inf}, "duration_s = inf: must be a finite number"),
        ({"seed": -1}, "seed = -1: must be greater than or equal to 0"),
        (
            {"tokenizer": "t.json"},
            "tokenizer: needs dataset_path, because it counts the tokens of real prompts",
        ),
    ],
)
def test_wrong_values_name_field_value_and_allowed_values(flags, expected):
    assert message(flags) == expected


@pytest.mark.parametrize(
    ("flags", "what", "near"),
    [
        ({"scheduler": "d2lmp"}, "unknown scheduler 'd2lmp'", "d2lpm"),
        ({"router": "roundrobin"}, "unknown router 'roundrobin'", "round-robin"),
        ({"local": "vct"}, "unknown local scheduler 'vct'", "vtc"),
        ({"scheduler": "d2lpm+vct"}, "unknown local scheduler 'vct'", "vtc"),
        ({"workload": "tott"}, "unknown workload 'tott'", "tot"),
        ({"scenario": "s3"}, "unknown scenario of tot 's3'", "s"),
        ({"gpu": "a1000"}, "unknown gpu 'a1000'", "a10"),
        ({"model": "llama-4-8b"}, "unknown model 'llama-4-8b'", "llama-3"),
    ],
)
def test_unknown_names_offer_the_nearest(flags, what, near):
    text = message(flags)
    assert text.startswith(what)
    assert f"Did you mean '{near}" in text


def test_chat_has_no_s2():
    assert "choose from none, s1" in message({"workload": "chat", "scenario": "s2"})
