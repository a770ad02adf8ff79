"""Test in a browser that every page that a command writes is complete and has no overlaps."""

import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from tests.browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on PATH, which shows the pages"),
]
JUDGE = ["--workload", "judge", "--scenario", "s1", "--duration", "20", "--num-runs", "2"]
FEW = ["--workload", "chat", "--scenario", "none", "--num-programs", "2"]
GRID = ["--schedulers", "fcfs,d2lpm,fair-finish", "--workloads", "chat,judge", "--duration", "20"]
LONG = "department-of-research-and-development-" * 3
NAMES = (
    "run",
    "repeats",
    "crowd",
    "sweep",
    "comparison",
    "plan",
    "log",
    "score",
    "diagnosis",
    "board",
    "ranks",
)
RANKS = Path(__file__).parents[2] / "results/leaderboard.csv"
WIDTHS = (1280, 390)  # widths in px of a desktop and of a phone
GROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 27)"}
GROUND = "getComputedStyle(document.body).backgroundColor"


def access_log(path):
    """Return forty clients. One of them floods for a while, and one has a long name."""
    draw = random.Random(1)
    rows = [(draw.uniform(0, 120), f"team-{n}" if n else LONG) for n in range(40) for _ in range(8)]
    rows += [(draw.uniform(30, 80), "team-7") for _ in range(300)]
    lines = [
        f"{at:.2f},{client},2000,100,{0.2 if at < 30 else draw.uniform(5, 300):.2f},400"
        for at, client in sorted(rows)
    ]
    header = "time_s,client,prompt_tokens,completion_tokens,ttft_s,latency_s"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output


def reported(folder, page):
    """Write the page of the only run in a folder, or of the folder's sweep or plan."""
    (run,) = folder.iterdir()
    invoke("report", run, "-o", page)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return a page of each kind, by name."""
    root = tmp_path_factory.mktemp("pages")
    log = access_log(root / "log.csv")
    made = {name: root / f"{name}.html" for name in NAMES}
    invoke("run", *JUDGE[:-2], "--scheduler", "vtc", "--result-dir", root / "one")
    invoke("run", *JUDGE, "--scheduler", "vtc", "--result-dir", root / "two")
    invoke("run", "--trace", log, "--scheduler", "fcfs", "--dp", 1, "--result-dir", root / "all")
    invoke("sweep", *GRID, "--num-runs", 2, "--result-dir", root / "many")
    ours = ["fcfs", "vtc", "--trace", log, "--dp", 1, "--num-runs", 2]
    invoke("compare", *ours, "--result-dir", root / "trace")
    asked = ["--slo", "ttft_p99<60s", "--slo", "e2el_p99<100s", "--dp", "1..2"]
    invoke("plan", *FEW, *asked, "--scheduler", "fcfs,vtc", "--result-dir", root / "few")
    for name, folder in (("run", "one"), ("repeats", "two"), ("crowd", "all")):
        reported(root / folder, made[name])
    reported(root / "many", made["sweep"])
    invoke("leaderboard", *(root / "many").iterdir(), "--report", made["board"])
    reported(root / "trace", made["comparison"])
    reported(root / "few", made["plan"])
    invoke("report", RANKS, "-o", made["ranks"])
    invoke("report", log, "-o", made["log"])
    invoke("score", log, "--report", made["score"])
    invoke("diagnose", log, "--report", made["diagnosis"])
    return made


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.mark.parametrize("scheme", GROUNDS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_no_visible_fault(name, width, scheme, pages, browser):
    browser.show(pages[name].as_uri(), width, scheme)
    assert browser.faults() == []
    assert browser.evaluate(GROUND) == GROUNDS[scheme]
    assert browser.evaluate("document.querySelectorAll('.headlines div').length") > 0


def test_the_browser_finds_each_fault(tmp_path, browser):
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><style>body { margin: 0 } svg text { font: 12px sans-serif }</style><main>"
        '<div style="width: 500px">wide</div>'
        '<div class="headlines"><div><span>card</span><strong>-</strong></div></div>'
        '<svg width="200" height="50"><text x="10" y="20">first</text><text x="20" y="20">second'
        '</text><text x="190" y="40">beyond</text></svg>'
        '<div style="overflow-x: auto"><div style="width: 900px">scrolls</div></div></main>',
        encoding="utf-8",
    )
    browser.show(page.as_uri(), 390)
    assert browser.faults() == [
        "the page is 500 px wide",
        "sticks out: div. wide",
        "cut off: beyond",
        "empty card: card-",
        "overlap: first | second",
    ]
    assert browser.picture().startswith(b"\x89PNG")
