"""Draw texts for a reader who is new here: ``python -m tests.reading.sample SEED``.

The sample has 20 sentences of documents, 15 of docstrings, 10 comments, 10 messages and 5 help
texts, each with its file and line. A comment is followed by the code before it. The reader marks
each as clear, odd, or to be decoded.
"""

import ast
import random
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"docs": 20, "docstrings": 15, "comments": 10, "messages": 10, "help": 5}
PAGES = [ROOT / "README.md", ROOT / "RUN.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = sorted([*(ROOT / "bench").rglob("*.py"), *(ROOT / "studies").rglob("*.py")])
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\[])|\n\s*\n|\n\s*(?=- |\w+: [A-Z])")
NO_PROSE = re.compile(r"\||#|<!--|!\[|```")
LEAST = 4  # fewest words of a sentence

Text = tuple[str, int, str]
"""The kind of a text, its line, and the text."""


def of_page(path: Path) -> Iterator[Text]:
    """Yield the paragraphs and list items of a page, without tables and code."""
    text = re.sub(r"^```.*?^```$", lambda m: "\n" * m[0].count("\n"), path.read_text("utf-8"),
                  flags=re.M | re.S)  # fmt: skip
    line = 1
    for block in re.split(r"(\n\n|\n(?=- |\d+\. ))", text):
        if block.strip() and not NO_PROSE.match(block.strip()):
            yield "docs", line, re.sub(r"^(- |\d+\. )", "", block.strip())
        line += block.count("\n")


def of_code(path: Path) -> Iterator[Text]:
    """Yield docstrings, help texts, messages of errors and comments of a module."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield "docstrings", node.lineno, text
            case ast.keyword("help", value):
                yield "help", value.lineno, _written(value)
            case ast.Raise(ast.Call(args=[ast.Constant() | ast.JoinedStr() as value, *_])):
                yield "messages", value.lineno, _written(value)
    with path.open("rb") as file:
        comments = [one for one in tokenize.tokenize(file.readline) if one.type == tokenize.COMMENT]
    starts = {one.start for one in comments}
    rest = "", (-1, -1)
    for token in reversed(comments):  # consecutive comment lines are one text
        (line, column), code = token.start, token.line[: token.start[1]].strip()
        text = token.string.lstrip("# ")
        if rest[1] == (line + 1, column):
            text += f" {rest[0]}"
        rest = ("", (-1, -1)) if code else (text, token.start)
        if (code or (line - 1, column) not in starts) and not re.match(r"fmt:|noqa|type:", text):
            yield "comments", line, f"{text}  ({code})" if code else text


def _written(value: ast.expr) -> str:
    """Return a text with ``{name}`` in place of each value."""
    return re.sub(r"^f?['\"]|['\"]$", "", ast.unparse(value))


def sentences() -> dict[str, list[tuple[str, str]]]:
    """Return every sentence of each kind, with its file and line."""
    found: dict[str, list[tuple[str, str]]] = {kind: [] for kind in SIZES}
    for path in [*PAGES, *CODE]:
        for kind, line, text in (of_page if path.suffix == ".md" else of_code)(path):
            where = f"{path.relative_to(ROOT)}:{line}"
            parts = (" ".join(part.split()) for part in END.split(text))
            found[kind] += [(where, part) for part in parts if len(part.split()) >= LEAST]
    return found


def main(seed: str) -> None:
    """Print the sample of a seed."""
    rng, every = random.Random(seed), sentences()
    for kind, size in SIZES.items():
        print(f"\n{kind} ({size} of {len(every[kind]):,})")
        for number, (where, text) in enumerate(rng.sample(every[kind], size), 1):
            print(f"{number:3}. {text}\n     {where}")


if __name__ == "__main__":
    main(sys.argv[1])
