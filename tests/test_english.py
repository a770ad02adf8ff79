"""Test that docstrings, comments and help texts begin with a verb or the thing itself."""

import ast
import re
import tokenize
from pathlib import Path

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
    assert len(FILES) > 800
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path in FILES
        for line, text in texts(path)
        if FORBIDDEN.match(text)
    ]
    assert not wrong
