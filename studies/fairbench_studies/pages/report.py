"""Photograph the top of a stored run's report: python plots/report.py RUN_DIR OUT.png"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from fairbench.report.pages.html import as_html
from fairbench.report.pages.run_page import run_page
from fairbench.results.store import read_run

SIZE = "1100,1450"  # down to the end of the figures

with TemporaryDirectory() as folder:
    page = Path(folder, "report.html")
    page.write_text(as_html(run_page(read_run(Path(sys.argv[1])))), encoding="utf-8")
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    looks = ["--blink-settings=preferredColorScheme=1", f"--window-size={SIZE}"]  # light
    subprocess.run([*command, *looks, f"--screenshot={sys.argv[2]}", page.as_uri()], check=True)
