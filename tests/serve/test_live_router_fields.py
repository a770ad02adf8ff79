"""Test which fields of a body reach a worker, including those that once killed a worker."""

import asyncio
import json

import pytest

from fairbench_load import headers
from tests.serve.live_router import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    MESSAGES,
    PATHS,
    RESPONSES,
    Worker,
    cluster,
    router_before,
    streamed,
    until,
)

VOCABULARY = {"vocab_size": 2048}


def ask(path, body, *, info=VOCABULARY, sent=None, **settings):
    """Return the status, the message, and the body and headers that the worker got, if any."""

    async def run():
        async with cluster(1, info=info, **settings) as (under_test, (worker,)):
            async with under_test.post(path, body, **(sent or {})) as answer:
                said = await answer.text()
            _, got, reached = worker.seen[0] if worker.seen else (None, {}, None)
            return answer.status, said, reached, {name.lower(): got[name] for name in got}

    return asyncio.run(run())


OUTSIDE = [
    (GENERATE, {"input_ids": [5, 60_000]}),
    (GENERATE, {"input_ids": [5, 2048]}),
    (GENERATE, {"input_ids": [5], "sampling_params": {"stop_token_ids": [60_000]}}),
    (GENERATE, {"input_ids": [5], "sampling_params": {"stop_token_ids": [-1]}}),
    (GENERATE, {"input_ids": [5], "sampling_params": {"logit_bias": {"60000": 1}}}),
    (COMPLETIONS, {"prompt": [5, 60_000]}),
    (COMPLETIONS, {"prompt": [[5, 60_000]]}),
    (COMPLETIONS, {"prompt": "a", "stop_token_ids": [60_000]}),
    (CHAT, {**PATHS[CHAT], "logit_bias": {"60000": 1}}),
]


@pytest.mark.parametrize(("path", "body"), OUTSIDE)
def test_ids_outside_the_vocabulary_never_reach_a_worker(path, body):
    status, said, reached, _ = ask(path, body)
    assert (status, reached) == (400, None)
    assert "the model's token ids must be from 0 to 2047" in said


@pytest.mark.parametrize(
    "info",
    [
        {"vocab_size": 2048},  # the emulator reports this
        # the plugin in SGLang reports this
        {"internal_states": [{"fairbench": {"vocab_size": 2048}}]},
    ],
)
def test_the_vocabulary_is_that_of_the_worker(info):
    assert ask(GENERATE, {"input_ids": [2048]}, info=info)[0] == 400
    assert ask(GENERATE, {"input_ids": [2047]}, info=info)[0] == 200


def test_the_vocabulary_comes_from_the_files_of_the_model_if_present(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 2048}')
    assert ask(GENERATE, {"input_ids": [2048]}, info={"model_path": str(tmp_path)})[0] == 400


def test_an_operator_can_set_facts_that_no_worker_reports():
    async def run(**router):
        async with (
            cluster(1, router=router) as (under_test, _),
            under_test.post(GENERATE, {"input_ids": [2048]}) as answer,
        ):
            return answer.status

    assert asyncio.run(run()) == 200
    assert asyncio.run(run(vocab_size=2048)) == 400


def test_the_vocabulary_of_a_late_worker_is_known_before_its_first_request():
    async def late():
        worker = Worker(info=VOCABULARY)
        await worker.start()
        await worker.stop()
        async with router_before([worker]) as under_test:
            await worker.start()
            await until(lambda: under_test.up)
            async with under_test.post(GENERATE, {"input_ids": [2048]}) as answer:
                status = answer.status
        await worker.stop()
        return status, worker.seen

    assert asyncio.run(late()) == (400, [])


