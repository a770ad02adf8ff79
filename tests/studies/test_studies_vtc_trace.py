"""Test the converter of the VTC paper's Arena trace."""

import gzip
import json
import os
import pickle

import pytest

from fairbench.errors import DataError
from fairbench_studies.vtc.real_trace import main, trace_rows


class Request:
    """A stand-in for the artifact's class, which has the same name."""

    def __init__(self, adapter, t, prompt_len, output_len):
        self.req_id, self.prompt = 0, "Hello"
        self.adapter_dir, self.req_time = adapter, t
        self.prompt_len, self.output_len = prompt_len, output_len


class Runs:
    """A value whose pickle runs a command when it is read."""

    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


def pickled(folder, value):
    path = folder / "real_trace.pkl"
    path.write_bytes(pickle.dumps(value))
    return path


def test_a_trace_is_converted_in_order_of_arrival(tmp_path, capsys):
    requests = [Request("lora-1", 2.5, 30, 7), Request("lora-0", 0.1234567, 5, 9)]
    source = pickled(tmp_path, [["lora-0", "lora-1"], requests])
    target = tmp_path / "trace.jsonl.gz"
    main(str(source), str(target))
    rows = [json.loads(line) for line in gzip.decompress(target.read_bytes()).splitlines()]
    assert rows == [
        {"t": 0.123457, "client": 0, "prompt_len": 5, "output_len": 9},
        {"t": 2.5, "client": 1, "prompt_len": 30, "output_len": 7},
    ]
    assert capsys.readouterr().out == f"{target}: 2 requests of 2 clients\n"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Runs(), "the file is refused: loading posix.mkdir may be unsafe"),
        ([["a"], [Runs()]], "the file is refused: loading posix.mkdir"),
        ([["a"], [Request("b", 0.0, 1, 1)]], "'b'"),
        ([["a"], [Request("a", "soon", 1, 1)]], "could not convert"),
        ({"rows": 3}, ""),
        (["a"], ""),
        ([["a"], 3], "not iterable"),
    ],
)
def test_anything_else_is_refused_and_runs_nothing(tmp_path, monkeypatch, value, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="is not a pickle of a VTC trace") as raised:
        list(trace_rows(pickled(tmp_path, value)))
    assert reason in str(raised.value)
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_other_files_and_names_are_refused_in_one_line(tmp_path):
    text = tmp_path / "trace.pkl"
    text.write_text("{}")
    for source, target in ((text, "out.jsonl.gz"), (tmp_path / "none", "out.jsonl.gz")):
        with pytest.raises(SystemExit, match=r"^trace [^\n]+$"):
            main(str(source), target)
    with pytest.raises(SystemExit, match=r"out\.json: must end in \.jsonl\.gz"):
        main(str(text), "out.json")
