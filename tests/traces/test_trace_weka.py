"""Test sessions of agents with sub-agents: reading, playing and refusals."""

import json

import pytest

from fairbench.config.resolve import experiment, resolve
from fairbench.errors import DataError
from fairbench.sim.run import simulate
from fairbench.workloads.traces.read import TraceParams, read_trace
from fairbench_logs.traces.change import write_trace
from tests.shared_data import SHARED, needs

SESSIONS = SHARED / "data/weka_sessions.jsonl.gz"


def turn(t, tokens, out=10, *, took=2.0, think=0.0, ids=None, **more):
    blocks = list(range(1, tokens // 64 + 1)) if ids is None else ids
    made = {"t": t, "type": "n", "in": tokens, "out": out, "hash_ids": blocks}
    return made | {"api_time": took, "think_time": think} | more


def session(name, *turns, tools=128, system=64):
    head = {"id": name, "block_size": 64, "hash_id_scope": "local"}
    return head | {"tool_tokens": tools, "system_tokens": system, "requests": list(turns)}


def subagent(t, *turns, status="completed", tools=64):
    head = {"t": t, "type": "subagent", "agent_id": "agent_001", "status": status}
    return head | {"tool_tokens": tools, "system_tokens": 0, "requests": list(turns)}


TWO = (session("one", turn(0, 256), turn(5, 384, think=3.0)), session("two", turn(0, 320)))


def written(folder, *sessions):
    path = folder / "sessions.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in sessions), encoding="utf-8")
    return path


def table_of(path):
    read = read_trace(TraceParams(f"{path}"))
    assert read.format == "weka"
    return read.trace.table(0)


def blocks_of(table, row):
    return table.blocks[table.first_block[row] : table.first_block[row + 1]].tolist()


def test_tools_and_system_prompt_are_shared_and_the_rest_is_private(tmp_path):
    table = table_of(written(tmp_path, *TWO))
    one, two, later = (blocks_of(table, row) for row in range(3))
    assert one[:3] == two[:3] == later[:3]  # 128 tokens of tools and 64 of the system prompt
    assert one[3] == later[3]
    assert not set(two[3:]) & {*one, *later}


def test_other_tools_share_nothing_and_the_same_tools_alone_are_shared(tmp_path):
    other = session("b", turn(0, 256), tools=192, system=0)
    same = session("c", turn(0, 256), tools=128, system=128)
    table = table_of(written(tmp_path, session("a", turn(0, 256)), other, same))
    a, b, c = (blocks_of(table, row) for row in range(3))
    assert not set(a) & set(b)
    assert a[:2] == c[:2]
    assert not set(a[2:]) & set(c[2:])


def played(path, **flags):
    spec = experiment({"trace": f"{path}", "scheduler": "fcfs", **flags}, {})
    return simulate(spec)


def test_think_time_is_slept_and_turns_wait_for_answers(tmp_path):
    result = played(written(tmp_path, *TWO))
    requests = result.requests
    assert len(requests["request_id"]) == 3
    first, last = 0, 2
    assert requests["arrival_s"][last] == pytest.approx(requests["finish_s"][first] + 3.0)
    # All tokens of the previous turn except for the last block are cached: exactly 256 tokens.
    assert requests["cached_tokens"][last] == 256
    assert result.summary["completed"] == 3


# The parent answers at 2 s. The sub-agent begins at 3 s and ends at 16 s. The parent's turn at 6 s
# runs in parallel, and that at 20 s waits for it.
NESTED = session(
    "parent",
    turn(0, 256),
    subagent(3, turn(0, 128, took=1.0), turn(10, 192, took=3.0, think=9.0)),
    turn(6, 320, think=4.0),
    turn(20, 384, think=12.0),
)


def test_a_sub_agent_runs_in_parallel_to_its_session_and_is_waited_for(tmp_path):
    path = written(tmp_path, NESTED)
    table = table_of(path)
    assert table.branch.tolist() == [0, 1, 0, 1, 0]
    assert table.arrival_s.tolist() == [0, 3, 6, 13, 20]
    requests = played(path).requests
    by_arrival = sorted(zip(requests["arrival_s"], requests["finish_s"], strict=True))
    (_, first), (sub, sub_done), (beside, beside_done), (again, end), (last, _) = by_arrival
    assert sub == pytest.approx(first + 1.0)
    assert again == pytest.approx(sub_done + 9.0)
    assert beside == pytest.approx(first + 4.0)
    assert last == pytest.approx(max(end, beside_done + 12.0))


def test_a_slow_sub_agent_delays_the_turn_that_waited_for_it(tmp_path):
    slow = session(
        "slow",
        turn(0, 128, took=1.0),
        subagent(1, turn(0, 128, out=900, took=0.5)),
        turn(2, 192, took=1.0, think=1.0),
    )
    requests = played(written(tmp_path, slow)).requests
    rows = sorted(zip(requests["arrival_s"], requests["finish_s"], strict=True))
    assert rows[2][0] == pytest.approx(rows[1][1])
    assert rows[1][1] > rows[0][1] + 5


def test_a_trace_that_is_written_plays_the_same(tmp_path):
    path = written(tmp_path, NESTED, *TWO)
    copy = tmp_path / "copy.jsonl"
    write_trace(table_of(path), copy)
    one, other = played(path).requests, played(copy).requests
    for column in ("arrival_s", "finish_s", "cached_tokens", "depth"):
        assert one[column].tolist() == other[column].tolist()


def changed(number, **more):
    turns = [dict(one) for one in TWO[0]["requests"]]
    turns[number] |= more
    return session("one", *turns)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            changed(1, t=0.5),
            r"session one, turn 2: begins at 0\.5 s, but must not begin before turn",
        ),
        (
            changed(1, think_time=-3.0),
            r"session one, turn 2: think_time = -3\.0: must be a number of seconds",
        ),
        (
            changed(0, hash_ids=[1, 2, 3, 4, 5]),
            (
                "turn 1: hash_ids: has 5 blocks of 64 tokens, but an input of 256 tokens "
                "has at most 4"
            ),
        ),
        (
            session("one", turn(0, 256), subagent(3, turn(0, 128), status="running")),
            "session one, turn 2, sub-agent agent_001: status = 'running': only sub-agents",
        ),
        (
            session("one", turn(0, 256), subagent(3)),
            "session one, turn 2, sub-agent agent_001: requests: must be a list of at least one",
        ),
        (
            session("one", turn(0, 256), subagent(3, turn(0, 128), turn(0.1, 128, took="x"))),
            "sub-agent agent_001, turn 2: begins at",
        ),
        (changed(0, **{"in": -5}), "turn 1: in = -5: must be a whole number from 1"),
        (changed(0, t="soon"), "turn 1: t = 'soon': must be a number of seconds of at least 0"),
        (changed(0, hash_ids="x"), "turn 1: hash_ids: must be a list of integers"),
    ],
)
def test_bad_sessions_are_refused_in_one_line_that_names_session_and_turn(tmp_path, bad, message):
    with pytest.raises(DataError, match=message) as error:
        table_of(written(tmp_path, TWO[1], bad))
    assert "line 2: session one" in str(error.value)
    assert "\n" not in str(error.value)


def test_clients_are_a_key_of_the_session_or_made_up(tmp_path):
    path = written(tmp_path, TWO[0] | {"team": "a"}, TWO[1] | {"team": "b"})
    named = experiment({"trace": f"{path}", "clients_from": "team"}, {})
    assert named.workload.client_names == ("a", "b")
    made_up = experiment({"trace": f"{path}", "clients": 2}, {})
    assert made_up.workload.name.endswith("synthetic")
    assert resolve({}, {}, made_up.model_dump(exclude_none=True)) == made_up


@pytest.mark.slow
@needs(SESSIONS)
def test_the_public_sample_is_read_whole():
    table = table_of(SESSIONS)
    assert len(table) == 1044
    assert len(set(table.session.tolist())) == 21
    assert (table.branch > 0).sum() == 44
    assert table.input_tokens.max() == 413_904
