"""Test that each study's result states numbers of the study's own tables and text."""

import re
from pathlib import Path

import pytest

from tests.docs_quantities import CODE, NUMBER, QUANTITY, lines_of, unfound

DOCS = Path(__file__).resolve().parents[1] / "docs"
RESULT = re.compile(r"^\*\*Result\.\*\*(.*?)\n\n", re.DOTALL | re.MULTILINE)
STUDIES = sorted(
    path.stem
    for path in (DOCS / "studies").glob("*.md")
    if RESULT.search(path.read_text(encoding="utf-8"))
)
CLAIMS = {"figures": "claims.md", "vtc-paper": "vtc-claims.md", "preble-paper": "preble-claims.md"}
# how many numbers of a result are computed from the tables, or belong to runs that no table lists
COMPUTED = {
    **{"emulator": 2, "external-routers": 1, "fair-finish": 1, "gateways": 1, "gpu": 1},
    **{"limit": 1},
    **{"populations": 1, "real-input": 1, "sessions": 1},
    **{"traces": 2, "vllm": 1},
}


def result_and_lines(name):
    """Return the sentences of a study's result, and the lines of all else that it shows."""
    text = (DOCS / "studies" / f"{name}.md").read_text(encoding="utf-8")
    result = RESULT.search(text)
    appendix = DOCS / "appendix" / f"{name}.md"
    more = appendix.read_text(encoding="utf-8") if appendix.exists() else ""
    if name in CLAIMS:
        more += (DOCS.parent / "results" / CLAIMS[name]).read_text(encoding="utf-8")
    sentences = re.split(r"(?<=[.;:]) (?=[A-Z`])", " ".join(result[1].split()))
    return sentences, lines_of(text.replace(result[0], "") + "\n\n" + more)


@pytest.mark.parametrize("name", STUDIES)
def test_a_result_states_numbers_of_its_tables(name):
    sentences, lines = result_and_lines(name)
    missing = [one for sentence in sentences for one in unfound(sentence, lines)]
    assert len(missing) == COMPUTED.get(name, 0), missing


def test_a_changed_digit_of_a_result_is_noticed():
    """Nearly half of the changes are noticed. The others are computed, or in a long table, too."""
    told = {}
    for name in STUDIES:
        sentences, lines = result_and_lines(name)
        for sentence in sentences:
            before = len(unfound(sentence, lines))
            for found in QUANTITY.finditer(CODE.sub(lambda code: " " * len(code[0]), sentence)):
                for number in re.finditer(NUMBER, found[0]):
                    at = found.start() + number.end() - 1
                    other = sentence[:at] + str((int(sentence[at]) + 1) % 10) + sentence[at + 1 :]
                    told[other] = len(unfound(other, lines)) > before
    assert sum(told.values()) >= 0.45 * len(told)
