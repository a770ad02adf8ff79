"""Test features of engines without an engine: sessions, wide tokens, accepted drafts, the table."""

from types import SimpleNamespace

import pytest

from fairbench.schedulers.eviction.registry import build_eviction
from fairbench.schedulers.local.programs import IDLE_PROGRAMS
from fairbench.schedulers.token_pages import narrow, segments_of
from fairbench_engines import features
from fairbench_engines.home import program_of, request_of
from fairbench_engines.sglang import release as sglang
from fairbench_engines.sglang.requests import outputs_of, session_of
from fairbench_engines.vllm import release as vllm


@pytest.mark.parametrize(
    ("facts", "session"),
    [
        ({}, None),
        ({"session": None, "session_id": None}, None),
        ({"session_id": "chat"}, "chat"),
        ({"session": SimpleNamespace(session_id="opened"), "session_id": None}, "opened"),
    ],
)
def test_a_session_is_known_where_the_caller_names_it(facts, session):
    assert session_of(SimpleNamespace(**facts)) == session


def test_a_session_is_a_program_of_its_client():
    numbers = {program_of(client, one) for client in "ab" for one in ("s", "t", "")}
    assert len(numbers) == 6
    assert min(numbers) > 0
    assert program_of("a", "s") == program_of("a", "s")
    assert program_of("a", None) == 0


def call(number, session, at_s):
    return request_of("a", [1, 2], 5, number, at_s, session=session)


def test_retention_keeps_the_tokens_of_sessions_and_of_nothing_else():
    policy = build_eviction("retention", {"retention.first_s": 8.0, "retention.factor": 2.0})
    assert policy.on_finish(call(1, None, 0.0), 100.0) == 100
    assert policy.on_finish(call(2, "s", 0.0), 100.0) == 116
    policy.on_start(call(3, None, 101.0))  # no gap: nothing has ended without a session
    assert policy.on_finish(call(4, "t", 0.0), 100.0) == 116
    policy.on_start(call(5, "s", 103.0))
    assert policy.on_finish(call(5, "s", 103.0), 110.0) == 116  # twice the gap of 3 s


def test_retention_forgets_sessions_that_do_not_return():
    policy = build_eviction("retention", {})
    for number in range(IDLE_PROGRAMS + 5):
        policy.on_finish(call(number, f"s{number}", 0.0), 1.0)
    assert len(policy._ended_s) == IDLE_PROGRAMS


@pytest.mark.parametrize("wide", [1 << 32, (1 << 62) + 7, 1_000_000 + (1 << 61)])
def test_the_numbers_of_an_images_tokens_may_have_more_than_32_bits(wide):
    with pytest.raises(OverflowError):
        segments_of([1, wide])
    mixed, plain = segments_of(narrow([1, wide, 3])), segments_of(narrow([1, 2, 3]))
    assert mixed != plain
    assert sum(segment.length for segment in mixed) == 3
    assert mixed == segments_of(narrow([1, wide, 3]))
    assert segments_of(narrow([1, 2, 3])) == segments_of([1, 2, 3])


@pytest.mark.parametrize(("ends", "charged"), [(None, 5), (3, 3), (5, 5), (9, 5)])
def test_drafts_that_were_accepted_after_the_end_are_not_counted(ends, charged):
    assert outputs_of(SimpleNamespace(output_ids=[0] * 5, finished_len=ends)) == charged


def test_the_table_has_every_refusal_of_both_plugins():
    flags = {flag for one in features.FEATURES for flag in one.flags}
    paths = {path for one in features.FEATURES for path in one.paths}
    assert flags == sglang.OFF.keys()
    assert paths >= vllm.OFF.keys()
    for one in features.FEATURES:
        assert bool(one.sglang) != bool(one.flags)


def test_a_row_says_that_a_feature_works_once_the_plugin_takes_it():
    (lora,) = [one for one in features.FEATURES if one.name == "LoRA adapters"]
    assert features._in_vllm(lora, {"lora_config": ("--enable-lora", None)}) == (
        "refused (`--enable-lora`)"
    )
    assert features._in_vllm(lora, {}) == "works"
