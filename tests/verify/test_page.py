"""The page of a verification: what to do first, every check with its proof, and no text that is markup."""

import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from tests import checkout
from tests.bench.test_page import HOSTILE, ParsedPage
from tests.pages.test_charts import drawings, marked
from tests.verify.test_report import CLAIMS, check, report
from tfbuild.cli import building
from tfbuild.measure.records import Interval
from tfbuild.pages import charts
from tfbuild.util.files import REPORTS
from tfbuild.verify import page
from tfbuild.verify.records import Report


def failed() -> Report:
    return report(
        "fail",
        check("guard"),
        check("isa", "fail", "lacks AVX2 | FMA"),
        check("onednn", "warn", "a known defect"),
        check("cuda", "skip", "no GPU is visible"),
    )


def test_it_begins_with_what_to_do() -> None:
    read = ParsedPage(page.to_html(failed()))
    assert read.titles == ["What to do", "Checks", "Throughput", "Plan", "Environment"]
    do = read.source[read.source.index('id="do"') : read.source.index("<nav")]
    assert "lacks AVX2 | FMA" in do
    assert CLAIMS["isa"].fix in do
    assert do.index("lacks AVX2") < do.index("a known defect") < do.index("AVX2 FMA.")
    assert CLAIMS["onednn"].fix not in do, "a warning needs no fix"
    assert "1 passed, 1 passed with a warning, 1 failed, 1 skipped" in read.text


def test_an_image_that_passes_needs_nothing() -> None:
    text = ParsedPage(page.to_html(replace(report(), source_would_add=()))).text
    assert "Nothing: the image is what it claims to be." in text
    assert "Nothing: the image" not in ParsedPage(page.to_html(failed())).text
    unproved = replace(report("fail"), checks=())
    assert "Nothing could be proved." in ParsedPage(page.to_html(unproved)).text


def test_each_check_has_its_proof_and_the_contents_its_name() -> None:
    text = page.to_html(failed())
    read = ParsedPage(text)
    assert not read.open, "every element is closed"
    for one in failed().checks:
        section = text.partition(f'id="check-{one.name}"')[2].partition("</section>")[0]
        assert one.detail in section
        folded = section.partition("<details>")[2]
        assert "faults 0 (&lt; 1000)" in folded
        assert CLAIMS[one.name].proves in ParsedPage(text).text
    targets = {attributes.get("id") for _, attributes in read.tags}
    assert {address.removeprefix("#") for address in read.addresses} <= targets
    levels = read.headings
    assert all(deeper <= level + 1 for level, deeper in pairwise(levels))
    assert levels.count(1) == 1
    for value in ("--copt=-mavx", "numpy==2.4.6", "AMD EPYC", "sha256:00", "x|y"):
        assert value in read.text


def test_the_chart_has_each_workload_and_their_mean() -> None:
    (drawing,) = drawings(page.to_html(report()))
    texts = [mark.text for mark in marked(drawing, "text")]
    throughput = report().throughput
    assert throughput is not None
    assert {page.ALL, *(row.name for row in throughput.benchmarks)} <= set(texts)
    assert len(marked(drawing, "symbol")) == len(throughput.benchmarks) + 1


def test_without_the_packages_that_draw_it_has_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "available", lambda: False)
    read = ParsedPage(page.to_html(report()))
    assert "<svg" not in read.source
    assert "pip install 'tensorflow-tfbuild[bench]'" in read.text
    assert "<details open><summary>Numbers" in read.source


def test_ratios_that_no_logarithm_takes_are_numbers_alone() -> None:
    original = report().throughput
    assert original is not None
    zero = Interval(median=0.0, low=0.0, high=0.0, coverage=0.95)
    odd = replace(original, cpu=zero, wall=zero, band=zero, benchmarks=())
    read = ParsedPage(page.to_html(replace(report(), throughput=odd)))
    assert "<svg" not in read.source
    assert "0.000 [0.000, 0.000]" in read.text
    assert "pip install" not in read.text


def test_a_report_without_a_start_has_a_page() -> None:
    bare = replace(failed(), host=None, software=None, throughput=None, source_would_add=())
    read = ParsedPage(page.to_html(bare))
    assert "Throughput" not in read.titles
    assert "0 CPU features" not in read.text


def hostile() -> Report:
    """Return a report with the worst text that an image may contain."""
    bad = replace(check("isa", "fail", HOSTILE), fix=HOSTILE, proves=HOSTILE, how=HOSTILE)
    one = report("fail", bad)
    assert one.software is not None
    assert one.throughput is not None
    return replace(
        one,
        id=HOSTILE,
        tool=HOSTILE,
        created=HOSTILE,
        image=replace(one.image, ref=HOSTILE, labels={HOSTILE: HOSTILE}),
        plan=replace(one.plan, compiler=HOSTILE, features=(HOSTILE,)),
        software=replace(one.software, git=HOSTILE, packages=(HOSTILE,)),
        throughput=replace(one.throughput, baseline=HOSTILE, retuned={HOSTILE: HOSTILE}, effect=HOSTILE),
        source_would_add=(HOSTILE,),
    )


def test_nothing_in_a_report_is_markup() -> None:
    read = ParsedPage(page.to_html(hostile()))
    assert not {"script", "img"} & {tag for tag, _ in read.tags}
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)
    assert all(re.fullmatch(r"#[a-z-]+", address) for address in read.addresses)
    assert HOSTILE in read.text, "it is shown as it is"


def test_reading_reports_does_not_load_templates() -> None:
    script = "import sys, tfbuild.verify.report; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=checkout.ROOT, check=False).returncode == 0


def test_the_command_line_says_where_the_page_is(capsys: pytest.CaptureFixture[str]) -> None:
    building.finish(report(), "tfbuild:x", json=False)
    assert f"image tfbuild:x, report {REPORTS / report().id}.html" in capsys.readouterr().err
