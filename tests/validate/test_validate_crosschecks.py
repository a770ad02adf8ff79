"""Test predictions against published numbers."""

import json

import pytest

from fairbench.errors import DataError
from fairbench.hardware.catalogue import load_profile
from fairbench_studies.validation.slora.crosschecks import crosschecks
from tests.shared_data import PROFILES, needs

CHECKS = PROFILES / "crosschecks.json"
CHAT = {
    "what": "batch-1 TPOT ShareGPT: A100 10.77 (vLLM 0.20.1)",
    "source": "someone",
    "predicted": "11.5-11.8",
}


def write(folder, content):
    path = folder / "checks.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_number_that_a_profile_gives_is_predicted(tmp_path):
    checks = crosschecks(write(tmp_path, [CHAT]))
    first = checks[0]
    step_ms = load_profile(first.profile).decode_ps(1, 314) / 1e9
    assert (first.published, first.unit, first.source) == (10.77, "ms", "someone")
    assert first.predicted == step_ms
    assert first.error_pct == pytest.approx(100 * (step_ms / 10.77 - 1))
    assert first.as_dict()["error_pct"] == first.error_pct


def test_other_predictions_are_quoted(tmp_path):
    other = {"what": "TPOT on something unheard of", "source": "x", "predicted": "about 5"}
    (check,) = crosschecks(write(tmp_path, [other]))
    assert (check.what, check.quoted, check.predicted) == (other["what"], "about 5", None)
    assert check.error_pct is None


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "line 1: not JSON"),
        ("{}", "must be a list of entries"),
        ("[]", "must be a list of entries"),
        ([CHAT, 3], "entry 2: field 'what' must be text"),
        ([CHAT | {"predicted": 3}], "entry 1: field 'predicted' must be text"),
    ],
)
def test_a_bad_file_is_named(tmp_path, content, complaint):
    with pytest.raises(DataError, match=complaint):
        crosschecks(write(tmp_path, content))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"absent\.json: cannot be read"):
        crosschecks(tmp_path / "absent.json")


@needs(CHECKS)
def test_every_published_number_is_in_the_file_with_similar_predictions():
    text = CHECKS.read_text(encoding="utf-8")
    checks = crosschecks(CHECKS)
    computed = [check for check in checks if not check.quoted]
    assert len(computed) == 11
    assert len(checks) - len(computed) == 3
    for check in computed:
        assert f"{check.published:g}" in text
        assert abs(check.error_pct) < 30
    by_name = {check.what: check.error_pct for check in computed}
    assert abs(by_name["vLLM TTFT P50, 28.65k tokens: A100 (0.7.3)"]) < 5
    assert abs(by_name["VTC server's capacity at 256/256 tokens, fitted"]) < 10
    assert abs(by_name["SGLang CI gate at batch 1, more than"]) < 10
