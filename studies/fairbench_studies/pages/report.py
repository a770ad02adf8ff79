"""A screenshot of a stored run's report: ``python studies report-picture RUN_DIR OUT.png``."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from fairbench.report.pages.html import as_html
from fairbench.report.pages.run_page import run_page
from fairbench.results.store import read_run

# ``SIZE`` is the width and height of the browser window in pixels. The window ends just below the
# report's last figure.
SIZE = "1100,1450"


def main(run: str, picture: str) -> None:
    """Write a screenshot of a run's HTML report with Chromium, which must be installed."""
    with TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        page.write_text(as_html(run_page(read_run(Path(run)))), encoding="utf-8")
        command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu"]
        looks = ["--hide-scrollbars", f"--window-size={SIZE}"]
        # The following option selects the light colour scheme.
        looks += ["--blink-settings=preferredColorScheme=1"]
        subprocess.run([*command, *looks, f"--screenshot={picture}", page.as_uri()], check=True)
