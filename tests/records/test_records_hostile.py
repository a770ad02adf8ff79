"""Test that foreign text costs time in proportion to its length, and hostile files one line."""

import gzip
import importlib
import json
import pkgutil
import re
import sys
import time
from pathlib import Path

import pytest

import fairbench
import fairbench_logs
from fairbench.errors import DataError, UsageError
from fairbench.workloads.traces.read import TraceParams, read_trace
from fairbench_logs.records.cells import duration_s, with_point
from fairbench_logs.records.column_names import cell_of, plain, split_unit
from fairbench_logs.scoring.records import read_scored

REQUEST = {"client": "a", "time": 0, "ttft": 0.1, "latency": 1.0}
REQUEST |= {"input_tokens": 3, "output_tokens": 4}
PACKAGES = {
    "fairbench": ("files", "workloads", "metrics", "report", "errors"),
    "fairbench_logs": ("records", "traces", "scoring", "diagnosis"),
}
# with FACTOR 4, a quadratic pattern would take 16 times as long
SHORT, FACTOR, MOST = 1_000, 4, 10.0


def patterns():
    """Return every compiled pattern of the packages that read or show foreign text, by name."""
    found = {}
    core = pkgutil.walk_packages(fairbench.__path__, "fairbench.")
    logs = pkgutil.walk_packages(fairbench_logs.__path__, "fairbench_logs.")
    for info in (*core, *logs):
        package, part, *_ = info.name.split(".")
        if part in PACKAGES[package]:
            module = importlib.import_module(info.name)
            for name, value in vars(module).items():
                if isinstance(value, re.Pattern):
                    found[f"{info.name}.{name}"] = value
    return found


PATTERNS = patterns()
PIECES = (
    "[",
    "(",
    " ",
    "_",
    "a",
    "0",
    "1,",
    "1.",
    "0:",
    "_ms",
    " s",
    "1m",
    "\\u",
    "::",
    " ::",
    "##[",
)
PIECES += (
    "##[",
    "http ",
    "200 ",
    '"',
    "-",
    ".",
    "1d, ",
    "A",
    "\x1b[",
    "http://",
    "\n",
    "|",
    "`",
    "\\",
)


def cost_s(pattern, piece, length, end):
    text = piece * (length // len(piece)) + end
    text = text.encode() if isinstance(pattern.pattern, bytes) else text
    best = float("inf")
    for _ in range(3):
        begun = time.process_time()
        for method in (pattern.search, pattern.match, pattern.fullmatch):
            method(text)
        best = min(best, time.process_time() - begun)
    return best


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_linear_in_the_length_of_the_text(name):
    """Costs below 3 ms are too short to be compared."""
    pattern = PATTERNS[name]
    for piece in PIECES:
        for end in ("", "!", "x\n"):
            if cost_s(pattern, piece, FACTOR * SHORT, end) < 0.003:
                continue
            assert any(is_linear(pattern, piece, end) for _ in range(5)), (piece, end)


def is_linear(pattern, piece, end):
    """Compare a text with four times the text; other processes may disturb one comparison."""
    long_s = cost_s(pattern, piece, FACTOR**2 * SHORT, end)
    return long_s < MOST * cost_s(pattern, piece, FACTOR * SHORT, end)


@pytest.mark.slow
def test_patterns_are_found():
    assert len(PATTERNS) > 10
    quadratic = re.compile(r"[\s_(\[.-]+(ms|s)[\s)\]]*$")
    growth = cost_s(quadratic, "[", 8_000, "x") / cost_s(quadratic, "[", 2_000, "x")
    assert growth > MOST


def steps_of(function, *arguments):
    """Return the number of lines that Python executes in a call."""
    count = 0

    def traced(frame, event, argument):
        nonlocal count
        count += 1
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("function", [plain, split_unit, duration_s, with_point])
@pytest.mark.parametrize("piece", ["[", "_ms", "aB", "1,", "1m", "."])
def test_names_and_cells_cost_no_more_lines_of_code_than_they_are_long(function, piece):
    short, long = (steps_of(function, piece * length) for length in (1_000, 8_000))
    assert long <= 10 * max(short, 100)


def test_a_name_of_dots_is_looked_up_at_once():
    record = {"a": 1, "a.b": {"c": 2}}
    assert cell_of(record, "a.b.c") == 2
    assert steps_of(cell_of, record, "." * 4_000) <= 10 * steps_of(cell_of, record, "." * 1_000)


def write(path, text):
    path.write_text(text)
    return path


def said(path):
    """Return the one-line errors of ``score`` and ``trace`` for a file, or "" without an error."""
    texts = []
    for read in (lambda: read_scored([path]), lambda: read_trace(TraceParams(str(path)))):
        try:
            read()
            texts.append("")
        except UsageError as error:
            texts.append(str(error))
    assert not any("\n" in text or len(text) > 900 for text in texts)
    return texts


@pytest.mark.parametrize("name", ["[" * 10_000, "_ms" * 5_000, "(" * 5_000 + "s", "a." * 5_000])
def test_a_column_name_of_any_length_is_ignored(tmp_path, name):
    row = json.dumps(REQUEST | {name: 1})
    assert said(write(tmp_path / "a.jsonl", f"{row}\n")) == ["", ""]


def test_an_object_of_many_keys_is_one_line(tmp_path):
    keys = {f"k{n}": n for n in range(60_000)}
    for row in (keys, REQUEST | keys):
        errors = said(write(tmp_path / "a.jsonl", json.dumps(row)))
        assert all("keys; a request may have at most 10,000" in error for error in errors)
    nested = REQUEST | {"logprobs": keys}
    assert said(write(tmp_path / "a.jsonl", json.dumps(nested))) == ["", ""]


def packed(*rows):
    return gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())


@pytest.mark.parametrize("padding", [b"\0" * 5_000_000, gzip.compress(b"") * 2_000])
def test_padding_of_a_gzip_file_is_skipped(tmp_path, padding):
    path = tmp_path / "a.jsonl.gz"
    for data in (packed(REQUEST) + padding, packed(REQUEST) + padding + packed(REQUEST)):
        path.write_bytes(data)
        count = data.count(b"\x1f\x8b\x08") - padding.count(b"\x1f\x8b\x08")
        assert len(read_scored([path]).requests.client) == count
    path.write_bytes(packed(REQUEST) + padding + b"garbage")
    with pytest.raises(DataError, match="damaged gzip file"):
        read_scored([path])
    path.write_bytes(packed(REQUEST)[:-4])
    with pytest.raises(DataError, match="damaged gzip file"):
        read_scored([path])


def test_a_loop_of_links_is_one_line(tmp_path):
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    one.symlink_to(other)
    other.symlink_to(one)
    assert all(said(one))
    with pytest.raises(UsageError):
        read_scored([one, Path(other)])


@pytest.mark.parametrize(
    "value", [[], {}, [[1]], "x" * 5_000, 10**30, -1, True, "1_0", {"a": [1]}, None, 1e308, "٣"]
)
@pytest.mark.parametrize("field", [*REQUEST, "status", "worker", "cached_tokens", "itls", "id"])
def test_any_value_of_any_field_is_read_or_one_line(tmp_path, field, value):
    rows = [REQUEST, REQUEST | {"time": 1, field: value}, REQUEST | {"time": 2}]
    said(write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
