"""Test cost functions: the named ones, and a user's in a file."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.config.resolve import resolve
from fairbench.errors import UsageError
from fairbench.results.manifest import Stopwatch, build_manifest
from fairbench.schedulers.charging.predicted import own_cost, profiled_cost_ms
from fairbench.schedulers.local.vtc_predict import PredictiveVTC
from fairbench.schedulers.registry import build_local
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_requests import Calls

MINE = "def cost(input_tokens, output_tokens):\n    return {}\n"


@pytest.fixture
def file(tmp_path):
    def file(body: str) -> str:
        path = tmp_path / "mine.py"
        path.write_text(body)
        return str(path)

    return file


def test_known_names_of_costs_are_accepted():
    assert own_cost("linear") is None
    assert own_cost("profiled") is profiled_cost_ms


def test_a_file_charges_the_growth_of_its_function(file):
    name = file(MINE.format("input_tokens * 3 + output_tokens ** 2"))
    scheduler = build_local(
        "vtc-predict", {"vtc-predict.cost": name, "vtc-predict.predictor": "none"}
    )
    at, call = Desk(scheduler), Calls()
    request = call("a", tail=5, max_new=4)
    at.arrive(request)
    at.run_pass()
    seen = [scheduler.counters["a"]]
    for _ in range(4):
        scheduler.on_tokens("a", 1)
        scheduler.on_request_tokens(request, 1)
        seen.append(scheduler.counters["a"])
    assert seen == [15, 16, 19, 24, 31]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=6),
    st.sampled_from(["oracle", "average", "none"]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_every_client_pays_the_true_cost_under_any_prediction(
    tmp_path_factory, lengths, predictor, error, steps
):
    path = tmp_path_factory.getbasetemp() / "steep.py"
    path.write_text(MINE.format("input_tokens * (1 + output_tokens) + output_tokens ** 3"))
    params = PredictiveVTC.Params(cost=str(path), predictor=predictor, error=error)
    at, call = Desk(PredictiveVTC(params)), Calls()
    owed = 0
    for tail, tokens in lengths:
        request = call("a", tail=tail, max_new=40)
        at.arrive(request)
        at.run_pass()
        left = tokens
        while left:
            made = min(left, steps[left % len(steps)])
            at.scheduler.on_tokens("a", made)
            at.scheduler.on_request_tokens(request, made)
            left -= made
        at.scheduler.on_finish(request)
        owed += tail * (1 + tokens) + tokens**3
    assert at.scheduler.counters["a"] == owed


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("price = 1\n", "must define a function cost"),
        ("cost = 7\n", "must define a function cost"),
        ("def cost(input_tokens):\n    return 1\n", "raises TypeError"),
        ("import nothing_of_that_name\n", "ModuleNotFoundError"),
        (MINE.format("-1"), r"cost\(0, 0\) is -1"),
        (MINE.format("'much'"), "must be a number"),
        (MINE.format("float('nan')"), "must be a number"),
        (
            MINE.format("100 - output_tokens if output_tokens < 50 else 100"),
            "a cost must be at least 0, and more tokens must never cost less",
        ),
        (
            MINE.format("1 / max(input_tokens, 1)"),
            "a cost must be at least 0, and more tokens must never cost less",
        ),
    ],
)
def test_invalid_costs_are_refused_in_one_line(file, body, complaint):
    with pytest.raises(UsageError, match=complaint) as refused:
        resolve({"local": "vtc-predict"}, {"vtc-predict.cost": file(body)})
    assert "\n" not in str(refused.value)
    assert "vtc-predict.cost" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "complaint"), [("profield", "profiled"), ("nowhere.py", "not a Python file")]
)
def test_unknown_names_and_files_are_refused(name, complaint):
    with pytest.raises(UsageError, match=complaint):
        resolve({}, {"vtc-predict.cost": name})


def test_the_manifest_keeps_the_digest_of_the_file(file):
    name = file(MINE.format("input_tokens"))
    spec = resolve({"local": "vtc-predict"}, {"vtc-predict.cost": name})
    manifest = build_manifest(spec, complete=True, watch=Stopwatch.start())
    assert list(manifest["cost_files"]) == [name]
    assert "cost_files" not in build_manifest(resolve({}), complete=True, watch=Stopwatch.start())
    json.dumps(manifest)
