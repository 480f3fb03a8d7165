"""The page in a real browser without a network: it requests nothing, nothing overflows, dark mode works."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.test_page import hostile, mixed
from tests.bench.test_report import GUIDE
from tests.verify.test_report import failed
from tfbuild.bench import report as reporting
from tfbuild.measure.records import BenchReport
from tfbuild.util.files import decode
from tfbuild.verify import report as verification

pytestmark = [
    pytest.mark.browser,
    # Pages that a closed browser leaves behind are playwright's own affair.
    pytest.mark.filterwarnings("default::ResourceWarning"),
]
# Text that lies outside of the window, and that no box lets the reader scroll to.
OUTSIDE = """() => [...document.body.querySelectorAll('*')].filter(element => {
  const box = element.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 1 || box.left < -1) && !element.closest('.scroll');
}).map(element => element.outerHTML.slice(0, 80))"""
PHONE, DESKTOP = (390, 844), (1280, 900)
FOLDED = "document.querySelectorAll('details').forEach(one => one.open = {})"
# The contrast of text on what is behind it, as WCAG 2 counts it; the least of all elements that hold text.
CONTRAST = """() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(part => {
      const x = part / 255;
      return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (colour !== 'rgba(0, 0, 0, 0)') return colour;
    }
    throw 'nothing behind';
  };
  const seen = [...document.body.querySelectorAll('*')].filter(element =>
    [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()) && element.getClientRects().length);
  return Math.min(...seen.map(element => {
    const style = getComputedStyle(element);
    const text = light(element.tagName === 'text' ? style.fill : style.color), ground = light(behind(element));
    return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
  }));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        if os.environ.get("CI"):
            raise FileNotFoundError("chromium: apt-get install chromium")
        pytest.skip("no chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program)
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a measured report, one with everything, a hostile one, and a verification."""
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "recorded": reporting.to_html(decode(GUIDE.read_bytes(), BenchReport)),
        "mixed": reporting.to_html(mixed()),
        "hostile": reporting.to_html(hostile()),
        "verification": verification.to_html(failed()),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


class OpenPage:
    """An open page, with its requests and its console messages."""

    def __init__(self, browser: Any, path: Path, size: tuple[int, int] = DESKTOP, mode: str = "light") -> None:
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=mode, offline=True
        )
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dialog)
        self.address = path.as_uri()
        self.page.goto(self.address)

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def ask(self, script: str) -> Any:
        return self.page.evaluate(script)

    def __enter__(self) -> "OpenPage":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("name", ["recorded", "mixed", "hostile", "verification"])
def test_a_page_is_never_wider_than_its_window(
    browser: Any, pages: dict[str, Path], name: str, size: tuple[int, int]
) -> None:
    """And it asks for itself alone, and complains of nothing."""
    with OpenPage(browser, pages[name], size) as seen:
        for state in ("false", "true"):
            seen.ask(FOLDED.format(state))
            assert seen.ask("document.documentElement.scrollWidth") <= size[0]
            assert seen.ask("[...document.querySelectorAll('.scroll')].every(box => box.clientWidth <= innerWidth)")
            assert seen.ask(OUTSIDE) == []
        # A table that has no room scrolls in its own box.
        wide = seen.ask("[...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth).length")
        assert wide or size == DESKTOP or name == "verification", "which has no table"
        assert seen.requests == [seen.address]
        assert seen.complaints == []


@pytest.mark.parametrize(("size", "mode"), [(PHONE, "light"), (DESKTOP, "dark")], ids=["phone", "desktop"])
@pytest.mark.parametrize("name", ["recorded", "mixed", "verification"])
def test_charts_are_there_and_can_be_read(
    browser: Any, pages: dict[str, Path], name: str, size: tuple[int, int], mode: str
) -> None:
    with OpenPage(browser, pages[name], size, mode) as seen:
        boxes = seen.ask(
            "[...document.querySelectorAll('.chart')].map(e => (b => [b.width, b.height])(e.getBoundingClientRect()))"
        )
        assert boxes
        assert [(width, height) for width, height in boxes if not (width > 250 and height > 40)] == []
        words = "'.title, .name, .number, .axis > span'"
        cut = f"""[...document.querySelectorAll('.chart')].flatMap(chart => [...chart.querySelectorAll({words})]
        .filter(text => {{
          const inner = text.getBoundingClientRect(), outer = chart.getBoundingClientRect();
          return inner.right > outer.right + 1 || inner.left < outer.left - 1;
        }}).map(text => text.textContent))"""
        assert seen.ask(cut) == [], "no word runs out of its chart"
        small = seen.ask(
            "Math.min(...[...document.querySelectorAll('.chart .name, .chart .number, .axis > span')]"
            ".map(text => text.getBoundingClientRect().height))"
        )
        assert small >= 10, "pixels a line of text"
        assert seen.ask(CONTRAST) >= 4.5
        rows = seen.ask(
            """[...document.querySelectorAll('.track')].map(track => {
          const box = one => (b => [b.left, b.right, (b.top + b.bottom) / 2])(one.getBoundingClientRect());
          return [track.previousElementSibling, track, track.nextElementSibling].map(box);
        })"""
        )
        assert rows
        for name, bar, number in rows:
            assert name[1] <= bar[0] + 1, "side by side"
            assert bar[1] <= number[0] + 1, "side by side"
            assert max(name[2], bar[2], number[2]) - min(name[2], bar[2], number[2]) < 2, "on one line"


def test_the_dark_changes_everything_and_charts_follow(browser: Any, pages: dict[str, Path]) -> None:
    script = """() => {
      const of = (selector, name) => getComputedStyle(document.querySelector(selector))[name];
      return [of('body', 'backgroundColor'), of('body', 'color'), of('.axis', 'color'), of('.chart .faster', 'color'),
              of('.track > .band', 'backgroundColor'), of('.swatch', 'backgroundColor')];
    }"""
    shown = {}
    for mode in ("light", "dark"):
        with OpenPage(browser, pages["mixed"], mode=mode) as seen:
            shown[mode] = seen.ask(script)
    assert [(light, dark) for light, dark in zip(shown["light"], shown["dark"], strict=True) if light == dark] == []
    assert [colour for colours in shown.values() for colour in colours if not re.match(r"rgb\(", colour)] == []