TOO_LARGE = [
    (GENERATE, {"input_ids": [5], "sampling_params": {"max_new_tokens": 2**31}}),
    (GENERATE, {"input_ids": [5], "sampling_params": {"top_k": 2**40}}),
    (GENERATE, {"input_ids": [5], "sampling_params": {"sampling_seed": 2**63}}),
    (GENERATE, {"input_ids": [5], "top_logprobs_num": 100_000}),
    (COMPLETIONS, {"prompt": "a", "logprobs": 100_000}),
    (COMPLETIONS, {"prompt": "a", "best_of": 2}),
    (CHAT, {**PATHS[CHAT], "top_logprobs": 100_000}),
    (CHAT, {**PATHS[CHAT], "seed": 2**63}),
    (CHAT, {**PATHS[CHAT], "logit_bias": {"5": 1e39}}),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"5": 1, "6": -101}}),
    (GENERATE, {"input_ids": [5], "sampling_params": {"logit_bias": {"5": -1e39}}}),
    (GENERATE, {"input_ids": [5], "sampling_params": {"repetition_penalty": 1e-40}}),
    (GENERATE, {"input_ids": [5], "sampling_params": {"repetition_penalty": 0}}),
    (COMPLETIONS, {"prompt": "a", "repetition_penalty": 1e39}),
    (CHAT, {**PATHS[CHAT], "chat_template_kwargs": {"chat_template": "{{ 1 }}"}}),
]


@pytest.mark.parametrize(("path", "body"), TOO_LARGE)
def test_numbers_that_no_tensor_holds_never_reach_a_worker(path, body):
    status, _, reached, _ = ask(path, body)
    assert (status, reached) == (400, None)


def test_harmful_fields_are_refused():
    sampling = {"logit_bias": {"5": -100, "6": 100.0}, "repetition_penalty": 1.05}
    status, _, reached, _ = ask(GENERATE, {"input_ids": [5], "sampling_params": sampling})
    assert (status, reached["sampling_params"]) == (200, sampling)


