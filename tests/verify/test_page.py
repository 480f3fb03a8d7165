"""The page of a verification: what to do first, every check with its proof, and no text that is markup."""

import html
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from tests import checkout
from tests.bench.test_page import HOSTILE, ParsedPage
from tests.pages.test_charts import texts
from tests.verify.test_report import CLAIMS, check, report
from tfbuild.cli import building
from tfbuild.measure.records import Interval
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
    do = read.source[read.source.index('id="do"') : read.source.index('id="checks"')]
    assert "lacks AVX2 | FMA" in do
    assert CLAIMS["isa"].fix in do
    assert do.index("lacks AVX2") < do.index("a known defect") < do.index("AVX2 FMA.")
    assert CLAIMS["onednn"].fix not in do, "a warning needs no fix"
    assert "1 passed, 1 passed with a warning, 1 failed, 1 skipped. Verified " in read.text


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
    for value in ("--copt=-mavx", "AMD EPYC", "sha256:00"):
        assert value in read.text


def pairs(text: str) -> dict[str, str]:
    """Return the lists of terms, as "Plan" and "Environment" are, in their order."""
    found = re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", text, re.DOTALL)
    return {html.unescape(name): html.unescape(value) for name, value in found}


def test_it_says_where_the_image_ran_and_what_is_in_it() -> None:
    one = report()
    assert one.host is not None
    shown = pairs(page.to_html(replace(one, host=replace(one.host, quota=1.5))))
    assert {
        "image": "tfbuild:x (sha256:00)", "size": "1000 MB", "CPU": "AMD EPYC, 2 CPUs, x86_64", "engine": "20.10",
        "TensorFlow": "2.21.0 (v2.21.0), compiled by Clang 18.1.8", "compiled for": "SSE AVX", "NumPy": "2.4.6",
        "cgroup quota": "1.5 CPUs", "features": "avx sse3", "copts": "--copt=-mavx", "instruction set": "avx",
    }.items() <= shown.items()  # fmt: skip
    assert not {"digests", "bazel"} & shown.keys(), "what is empty is left out"


def test_the_chart_shows_the_time_that_is_judged() -> None:
    original = report().throughput
    assert original is not None
    doubled = Interval(median=2.0, low=1.9, high=2.1, coverage=0.95)
    other = replace(original, cpu=doubled, benchmarks=())
    for metric, title in (("cpu", "CPU time, relative"), ("wall", "wall time, relative")):
        text = page.to_html(replace(report(), throughput=replace(other, metric=metric)))
        (figure,) = re.findall(r"<figure.*?</figure>", text, re.DOTALL)
        assert texts(figure)[0].startswith(title)
        assert ("2.00" in figure) == (metric == "cpu"), figure


def test_the_numbers_are_those_of_each_workload_and_all() -> None:
    one = report()
    assert one.throughput is not None
    rows = re.findall(r'<th scope="row">(.*?)</th><td class="number">(.*?)</td>', page.to_html(one))
    expected = [(page.ALL, one.throughput.cpu), *((row.name, row.cpu) for row in one.throughput.benchmarks)]
    assert rows == [(name, f"{cpu.median:.3f} [{cpu.low:.3f}, {cpu.high:.3f}]") for name, cpu in expected]


def test_ratios_that_no_logarithm_takes_are_numbers_alone() -> None:
    original = report().throughput
    assert original is not None
    zero = Interval(median=0.0, low=0.0, high=0.0, coverage=0.95)
    odd = replace(original, cpu=zero, wall=zero, band=zero, benchmarks=())
    read = ParsedPage(page.to_html(replace(report(), throughput=odd)))
    assert "<figure" not in read.source
    assert "0.000 [0.000, 0.000]" in read.text


def test_a_report_without_a_start_has_a_page() -> None:
    bare = replace(failed(), host=None, software=None, throughput=None, source_would_add=())
    read = ParsedPage(page.to_html(bare))
    assert "Throughput" not in read.titles


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
