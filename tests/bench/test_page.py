"""The page shows the whole report, loads nothing else, and escapes all text."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from tests.bench.test_report import ENV, RECORDED, SKIPPED, case, elsewhere, experiment, report, sizes, slower_report
from tests.commandline import invoke
from tests.pages.test_charts import drawings, marked, shift, texts, tracks
from tfbuild.bench import command, compare, page, wording
from tfbuild.bench import report as reporting
from tfbuild.errors import UsageError
from tfbuild.measure import intervals, records
from tfbuild.measure.records import BenchReport, CaseResult, ExperimentResult, Finding, Interval

ROOT = Path(__file__).parents[2]
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
    def headings(self) -> list[int]:
        return [int(tag[1]) for tag, _ in self.tags if re.fullmatch("h[1-6]", tag)]

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


@cache
def mixed_page() -> str:
    return page.to_html(mixed())


@cache
def recorded() -> tuple[BenchReport, str]:
    """Return a report of an older version, and its page."""
    read = reporting.read_report(RECORDED)
    return read, page.to_html(read)


def curve() -> CaseResult:
    return replace(sizes(1e-3, 1e-4, 1, 2, 4, 8, 16, 32), baseline="batch 1")


def every_number(row: ExperimentResult) -> Iterator[str]:
    for measured in row.cases:
        yield intervals.interval_text(measured.band)
        for arm in measured.arms:
            yield from (intervals.interval_text(arm.cpu), intervals.interval_text(arm.wall), wording.time(arm.seconds))
        for number in measured.rounds:
            yield from (f"{raw.cpu / raw.inner * 1e3:.4g}" for raw in number.samples.values())


@pytest.mark.parametrize("made", [recorded, lambda: (mixed(), mixed_page())], ids=["recorded", "mixed"])
def test_what_is_in_the_report_is_on_the_page(made: Callable[[], tuple[BenchReport, str]]) -> None:
    original, text = made()
    read = ParsedPage(text)
    assert not read.open, "every element is closed"
    cells = set(read.texts)
    for row in original.experiments:
        for number in every_number(row):
            assert not number or number in cells, number
        assert row.question in read.text
    for name, value in original.image.labels.items():
        assert name in read.text
        assert value in read.text
    assert original.host.cpu in read.text


def test_it_begins_with_what_to_change() -> None:
    read = ParsedPage(mixed_page())
    titles = ["What to change", "Experiments", "Not measured", "Method", "Environment"]
    assert read.titles == titles
    places = [read.text.rindex(f" {heading} ") for heading in titles]
    places[0] = read.text.index(" What to change ")
    assert places == sorted(places)
    advised = read.text[places[0] : read.text.index("Experiments")]
    assert "tf.io.decode_and_crop_jpeg(data, window)" in advised
    assert "96%, 15 rounds" in advised
    assert advised.index("LD_PRELOAD=libtcmalloc.so") < advised.index("tf.io.decode"), "it gained more"
    assert "LD_PRELOAD=libtcmalloc.so" in advised
    assert "TF_ENABLE_ONEDNN_OPTS" not in advised, "it lost in one case"
    assert "Already in place" not in read.text
    assert "arm: faster in 1 of 3 cases, x2.0" in read.text[places[1] : places[2]]
    assert "arm: slower in 1 of 3 cases" in read.text[places[1] : places[2]]
    assert "TensorFlow in this image sees no GPU (layout: on a GPU)" in read.text[places[2] : places[3]]


def test_only_the_largest_gains_are_unfolded() -> None:
    rows = [experiment(f"x{n:02}", case(0.4 + n / 40, env={}, code=f"line{n:02}()")) for n in range(16)]
    text = page.to_html(report(*rows))
    folded = text.index("4 more with smaller gains")
    places = [text.index(f"<code>line{n:02}()</code>") for n in range(16)]
    assert places == sorted(places), "ranked by gain"
    assert places[page.MOST_CHANGES - 1] < folded < places[page.MOST_CHANGES]


def test_the_contents_name_everything() -> None:
    text = mixed_page()
    contents = text[text.index("<nav") : text.index("</nav>")]
    listed = re.findall(r'<a href="#([^"]+)">([^<]+)</a>', contents)
    assert [name for _, name in listed] == [
        "What to change",
        "Experiments",
        *(row.name for row in mixed().experiments),
        "Not measured",
        "Method",
        "Environment",
    ]
    targets = {attributes.get("id") for _, attributes in ParsedPage(text).tags}
    assert {anchor for anchor, _ in listed} <= targets


def test_an_experiment_shows_one_chart_and_folds_the_rest() -> None:
    text = mixed_page()
    for row in mixed().experiments:
        section = next(part for part in text.split("<section")[1:] if f"<h3>{row.name}</h3>" in part)
        shown, _, folded = section.partition("<details>")
        assert shown.count("<figure") == bool(row.cases[0].rounds)
        assert "<table" not in shown
        assert all(case.name in folded for case in row.cases if case.rounds)
    assert text.count("<figure") == 5, "the allocators' memory is folded"


def test_the_noise_is_told_once() -> None:
    cut = [
        replace(case(0.5, name=name), status=records.TRUNCATED, reason="stopped by the time budget after 15 rounds")
        for name in ("one", "other")
    ]
    text = ParsedPage(page.to_html(report(experiment("jpeg", *cut), experiment("xla", *cut)))).text
    assert text.count("time budget") == 1
    assert "4 of 4 cases were stopped by the time budget after 15 rounds" in text
    assert "Everything requested was measured." in text


def test_what_is_in_place_is_no_change() -> None:
    row = experiment("onednn", case(0.5), case(0.7, name="matmul"))
    rows = (row, experiment("xla", case(0.5, env={}, code="jit"), case(1.3, name="conv", env={}, code="jit")))
    read = ParsedPage(page.to_html(replace(report(*rows), image=replace(report().image, env=ENV))))
    assert read.titles[:3] == ["What to change", "Already in place", "Experiments"]
    change, _, rest = read.text.partition("These settings have a measured gain here and need no change.")
    kept = rest.partition(" Experiments ")[0]
    assert "TF_ENABLE_ONEDNN_OPTS=1" not in change
    assert re.search(r"TF_ENABLE_ONEDNN_OPTS=1 onednn : the image sets it; CPU time, over baseline x2\.0", kept)
    assert re.search(r"x0\.7\S* \[\S+ \S+\] slower: conv ", change)
    read = ParsedPage(page.to_html(replace(report(row), image=replace(report().image, env=ENV))))
    assert "No change has a measured gain over the current settings." in read.text
    assert "TF_ENABLE_ONEDNN_OPTS=1" in read.text[read.text.index("Environment") :]


def test_the_headings_leave_no_level_out() -> None:
    for text in (mixed_page(), page.comparison(compare.compare(report(), elsewhere(report())))):
        levels = ParsedPage(text).headings
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(deeper <= level + 1 for level, deeper in pairwise(levels))


def test_tables_and_regions_have_names() -> None:
    bare = replace(SKIPPED, arms=())
    rows = [experiment(name, case(0.5), case(0.8, name="other"), bare) for name in ("jpeg", "xla")]
    for text in (page.to_html(report(*rows)), page.comparison(compare.compare(report(), elsewhere(report())))):
        assert not re.search(r"<th[^>]*>\s*</th>", text), "every column has a heading"
        regions = [attributes["aria-label"] for _, attributes in ParsedPage(text).tags if "aria-label" in attributes]
        assert regions
        assert len(set(regions)) == len(regions)


def test_a_report_without_anything_is_a_page_too() -> None:
    nothing = replace(report(experiment("layout", SKIPPED)), image=replace(report().image, labels={}), interrupted=True)
    text = ParsedPage(page.to_html(nothing)).text
    assert "No change has a measured gain." in text
    assert "Interrupted: the rest was not measured." in text


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
    compared = page.comparison(compare.compare(hostile(), replace(hostile(), image=report().image)))
    for text in (page.to_html(hostile()), compared):
        read = ParsedPage(text)
        assert not {"script", "img"} & {tag for tag, _ in read.tags}
        assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)
        assert all(re.fullmatch(r"#(experiment-[1-5]|[a-z]+)", address) for address in read.addresses)
        assert HOSTILE in read.text, "it is shown as it is"


def test_the_page_loads_nothing_else() -> None:
    text = mixed_page()
    read = ParsedPage(text)
    assert all(address.startswith("#") for address in read.addresses)
    assert not {"script", "link", "iframe", "object", "embed", "image", "use"} & {tag for tag, _ in read.tags}
    assert not re.search(r"url\(|@import", text)
    assert """default-src 'none'; style-src 'unsafe-inline'""" in text
    targets = {attributes.get("id") for _, attributes in read.tags}
    assert {address[1:] for address in read.addresses} <= targets
    names = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(set(names)) == len(names)


def test_a_full_report_stays_small() -> None:
    """It has as many experiments, cases and rounds as --full."""
    rows = [experiment(f"x{n}", *(case(0.5 + m / 5, name=f"case {m}", count=21) for m in range(7))) for n in range(20)]
    assert len(page.to_html(report(*rows)).encode()) < 2_000_000


# --- charts ----------------------------------------------------------------------------------------------------------


def test_a_chart_says_in_words_what_it_shows() -> None:
    figures = re.findall(r"<figure.*?</figure>", mixed_page(), re.DOTALL)
    assert len(figures) == 5
    for figure in figures:
        assert re.match(r'<figure class="chart" aria-label="\w+: [a-z ]+">', figure)
        words = re.sub(r"<[^>]*>", "", re.sub(r"<(\w+)[^>]*aria-hidden.*?</\1>", "", figure, flags=re.DOTALL))
        assert re.search(r"x\d|items a second|MiB", words)
        assert "aria-roledescription" not in figure


def test_experiments_have_the_charts_that_answer_them() -> None:
    names = {row.name: [title(chart) for chart in page.draw_charts(row)] for row in mixed().experiments}
    assert names["onednn"] == ["onednn: ratios to the baseline"]
    assert names["batchsize"] == ["batchsize: items a second over the batch size"]
    assert names["allocator"] == ["allocator: ratios to the baseline", "allocator: memory of the process"]
    assert names["layout"] == []


def title(chart: str) -> str:
    (name,) = re.findall(r'<figure class="chart" aria-label="(.*?)"', chart)
    return str(name)


def test_the_batch_size_s_points_lie_on_their_curve() -> None:
    (chart,) = page.draw_charts(experiment("batchsize", curve()))
    (drawing,) = drawings(chart)
    points = [shift(point) for point in marked(drawing, "symbol")]
    assert len(points) == 6
    (line,) = marked(drawing, "line")
    path = [tuple(map(float, pair.split(","))) for pair in re.findall(r"[-\d.e]+,[-\d.e]+", line.get("d", ""))]
    for x, y in points:
        near = min(path, key=lambda place: abs(place[0] - x))
        assert near[1] == pytest.approx(y, abs=4), "made of the very line that is fitted"
    assert [mark.text for mark in marked(drawing, "text")] == ["80%", "90%, 95%"], (
        "of the best measured rate: batches 16 and 32"
    )


def test_what_no_logarithm_takes_is_left_out() -> None:
    measured = case(0.5)
    zero = replace(measured.arms[1], cpu=Interval(median=0.0, low=0.0, high=1.0, coverage=0.95))
    assert list(page.draw_charts(experiment("onednn", replace(measured, arms=(measured.arms[0], zero))))) == []


def test_letters_that_no_xml_may_hold_are_left_out() -> None:
    measured = case(0.5, name="a\x00b\x1b[2Jc\ufffe")
    measured = replace(measured, arms=tuple(replace(arm, effect="\x00") for arm in measured.arms))
    assert "ab[2Jc" in texts(next(page.draw_charts(experiment("onednn", measured))))


def test_cases_that_compare_the_same_arm_are_lines_of_one_group() -> None:
    rows = [case(0.5, name="one"), case(0.7, name="other")]
    assert texts(next(page.draw_charts(experiment("jpeg", *rows)))) == ["arm", "one", "other"]
    mixed_arms = replace(rows[1], arms=(rows[1].arms[0], replace(rows[1].arms[1], name="else")))
    assert texts(next(page.draw_charts(experiment("jpeg", rows[0], mixed_arms)))) == ["one", "arm", "other", "else"]


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_page_is_made_of_an_old_report(tmp_path: Path) -> None:
    command.advise(str(RECORDED), html=str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text() == recorded()[1]
    with pytest.raises(UsageError, match=r"--html .*No such file"):
        command.advise(str(RECORDED), html=str(tmp_path / "none" / "page.html"))


def test_the_comparison_has_a_page() -> None:
    comparison = compare.compare(report(), slower_report(2.0), elsewhere(slower_report(0.5)))
    text = page.comparison(comparison)
    read = ParsedPage(text)
    assert not read.open
    for one in (comparison, *comparison.others):
        for row in one.rows:
            assert intervals.interval_text(row.wall) in read.texts
            assert intervals.interval_text(row.cpu) in read.texts
    assert "Nothing: the same image on the same machine." in read.text
    assert "TensorFlow 2.21.0 2.14.0" in read.text
    signs = [track.findtext("b") for track in tracks(text)]
    assert signs == ["◀", "▶"] * 3


def test_the_command_line_takes_more_reports(tmp_path: Path) -> None:
    paths = []
    for number, each in enumerate((report(), slower_report(1.02), elsewhere(slower_report(2.0)))):
        paths.append(str(tmp_path / f"{number}.json"))
        Path(paths[-1]).write_text(records.to_json(each))
    html = str(tmp_path / "page.html")
    arguments = [
        "compare",
        paths[0],
        "--fail-if",
        "throughput<0.9",
        paths[1],
        "--html",
        html,
        "--json",
        "--also",
        paths[2],
    ]
    done = invoke(*arguments, code=28)
    assert done.stderr.startswith("error: report 3: throughput<0.9: failed: x0.50")
    shown = json.loads(done.stdout)
    assert [one["second"].split()[0] for one in (shown, *shown["others"])] == ["tfbuild:x", "tfbuild:y"]
    assert Path(html).stat().st_size > 1000


def test_samples_are_read_by_pyperf(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, each in zip(files, (report(), slower_report(2.0)), strict=True):
        (tmp_path / f"{file.stem}.report").write_text(records.to_json(each))
        command.advise(str(tmp_path / f"{file.stem}.report"), pyperf=str(file))
    table = pyperf("compare_to", *map(str, files))
    assert re.search(r"^onednn/centre/baseline: Mean \+- std dev: .*: 2\.00x slower$", table, re.MULTILINE), table
    shown = pyperf("stats", str(files[0]))
    assert "Number of value per run: 15" in shown
    assert "cpu_model_name: AMD EPYC" in pyperf("metadata", str(files[0]))


def pyperf(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "pyperf", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pyperf_gets_seconds_an_item(tmp_path: Path) -> None:
    command.advise(str(RECORDED), pyperf=str(tmp_path / "p.json"))
    import pyperf as reader

    suite = reader.BenchmarkSuite.load(str(tmp_path / "p.json"))
    measured = {
        f"{row.name}/{one.name}/{arm.name}": arm.cpu_seconds
        for row in reporting.read_report(RECORDED).experiments
        for one in row.cases
        for arm in one.arms
        if arm.cpu_seconds is not None
    }
    assert {bench.get_name(): bench.median() for bench in suite} == pytest.approx(measured)


def test_a_report_without_samples_has_none_to_hand_on(tmp_path: Path) -> None:
    found = replace(experiment("layout", SKIPPED), findings=(Finding(text="x", values={}),))
    (tmp_path / "x.json").write_text(records.to_json(report(found)))
    with pytest.raises(UsageError, match="no samples"):
        command.advise(str(tmp_path / "x.json"), pyperf=str(tmp_path / "p.json"))


def test_other_verbs_do_not_pay_for_charts() -> None:
    heavy = "{'vl_convert', 'pyperf', 'psutil', 'playwright'}"
    script = f"import sys, tasks, tfbuild.bench.compare; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


def test_too_few_rounds_are_not_reported_as_no_difference() -> None:
    few = case(0.5, count=4)
    read = ParsedPage(page.to_html(report(experiment("jpeg", few))))
    summary = read.source.partition('class="answer"')[2].partition("<details>")[0]
    assert "too few rounds for a verdict: 1 of 1 comparisons" in summary
    assert "no difference shown" not in summary
    assert "no difference shown (too few rounds for a verdict)" in read.text, "in the table"
    enough = ParsedPage(page.to_html(report(experiment("jpeg", case(1.0)))))
    assert "too few rounds" not in enough.text


def test_noise_is_counted_where_a_gain_is_summed_up() -> None:
    noisy = replace(case(0.5), noisy=True, clean=2)
    read = ParsedPage(page.to_html(report(experiment("jpeg", noisy, case(0.5, name="other")))))
    assert "arm: faster in 2 of 2 cases" in read.text
    assert "(noisy: 2 of 15 rounds undisturbed)" in read.text


def test_noise_stands_beside_no_difference() -> None:
    noisy = replace(case(1.0), noisy=True, clean=0)
    read = ParsedPage(page.to_html(report(experiment("jpeg", noisy, case(1.0, name="other")))))
    assert "no difference shown (noisy: 0 of 15 rounds undisturbed)" in read.text
