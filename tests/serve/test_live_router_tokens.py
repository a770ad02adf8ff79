"""Test prompts as token ids: from the body, from a tokenizer file, or approximate."""

import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import UsageError
from fairbench_serve.calls import ChatApi, CompletionsApi, GenerateApi
from fairbench_serve.prompts import ApproximateTokens, load_text_tokens

APPROXIMATE = ApproximateTokens()


@pytest.mark.slow
@given(st.text(), st.text(), st.text())
def test_approximate_tokens_share_a_prefix_as_far_as_the_texts_do(start, a, b):
    first, second = APPROXIMATE.ids(start + a), APPROXIMATE.ids(start + b)
    shared = len(start.encode()) // 4
    assert first[:shared] == second[:shared]
    assert len(first) == -(-len((start + a).encode()) // 4)
    if start + a != start + b and not (a + b).endswith("\0"):
        assert first != second


@pytest.fixture
def tokenizer_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "[BOS]": 1, "once": 2, "upon": 3, "a": 4}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", 1)]
    )
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_tokenizer_file_gives_the_ids_of_the_engine(tokenizer_file):
    text = load_text_tokens(str(tokenizer_file))
    assert text.ids("once upon a time") == array("I", [1, 2, 3, 4, 0])
    assert text.method == "tokenizer file tokenizer.json"


def test_a_missing_tokenizer_file_is_named():
    with pytest.raises(UsageError, match=r"no-such\.json"):
        load_text_tokens("no-such.json")


def read(api, **body):
    return api.read(json.dumps(body).encode(), APPROXIMATE)


def test_ids_in_the_body_are_used_unchanged():
    for call in (
        read(GenerateApi(), input_ids=[3, 1, 2]),
        read(CompletionsApi(), prompt=[3, 1, 2]),
        read(CompletionsApi(), prompt=[[3, 1, 2]]),
    ):
        assert call.ids == array("I", [3, 1, 2])


def test_turns_of_a_conversation_extend_a_prefix():
    turns = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "bye"},
    ]
    lengths = []
    longest = read(ChatApi(), messages=turns).ids
    for count in range(len(turns) + 1):
        ids = read(ChatApi(), messages=turns[:count]).ids
        assert ids == longest[: len(ids)]
        lengths.append(len(ids))
    assert lengths == sorted(set(lengths))


@pytest.mark.parametrize(
    ("api", "body", "expected"),
    [
        (GenerateApi(), {"text": "a"}, 128),
        (GenerateApi(), {"text": "a", "sampling_params": {"max_new_tokens": 7}}, 7),
        (CompletionsApi(), {"prompt": "a", "max_tokens": 0}, 0),
        (ChatApi(), {"messages": [], "max_tokens": 7}, 7),
        (ChatApi(), {"messages": [], "max_tokens": 7, "max_completion_tokens": 8}, 8),
    ],
)
def test_the_output_limit_that_a_client_sets(api, body, expected):
    assert read(api, **body).max_new_tokens == expected


OTHERS = st.dictionaries(
    st.sampled_from(["stream", "text", "return_logprob", "image_data"]),
    st.none() | st.just([1.5, "\ud83d\ude00"]),
    max_size=3,
).map(lambda others: {k: v for k, v in others.items() if v is None or k == "image_data"})


@given(OTHERS, st.text(max_size=5))
def test_a_field_that_is_set_occurs_once_and_the_rest_is_unchanged(others, client):
    body = {**others, "input_ids": [1, 2], "stream": True}
    raw = json.dumps(body).encode() + b" \n"
    call = GenerateApi().read(raw, APPROXIMATE)
    GenerateApi().sign(call, client)
    pairs = json.loads(call.body(), object_pairs_hook=list)
    assert len(dict(pairs)) == len(pairs)
    given = {name: value for name, value in json.loads(raw).items() if value is not None}
    assert dict(pairs) == {**given, "routing_key": client}
