"""Test features of engines on stand-ins: sessions, wide tokens, accepted drafts, the table."""

from types import SimpleNamespace

import pytest

from fairbench.errors import UsageError
from fairbench.schedulers.eviction.registry import build_eviction
from fairbench.schedulers.program_states import IDLE_PROGRAMS
from fairbench.schedulers.registry import build_local
from fairbench.schedulers.views import QueueView
from fairbench_engines import features
from fairbench_engines.scheduler_host import program_of, request_of
from fairbench_engines.sglang import release as sglang
from fairbench_engines.sglang.requests import (
    cached_len,
    keep_key,
    loaded_len,
    outputs_of,
    read_key,
    session_of,
)
from fairbench_engines.vllm import release as vllm
from fairbench_engines.vllm import start
from fairbench_engines.vllm.scheduler_host import session_of as vllm_session_of
from fairbench_engines.vllm.views import apart_of
from fairbench_load.by_class import ByClass
from fairbench_load.plugin_config import OWN_ORDER, Classes, Evicting, plugin_config
from fairbench_load.token_pages import narrow, segments_of


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
    # no gap is known, because no request has ended without a session
    policy.on_start(call(3, None, 101.0), 101.0)
    assert policy.on_finish(call(4, "t", 0.0), 100.0) == 116
    policy.on_start(call(5, "s", 103.0), 103.0)
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


def test_each_prompt_and_choice_of_a_request_keeps_its_client():
    batch = SimpleNamespace(routing_key="a")
    assert keep_key(lambda *_: SimpleNamespace(routing_key=None), batch, 1).routing_key == "a"


@pytest.mark.parametrize(
    ("named", "header", "client"),
    [(None, "h", "h"), ("body", "h", "body"), (None, None, None), ("body", None, "body")],
)
def test_the_header_names_the_client_where_the_body_does_not(named, header, client):
    obj = SimpleNamespace(routing_key=named)
    headers = {} if header is None else {"x-smg-routing-key": header}
    asked = read_key(lambda *all: all, "manager", obj, SimpleNamespace(headers=headers))
    assert asked[:2] == ("manager", obj)
    assert obj.routing_key == client
    assert read_key(lambda *all: all, "manager", obj) == ("manager", obj, None)


@pytest.mark.parametrize(
    ("facts", "cached"),
    [
        ({"prefix_len": 40}, 40),
        ({"prefix_len": 40, "host_hit_length": 0}, 40),
        ({"prefix_len": 40, "host_hit_length": 60}, 100),
        ({"prefix_indices": [0] * 7, "host_hit_length": 5}, 12),
    ],
)
def test_tokens_in_the_hosts_cache_count_as_cached(facts, cached):
    assert cached_len(SimpleNamespace(**facts)) == cached


@pytest.mark.parametrize(
    ("facts", "loaded"),
    [({}, 0), ({"host_hit_length": 5}, 5), ({"host_hit_length": 5, "host_loaded_length": 0}, 0)],
)
def test_a_load_that_sglang_declined_counts_as_none(facts, loaded):
    assert loaded_len(SimpleNamespace(**facts)) == loaded


def test_the_table_has_every_refusal_of_both_plugins():
    flags = {flag for one in features.FEATURES for flag in one.flags}
    paths = {path for one in features.FEATURES for path in one.paths}
    assert flags == sglang.OFF.keys()
    assert paths >= vllm.OFF.keys()
    for one in features.FEATURES:
        assert one.sglang or one.flags
        assert one.vllm or one.paths


def test_every_row_says_how_a_feature_is_tested_or_why_it_is_refused():
    for line in features.table().splitlines()[2:]:
        for cell in line.strip("| ").split(" | ")[1:]:
            assert "ested on" in cell or "refused (" in cell or cell == features.ABSENT
        assert "no test" not in line


def test_a_row_names_each_refused_flag_with_its_reason():
    row = features.Feature("images", vllm="images pass", paths=("a", "b"))
    off = {
        "a": vllm.OffValue("--a", None, "it hurts"),
        "b": vllm.OffValue("a model", 0, "it is odd"),
    }
    assert features._in_vllm(row, off) == (
        "works: images pass. refused (`--a`): it hurts. refused (a model): it is odd"
    )


# a stand-in for vLLM


def asked(**facts):
    """Return a request of vLLM with these facts."""
    none = {"lora_request": None, "cache_salt": None, "prompt_embeds": None, "mm_features": []}
    return SimpleNamespace(**{"request_id": "r", "sampling_params": None} | none | facts)


def image(name, offset):
    return SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=offset))


