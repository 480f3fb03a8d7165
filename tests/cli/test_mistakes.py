"""Each mistake in tests/data/mistakes.tsv gets its exit code and a hint with what to type; no answer shows any Python.

The commands run in a folder with a few broken files. Neither an engine nor a registry answers.
"""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.commandline import answer

FILE = Path(__file__).parents[1] / "data" / "mistakes.tsv"
ROWS = [line.split("\t") for line in FILE.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
NOWHERE = {"DOCKER_HOST": "unix:///nonexistent/no-engine.sock", "TFBUILD_REGISTRY": "", "SSL_CERT_FILE": ""}
PYTHON = re.compile(
    r"Traceback|\[Errno|\bNone\b|\bTrue\b|\bFalse\b|Error\(|urllib3|HTTPConnection|object at 0x|PosixPath"
)
FILES: Mapping[str, str] = {
    "page.html": "<html><body>404 Not Found</body></html>\n", "empty.txt": "", "notes.txt": "nothing about a CPU\n",
    "broken.json": '{"schema": ', "a b/file": "",
    "hosts/web1": "processor : 0\nvendor_id : GenuineIntel\nmodel name : made up\nflags : fpu lm sse sse2 pni\n",
    "unknown.toml": 'relase = "2.20"\n', "number.toml": "python = 3.10\n", "empty.toml": 'release = ""\n',
    "row.toml": '[[build]]\nrelease = "9.9"\n', "run.toml": "[[build]]\njobs = 8\n",
    "place.toml": 'base = "x:1"\nnetwork = "none"\n', "index.toml": '[[build]]\nwheel = "index:x"\n',
    "rows.toml": '[[build]]\nwheel = "official"\nplatform = "linux/amd64"\n',
    "folder/pyproject.toml": '[project]\nname = "tfbuild-user"\n', "not-a-wheel.whl": "PK",
    "model/saved_model.pb": "", "model/variables/index": "",
    "numpy-2.0.0-cp312-cp312-manylinux_2_17_x86_64.whl": "PK",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mistakes").resolve()
    for name, text in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_mistake_is_answered_with_a_hint(row: list[str], folder: Path) -> None:
    command, code, typed = row
    settings, _, rest = command.partition("invoke")
    env = dict(setting.split("=", 1) for setting in settings.split())
    done = answer(*shlex.split(rest), cwd=folder, env={**NOWHERE, **env})
    said = f"{done.stdout}{done.stderr}"
    assert done.returncode == int(code), said
    assert re.search("^error: ", said, re.M), said
    hint = "\n".join(re.findall("^hint: .*", said, re.M))
    assert typed in hint, said
    assert not PYTHON.search(said), said
