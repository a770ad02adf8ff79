"""Test reading and writing TOML."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.config.parse_flags import parse_assignment
from fairbench.errors import UsageError
from fairbench.files.formats import dumps, toml_value

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
SCALARS = (
    TEXTS
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)  # infinity is a valid request rate
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_a_written_file_reads_back_unchanged(data):
    assert tomllib.loads(dumps(data)) == data


def test_tables_come_after_the_plain_keys_of_their_parent():
    text = dumps({"dp": 4, "settings": {"dlpm": {"quantum": 5}}, "tag": 'a "b"'})
    assert text == 'dp = 4\ntag = "a \\"b\\""\n\n[settings.dlpm]\nquantum = 5\n'


@given(VALUES)
def test_set_parses_a_value_as_written(value):
    assert parse_assignment(f"part.key={toml_value(value)}") == ("part.key", value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dlpm.quantum=5000", ("dlpm.quantum", 5000)),
        ("vtc.charge=input", ("vtc.charge", "input")),
        ('vtc.charge="input"', ("vtc.charge", "input")),
        (" dlpm.charge_recompute = true ", ("dlpm.charge_recompute", True)),
        ("vtc.weights={client-0 = 2}", ("vtc.weights", {"client-0": 2})),
        ("a.b=x=y", ("a.b", "x=y")),
        ("a.b=1\nvalue2 = 3", ("a.b", "1\nvalue2 = 3")),
    ],
)
def test_set_values_are_toml_or_text(text, expected):
    assert parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["dlpm.quantum", "quantum=5", "=5", ".quantum=5", "dlpm.=5", ""])
def test_set_with_a_value_of_another_shape_is_refused(text):
    with pytest.raises(UsageError, match=r"write NAME\.PARAM=VALUE"):
        parse_assignment(text)


@pytest.mark.parametrize("value", ["[" * 5000 + "]" * 5000, "[" * 40 + "]" * 40])
def test_set_with_a_deeply_nested_value_is_refused(value):
    with pytest.raises(UsageError, match=r"^--set dlpm\.quantum: nested more than 32 levels deep$"):
        parse_assignment(f"dlpm.quantum={value}")


def test_set_reads_too_long_an_integer_as_text():
    assert parse_assignment("dlpm.quantum=" + "1" * 5000) == ("dlpm.quantum", "1" * 5000)
