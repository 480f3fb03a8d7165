"""Write a report as JSON, Markdown and a page, and read its JSON back against its types.

`python -m tfbuild.verify.report` writes the JSON Schema of reports to schema.json.
"""

from pathlib import Path

from tfbuild.errors import VerificationFailed
from tfbuild.measure import records
from tfbuild.util.files import read_regular, replace_file, writing
from tfbuild.verify.records import SCHEMA, Report
from tfbuild.verify.verification import NO_START

MOST_BYTES = 32 * 1024 * 1024
SCHEMA_FILE = Path(__file__).with_name("schema.json")


def from_json(text: str | bytes) -> Report:
    """Read a report from its JSON. Raises ValueError for anything else, and for another schema."""
    return records.from_json(text, Report, SCHEMA, "a report")


def path(report: Report, folder: Path) -> Path:
    """Return ID.json or ID-failed.json, so that a failure never replaces the report of an image in use."""
    return folder / f"{report.id}{'' if report.passed else '-failed'}.json"


def write(report: Report, folder: Path) -> Path:
    """Write the report as JSON, Markdown and a page, each whole or not at all; return the JSON's path.

    Raises UsageError or DiskFull.
    """
    # Verbs that only read reports need no templates.
    from tfbuild.verify import page

    file = path(report, folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(file.with_suffix(".md"), page.to_markdown(report))
        replace_file(file.with_suffix(".html"), page.to_html(report))
        return replace_file(file, records.to_json(report))


def stored(folder: Path, identifier: str) -> Report | None:
    """Return the report of an earlier verification; None if it is missing, unreadable or of another image."""
    try:
        report = from_json(read_regular(folder / f"{identifier}.json", MOST_BYTES))
    except (OSError, ValueError):
        return None
    return report if report.id == identifier else None


def raise_if_failed(report: Report, image: str) -> None:
    """Raise VerificationFailed if a check failed, with what to do about the first one."""
    if report.passed:
        return
    failed = [check for check in report.checks if check.status == "fail"]
    names = ", ".join(check.name for check in failed) or "nothing could be proved"
    why = f"is not what it claims to be: {names}"
    # Nothing else is wrong with it: it may be right for another CPU.
    if names == "guard" and any(check.detail == NO_START for check in report.checks):
        why = f"was not verified: it does not start on this host: {failed[0].detail.removeprefix('tfbuild: ')}"
    raise VerificationFailed(f"{image} {why}", hint=failed[0].fix if failed else "")


if __name__ == "__main__":
    SCHEMA_FILE.write_text(records.json_schema(Report, SCHEMA), encoding="utf-8")
