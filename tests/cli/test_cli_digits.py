"""Test that numbers in digits of other scripts are refused, although Python reads them."""

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config.parse_flags import parse_weights
from fairbench.errors import UsageError
from fairbench.targets import parse_targets
from fairbench_gate.clauses import SHAPE as CLAUSE

WRONG = [
    ("run", "--weights", "client-0=２"),
    ("run", "--weights", "client-0=1.٥,client-1=2"),
    ("run", "--dp", "４"),
    ("run", "--seed=٣"),
    ("run", "--request-rate", "１.５"),
    ("run", "--burstiness", "１e１"),
    ("run", "--set", "dlpm.quantum=５００"),
    ("run", "--goodput", "ttft:５00ms"),
    ("plan", "--dp", "1..８", "--slo", "victim_p99_s=1"),
    ("plan", "--loads", "0.5,०.८"),
    ("serve", "--port", "８000", "--worker-url", "http://127.0.0.1:9"),
    ("serve", "--set", "gateway.client_requests=１０", "--worker-url", "http://127.0.0.1:9"),
    ("trace", "cut", "log.jsonl", "--from", "１０"),
]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_number_in_other_digits_is_one_line(words):
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 2
    assert result.stderr.endswith(": only the digits 0 to 9 are accepted in numbers\n")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--weights", "客户３=2"),
        ("--tag", "第３组"),
        ("--trace", "日誌３.jsonl"),
        ("--set", "a.b=№５a"),
    ],
)
def test_names_may_have_any_digits(words):
    result = CliRunner().invoke(app, ["run", *words, "--dp", "0"])
    assert "digits 0 to 9" not in result.stderr


def test_numbers_outside_the_command_line_have_usual_digits_too():
    for text in ("a=３", "a=1,b=٢"):
        with pytest.raises(UsageError):
            parse_weights(text)
    with pytest.raises(UsageError):
        parse_targets({"ttft": "５00ms"}, "goodput")
    assert CLAUSE.fullmatch("p99:５%") is None
