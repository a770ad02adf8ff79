"""Test plain records: CSV, ISO 8601, units in names, and common names."""

import json

import pytest

from fairbench.errors import DataError
from fairbench_logs.scoring.records import read_scored

PLAIN = [
    {"client": "a", "start": 0.0, "ttft": 0.5, "latency": 2.0, "input_tokens": 10}
    | {"output_tokens": 3},
    {"client": "b", "start": 1.5, "ttft": 0.25, "latency": 1.0, "input_tokens": 20}
    | {"output_tokens": 4},
]
WRITTEN = {
    "iso.csv": """Timestamp,Tenant,Prompt Tokens,completion_tokens,ttft_ms,latency_s
2024-05-01T12:00:00Z,a,10,3,500,2
2024-05-01T14:00:01.500+02:00,b,20,4,250,1.0
""",
    "epoch.csv": """created_at,user_id,input_length,output_length,ttft_s,duration_ms,error
1714564800000,a,10,3,0.5,2000,
1714564801500,b,20,4,0.25,1000,
""",
}


def scored_of(tmp_path, name, text, **more):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_scored([path], **more)


@pytest.fixture
def plain(tmp_path):
    return scored_of(tmp_path, "plain.jsonl", "\n".join(map(json.dumps, PLAIN)))


def facts(scored):
    requests = scored.requests
    columns = (requests.client, requests.input_tokens, requests.output_tokens)
    times = (requests.arrival_s, requests.first_token_s, requests.finish_s)
    rounded = [[round(value, 6) for value in column.tolist()] for column in times]
    return scored.clients, [column.tolist() for column in columns], rounded


@pytest.mark.parametrize("name", ["iso.csv", "epoch.csv"])
def test_the_same_records_in_other_forms_give_the_same_numbers(plain, tmp_path, name):
    assert facts(scored_of(tmp_path, name, WRITTEN[name])) == facts(plain)
    assert facts(plain)[2] == [[0.0, 1.5], [0.5, 1.75], [2.0, 2.5]]


def test_dates_and_times_in_json_are_read(plain, tmp_path):
    lines = [
        {"ts": f"2024-05-01 12:00:0{at}", "user": one["client"], "isl": one["input_tokens"]}
        | {"osl": one["output_tokens"], "first_token": f"2024-05-01T12:00:0{first}Z"}
        | {"finished_at": f"2024-05-01T12:00:0{end}+00:00"}
        for one, at, first, end in zip(
            PLAIN, ("0.0", "1.5"), ("0.5", "1.75"), ("2", "2.5"), strict=True
        )
    ]
    text = "\n".join(map(json.dumps, lines))
    assert facts(scored_of(tmp_path, "a.jsonl", text)) == facts(plain)


def test_a_unit_in_a_name_overrides_the_flag(plain, tmp_path):
    text = "time,user,isl,osl,ttft_ms,latency_s\n0,a,10,3,500,2\n1500,b,20,4,250,1\n"
    assert facts(scored_of(tmp_path, "a.csv", text, unit="ms")) == facts(plain)


def test_names_in_csv_stay_texts_and_empty_cells_are_missing(tmp_path):
    text = "start,client,input_tokens,output_tokens,ttft,latency,error\n"
    text += "0,007,1,1,1,1,\n1,7,1,1,1,1,refused\n"
    scored = scored_of(tmp_path, "a.csv", text)
    assert scored.clients == ("007", "7")
    assert scored.requests.finish_s.tolist()[0] == 1.0
    assert scored.requests.finish_s.tolist()[1] != scored.requests.finish_s.tolist()[1]


@pytest.mark.parametrize("column", ["client", "Tenant ID", "user"])
def test_clients_in_csv_keep_their_spelling(tmp_path, column):
    names = ["nan", "1_0", "1e3", "true", "None", "10", "1.50"]
    rows = "".join(f"{n},{name},1,1,1,1\n" for n, name in enumerate(names))
    text = f"start,{column},input_tokens,output_tokens,ttft,latency\n{rows}"
    assert sorted(scored_of(tmp_path, "a.csv", text).clients) == sorted(names)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("start,client,input_tokens,output_tokens,ttft,latency\n", "a.csv: holds no records"),
        (
            "start,client,input_tokens,output_tokens,ttft,latency\nnoon,x,1,1,1,1\n",
            "line 2: start = 'noon': must be a number or an ISO 8601 time",
        ),
        (
            "start,client,input_tokens,output_tokens,ttft,latency\n1,x,one,1,1,1\n",
            "line 2: input_tokens = 'one': must be a number",
        ),
        ("when,who\n1,x\n", "line 2: the layout is unknown. The plain layout needs client, start"),
        (
            "start,client,promt_tokens,output_tokens,ttft,latency\n1,x,1,1,1,1\n",
            "NAME. Did you mean input_tokens=promt_tokens?",
        ),
        (
            "start,client,input_tokens,output_tokens,ttft,latency\n"
            "2024-05-01T12:00:00Z,x,7,101,250,2250\n",
            "latency = 2250: in seconds, even fast answers would take 20 s per token, so the unit",
        ),
        (
            "start,client,input_tokens,output_tokens,ttft,latency\n1,x,-7,1,1,1\n",
            "line 2: input_tokens = -7: must be a whole number from 0 to 9007199254740992",
        ),
    ],
)
def test_errors_are_one_line(tmp_path, text, complaint):
    with pytest.raises(DataError) as error:
        scored_of(tmp_path, "a.csv", text)
    assert complaint in str(error.value)


ALL_MS = (
    "ts,user,isl,osl,ttft,latency\n1714564800000,a,10,3,500,2000\n1714564801500,b,20,4,250,1000\n"
)


def test_latencies_with_ambiguous_units_are_refused(plain, tmp_path):
    with pytest.raises(DataError) as error:
        scored_of(tmp_path, "a.csv", ALL_MS)
    assert "a.csv: ttft = 500: the unit is unknown, s or ms like its dates; " in str(error.value)
    assert facts(scored_of(tmp_path, "a.csv", ALL_MS, unit="ms")) == facts(plain)
    in_s = scored_of(tmp_path, "a.csv", ALL_MS, unit="s")
    assert facts(in_s)[2] == [[0.0, 1.5], [500.0, 251.5], [2000.0, 1001.5]]


def test_the_kind_of_a_record_follows_from_its_content(plain, tmp_path):
    lines = [",".join(PLAIN[0]), *(",".join(map(str, one.values())) for one in PLAIN)]
    for name, mark in (("a.CSV", ","), ("a.tsv", "\t"), ("a.txt", ";"), ("a", ",")):
        text = "\ufeff" + "\r\n".join(lines).replace(",", mark)
        assert facts(scored_of(tmp_path, name, text)) == facts(plain), name
    for name, indent in (("a.json", None), ("b.json", 2)):
        assert facts(scored_of(tmp_path, name, json.dumps(PLAIN, indent=indent))) == facts(plain)


def test_numbers_without_a_zero_before_the_point_are_read(tmp_path):
    text = (
        "start,client,input_tokens,output_tokens,ttft,latency\n.5,a,10,3,-.5,2\n-.5,a,1,1,.25,1\n"
    )
    requests = scored_of(tmp_path, "a.csv", text.replace("-.5,2", ".5,2")).requests
    assert requests.first_token_s.tolist() == [0.25, 1.5]
