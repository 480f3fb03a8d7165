"""The top of a benchmark's page in a browser, in light and dark."""

import shutil
import tempfile
from pathlib import Path

from tfbuild.bench import report as reporting
from tfbuild.measure.records import BenchReport
from tfbuild.util.files import decode

REPORT = Path("benchmarks") / "results" / "isa.json"
WIDTH, HEIGHT = 1000, 690
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def shoot(root: Path, folder: Path) -> None:
    """Write report-light.png and report-dark.png; raises FileNotFoundError without chromium."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise FileNotFoundError("chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        path = Path(scratch) / "report.html"
        path.write_text(reporting.to_html(decode((root / REPORT).read_bytes(), BenchReport)), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=program)
        for mode in ("light", "dark"):
            tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=mode)
            tab.goto(path.as_uri())
            tab.screenshot(path=folder / f"report-{mode}.png")
        browser.close()
