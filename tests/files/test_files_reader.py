"""Test that a file of another tool is read within the memory limit, or refused in one line."""

import gzip
import json
import tracemalloc
from sys import getsizeof

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import DataError, UsageError
from fairbench.files.formats import MAX_BYTES, csv_rows, json_file, json_lines, parsed, read_toml
from fairbench.files.reader import DEFAULT_MIB, MIB, VARIABLE, lines, memory_of, read_whole
from tests.strategies import examples


@pytest.fixture
def little(monkeypatch):
    """Limit the memory to 1 MiB, so that test files can be small."""
    monkeypatch.setenv(VARIABLE, "1")
    return MIB


def packed(path, data):
    path.write_bytes(gzip.compress(data, 1))
    return path


READERS = {
    "lines": lambda path: list(lines(path, "it")),
    "whole": lambda path: read_whole(path, "it"),
    "json": lambda path: json_file(path, "it"),
    "json lines": lambda path: list(json_lines(path, "it")),
    "csv": lambda path: list(csv_rows(path, "it")),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    "unpacked",
    [bytes(8 * MIB), b"1" * 8 * MIB, b"[" * 8 * MIB, b"[],[]," * MIB, b"1\n" * MIB],
    ids=["zeros", "one line", "brackets", "lists", "short lines"],
)
def test_a_file_that_grows_when_unpacked_is_refused_within_its_memory_limit(
    reader, unpacked, little, tmp_path
):
    path = packed(tmp_path / "bomb.gz", unpacked)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=rf"^it: is too large: .*1 MiB .*{VARIABLE}"):
            reader(path)
        assert tracemalloc.get_traced_memory()[1] < 2 * little
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_an_endless_file_is_refused(reader, little, tmp_path):
    endless = tmp_path / "endless"
    endless.symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is too large"):
        reader(endless)


def test_toml_has_a_separate_limit(tmp_path):
    endless = tmp_path / "endless.toml"
    endless.symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"^it: is too large; the limit is 4 MiB$"):
        read_toml(endless, "it")
    full = tmp_path / "full.toml"
    full.write_text(f"a = '{'b' * (MAX_BYTES - 7)}'\n")
    assert len(read_toml(full, "it")["a"]) == MAX_BYTES - 7


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(-(2**63), 2**63),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def size_of(value):
    inner = value if isinstance(value, list) else ()
    if isinstance(value, dict):
        inner = [*value, *value.values()]
    return getsizeof(value) + sum(map(size_of, inner))


@examples(25)
@given(values, st.booleans())
def test_values_take_at_most_the_counted_memory(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert getsizeof(text) + size_of(json.loads(text)) <= memory_of(text.encode(errors="replace"))


@pytest.mark.parametrize(
    "line",
    ['{"a": 1}', "[[],[],[]]", '{"k": {"l": "text"}, "é": [1.5, -7e99]}', '"\\ud83d\\ude00 a"'],
)
def test_the_counted_memory_is_close_to_the_real_one(line):
    data = f"[{','.join([line] * 1000)}]".encode()
    assert size_of(json.loads(data)) <= memory_of(data) <= 8 * size_of(json.loads(data))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[" * 100_000, "it: nested too deeply"),
        ("[" * 40 + "]" * 40, "it: nested too deeply"),
        ("1" * 5000, "it: cannot be read: an integer of 5000 digits does not fit into 64 bits"),
        (f"[{2**64}]", "it: cannot be read: an integer of 20 digits does not fit into 64 bits"),
        (
            f"[{-(2**63) - 1}]",
            "it: cannot be read: an integer of 19 digits does not fit into 64 bits",
        ),
        (
            '"\\ud800"',
            "it: cannot be read: a text contains an incomplete character (a lone surrogate)",
        ),
        ("{", "it: not JSON: Expecting property name enclosed in double quotes"),
    ],
)
def test_unreliable_json_is_refused(text, complaint):
    with pytest.raises(DataError) as error:
        parsed(text.encode(), "it")
    assert str(error.value) == complaint


