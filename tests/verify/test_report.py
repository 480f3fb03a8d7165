"""A report is written whole, read back equal, shown in three ways, and never trusted when it is read."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.test_page import HOSTILE, ParsedPage
from tests.bench.test_report import HOST
from tests.pages.test_charts import texts
from tests.verify.test_throughput import judged, rounds
from tfbuild.errors import VerificationFailed
from tfbuild.in_container.smoke.judge import Measurement
from tfbuild.measure import records
from tfbuild.measure.records import Interval
from tfbuild.util.files import decode
from tfbuild.verify import report as reporting
from tfbuild.verify.checks import CHECKS
from tfbuild.verify.report import NO_START, SCHEMA, Check, ImageFacts, ImageSoftware, Report

CLAIMS = {check.name: check for check in CHECKS}


def check(name: str, status: str = "pass", detail: str = "as planned") -> Check:
    claim = CLAIMS[name]
    measures = (Measurement(name="faults", value=0.0, limit="< 1000"),)
    return Check(
        name=name, status=status, detail=detail, seconds=1.5, measures=measures, proves=claim.proves, how=claim.how,
        fix=claim.fix,
    )  # fmt: skip


def report(verdict: str = "pass", *checks: Check, image: str = "sha256:00") -> Report:
    return Report(
        schema=SCHEMA, kind="smoke", id="2.21.0-mkl-py3.11-f16c", created="2026-11-21T10:00:00+00:00",
        tool="tfbuild 0.1.0", seconds=37.2, verdict=verdict,
        image=ImageFacts(
            ref="tfbuild:x", id=image, digests=(), size=10**9, architecture="amd64",
            labels={"a": "x|y", "io.tfbuild.plan": '{"copts": ["--copt=-mavx"]}'},
        ),
        host=HOST,
        software=ImageSoftware(
            tensorflow="2.21.0", git="v2.21.0", compiler="Clang 18.1.8", python="3.11.2", numpy="2.4.6",
            malloc="/usr/lib/libtcmalloc_minimal.so.4", compiled_for=("SSE", "AVX"), packages=("numpy==2.4.6",),
        ),
        checks=checks or (check("guard"), check("isa")), throughput=judged(rounds(1.2, spread=0.01, seed=1)),
        source_would_add=("AVX2", "FMA"),
    )  # fmt: skip


def test_what_is_written_is_read_back_equal(tmp_path: Path) -> None:
    path = reporting.write_report(report(), tmp_path / "reports")
    assert path.name == "2.21.0-mkl-py3.11-f16c.json"
    assert reporting.proof(path.parent, report().id, report().image.id) == report()
    assert sorted(file.suffix for file in path.parent.iterdir()) == [".html", ".json", ".md"], (
        "no half-written file stays"
    )


SPLENDID = {"verdict": '"pass"', "check": '"status": "pass"'}


@pytest.mark.parametrize("text", ["", "{}", "[]", "\xff", '{"schema": "tfbuild.report/1"}', "deep", *SPLENDID])
def test_an_invalid_report_is_none(tmp_path: Path, text: str) -> None:
    """Also one whose verdict or status does not exist, or a folder in its place."""
    (tmp_path / "folder.json").mkdir()
    assert reporting.proof(tmp_path, "folder", report().image.id) is None
    text = text if text != "deep" else 100_000 * "["
    if text in SPLENDID:
        pair = SPLENDID[text]
        text = records.to_json(report()).replace(pair, pair.replace("pass", "splendid"), 1)
        assert "splendid" in text
    (tmp_path / f"{report().id}.json").write_text(text, encoding="latin-1")
    assert reporting.proof(tmp_path, report().id, report().image.id) is None


def test_a_report_of_another_image_or_schema_is_none(tmp_path: Path) -> None:
    name, image = report().id, report().image.id
    (tmp_path / "other.json").write_text(records.to_json(report()))
    path = reporting.write_report(report(), tmp_path)
    for other in (("other", image), (name, "x"), ("missing", image)):
        assert reporting.proof(tmp_path, *other) is None
    path.write_text(records.to_json(replace(report(), schema="tfbuild.report/0")))
    assert reporting.proof(tmp_path, name, image) is None


def test_markdown_says_what_to_do_first_and_then_what_was_seen() -> None:
    one = report("fail", check("guard"), check("isa", "fail", "lacks AVX2 | FMA\n<b>"))
    text = reporting.to_markdown(one)
    assert text.startswith("# 2.21.0-mkl-py3.11-f16c: fail\n")
    assert "| isa | FAIL | lacks AVX2 \\| FMA &lt;b> | 1.5 |" in text
    assert f"- **isa** failed: lacks AVX2 \\| FMA &lt;b>. *Fix:* {CLAIMS['isa'].fix}" in text
    assert text.index("*Fix:*") < text.index("a build from source would add: AVX2 FMA") < text.index("| check |")
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, dashes, *rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()]
        assert set(dashes) == {"---"}
        assert {len(row) for row in (dashes, *rows)} == {len(head)}


def shown(one: Report) -> list[str]:
    stream = io.StringIO()
    reporting.show_report(one, stream)
    return stream.getvalue().splitlines()


def test_the_terminal_shows_each_check_and_for_a_failure_what_to_do() -> None:
    checks = (
        check("guard"),
        check("isa", "fail", "[bold]lacks[/bold] AVX2"),
        check("onednn", "warn", "old"),
        check("cuda", "skip", "no"),
    )
    assert shown(report("fail", *checks)) == [
        "ok    guard   as planned",
        "FAIL  isa     [bold]lacks[/bold] AVX2",
        f"              fix: {CLAIMS['isa'].fix}",
        "WARN  onednn  old",
        "skip  cuda    no",
        "a build from source would add AVX2 FMA on this CPU",
        "2.21.0-mkl-py3.11-f16c: fail in 37 s",
    ]
    assert shown(replace(report(), source_would_add=()))[-1] == "2.21.0-mkl-py3.11-f16c: pass in 37 s"
    assert len(shown(replace(report(), source_would_add=()))) == 3
    unadvised = shown(report("fail", replace(check("isa", "fail"), fix="")))
    assert not any("fix:" in line for line in unadvised)


def test_a_failure_is_kept_beside_the_report_of_an_image_in_use(tmp_path: Path) -> None:
    good = reporting.write_report(report(), tmp_path / "a" / "b")
    same = report("fail", check("isa", "fail"))
    bad = reporting.write_report(replace(same, image=replace(same.image, id="sha256:77")), good.parent)
    assert (good.name, bad.name) == ("2.21.0-mkl-py3.11-f16c.json", "2.21.0-mkl-py3.11-f16c-failed.json")
    assert decode(good.read_bytes(), Report).passed
    assert len(list(good.parent.iterdir())) == 6
    assert good.with_suffix(".md").read_text() == reporting.to_markdown(report())
    # The same image, which passed before, is proved by nothing now.
    reporting.write_report(same, good.parent)
    assert {path.stem for path in good.parent.iterdir()} == {bad.stem}


def test_a_failed_report_is_an_error_with_a_hint() -> None:
    reporting.raise_if_failed(report(), "tfbuild:x")
    reporting.raise_if_failed(report("warn"), "tfbuild:x")
    failed = report("fail", check("guard"), check("isa", "fail"), check("onednn", "fail"))
    with pytest.raises(VerificationFailed, match=r"tfbuild:x is not what it claims to be: isa, onednn") as caught:
        reporting.raise_if_failed(failed, "tfbuild:x")
    assert caught.value.hint == CLAIMS["isa"].fix
    with pytest.raises(VerificationFailed, match="x is not what it claims to be: nothing could be proved"):
        reporting.raise_if_failed(replace(report("fail"), checks=()), "x")


def test_an_image_for_another_cpu_is_said_not_to_start_rather_than_to_lie() -> None:
    """Only where nothing else is wrong with it."""
    guard = replace(check("guard", "fail"), detail="tfbuild: this CPU lacks avx512f, and this image (...) was compiled")
    skipped = replace(check("import", "skip"), detail=NO_START)
    expected = "x was not verified: it does not start on this host: this CPU lacks avx512f, and this image"
    with pytest.raises(VerificationFailed, match=expected) as caught:
        reporting.raise_if_failed(report("fail", guard, skipped), "x")
    assert caught.value.hint == CLAIMS["guard"].fix
    for others in ((skipped, check("isa", "fail")), (check("import"),)):
        with pytest.raises(VerificationFailed, match="x is not what it claims to be: guard"):
            reporting.raise_if_failed(report("fail", guard, *others), "x")


def test_a_report_without_a_start_can_be_shown() -> None:
    bare = replace(
        report("fail", check("guard", "fail")), host=None, software=None, throughput=None, source_would_add=()
    )
    assert "Throughput" not in reporting.to_markdown(bare)
    assert "Throughput" not in ParsedPage(reporting.to_html(bare)).titles
    reporting.show_report(bare, io.StringIO())
    assert decode(records.to_json(bare), Report) == bare
    assert reporting.environment_facts(bare)["size"] == "1000 MB"
    assert "size" not in reporting.environment_facts(replace(bare, image=replace(bare.image, size=0)))


def test_no_text_of_an_image_is_markup_in_markdown() -> None:
    hostile = "a|b <script>x</script> [y](https://z) `code` **bold** ![w](v) &lt;"
    one = replace(report(), checks=(check("guard", "fail", hostile),))
    shown = reporting.to_markdown(replace(one, image=replace(one.image, ref=hostile)))
    quoted = r"a\|b &lt;script>x&lt;/script> \[y\](https://z) \`code\` \*\*bold\*\* !\[w\](v) &amp;lt;"
    assert shown.count(quoted) == 2
    told = [line for line in shown.splitlines() if not line.startswith("`")]
    raw = ("<script", "[y](", "`code`", " **bold**", "a|b")
    assert not [(text, line) for line in told for text in raw if re.search(r"(?<!\\)" + re.escape(text), line)]


# --- the page ---------------------------------------------------------------------------------------------------------


def failed() -> Report:
    return report(
        "fail",
        check("guard"),
        check("isa", "fail", "lacks AVX2 | FMA"),
        check("onednn", "warn", "a known defect"),
        check("cuda", "skip", "no GPU is visible"),
    )


def test_the_page_has_every_check_with_its_proof_and_first_what_to_do() -> None:
    text = reporting.to_html(failed())
    read = ParsedPage(text)
    assert read.titles == ["What to do", "Checks", "Throughput", "Plan", "Environment"]
    do = text[text.index('id="do"') : text.index('id="checks"')]
    assert ("lacks AVX2 | FMA" in do, CLAIMS["isa"].fix in do, CLAIMS["onednn"].fix in do) == (True, True, False)
    for one in failed().checks:
        section = text.partition(f'id="check-{one.name}"')[2].partition("</section>")[0]
        assert one.detail in section
        assert "faults 0 (&lt; 1000)" in section.partition("<details>")[2]
    targets = {attributes.get("id") for _, attributes in read.tags}
    assert {address.removeprefix("#") for address in read.addresses} <= targets
    assert not read.open, "every element is closed"
    assert [value for value in ("--copt=-mavx", "AMD EPYC", "sha256:00") if value not in read.text] == []


def test_the_chart_shows_the_time_that_is_judged() -> None:
    original = report().throughput
    assert original is not None
    doubled = Interval(median=2.0, low=1.9, high=2.1, coverage=0.95)
    text = reporting.to_html(replace(report(), throughput=replace(original, cpu=doubled, benchmarks=())))
    (figure,) = re.findall(r"<figure.*?</figure>", text, re.DOTALL)
    assert texts(figure)[0].startswith("CPU time, relative")
    assert "2.00" in figure


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
        image=replace(one.image, ref=HOSTILE, labels={HOSTILE: HOSTILE, "io.tfbuild.features": HOSTILE}),
        software=replace(one.software, git=HOSTILE, packages=(HOSTILE,)),
        throughput=replace(one.throughput, baseline=HOSTILE, retuned={HOSTILE: HOSTILE}, effect=HOSTILE),
        source_would_add=(HOSTILE,),
    )


def test_nothing_in_a_report_is_markup() -> None:
    read = ParsedPage(reporting.to_html(hostile()))
    assert not {"script", "img"} & {tag for tag, _ in read.tags}
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)
    assert [address for address in read.addresses if not re.fullmatch(r"#[a-z-]+", address)] == []
    assert HOSTILE in read.text, "it is shown as it is"
