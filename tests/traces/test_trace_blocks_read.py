"""Test block identities in files: their scope, their length and their bits."""

import json

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import DataError
from fairbench.workloads.traces.read import TraceParams, read_trace
from fairbench_logs.traces.change import write_trace
from fairbench_logs.traces.facts import facts_of_table


@pytest.fixture
def read(tmp_path):
    def read(records, **params):
        path = tmp_path / "log.jsonl"
        path.write_text("\n".join(map(json.dumps, records)))
        return read_trace(TraceParams(str(path), **params))

    return read


def turn(chat, parent, at, blocks, **more):
    record = {"chat_id": chat, "parent_chat_id": parent, "timestamp": at, "type": "text"}
    record |= {"input_length": 16 * len(blocks), "output_length": 20, "turn": 1}
    return record | {"hash_ids": blocks} | more


CHATS = [
    turn(0, -1, 0.0, [0, 1]),
    turn(1, 0, 1.5, [0, 1, 2]),
    turn(2, -1, 2.0, [0, 9]),
    turn(3, 1, 34.5, [0, 1, 2, 3]),
    turn(5, 4, 40.0, [7]),  # the first turn is not in the file
    turn(6, 5, 41.0, [7, 8]),
]


def test_a_trace_of_bailian_is_in_seconds_and_blocks_of_16(read):
    found = read(CHATS)
    table = found.trace.table(0)
    assert (found.format, found.unit, table.span_s) == ("bailian", "s", 41.0)
    assert set(table.block_size.tolist()) == {16}
    assert table.session.tolist() == [0, 0, 1, 0, 2, 2]


@pytest.mark.parametrize("nobody", [-1, "-1", None, "", "nan", float("nan")])
def test_a_turn_without_a_parent_begins_a_program(read, nobody):
    turns = [turn(0, nobody, 0.0, [1]), turn(1, 0, 1.0, [1, 2]), turn(2, nobody, 2.0, [3])]
    assert read(turns).trace.table(0).session.tolist() == [0, 0, 1]


def test_types_in_bailian_may_be_the_clients(read):
    typed = [{**one, "type": kind} for one, kind in zip(CHATS, "ababab", strict=True)]
    assert read(typed, columns="client=type").trace.clients == ("a", "b")


def test_a_chat_id_alone_is_not_bailian(read):
    records = [{key: one[key] for key in one if key != "parent_chat_id"} for one in CHATS]
    assert read([{**one, "hash_ids": []} for one in records]).format != "bailian"


@pytest.mark.parametrize(("blocks", "tokens"), [(2, 512), (5, 2000), (4, 64)])
def test_more_blocks_than_a_prompt_has_are_refused(read, blocks, tokens):
    first = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}
    second = first | {"input_length": tokens, "hash_ids": list(range(blocks))}
    with pytest.raises(DataError) as caught:
        read([first, second])
    said = f"line 2: hash_ids: {blocks} blocks of 512 tokens are more than the {tokens} input"
    assert said in str(caught.value)
    assert "--trace-block-size" in str(caught.value)


@pytest.mark.parametrize("tokens", [1, 511, 512])
def test_the_last_block_may_be_shorter(read, tokens):
    record = {"timestamp": 0, "input_length": tokens, "output_length": 1, "hash_ids": [1]}
    table = read([record]).trace.table(0)
    assert table.input_tokens.tolist() == [tokens]
    assert table.block_size.tolist() == [512]


def test_the_block_size_can_be_set_in_the_file(read):
    record = {"time": 0, "input_tokens": 64, "output_tokens": 1, "hash_ids": [1, 2, 3, 4]}
    with pytest.raises(
        DataError, match="hash_ids needs block_size: give the number of tokens of a block"
    ):
        read([record])
    assert read([record], block_size=16).trace.table(0).block_size.tolist() == [16]
    said = record | {"block_size": 128}
    assert read([said], block_size=16).trace.table(0).block_size.tolist() == [16]


@pytest.mark.parametrize(
    "command", [["trace", "inspect"], ["run", "--scheduler", "fcfs", "--trace"]]
)
def test_the_block_size_can_be_given_as_a_flag(tmp_path, command):
    record = {"time": 0, "input_tokens": 64, "output_tokens": 1, "hash_ids": [1, 2, 3, 4]}
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(record))
    where = ["--result-dir", str(tmp_path / "runs")] if command[0] == "run" else []
    words = [*command, str(log), *where]
    assert CliRunner().invoke(app, words).exit_code == 2
    assert CliRunner().invoke(app, [*words, "--trace-block-size", "16"]).exit_code == 0


BIG = 2**63


@pytest.mark.parametrize("ids", [[BIG + 5, BIG + 6], [2**64 - 1, 3], [2**63 - 1, 2**63]])
def test_identities_have_64_bits(read, tmp_path, ids):
    """Three prompts of two blocks share the first block."""
    record = {"timestamp": 0, "input_length": 1024, "output_length": 10}
    rows = [record | {"hash_ids": [ids[0], ids[1] if n else 77]} for n in range(3)]
    table = read(rows).trace.table(0)
    assert facts_of_table(table)["infinite_hit_rate"] == pytest.approx(3 * 512 / (3 * 1024))
    write_trace(table, tmp_path / "again.jsonl")
    again = read_trace(TraceParams(str(tmp_path / "again.jsonl"))).trace.table(0)
    assert again.blocks.tolist() == table.blocks.tolist()


def test_an_identity_of_65_bits_is_refused(read):
    record = {"timestamp": 0, "input_length": 512, "output_length": 10, "hash_ids": [2**64]}
    with pytest.raises(DataError, match="does not fit into 64 bits"):
        read([record])


@pytest.mark.parametrize(
    "ids", [["9223372036854775813", "7"], ["0x8000000000000005", "0x7"], [f"{BIG + 5}", 7.0]]
)
def test_identities_may_be_texts_or_whole_floats(read, ids):
    record = {"timestamp": 0, "input_length": 1024, "output_length": 10}
    texts, plain = (
        read([{**record, "hash_ids": given}]).trace.table(0).blocks.tolist()
        for given in (ids, [BIG + 5, 7])
    )
    assert texts == plain


@pytest.mark.parametrize("ids", [["a"], ["1.5"], [1.5], [True], [None], [[1]], ["1e3"]])
def test_other_identities_are_named_in_errors(read, ids):
    record = {"timestamp": 0, "input_length": 512, "output_length": 10, "hash_ids": ids}
    with pytest.raises(DataError, match="must be a list of integers"):
        read([record])
