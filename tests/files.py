"""A plugin of pytest's: one line for each file of tests as it ends, in place of a dot for each test."""

from collections import Counter
from collections.abc import Iterable

import pytest

from tfbuild.util.progress import duration


class Files:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.left = Counter[str]()
        self.count = 0
        self.outcomes: dict[str, Counter[str]] = {}
        self.seconds: dict[str, float] = {}

    def collected(self, nodes: Iterable[str]) -> None:
        """Each worker of pytest-xdist's has collected the same."""
        self.left = Counter(file_of(node) for node in nodes)
        self.count = len(self.left)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not self.count:
            self.collected(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if not self.count:
            self.collected(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
        if hasattr(report, "wasxfail") or not isinstance(report, pytest.TestReport):
            return None
        if report.passed:
            return ("passed" if report.when == "call" else ""), "", ""
        # The words are those of the summary at the end.
        if report.skipped:
            return "skipped", "", "SKIPPED"
        return ("failed", "", "FAILED") if report.when == "call" else ("error", "", "ERROR")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = file_of(report.nodeid)
        self.seconds[file] = self.seconds.get(file, 0.0) + report.duration
        category, *_ = self.config.hook.pytest_report_teststatus(report=report, config=self.config)
        if category:
            self.outcomes.setdefault(file, Counter())[category] += 1
        if category in ("failed", "error"):
            self.say(f"{category.upper()} {report.nodeid}")
        if report.when == "teardown":
            self.left[file] -= 1
            if not self.left[file]:
                text = ", ".join(f"{count} {name}" for name, count in self.outcomes[file].items())
                ended = sum(not left for left in self.left.values())
                self.say(f"[{ended}/{self.count}] {file}: {text} ({duration(self.seconds[file])})")

    def say(self, line: str) -> None:
        shown = self.config.pluginmanager.get_plugin("terminalreporter")
        if shown is not None:
            shown.ensure_newline()
            shown.write_line(line)
            shown.flush()


def file_of(node: str) -> str:
    return node.partition("::")[0]


def pytest_configure(config: pytest.Config) -> None:
    # A worker of pytest-xdist's tells the one that started it.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Files(config), "tfbuild-files")
