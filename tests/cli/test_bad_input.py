"""Bad requests are refused before an engine is contacted, with what to do."""

import tarfile
from pathlib import Path

import pytest

from tests.commandline import invoke
from tfbuild.plan import source

ROOT = Path(__file__).parents[2]
DOUBLE = ROOT / "tests" / "data" / "double"
OF_THE_DOUBLE = ("--source", str(DOUBLE), "--bazel", "0.26.1")


# An engine that does not answer: a verb that gets as far as connecting exits with code 20.
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Paths and digests for the placeholders in the options below."""
    whole = tmp_path / "double.tar.gz"
    with tarfile.open(whole, "w:gz") as tar:
        tar.add(DOUBLE, "double")
    half = tmp_path / "half.tar.gz"
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    page = tmp_path / "page.tar.gz"
    page.write_text("<html>404</html>\n")
    (tmp_path / "empty").mkdir()
    names = {"whole": whole, "half": half, "page": page, "empty": tmp_path / "empty"}
    digests = {f"{name}_sha256": source.digest(path) for name, path in names.items() if path.is_file()}
    return {name: str(path) for name, path in names.items()} | digests


@pytest.mark.parametrize(
    ("options", "code", "error", "hint"),
    [
        (("--release", "2.99.0"), 12, "unknown TensorFlow release '2.99.0'", "nearest: "),
        (("--release", "v2.14.9"), 12, "unknown TensorFlow release '2.14.9'", "nearest: "),
        (("--release", "2.14.1", "--python", "3.13"), 13, "TensorFlow 2.14.1 and Python '3.13' do not", "one of: 3.9"),
        (("--source", "{empty}"), 19, "{empty} is not TensorFlow's source: it has no configure.py", "--source names"),
        (("--source", "/nowhere"), 19, "no source at /nowhere", "--source names a tree"),
        ((*OF_THE_DOUBLE, "--release", "2.12.1"), 19, f"{DOUBLE} is TensorFlow 2.13.1, and --release says", "leave"),
        (
            ("--release", "2.13.1", "--source", "{whole}", "--source-sha256", "0" * 64),
            19, "double.tar.gz has the sha256 {whole_sha256}, not 000", "fetch it again",
        ),
        (
            ("--release", "2.13.1", "--source", "{half}", "--source-sha256", "{half_sha256}"),
            19, "half.tar.gz is no tar archive, or one that is cut off: ", "--source takes what tar",
        ),
        (
            ("--release", "2.13.1", "--source", "{page}", "--source-sha256", "{page_sha256}"),
            19, "page.tar.gz is no tar archive", "--source takes what tar",
        ),
        (("--release", "2.14.1", "--bazel", "newest"), 2, "'newest' is no Bazel version", "--bazel 7.4.1"),
        (("--release", "2.14.1", "--python", "3.11", "--compiler", "gcc-16"), 15, "gcc-16 is not in bullseye", "-"),
        (OF_THE_DOUBLE, 20, "", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["build", "wheel"])
def test_a_bad_request_is_refused_before_anything_starts(
    verb: str, options: tuple[str, ...], code: int, error: str, hint: str, files: dict[str, str]
) -> None:
    arguments = (option.format(**files) for option in options)
    done = invoke(verb, "--target", "cpu", "--cpu", "x86-64-v3", *arguments, env=NO_ENGINE, code=code)
    assert done.stdout == ""
    message, _, advice = done.stderr.partition("error: ")[2].partition("\nhint: ")
    assert message.startswith(error.format(**files))
    assert advice.startswith(hint)
    assert "\n" not in advice.strip()
    assert "Traceback" not in done.stderr