@pytest.mark.parametrize(
    ("facts", "same"),
    [
        ({}, {}),
        ({"cache_salt": ""}, {}),
        ({"mm_features": [image("cat", 32)]}, {}),  # behind the tokens that are compared
        ({"lora_request": SimpleNamespace(lora_name="a")},) * 2,
        ({"mm_features": [image("cat", 0), image("dog", 40)]}, {"mm_features": [image("cat", 5)]}),
    ],
)
def test_requests_share_first_tokens_only_with_equal_adapters_salts_and_images(facts, same):
    assert apart_of(asked(**facts)) == apart_of(asked(**same))
    for other in (
        {"cache_salt": "s"},
        {"lora_request": SimpleNamespace(lora_name="b")},
        {"mm_features": [image("dog", 0)]},
        {"prompt_embeds": object()},
    ):
        assert apart_of(asked(**facts)) != apart_of(asked(**other))


@pytest.mark.parametrize(
    ("told", "session"), [(None, None), ({}, None), ({"session_id": "s", "n": 1}, "s")]
)
def test_the_session_of_a_request_to_vllm_is_in_its_extra_arguments(told, session):
    assert vllm_session_of(asked(sampling_params=SimpleNamespace(extra_args=told))) == session
    assert vllm_session_of(asked()) is None  # a request for an embedding


def configured(**changes):
    """Return the part of vLLM's configuration that the plugin reads."""
    plain = {
        "parallel_config": SimpleNamespace(data_parallel_size=1, data_parallel_index=0),
        "ec_transfer_config": None,
        "model_config": SimpleNamespace(
            runner_type="generate", is_encoder_decoder=False, is_diffusion=False
        ),
        "scheduler_config": SimpleNamespace(policy="fcfs"),
    }
    return SimpleNamespace(**plain | changes)


def model(**changes):
    plain = {"runner_type": "generate", "is_encoder_decoder": False, "is_diffusion": False}
    return {"model_config": SimpleNamespace(**plain | changes)}


CLASSES = {"scheduler_config": SimpleNamespace(policy="priority")}
EVICTS, DIVIDES = (Evicting(policy, ("a",)) for policy in ("lfu", "max-min"))
SHARES = {"memory.share": True}


@pytest.mark.parametrize(
    ("changes", "local", "settings", "evicting", "says"),
    [
        (model(is_encoder_decoder=True), "vtc", {}, OWN_ORDER, "charged to no client"),
        (model(is_diffusion=True), "fcfs", {}, OWN_ORDER, "a diffusion model is not supported"),
        ({"ec_transfer_config": object()}, "dlpm", {}, OWN_ORDER, "ec_transfer_config is set"),
        (model(runner_type="pooling"), "vtc", {}, EVICTS, "--runner pooling is not supported with"),
        (CLASSES, "rpm", {}, OWN_ORDER, "rpm refuses requests"),
        (CLASSES, "vtc", {"vtc.charge": "gpu-time"}, OWN_ORDER, "vtc charges measured time"),
        (CLASSES, "vtc", SHARES, DIVIDES, "--scheduling-policy priority is not supported with mem"),
    ],
)
def test_a_feature_that_cannot_be_fair_is_refused_with_its_reason(
    changes, local, settings, evicting, says
):
    with pytest.raises(UsageError) as refused:
        vllm.check_config(configured(**changes), plugin_config(local, settings, None, evicting))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "local", "classes"),
    [
        ({}, "vtc", None),
        (model(runner_type="pooling"), "fcfs", None),
        (model(runner_type="pooling") | CLASSES, "fcfs", None),
        (CLASSES, "vtc", Classes.LOWEST_FIRST),
    ],
)
def test_the_scheduler_follows_the_servers_configuration(changes, local, classes, monkeypatch):
    monkeypatch.setenv("FAIRBENCH_LOCAL", "vtc")
    monkeypatch.setattr(start, "check_version", lambda: "0.0")
    made = start.plugin_of(configured(**changes))
    assert (made.local, made.classes) == (local, classes)


def test_a_skipped_request_is_at_the_head_of_its_class_again():
    classes = ByClass(lambda: build_local("fcfs", {}), low_first=True)
    view, requests = QueueView(), [request_of("a", [1], 5, n, 0.0, n % 2) for n in range(6)]
    for one in requests:
        classes.on_arrival(one, view, 0.0)
        view.enter(one)
    for one in (requests[2], requests[0]):  # skipped requests return, the last one first
        classes.leave_class(one)
    assert next(classes.select(view, 0.0)) is requests[4]
    for one in (requests[2], requests[0]):
        classes.requeue(one, first=True)
    assert next(classes.select(view, 0.0)) is requests[0]
    classes.on_finish(requests[0])
    assert next(classes.select(view, 0.0)) is requests[2]
