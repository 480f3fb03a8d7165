"""Any values of any options: each command ends with a documented code, one message, and no file but its own."""

import re
import tempfile
from inspect import Parameter, signature
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.cli.test_bad_input import NO_ENGINE
from tests.commandline import ROOT, answer
from tfbuild import cli
from tfbuild.cli.verbs import Verb

# `engine` installs one, and `fleet` starts ssh for what looks like a host.
LEFT_OUT = ("engine", "fleet")
VERBS = {name: verb for name, verb in cli.VERBS.items() if name not in LEFT_OUT}
ROW = re.compile(r"^\| (\d+) \|", re.MULTILINE)
CODES = {int(code) for code in ROW.findall((ROOT / "docs" / "reference" / "exit-codes.md").read_text())}
HOSTILE = (
    "", " ", "x", "0", "-1", "9" * 5000, "2." + "9" * 5000, "x" * 300, "x" * 100_000, "../x", "/dev/null",
    "/proc/self/mem",
    "$(touch pwned)", "`touch pwned`", ";touch pwned", "'\"\\", "a\nb", "a\rb", "\x1b[2J", "\udcff", "２.２１", "а",
    "NAME=VALUE", "=", "a=b=c", "http://[::1", "grpc://[::1", "tcp://[::1", "unix://", "[", "{}", "%s", "{x}", "--",
    "#",
    "2.21", "2.21.0", "mkl", "cuda", "cpu,mkl", "x86-64-v3", "avx2,fma", "gcc-12", "3.11", "official", "openmp", "8.0",
)  # fmt: skip
VALUES = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=20).filter(lambda text: "\0" not in text))


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    """A verb with some of its options, and its positional words."""
    verb: Verb = draw(st.sampled_from(list(VERBS.values())))
    words = [verb.name]
    chosen = draw(st.lists(st.sampled_from(sorted(verb.options)), max_size=3, unique=True)) if verb.options else []
    for option in chosen:
        default, _ = verb.options[option]
        words.append(f"--{option}" if isinstance(default, bool) else f"--{option}={draw(VALUES)}")
    positional = [
        parameter for parameter in signature(verb.body).parameters.values()
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
    ]  # fmt: skip
    return [*words, *(draw(VALUES) for _ in positional)]


@given(commands())
def test_no_command_line_ends_in_a_traceback_or_writes_elsewhere(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "a", "work")
        work.mkdir(parents=True)
        done = answer(*words, cwd=work, env={**NO_ENGINE, "TFBUILD_REGISTRY": ""})
        assert done.returncode in CODES, done.stderr
        written = {path.relative_to(folder).parts[:3] for path in Path(folder).rglob("*") if path.is_file()}
        assert all(parts[:2] == ("a", "work") for parts in written), written
        assert not list(Path(folder).rglob("pwned"))
        lines = done.stderr.splitlines()
        assert "Traceback" not in done.stderr
        assert all(line.isprintable() or "\t" in line for line in lines), done.stderr
        assert done.stderr.count("error: ") <= 1 or done.returncode == 1, done.stderr
