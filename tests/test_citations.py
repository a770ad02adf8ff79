"""Test that citations in comments and tables are defined in docs/reference/papers.md."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAPERS = (ROOT / "docs" / "reference" / "papers.md").read_text(encoding="utf-8")
KEYS = set(re.findall(r"^\| `\[([^\]]+)\]` \|", PAPERS, re.MULTILINE))
GAPS = set(re.findall(r"^\| ([A-E]\d+) \|", PAPERS, re.MULTILINE))
# A citation has the form `[KEY] §3`, `[KEY] Alg. 1`, or `([KEY]`, unlike a subscript.
PLACE = r"(?:§|Alg\.|Theorem|Lemma|Table|Fig\.|eq\.|Appendix|[A-E]\d)"
CITED = re.compile(rf"\[([A-Z][^\[\]\n]{{1,30}}|gaps)\](?=,?\s+(?:[#*]\s+)?{PLACE})")
BARE = re.compile(r"(?<=[ \"(])\(\[([A-Za-z][^\[\]\n]{1,30})\](?=[;)])")
# references that only the authors' own notes could explain
PRIVATE = re.compile(
    r"algorithms\.md|\b\d{3}:L\d|\b00[0-4] (?:Alg|Theorem|Lemma|Table|sect)|ledger [A-Z]\d"
)


def texts(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".toml", ".md", ".csv"} and path.name != Path(__file__).name:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


SOURCES = [
    (name, text)
    for name, text in texts("bench", "workloads", "tests", "docs", "results")
    if name != "docs/reference/papers.md"
]


def test_no_text_refers_to_files_that_readers_lack():
    found = [
        f"{name}: {text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for name, text in SOURCES
        for match in PRIVATE.finditer(text)
    ]
    assert found == []


def test_every_citation_is_defined():
    assert {"DLPM", "VTC", "Preble", "SGLang 0.5.23", "VTC-artifact"} <= KEYS
    unknown = [
        f"{name}: [{key}]"
        for name, text in SOURCES
        for key in (*CITED.findall(text), *BARE.findall(text))
        if key not in {*KEYS, "gaps"}
    ]
    assert unknown == []


def test_every_named_gap_is_described():
    named = {
        (name, row) for name, text in SOURCES for row in re.findall(r"\[gaps\] ([A-E]\d+)", text)
    }
    assert sorted(f"{name}: {row}" for name, row in named if row not in GAPS) == []


def test_documents_named_in_the_code_exist():
    named = {
        (name, document)
        for name, text in texts("bench", "workloads")
        for document in re.findall(r"\bdocs/[\w/-]+\.md\b", text)
    }
    assert sorted(f"{name}: {path}" for name, path in named if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("key", sorted(KEYS))
def test_every_key_names_its_source(key):
    (row,) = (line for line in PAPERS.splitlines() if line.startswith(f"| `[{key}]` |"))
    assert "https://" in row or "in the same repository" in row
