"""The page of a verification: what to do first, every check with its proof, and no text that is markup."""

import re
from dataclasses import replace
from itertools import pairwise

from tests.bench.test_page import HOSTILE, ParsedPage
from tests.pages.test_charts import texts
from tests.verify.test_report import CLAIMS, check, report
from tfbuild.measure.records import Interval
from tfbuild.verify import report as reporting
from tfbuild.verify.report import Report


def failed() -> Report:
    return report(
        "fail",
        check("guard"),
        check("isa", "fail", "lacks AVX2 | FMA"),
        check("onednn", "warn", "a known defect"),
        check("cuda", "skip", "no GPU is visible"),
    )


def test_it_begins_with_what_to_do() -> None:
    read = ParsedPage(reporting.to_html(failed()))
    assert read.titles == ["What to do", "Checks", "Throughput", "Plan", "Environment"]
    do = read.source[read.source.index('id="do"') : read.source.index('id="checks"')]
    assert "lacks AVX2 | FMA" in do
    assert CLAIMS["isa"].fix in do
    assert do.index("lacks AVX2") < do.index("a known defect") < do.index("AVX2 FMA.")
    assert CLAIMS["onednn"].fix not in do, "a warning needs no fix"
    assert "1 passed, 1 passed with a warning, 1 failed, 1 skipped. Verified " in read.text


def test_each_check_has_its_proof_and_the_contents_its_name() -> None:
    text = reporting.to_html(failed())
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


def test_the_chart_shows_the_time_that_is_judged() -> None:
    original = report().throughput
    assert original is not None
    doubled = Interval(median=2.0, low=1.9, high=2.1, coverage=0.95)
    other = replace(original, cpu=doubled, benchmarks=())
    for metric, title in (("cpu", "CPU time, relative"), ("wall", "wall time, relative")):
        text = reporting.to_html(replace(report(), throughput=replace(other, metric=metric)))
        (figure,) = re.findall(r"<figure.*?</figure>", text, re.DOTALL)
        assert texts(figure)[0].startswith(title)
        assert ("2.00" in figure) == (metric == "cpu"), figure


def test_ratios_that_no_logarithm_takes_are_numbers_alone() -> None:
    original = report().throughput
    assert original is not None
    zero = Interval(median=0.0, low=0.0, high=0.0, coverage=0.95)
    odd = replace(original, cpu=zero, wall=zero, band=zero, benchmarks=())
    read = ParsedPage(reporting.to_html(replace(report(), throughput=odd)))
    assert "<figure" not in read.source
    assert "0.000 [0.000, 0.000]" in read.text


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
    read = ParsedPage(reporting.to_html(hostile()))
    assert not {"script", "img"} & {tag for tag, _ in read.tags}
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)
    assert all(re.fullmatch(r"#[a-z-]+", address) for address in read.addresses)
    assert HOSTILE in read.text, "it is shown as it is"
