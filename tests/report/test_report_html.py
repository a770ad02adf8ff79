"""Test that HTML and Markdown pages are complete, self-contained, and safe with any names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.report.pages.chart import Series, line_chart
from fairbench.report.pages.html import as_html
from fairbench.report.pages.markdown import escaped, page_markdown, table
from fairbench.report.pages.page import (
    Bullets,
    Cell,
    Code,
    Definitions,
    Figure,
    Grid,
    Headline,
    Page,
    Paragraph,
    Section,
)
from tests.html_reading import Reader

HOSTILE = '<script>alert("1")</script> & \'"><img src=x onerror=y> | ``` </code> *b* [x](y)'


def page(text):
    """Return a page with the text in every place that a user can fill."""
    chart = line_chart(text, [Series(text, [0, 1], [0, 1])], x_label=text, y_label=text)
    blocks = [
        Paragraph(text),
        Definitions([(text, text)]),
        Bullets([text]),
        Grid([text, text], [[Cell(text)], [Cell(text), Cell(text, "best", text)]]),
        Figure(chart, text),
        Code(text),
    ]
    sections = [Section(text, blocks), Section(text, blocks, folded=True)]
    return Page(text, text, [Headline(text, text, text)], [text], sections)


def test_texts_of_users_are_never_read_as_markup():
    harmless = Reader(as_html(page("client-1")))
    read = Reader(as_html(page(HOSTILE)))
    assert read.tags == harmless.tags
    assert not {"script", "img"} & read.tags
    names = {name for name, _ in read.attributes}
    assert names == {name for name, _ in harmless.attributes}
    assert read.text.count('<script>alert("1")</script>') >= 20


@given(st.text(max_size=60))
def test_a_page_is_well_formed_with_any_text(text):
    read = Reader(as_html(page(text)))
    assert read.tags == Reader(as_html(page("x"))).tags


def test_a_page_loads_nothing_from_outside():
    text = as_html(page("client-1"))
    assert not re.search(r"https?://|//\w|url\(|@import|src=|href=|<script|<link", text)
    assert '<meta charset="utf-8">' in text
    assert "width=device-width" in text
    assert "prefers-color-scheme: dark" in text


def test_parts_keep_their_order_and_folded_ones_are_folded():
    sections = [Section("open", [Paragraph("one")]), Section("shut", [Paragraph("two")], True)]
    text = as_html(Page("title", "basis", [Headline("a", "1.29", "b")], ["careful"], sections))
    main = text.partition("<main>")[2]
    words = ("title</h1>", "basis", "1.29", "careful", "<p>one", "<p>two")
    places = [main.index(word) for word in words]
    assert places == sorted(places)
    assert text.count("<details>") == 1
    assert "<summary>shut</summary>" in text
    assert "warnings" not in as_html(Page("t", "p", [], [], [])).partition("</style>")[2]


def test_a_row_with_a_single_cell_is_a_heading():
    grid = Grid(["", "x"], [[Cell("place")], [Cell("lpm"), Cell("1", "worst", "0-2")]])
    text = as_html(Page("t", "p", [], [], [Section("s", [grid])]))
    assert '<th scope="rowgroup" colspan="2">place</th>' in text
    assert '<td data-label="x"><span class="worst">1</span><small>0-2</small></td>' in text


def test_markdown_has_everything_except_the_figures():
    text = page_markdown(page("plain"))
    assert "<svg" not in text
    assert text.startswith("# plain\n\nplain\n")
    assert "> - plain" in text
    assert "| plain | plain |" in text
    assert "| plain |  |" in text  # the row with a single cell is padded
    assert "| plain | **plain** (plain) |" in text
    assert text.count("<details>") == text.count("</details>") == 1


def test_markdown_of_hostile_text_keeps_its_tables_and_fences():
    text = page_markdown(page(HOSTILE))
    assert not re.search(r"<(?!/?details|/?summary|script>alert|/code|img|/script)", text)
    outside = re.sub(r"^(`{4,})\n.*?\n\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in outside
    rows = [line for line in outside.split("\n") if line.startswith("| ")]
    columns = {len(re.findall(r"(?<!\\)\|", row)) - 1 for row in rows}
    assert columns == {2, 3}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("a|b", r"a\|b"), ("a\nb", "a b"), ("<b>", r"&lt;b\>"), ("5 * 3_x", r"5 \* 3\_x")],
)
def test_escaping_equals_hand_written_results(text, wanted):
    assert escaped(text) == wanted


def test_a_table_equals_a_hand_written_one():
    assert list(table(["a", "b"], [["1"], ["2", "3"]], str)) == [
        "| a | b |",
        "| --- | --- |",
        "| 1 |  |",
        "| 2 | 3 |",
    ]