def test_unusual_but_valid_json_is_read():
    text = f'[{2**64 - 1}, {-(2**63)}, 0.{"1" * 40}, "{"9" * 40}", "\\ud83d\\ude00", "[[[[[["]'
    assert parsed(text.encode(), "it") == json.loads(text)
    assert parsed(b"[NaN, 1e999]", "it")[1] == float("inf")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("NaN", "NaN is not allowed in JSON"),
        ("[1, Infinity]", "Infinity is not allowed in JSON"),
        ("1e999", "1e999 does not fit into 64 bits"),
        ('{"a": [-1e400]}', "-1e400 does not fit into 64 bits"),
    ],
)
def test_strict_json_has_finite_numbers(text, why, tmp_path):
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(DataError, match=f"^it: cannot be read: {why}$"):
        json_file(path, "it", strict=True)


def test_lines_are_numbered_and_lose_their_byte_order_mark(tmp_path):
    path = tmp_path / "file.jsonl"
    path.write_bytes(b"\xef\xbb\xbf1\r\n\n  \n2")
    assert [(place.where, place.value) for place in json_lines(path, "it")] == [
        ("it, line 1", 1),
        ("it, line 4", 2),
    ]


@pytest.mark.parametrize("data", [b"\xff", b"1\n\xff"])
def test_text_must_be_utf_8(data, tmp_path):
    path = tmp_path / "file.jsonl"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"^it, line [12]: is not UTF-8 text; save it as UTF-8$"):
        list(json_lines(path, "it"))


def test_csv_keeps_quoted_blank_lines_and_locates_long_cells(tmp_path, monkeypatch):
    path = tmp_path / "file.csv"
    path.write_text('a,b\n"x\n\ny",1\n2\n')
    assert [row.cells for row in csv_rows(path, "it")] == [
        {"a": "x\n\ny", "b": "1"},
        {"a": "2", "b": ""},
    ]
    path.write_text(f"a,b\n{'1' * 200_000}\n")
    assert len(next(csv_rows(path, "it")).cells["a"]) == 200_000
    monkeypatch.setenv("FAIRBENCH_READ_MIB", "1")
    path.write_text('a,b\n"' + "\n".join(["1" * 999] * 200) + '"\n')
    with pytest.raises(DataError, match=r"^it, line 133: not CSV: field larger than"):
        list(csv_rows(path, "it"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n1,2\n\n3,Acme, Inc\n", "line 4: has more cells than line 1 has columns"),
        ("a,b,a\n1,2,3\n", "line 1: column 'a' appears twice"),
    ],
)
def test_csv_with_ambiguous_cells_is_refused(tmp_path, text, complaint):
    path = tmp_path / "file.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=f"^it, {complaint}$"):
        list(csv_rows(path, "it"))
    path.write_text("a,b,,\n1,2,,,\n")  # empty cells that spreadsheets leave at the end
    assert list(csv_rows(path, "it")) == [(2, {"a": "1", "b": "2", "": ""})]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.mkdir(), "Is a directory"),
        (
            lambda path: path.write_bytes(b"no gzip"),
            r"damaged gzip file \(.*incorrect header",
        ),
        (lambda path: path.write_bytes(gzip.compress(b"a" * 99)[:-9]), "damaged gzip file"),
    ],
)
def test_the_error_says_why_a_file_cannot_be_read(make, reason, tmp_path):
    path = tmp_path / "file.gz"
    make(path)
    with pytest.raises(DataError, match=f"^it: cannot be read: {reason}"):
        list(lines(path, "it"))


def test_a_name_with_a_zero_byte_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"^it: cannot be read: embedded null byte"):
        read_whole(tmp_path / "a\0b", "it")


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "9" * 9])
def test_the_limit_in_the_environment_is_checked(value, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(UsageError, match=rf"^{VARIABLE} = {value}: must be a whole number"):
        read_whole(tmp_path, "it")


def test_the_default_memory_limit_is_half_a_gib(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "")
    path = tmp_path / "file"
    path.write_bytes(b"a" * MIB)
    assert (len(read_whole(path, "it")), DEFAULT_MIB) == (MIB, 512)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a.b = 2024-01-01T00:00:00Z", r"a\.b: must not be a date or a time \(2024"),
        ("a = [{b = 07:32:00}]", r"a\.b: must not be a date or a time \(07:32"),
        (f"a = {10**59}", "a: an integer must fit into 64 bits"),
    ],
)
def test_toml_values_of_other_types_are_refused(text, complaint, tmp_path):
    path = tmp_path / "file.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=f"^it: {complaint}"):
        read_toml(path, "it")
