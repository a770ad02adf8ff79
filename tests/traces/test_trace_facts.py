"""Test the output of ``trace inspect`` by hand and by brute force."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench_logs.traces.build import TableBuilder, TraceRow
from fairbench_logs.traces.facts import facts_of_table, shared_prefixes
from fairbench_papers.plan_and_trace import BINS, SHOWN, rates

SIZE = 4


def table_of(rows):
    builder = TableBuilder("x")
    for row in rows:
        builder.add(row)
    return builder.table()


def row(at_s, client, read, written, **more):
    return TraceRow(round(at_s * 1e9), client, read, written, **more)


def test_the_numbers_of_five_requests_equal_hand_computed_values():
    facts = facts_of_table(
        table_of(
            [
                row(0, "a", 10, 1, session="s", blocks=(1, 2), block_size=4),
                row(1, "b", 20, 2),
                row(2, "a", 30, 3, session="s", blocks=(1, 3), block_size=4),
                row(2, "a", 40, 4, end_ns=125 * 10**9),
                row(122, "a", 50, 5),
            ]
        )
    )
    a, b = facts.pop("clients")
    assert facts == {
        "requests": 5,
        "per_s": 5 / 122,
        # The gaps 1, 1, 0, 120 have mean 30.5 and variance (2 x 29.5^2 + 30.5^2 + 89.5^2) / 4.
        "cv": pytest.approx(((2 * 29.5**2 + 30.5**2 + 89.5**2) / 4) ** 0.5 / 30.5),
        "input_tokens": 150,
        "input_mean": 30.0,
        "input_p50": 30,
        "input_p90": 50,
        "input_p99": 50,
        "input_max": 50,
        "output_tokens": 15,
        "output_mean": 3.0,
        "output_p50": 3,
        "output_p90": 5,
        "output_p99": 5,
        "output_max": 5,
        "left_out": 0,
        "who_left_out": "failed requests",
        "programs": 4,
        "span_s": 122.0,
        "last_end_s": 125.0,  # 3 s after the last arrival, though not of the last request
        "peak_per_s": 4 / 60,
        "batched_ratio": pytest.approx(1 / 5),
        "shared_ratio": 8 / 150,
        "infinite_hit_rate": 4 / 150,
    }
    assert (a["client"], a["requests"], a["share"], a["input_p50"]) == ("a", 4, 0.8, 30)
    assert (b["client"], b["requests"], b["cv"], b["per_s"]) == ("b", 1, None, 1 / 122)


prompts = st.tuples(st.lists(st.integers(0, 4), max_size=5, unique=True), st.integers(1, 25))


@given(st.lists(prompts, min_size=1, max_size=8))
def test_sharing_equals_brute_force(found):
    rows = [
        TraceRow(number, "a", tokens, 1, blocks=blocks, block_size=SIZE)
        for number, (blocks, tokens) in enumerate(found)
    ]
    lengths = [
        [max(0, min(SIZE, tokens - SIZE * place)) for place in range(len(blocks))]
        for blocks, tokens in found
    ]
    several = hits = 0
    for number, (blocks, _) in enumerate(found):
        for place, block in enumerate(blocks):
            others = [one for at, (one, _) in enumerate(found) if at != number]
            several += lengths[number][place] * any(block in one for one in others)
            begins = blocks[: place + 1]
            earlier = [one for one, _ in found[:number]]
            hits += lengths[number][place] * any(one[: place + 1] == begins for one in earlier)
    total = sum(tokens for _, tokens in found)
    assert shared_prefixes(table_of(rows)) == {
        "shared_ratio": several / total,
        "infinite_hit_rate": hits / total,
    }


def test_the_figure_has_every_request_in_a_bin():
    table = table_of(row(at, f"c{at % 9}", 5, 1) for at in range(240))
    ends, by_client = rates(table)
    assert len(ends) == BINS
    assert list(by_client)[-1] == f"{9 - SHOWN} others"
    total = sum(sum(values) for values in by_client.values()) * ends[0]
    assert total == pytest.approx(len(table))


def test_the_clients_with_the_most_requests_have_their_own_lines_in_the_figure():
    clients = [number for number in range(8) for _ in range(number + 1)]
    ends, by_client = rates(table_of(row(at, f"c{one}", 5, 1) for at, one in enumerate(clients)))
    assert list(by_client) == ["c7", "c6", "c5", "c4", "c3", "c2", "2 others"]
    counts = [round(sum(values) * ends[0]) for values in by_client.values()]
    assert counts == [8, 7, 6, 5, 4, 3, 3]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "log.csv"
    text = "time,user,prompt_tokens,completion_tokens\n"
    text += "".join(f"{n * 0.5},u{n % 25}\x1b[1m,{n + 1},{n % 9 + 1}\n" for n in range(200))
    path.write_text(text, encoding="utf-8")
    return path


def test_the_table_fits_and_the_json_has_all_numbers(trace):
    shown = CliRunner().invoke(app, ["trace", "inspect", str(trace)])
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 100
    assert "\x1b" not in shown.stdout
    assert "and 5 more with 20.0% of the requests" in shown.stdout
    assert "200 in 200 programs" in shown.stdout
    facts = json.loads(CliRunner().invoke(app, ["trace", "inspect", str(trace), "--json"]).stdout)
    assert (facts["requests"], len(facts["clients"]), facts["format"]) == (200, 25, "csv")
    part = CliRunner().invoke(app, ["trace", "inspect", str(trace), "--to", "50", "--json"])
    some = json.loads(part.stdout)
    assert some["requests"] == 100
    assert some["peak_per_s"] == some["per_s"]  # facts of a trace that lasts less than a minute


def test_even_gaps_are_not_bursty_despite_rounding(tmp_path):
    path = tmp_path / "even.csv"
    lines = "".join(f"{n * 0.01:.2f},acme-corporation-team-{n % 2},1,1\n" for n in range(500))
    path.write_text(f"time,client,isl,osl\n{lines}", encoding="utf-8")
    shown = CliRunner().invoke(app, ["trace", "inspect", str(path)]).stdout
    assert "burstiness  0 (coefficient of variation" in shown


def test_a_trace_begins_with_its_earliest_request_in_whatever_order_its_lines_are():
    builder = TableBuilder("x")
    for at_s in (7.5, 2.5, 4.0):
        builder.add(row(at_s, "a", 10, 1))
    assert builder.began_s == 2.5
    assert builder.table().arrival_s.tolist() == [0.0, 1.5, 5.0]
