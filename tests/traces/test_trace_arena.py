"""Test the rows of Chatbot Arena as the hub has them: two models answer a user at one time."""

import json
import random

import pytest

import fairbench
from fairbench.errors import DataError
from fairbench.workloads.traces.programs import prompt_of_row, runs_of
from fairbench.workloads.traces.read import TraceParams, read_trace

LATER, EARLIER = 1682351651.1322, 1682351591.1322


def chat(*texts):
    """Return messages whose texts have a number of characters, or a given text."""
    contents = ["x" * one if isinstance(one, int) else one for one in texts]
    roles = ("user", "assistant")
    return [{"content": one, "role": roles[n % 2]} for n, one in enumerate(contents)]


def row(tstamp, a, b, **more):
    # The columns are those of the card of lmsys/chatbot_arena_conversations.
    return {
        "question_id": f"{tstamp}", "model_a": "vicuna-13b", "model_b": "gpt-3.5-turbo",
        "winner": "model_b", "judge": "arena_user_973", "conversation_a": a, "conversation_b": b,
        "turn": len(a) // 2, "anony": True, "language": "English", "tstamp": tstamp,
        "openai_moderation": {"flagged": False}, "toxic_chat_tag": {"flagged": False},
    } | more  # fmt: skip


FIRST = row(LATER, chat(9, 70, 46, 92), chat(9, 138, 46, 46))
SECOND = row(EARLIER, chat(23, 46), chat(23, 4), model_a="koala-13b")
# At 4.6 characters a token, 9 characters are 2 tokens, 70 are 16, 9 + 70 + 46 are 28, and 9 + 138 +
# 46 are 42.
ANSWERS = [
    *[(0, "koala-13b", 5, 10), (0, "gpt-3.5-turbo", 5, 1)],
    *[(60, "vicuna-13b", 2, 16), (60, "vicuna-13b", 28, 20)],
    *[(60, "gpt-3.5-turbo", 2, 30), (60, "gpt-3.5-turbo", 42, 10)],
]


@pytest.fixture
def read(tmp_path):
    def read(*rows, **params):
        path = tmp_path / "arena.jsonl"
        path.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
        return read_trace(TraceParams(str(path), **params))

    return read


def rows_of(trace):
    table = trace.table(0)
    names = [table.clients[code] for code in table.client.tolist()]
    times = table.arrival_s.tolist()
    return list(
        zip(times, names, table.input_tokens.tolist(), table.output_tokens.tolist(), strict=True)
    )


def test_each_answer_is_a_request_of_its_model_at_the_time_of_the_row(read):
    found = read(FIRST, SECOND)  # in the wrong order
    assert (found.format, found.unit, found.nameless) == ("arena", "s", "")
    assert rows_of(found.trace) == ANSWERS


