"""Test how texts begin, and that one thing has one name."""

import ast
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted([*(ROOT / "bench").rglob("*.py"), *(ROOT / "studies").rglob("*.py")])
FORBIDDEN = re.compile(r"[\W_]*(What|Whose|Who|Those|It|Of|So|By|One|As|Where|For)\b(?! example)")


def texts(path):
    """Yield docstrings (of constants too), first lines of comments and ``help``, with lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
        if isinstance(node, ast.keyword) and node.arg == "help":
            yield node.value.lineno, ast.unparse(node.value).lstrip("f")
    with path.open("rb") as file:
        before = -1
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                own_line = not token.line[: token.start[1]].strip()
                if own_line and token.start[0] != before + 1:
                    yield token.start[0], token.string
                before = token.start[0]


def test_no_text_begins_with_a_pronoun_or_a_relative_word():
    assert len(FILES) > 500
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path in FILES
        for line, text in texts(path)
        if FORBIDDEN.match(text)
    ]
    assert not wrong


# Refused words, each with the word for the same thing.
REFUSED = {
    r"misbehav\w+": "heavy",
    r"flooders?|flooding clients?": "heavy client",
    r"hurt|harmed|unharmed": "waits",
    r"victims?": "well-behaved client",
    r"(modest|quiet|innocent|light) clients?": "well-behaved client",
    r"actual service": "computed service",
    r"min(imum|\.)? share|worst share": "minimum fair share",
    r"demand-limited": "below saturation",
    r"heeds?|whoever|for want of|cannot tell": "(rewrite)",
}
ANY = re.compile("|".join(REFUSED), re.IGNORECASE)
# Files in which a refused word is right.
ALLOWED = {
    r"victims?": {
        "an attack has an attacker and victims, which flags and files name, too": (
            "studies/attacks", "studies/memory-attacks", "guide/attack", "appendix/attacks",
            "fairbench_attacks/", "fairbench_studies/attacks/", "studies/assumptions", "RUN.md",
        ),
        "a running request whose memory is taken is the victim of a preemption": (
            "guide/goodput", "schedulers/local/edf", "schedulers/parts/slack",
            "/engine/", "schedulers/gateway/queue", "fairbench_engines/", "textbook/edf",
            "fairbench_rivals/local/autellix",
        ),
        "a client whose cached prefix is taken is the victim of an eviction": (
            "schedulers/eviction/", "appendix/engine",
        ),
    },
}  # fmt: skip
# Code, keys, flags and the addresses of links keep their names.
QUOTED = re.compile(r"``[^`]*``|`[^`]*`|\]\([^)]*\)|--[\w-]+|<!--.*?-->|^```.*?^```", re.M | re.S)
PAGES = [ROOT / "README.md", ROOT / "RUN.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prose(path):
    """Return what people read in a page, or the texts and comments of a module, line by line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return QUOTED.sub(" ", text)
    if not ANY.search(text):
        return ""
    nodes = (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Constant))
    found = [one.value for one in nodes if isinstance(one.value, str) and " " in one.value]
    with path.open("rb") as file:
        found += [
            one.string for one in tokenize.tokenize(file.readline) if one.type == tokenize.COMMENT
        ]
    return QUOTED.sub(" ", "\n".join(found))


def refused(path):
    """Yield the refused words of a file for which no reason is given."""
    name, text = path.relative_to(ROOT).as_posix(), prose(path)
    for word, instead in REFUSED.items():
        reasons = ALLOWED.get(word, {}).values()
        if any(part in name for parts in reasons for part in parts):
            continue
        for match in re.finditer(rf"(?<![\w.=\"'-])({word})(?![\w=:-])", text, re.IGNORECASE):
            yield f"{name}: {match[0]}: write {instead}"


def test_one_thing_has_one_name():
    assert [line for path in [*PAGES, *FILES] for line in refused(path)] == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The misbehaving client waits.", "misbehaving"),
        ("A flooder and its victims.", "flooder"),
        ("The lowest value is the minimum share of a client.", "minimum share"),
        ("Rates of a demand-limited run", "demand-limited"),
    ],
)
def test_a_refused_word_is_found_in_pages_and_texts(tmp_path, monkeypatch, text, word):
    monkeypatch.setattr("tests.test_english.ROOT", tmp_path)
    for name, content in (("page.md", text), ("a.py", f'"""{text}"""'), ("b.py", f"# {text}")):
        (tmp_path / name).write_text(content)
        assert any(f": {word}: write" in line for line in refused(tmp_path / name)), name


def test_keys_and_flags_keep_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.test_english.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("`misbehaving = []`, --misbehaving, [files](misbehaving.md), `victim_p99_s`\n")
    assert list(refused(page)) == []
