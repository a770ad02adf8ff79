"""Test that every mistake in a user's file or value is a one-line error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from fairbench.errors import MAX_DEPTH, DataError, explain, is_too_deep, shortened
from fairbench.files.formats import read_toml


@pytest.fixture
def read(tmp_path):
    def read(content):
        path = tmp_path / "file.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_toml(path, "file.toml")

    return read


def test_a_byte_order_mark_is_ignored(read):
    assert read(b"\xef\xbb\xbfdp = 4\n") == {"dp": 4}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('scheduler = "vtc"\n\ndp = = 4\n', "file.toml: line 3: Invalid value: dp = = 4"),
        ("dp = 1\ntag = \n", "file.toml: line 2: Invalid value: tag ="),
        ("a = [1,\n\n", "file.toml: line 1: Invalid value: a = [1,"),
        ("a = " + "[" * 5000, "file.toml: nested more than 32 levels deep"),
        ("a = " + "[" * 40 + "]" * 40, "file.toml: nested more than 32 levels deep"),
        (f"{'a.' * 5000}a = 1", "file.toml: line 1: nested more than 32 levels deep"),
        (
            "a = " + "1" * 5000,
            "file.toml: Exceeds the limit (4300 digits) for integer string conversion: "
            "value has 5000 digits",
        ),
        (b'tag = "caf\xe9"\n', "file.toml: is not UTF-8 text; save it as UTF-8"),
    ],
)
def test_a_wrong_toml_file_is_one_line(read, content, expected):
    with pytest.raises(DataError) as caught:
        read(content)
    assert str(caught.value) == expected


def test_an_unreadable_toml_file_gives_its_reason(tmp_path):
    for path, reason in (
        (tmp_path / "none.toml", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / ("a" * 300), "File name too long"),
    ):
        with pytest.raises(DataError, match=rf"^it: cannot be read: {reason}$"):
            read_toml(path, "it")


@given(st.integers(1, 3 * MAX_DEPTH), st.booleans())
def test_depth_is_counted_through_tables_and_arrays(depth, in_tables):
    nested = 1
    for _ in range(depth):
        nested = {"a": 1, "b": nested} if in_tables else [2, nested]
    assert is_too_deep(nested) == (depth >= MAX_DEPTH)


class Model(BaseModel):
    name: str = Field("a", min_length=1, max_length=3)
    count: int = 1
    many: list[int] = Field([], max_length=1)
    some: tuple[int, ...] = Field((1,), min_length=1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"name": "abcd"}, "name = 'abcd': must have at most 3 characters"),
        ({"name": 3}, "name = 3: must be a valid string"),
        ({"count": "x"}, "count = 'x': must be a valid integer"),
        ({"many": 3}, "many = 3: must be a valid list"),
        ({"many": [1, 2]}, "many = [1, 2]: must have at most 1 item"),
        ({"some": []}, "some = []: must have at least 1 item"),
        ({"count": "y" * 500}, f"count = 'y{'y' * 95}...: must be a valid integer"),
    ],
)
def test_error_messages_state_the_requirement_with_the_value(values, expected):
    with pytest.raises(ValidationError) as caught:
        Model.model_validate(values)
    assert explain(caught.value) == expected


@given(st.text(max_size=300))
def test_a_shortened_text_fits_on_a_line(text):
    assert len(shortened(text)) <= 100
    assert shortened(text) == text or shortened(text).endswith("...")