FORBIDDEN = [
    *("priority", "session_id", "session_params", "conversation_id", "extra_key", "cache_salt"),
    *("data_parallel_rank", "routed_dp_rank", "bootstrap_host", "bootstrap_port"),
    *("bootstrap_room", "custom_logit_processor", "lora_path", "custom_params", "beam_width"),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", FORBIDDEN)
def test_fields_that_are_not_listed_are_refused_by_name(path, name):
    status, said, reached, _ = ask(path, {**PATHS[path], name: 7})
    assert (status, reached) == (400, None)
    assert name in json.loads(said)["error"]["message"]


@pytest.mark.parametrize("name", ["beam_width", "custom_params", "watermark", "stop_strs"])
def test_harmful_fields_of_sampling_params_are_refused(name):
    body = {**PATHS[GENERATE], "sampling_params": {name: 7}}
    status, said, reached, _ = ask(GENERATE, body)
    assert (status, reached) == (400, None)
    assert f"sampling_params: '{name}'" in said


def test_a_field_written_with_escapes_is_the_same_field():
    async def run():
        async with cluster(1) as (under_test, (worker,)):
            data = b'{"input_ids": [1], "pri\\u006frity": 7, "r\\u0069d": "0"}'
            async with under_test.session.post(under_test.url + GENERATE, data=data) as answer:
                return answer.status, worker.seen

    assert asyncio.run(run()) == (400, [])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_cannot_choose_the_request_id_at_a_worker(path, stream):
    """SGLang aborts by a prefix of ``rid``, and vLLM by the header."""
    body = {**PATHS[path], "stream": stream, "rid": "0"}
    status, _, reached, got = ask(path, body, sent={"x-request-id": "0", "x-override-rid": "0"})
    assert status == 200
    assert "rid" not in reached
    assert len(got["x-request-id"]) == 32
    assert "x-override-rid" not in got


@pytest.mark.parametrize("path", PATHS)
def test_meaningless_fields_of_clients_are_left_out(path):
    body = {**PATHS[path], "lora_path": None, "return_hidden_states": False, "metadata": {"a": 1}}
    status, _, reached, _ = ask(path, body, sent={headers.CLIENT: "ann"})
    assert status == 200
    assert set(reached) - {"routing_key", "store"} == set(PATHS[path])
    assert reached.get("store", False) is False


PROMPTS = ("input_ids", "prompt", "messages", "input")
MOST = {GENERATE: "sampling_params", RESPONSES: "max_output_tokens", MESSAGES: "top_k"}


@pytest.mark.parametrize("path", PATHS)
def test_a_null_field_counts_as_missing(path):
    """To vLLM and SGLang, a null limit means no limit, so no client would be charged."""
    nulls = dict.fromkeys(["stream", MOST.get(path, "max_tokens")])
    needed = (*PROMPTS, "max_tokens") if path == MESSAGES else PROMPTS
    prompt = {name: PATHS[path][name] for name in needed if name in PATHS[path]}
    status, _, reached, _ = ask(path, {**prompt, **nulls})
    assert status == 200
    assert set(reached) - {"routing_key", "store"} == set(prompt)


def test_a_client_cannot_choose_the_id_in_sampling_params():
    sampling = {"max_new_tokens": None, "temperature": 0.5, "stop": None}
    status, _, reached, _ = ask(GENERATE, {"input_ids": [1], "sampling_params": sampling})
    assert (status, reached["sampling_params"]) == (200, {"temperature": 0.5})


@pytest.mark.parametrize(("written", "meant"), [("64.0", 64), ("6.4e1", 64), ("-0.0", 0)])
def test_an_integer_written_as_a_float_reaches_the_worker_as_an_integer(written, meant):
    async def run(path, body):
        async with cluster(1) as (under_test, (worker,)):
            url = under_test.url + path
            async with under_test.session.post(url, data=body) as answer:
                return answer.status, worker.seen[0][2]

    sampling = f'{{"max_new_tokens": {written}, "temperature": 1.0}}'
    status, got = asyncio.run(run(GENERATE, f'{{"text": "a", "sampling_params": {sampling}}}'))
    assert (status, repr(got["sampling_params"]["max_new_tokens"])) == (200, repr(meant))
    assert repr(got["sampling_params"]["temperature"]) == "1.0"
    status, got = asyncio.run(run(COMPLETIONS, f'{{"prompt": "a", "max_tokens": {written}}}'))
    assert (status, repr(got["max_tokens"])) == (200, repr(meant))


@pytest.mark.parametrize("written", ["2.5", "1e99", "1e999", '"64"', "[64.0]", "6" * 50 + ".0"])
def test_non_integers_are_refused(written):
    async def run():
        async with cluster(1) as (under_test, (worker,)):
            body = f'{{"prompt": "a", "max_tokens": {written}}}'
            async with under_test.session.post(under_test.url + COMPLETIONS, data=body) as answer:
                return answer.status, worker.seen

    assert asyncio.run(run()) == (400, [])


ABORT = {"type": "abort", "message": "rid was aborted", "status_code": 503}
ABORTED = {
    GENERATE: {"text": "", "meta_info": {"finish_reason": ABORT, "completion_tokens": 2}},
    COMPLETIONS: {"choices": [{"text": "", "finish_reason": "abort"}]},
    CHAT: {"choices": [{"delta": {}, "finish_reason": "abort"}]},
    RESPONSES: {"type": "error", "code": "server_error", "message": "it was aborted"},
    MESSAGES: {"type": "error", "error": {"type": "api_error", "message": "it was aborted"}},
}
ERRORS = 'fairbench_requests_total{client="default",outcome="error"}'


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_that_the_worker_aborted_is_an_error(path):
    async def run():
        async with cluster(1, says=ABORTED[path]) as (under_test, _):
            async with under_test.post(path) as answer:
                status, error = answer.status, (await answer.json())["error"]
            return status, error["message"], await under_test.metric(ERRORS)

    status, message, counted = asyncio.run(run())
    assert (status, counted) == (503 if path == GENERATE else 502, 1)
    assert "aborted" in message


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_the_worker_aborted_ends_with_an_error(path):
    async def run():
        async with cluster(1, ending=ABORTED[path]) as (under_test, _):
            async with under_test.post(path, streamed(path)) as answer:
                data = await answer.read()
            return data, await under_test.metric(ERRORS)

    data, counted = asyncio.run(run())
    *_, last, done, end = data.split(b"\n\n")
    assert (done, end, counted) == (b"data: [DONE]", b"", 1)
    assert "aborted" in json.loads(last.partition(b"data: ")[2])["error"]["message"]
