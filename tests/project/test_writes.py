"""What a power cut could tear is written by util/files.py (tests/util/test_files.py)."""

import ast
import re
from pathlib import Path

from tests.commandline import ROOT

# Files that the package writes without replace_file or whole, by module. Each place, and why nothing torn stays there.
DIRECT = {
    "util/files.py": "the ways themselves, and an empty lock",
    "util/process.py": "a log, which grows line by line",
    "engine/image.py": "a scratch folder",
    "engine/connection.py": "what ssh prints, read once",
    "engine/containers.py": "memory",
    "binary/inspector.py": "a scratch folder",
    "pipeline/compiling.py": "secrets in a scratch folder",
    "pipeline/base_image.py": "a scratch folder",
    "pipeline/bundle.py": "a part beside the file, which then replaces it",
    "pipeline/host.py": "a work folder that is written anew in each run",
    "plan/source.py": "a context that is written aside",
    "pipeline/build_context.py": "a context that is written aside",
    "cli/output.py": "the null device",
    "publish/wheel_rows.py": "a scratch folder",
    "measure/probe.py": "a scratch folder",
    "publish/installing.py": "a scratch folder",
    "verify/report.py": "python -m of a developer: the committed schema",
}
WRITES = re.compile("[rwax+bt]*[wax+][rwax+bt|]*")


def writes(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    words = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    return name in ("write_text", "write_bytes") or (
        name in ("open", "fdopen") and any(WRITES.fullmatch(mode) for mode in modes)
    )


def test_files_are_written_whole_but_for_those_that_nobody_reads_later() -> None:
    package = ROOT / "tfbuild"
    # What runs inside images writes there.
    paths = [path for path in package.rglob("*.py") if "in_container" not in path.parts]
    found = {path.relative_to(package).as_posix() for path in paths if has_write(path)}
    assert found == DIRECT.keys()


def has_write(path: Path) -> bool:
    return any(isinstance(node, ast.Call) and writes(node) for node in ast.walk(ast.parse(path.read_text())))
