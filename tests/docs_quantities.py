"""A search for quantities in prose, to test that another text supports them."""

import re

NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)"
# A number with a unit, a count or a range, outside of code: 1,234, 3.3 s, 94%, 4 of 4, 1 to 2%.
QUANTITY = re.compile(
    rf"(?<![\w.,/-])({NUMBER}%?(?: (?:of|to) {NUMBER})?(?:%|x| s\b| min\b)?)(?![\w/])"
)
# words by which a table's header or rows state the unit of its cells
UNITS = {"%": "%|share|rate|throughput|times", "s": r"\bs\b|seconds", "min": "min", "x": "x|times"}
WORD = re.compile(r"[a-z][a-z-]{3,}")
FILLERS = "with that than from under them they when where each have most more other"
NAME = re.compile(r"`([\w+-]+)`")
# These are no quantities: code, versions, names such as H100, scenarios, seeds, numbers of claims.
CODE = re.compile(r"`[^`]*`|\b\d+\.\d+\.\d+|\b[A-Z]+\d+\b|\bs[12]\b|\b(?:[Ss]eed|[Cc]laim) \d+")


def words_of(text):
    """Return the beginnings of the words that say what a number is about."""
    return {word[:6] for word in WORD.findall(text.lower()) if word not in FILLERS.split()}


def lines_of(text):
    """Return each paragraph or table row, with the text above it and the words of its table."""
    found, heading, caption, header = [], "", "", ""
    for line in re.sub(r"\n(?![|\n#-])", " ", text).splitlines():
        heading = line if line.startswith("#") else heading
        if not line.startswith("|"):
            header, caption = "", caption if line.strip()[:4] in ("", "<!--") else line
        header = header or line * line.startswith("|")
        found.append((line, f"{header} {caption}", words_of(f"{line} {header} {heading}")))
    return found


def unfound(result, lines):
    """Return the quantities of a result that no line states about the same thing.

    A line must contain the name in code that stands nearest to the quantity in the result, before
    or else after it. It must also share two words with the quantity's clause, or one word and
    another quantity. In a table, quantities are cells and the header has the unit; a percentage may
    be written as a fraction.
    """
    plain = CODE.sub(lambda code: " " * len(code[0]), result)
    missing = []
    for clause in re.finditer(r"[^;|]+", plain):
        about, quantities = words_of(clause[0]), list(QUANTITY.finditer(plain, *clause.span()))
        for one in quantities:
            names = NAME.findall(result[: one.start()])[-1:] + NAME.findall(result[one.end() :])[:1]
            said = [line for line in lines if _says(one[0], names, *line[:2])]
            others = [other[0] for other in quantities if other is not one]
            if not any(_is_about(about, others, *line) for line in said):
                missing.append(one[0])
    return missing


def _is_about(about, others, line, header, words):
    shared = len(about & words)
    beside = any(_says(other, [], line, header) for other in others)
    return shared >= min(1 if beside else 2, len(about))


def _says(quantity, names, line, header):
    if names and not any(re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", line) for one in names):
        return False
    part = f"0.{quantity[:-1]:0>2}" if quantity[-1] == "%" else quantity
    if re.search(rf"(?<![\w.,-])({re.escape(quantity)}|{re.escape(part)})(?!\w|[.,]\d)", line):
        return True
    unit = re.sub(r"[\d., ]|of|to", "", quantity)[-1:]
    if unit and (line[:1] != "|" or not re.search(UNITS[unit], header + line)):
        return False
    cells = {cell.strip(" *%") for cell in re.split(r"[|/±()]|, | of | to | by ", line)}
    return part in cells or set(re.findall(NUMBER, quantity)) <= cells
