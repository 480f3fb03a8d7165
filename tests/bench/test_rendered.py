"""What every form of a real report says, as a whole: the transcripts in tests/data/bench/rendered/.

After a change on purpose, `python -m tests.bench.test_rendered` writes them again; read what has changed as a stranger
would.
"""

import io
import re
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache

import msgspec
import pytest
from markupsafe import Markup

from tests.bench.test_compare import MEASURED, cut, slowed
from tests.bench.test_report import case, elsewhere, experiment, report
from tests.bench.test_session import TRANSCRIPTS
from tfbuild.bench import advise, command, compare, findings, page
from tfbuild.bench import report as reporting
from tfbuild.measure import experiments
from tfbuild.measure.records import BenchReport, CaseResult

FOLDER = MEASURED["guide"].with_name("rendered")
# Numbers of more digits differ in the last one from one C library to the next.
DIGITS = re.compile(r"-?\d+\.\d{6,}(?:e-?\d+)?|(?<=[:,\[])-?\d+\.0(?=[,}\]])")
GATES = ("throughput<0.95", "cpu<0.95", "jpeg<0.9", "onednn>=0.5", "xla>1.5")


@cache
def measured(name: str) -> BenchReport:
    return reporting.read_report(FOLDER.with_name(f"{name}.json"))


def part(whole: BenchReport, count: int) -> BenchReport:
    return replace(whole, experiments=whole.experiments[:count])


def cases(name: str) -> list[tuple[experiments.Purpose, CaseResult]]:
    return [(experiments.purpose(row.name), one) for row in measured(name).experiments for one in row.cases]


def encoded(value: object) -> str:
    """Return JSON, a line for each object."""
    return msgspec.json.encode(value).decode().replace(",{", ",\n{")


def shown(whole: BenchReport) -> str:
    stream = io.StringIO()
    reporting.show(whole, stream)
    return stream.getvalue()


def found() -> str:
    every = [finding for purpose, one in cases("guide") for finding in findings.derive(purpose.finding, [one])]
    return "".join(f"{finding.text}\n{dict(finding.values)}\n" for finding in every)


def answered() -> str:
    """Return the answers to the guide's questions, of all rounds and of too few, and what was not measured."""
    lines = []
    for guide in (measured("guide"), cut(measured("guide"), 2)):
        lines += [f"{row.name}: {answer}" for row in guide.experiments for answer in page._answer(row)]
        lines += [f"{reason}: {parts}" for reason, parts in page.unmeasured(guide).items()]
    return "\n".join(lines)


def advised(name: str) -> str:
    advices = advise.advise(measured(name))
    texts = (advise.env_file(advices), advise.lines_of_code(advices), encoded(advices))
    return "\n".join((*texts, *(f"{advice.line} | {advice.remark} | {advice.shared}" for advice in advices)))


def page_text(html: str) -> str:
    """Return the text of a page, a line for each element, without its styles and scripts."""
    body = re.sub(r"(?s)<(style|script|svg)\b.*?</\1>", "", html)
    return "\n".join(
        line.strip() for line in Markup(re.sub(r"<[^>]+>", "\n", body)).unescape().split("\n") if line.strip()
    )


def charts() -> str:
    """Return the charts as they are in the page, and as specifications those that a library draws."""
    drawn = [
        str(chart).replace("><", ">\n<")
        for row in measured("guide").experiments
        if row.name in ("jpeg", "batchnorm", "allocator")
        for chart in page.draw_charts(row)
    ]
    curves = [page._curve(one) for purpose, one in cases("guide") if "rates" in purpose.charts]
    return "\n".join([*drawn, *map(encoded, filter(None, curves))])


def compared() -> str:
    """Compare a report with that of a slower image whose first cases have too few rounds, and with a part of it."""
    guide = part(measured("guide"), 4)
    return comparison(guide, cut(slowed(guide, 1.3, 1.1), 4, 5), slowed(elsewhere(part(guide, 2)), 0.9, 0.8))


def held() -> str:
    """Compare reports that both have the same other image in their rounds, with more items a call in the second."""
    return comparison(in_other_image(8, 4), slowed(replace(in_other_image(16, 2), tool="another"), 1.3, 1.1))


def in_other_image(items: int, other_items: int) -> BenchReport:
    cases = []
    for row in (case(0.5, name="exp"), replace(case(0.7, metric="wall", name="log"), noisy=True)):
        base, arm = row.arms
        other = replace(base, image="sha256:of the wheel", params=arm.params, items=other_items)
        cases.append(replace(row, arms=(other, replace(arm, items=items))))
    return report(experiment("isa", *cases))


def comparison(first: BenchReport, *others: BenchReport) -> str:
    compared = compare.compare(first, *others)
    gates = [gate for gate in GATES if gate.startswith(("throughput", "cpu", *(row.name for row in first.experiments)))]
    verdicts = compare.judge(compared, compare.gates(gates))
    stream = io.StringIO()
    compare.show(compared, verdicts, stream)
    return "\n".join((stream.getvalue(), encoded(compared), page_text(page.comparison(compared, verdicts))))


def listed() -> str:
    """Return the rows that would be measured, and for how long."""
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(stream):
        for against in ("", "tfbuild:y"):
            chosen = command.settings(quick=False, full=True, budget="", against=against)
            command.show_rows(experiments.select(("tuning", "jpeg", "isa"), quick=False), chosen, json=False)
        chosen = command.settings(quick=True, full=False, budget="", against="")
        command.show_rows(experiments.select((), quick=True), chosen, json=False)
        chosen = command.settings(quick=False, full=False, budget="3m", against="")
        command.show_rows(experiments.select(("files",), quick=False), chosen, json=True)
    return stream.getvalue()


RENDERED: dict[str, Callable[[], str]] = {
    "guide-shown": lambda: shown(measured("guide")),
    "guide-findings": found,
    "guide-advice": lambda: advised("guide"),
    "guide-charts": charts,
    "models-advice": lambda: advised("models"),
    "models-markdown": lambda: page.to_markdown(measured("models")),
    "models-pyperf": lambda: reporting.to_pyperf(measured("models")).replace(", ", ",\n"),
    "quick-page": lambda: page_text(page.to_html(measured("quick"))),
    "guide-answers": answered,
    **TRANSCRIPTS,
    "listed": listed,
    "compared": compared,
    "compared-held": held,
}


def rendered(name: str) -> str:
    return DIGITS.sub(lambda digits: f"{float(digits[0]):.6g}", RENDERED[name]().rstrip()) + "\n"


@pytest.mark.parametrize("name", RENDERED)
def test_a_real_report_says_what_it_said_in_every_form(name: str) -> None:
    assert rendered(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in RENDERED:
        (FOLDER / f"{name}.txt").write_text(rendered(name), encoding="utf-8")