def test_parquet_gives_the_same_requests(read, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    path = tmp_path / "train.parquet"
    parquet.write_table(arrow.Table.from_pylist([FIRST, SECOND]), path)
    assert rows_of(read_trace(TraceParams(str(path))).trace) == ANSWERS


def test_a_turn_waits_for_the_answer_before_it(read):
    trace = read(FIRST, SECOND).trace
    clients = range(len(trace.clients))
    programs = [one for client in clients for one in trace.programs(client, random.Random(0), 10.0)]
    found = [(at_s, [(one.gap_s, one.think_s) for one in item.calls]) for at_s, item in programs]
    alone, turns = [(0, 0)], [(0, 0), (0, 0)]
    assert sorted(found) == [(0, alone), (0, alone), (6, turns), (6, turns)]


def test_a_prompt_is_shared_by_the_turns_of_a_model_but_not_by_two_models(read):
    table = read(row(EARLIER, chat(920, 46, 46, 46), chat(920, 46, 46, 46))).trace.table(0)
    first, later, other, _ = (prompt_of_row(table, runs_of(table), n, "own") for n in range(4))
    assert first[0] == later[0]
    assert first[0][1] >= 0.9 * 200  # the last block of 920 characters differs
    assert not {name for name, _ in first} & {name for name, _ in other}


def test_users_may_be_the_clients(read):
    other = SECOND | {"judge": "arena_user_7"}
    assert {client for _, client, _, _ in rows_of(read(FIRST, SECOND).trace)} == {
        *("koala-13b", "vicuna-13b", "gpt-3.5-turbo")
    }
    trace = read(FIRST, other, columns="client=judge").trace
    names = [client for _, client, _, _ in rows_of(trace)]
    assert names == [*["arena_user_7"] * 2, *["arena_user_973"] * 4]
    # Both models answer at once, so the two conversations of a user do not wait for each other.
    assert len(list(trace.programs(trace.clients.index("arena_user_973"), None, 1.0))) == 2


def test_the_log_of_single_conversations_has_one_model_a_row(read):
    one = {"conversation_id": "a", "model": "vicuna-13b", "conversation": chat(9, 70, 46, 92)}
    one |= {"turn": 2, "language": "English", "user_id": "u1", "tstamp": EARLIER}
    found = read(one, one | {"conversation_id": "b", "tstamp": LATER, "model": "koala-13b"})
    assert rows_of(found.trace) == [
        *[(0, "vicuna-13b", 2, 16), (0, "vicuna-13b", 28, 20)],
        *[(60, "koala-13b", 2, 16), (60, "koala-13b", 28, 20)],
    ]


def test_messages_without_an_answer_are_left_out(read):
    found = read(row(EARLIER, chat(9, 70, 46), chat(9, None, 46, 46)), row(LATER, [], chat(9, 46)))
    assert found.trace.left_out == 3
    assert rows_of(found.trace) == [
        *[(0, "vicuna-13b", 2, 16), (0, "gpt-3.5-turbo", 12, 10), (60, "gpt-3.5-turbo", 2, 10)]
    ]


NEEDED = "must be a number or an ISO 8601 time"
WRONG = {
    "missing": ({"tstamp": None}, f"tstamp = None: {NEEDED}"),
    "text": ({"tstamp": "yesterday"}, f"tstamp = 'yesterday': {NEEDED}"),
    "seconds": ({"tstamp": 12.5}, r"tstamp = 12\.5: is not a date, unlike the times before it"),
    "no list": ({"conversation_b": None}, "conversation_b: must be a list of messages with"),
    "no text": ({"conversation_a": chat(9, {})}, "conversation_a: must be a list of messages with"),
    "no role": ({"conversation_a": [{"content": "x"}]}, "conversation_a: must be a list of"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_row_is_named_in_one_line(read, case):
    change, message = WRONG[case]
    with pytest.raises(DataError, match=rf"arena\.jsonl, line 2: {message}") as caught:
        read(FIRST, SECOND | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rows", [(0,), (0, 1)])
def test_a_row_without_the_column_has_no_time(read, rows):
    cut = [dict(one) for one in (FIRST, SECOND)]
    for number in rows:
        del cut[number]["tstamp"]
    with pytest.raises(
        DataError, match=r"arena\.jsonl, line 1: (tstamp = None|no column for time)"
    ):
        read(*cut)


def test_rows_with_token_counts_need_no_texts(read):
    one = {"model": "m", "prompt_tokens": 7, "completion_tokens": 3}
    found = read(one | {"tstamp": LATER}, one | {"tstamp": EARLIER, "prompt_tokens": 5})
    assert rows_of(found.trace) == [(0, "all", 5, 3), (60, "all", 7, 3)]


def test_a_replay_is_scaled_to_a_shorter_time(read, tmp_path):
    read(FIRST, SECOND)
    result = fairbench.run(
        trace=str(tmp_path / "arena.jsonl"), scheduler="d2lpm", dp=2, time_scale=10
    )
    names = ("client", "arrival_s", "input_tokens", "output_tokens")
    found = sorted(zip(*(result.requests[name].to_pylist() for name in names), strict=True))
    renamed = [(name.replace(".", "_"), at_s, *tokens) for at_s, name, *tokens in ANSWERS]
    assert [(one[0], *one[2:]) for one in found] == [(one[0], *one[2:]) for one in sorted(renamed)]
    firsts = [one[1] for one in found if one[2] < 10]
    assert sorted(firsts) == [0, 0, 6, 6]
    assert all(one[1] > 6 for one in found if one[2] > 10)  # after the first answer
