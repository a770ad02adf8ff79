"""Reading and writing TOML."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.config.toml import dumps, parse_assignment, read_toml, toml_value
from fairbench.errors import DataError, UsageError

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
SCALARS = (
    TEXTS
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)  # infinity is a request rate
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_what_is_written_reads_back_the_same(data):
    assert tomllib.loads(dumps(data)) == data


def test_tables_come_after_the_plain_keys_of_their_parent():
    text = dumps({"dp": 4, "settings": {"dlpm": {"quantum": 5}}, "tag": 'a "b"'})
    assert text == 'dp = 4\ntag = "a \\"b\\""\n\n[settings.dlpm]\nquantum = 5\n'


@given(VALUES)
def test_set_takes_a_value_as_it_is_written(value):
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
def test_set_value_is_toml_or_else_text(text, expected):
    assert parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["dlpm.quantum", "quantum=5", "=5", ".quantum=5", "dlpm.=5", ""])
def test_set_of_another_shape_is_refused(text):
    with pytest.raises(UsageError, match=r"write NAME\.PARAM=VALUE"):
        parse_assignment(text)


def test_malformed_toml_names_file_line_and_text(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text('scheduler = "vtc"\n\ndp = = 4\n')
    with pytest.raises(DataError) as caught:
        read_toml(path)
    assert str(caught.value) == f"{path}: line 3: Invalid value: dp = = 4"


def test_malformed_toml_at_the_end_of_the_file(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("dp = 1\ntag = \n")
    with pytest.raises(DataError, match=r"broken\.toml: line 2: Invalid value: tag =$"):
        read_toml(path)


def test_unreadable_files(tmp_path):
    with pytest.raises(DataError, match=r"none\.toml: cannot be read: No such file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'tag = "caf\xe9"\n')
    with pytest.raises(DataError, match="not UTF-8"):
        read_toml(tmp_path / "latin.toml")
