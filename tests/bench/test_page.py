"""The page shows the whole report, loads nothing else, and escapes all text."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.bench.test_report import GUIDE, SKIPPED, case, experiment, report, sizes
from tfbuild.bench import report as reporting
from tfbuild.bench import wording
from tfbuild.measure.evaluate import interval_text
from tfbuild.measure.records import BenchReport, CaseResult, ExperimentResult
from tfbuild.util.files import decode

HOSTILE = """</td></svg><script>alert(1)</script><img src=x onerror="alert(2)">"'`{{ 7 * 7 }}${datum}"""
# What an HTML element names to be loaded or followed.
ADDRESSES = {"src", "href", "srcset", "action", "data", "poster", "xlink:href"}
VOID = {"meta", "br"}


class ParsedPage(HTMLParser):
    """Tags with their attributes, headings, and the text of everything."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.source = text
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def titles(self) -> list[str]:
        """Return the texts of the headings of the second level."""
        return re.findall(r"<h2[^>]*>([^<]*)</h2>", self.source)

    @property
    def addresses(self) -> set[str]:
        return {value or "" for _, attributes in self.tags for name, value in attributes.items() if name in ADDRESSES}


def mixed() -> BenchReport:
    """Return a report with gains, losses, no differences, skipped cases, a curve and memory."""
    memory = case(0.4, name="40 MiB tensors", env={"LD_PRELOAD": "libtcmalloc.so"})
    memory = replace(memory, arms=tuple(replace(arm, rss=500.0 + n * 60) for n, arm in enumerate(memory.arms)))
    return report(
        experiment("onednn", case(0.5), case(1.0, name="element-wise"), case(1.4, name="small")),
        experiment("jpeg", case(0.7, env={}, code="tf.io.decode_and_crop_jpeg(data, window)")),
        experiment("batchsize", curve()),
        experiment("allocator", memory),
        experiment("layout", SKIPPED),
    )


def curve() -> CaseResult:
    return replace(sizes(1e-3, 1e-4, 1, 2, 4, 8, 16, 32), baseline="batch 1")


def every_number(row: ExperimentResult) -> Iterator[str]:
    for measured in row.cases:
        yield interval_text(measured.band)
        for arm in measured.arms:
            yield from (interval_text(arm.cpu), interval_text(arm.wall), wording.time(arm.seconds))


@pytest.mark.parametrize(
    "made", [lambda: decode(GUIDE.read_bytes(), BenchReport), mixed], ids=["older version", "mixed"]
)
def test_what_is_in_the_report_is_on_the_page(made: Callable[[], BenchReport]) -> None:
    original = made()
    read = ParsedPage(reporting.to_html(original))
    assert not read.open, "every element is closed"
    cells = set(read.texts)
    for row in original.experiments:
        for number in every_number(row):
            assert not number or number in cells, number
        assert row.question in read.text
    assert original.host.cpu in read.text


def hostile() -> BenchReport:
    """Return a report with the worst text that an image or a file may contain."""
    recorded = mixed()
    rows = []
    for row in recorded.experiments:
        cases = tuple(
            replace(
                one,
                name=f"{one.name} {HOSTILE}",
                reason=HOSTILE,
                arms=tuple(replace(arm, note=HOSTILE, reason=HOSTILE, code=HOSTILE) for arm in one.arms),
            )
            for one in row.cases
        )
        rows.append(replace(row, question=HOSTILE, compares=HOSTILE, changes=HOSTILE, source=HOSTILE, cases=cases))
    return replace(
        recorded,
        tool=HOSTILE,
        created=HOSTILE,
        image=replace(recorded.image, ref=HOSTILE, labels={HOSTILE: HOSTILE, "io.tfbuild.target": HOSTILE}),
        host=replace(recorded.host, cpu=HOSTILE, flags=(HOSTILE,)),
        software=replace(recorded.software, tensorflow=HOSTILE, malloc=HOSTILE),
        experiments=tuple(rows),
    )


def test_nothing_in_a_report_is_markup() -> None:
    read = ParsedPage(reporting.to_html(hostile()))
    assert not {"script", "img"} & {tag for tag, _ in read.tags}
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)
    assert [address for address in read.addresses if not re.fullmatch(r"#(experiment-[1-5]|[a-z]+)", address)] == []
    assert HOSTILE in read.text, "it is shown as it is"


def test_the_page_loads_nothing_else() -> None:
    text = reporting.to_html(mixed())
    read = ParsedPage(text)
    assert [address for address in read.addresses if not address.startswith("#")] == []
    assert not {"script", "link", "iframe", "object", "embed", "image", "use"} & {tag for tag, _ in read.tags}
    assert not re.search(r"url\(|@import", text)
    assert """default-src 'none'; style-src 'unsafe-inline'""" in text
    targets = {attributes.get("id") for _, attributes in read.tags}
    assert {address[1:] for address in read.addresses} <= targets
    names = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(set(names)) == len(names)


# --- charts ----------------------------------------------------------------------------------------------------------


def test_an_arm_that_computes_something_else_says_so_in_the_chart() -> None:
    measured = case(0.5)
    for same in (None, True, False):
        arms = (measured.arms[0], replace(measured.arms[1], same=same))
        shown = str(reporting.draw_chart(experiment("onednn", replace(measured, arms=arms))))
        assert ("(computes something else)" in shown) is (same is False)
