"""What cosign is told, by a program in its place that notes its words; what it refuses is never taken for signed."""

import shlex
from functools import partial
from pathlib import Path

import pytest

from tfbuild.errors import RegistryRefused, TfbuildError, UsageError, VerificationFailed
from tfbuild.publish import signing

REFERENCE = "ghcr.io/us/x@sha256:0a"


@pytest.fixture
def cosign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where `code` and `stderr` say how cosign ends, and `words` is what it was called with last.

    `all` has the words of all calls.
    """
    program = tmp_path / "cosign"
    program.write_text(f"""#!/bin/sh
printf '%s\\n' "$@" | tee -a {tmp_path}/all > {tmp_path}/words
echo "on stdout"
cat {tmp_path}/stderr >&2
exit $(cat {tmp_path}/code)
""")
    program.chmod(0o755)
    (tmp_path / "code").write_text("0")
    (tmp_path / "stderr").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def words(folder: Path) -> list[str]:
    return (folder / "words").read_text().splitlines()


def test_an_image_is_signed_by_its_digest_without_questions(cosign: Path, capfd: pytest.CaptureFixture[str]) -> None:
    signing.signer("--key 'a key'", None)(REFERENCE)
    assert words(cosign) == ["sign", "--yes", "--key", "a key", REFERENCE]
    assert capfd.readouterr() == ("", "on stdout\n"), "stdout is for data"
    signing.signer("", Path("/x/ca.pem"))(REFERENCE)
    assert words(cosign) == ["sign", "--yes", "--registry-cacert", "/x/ca.pem", REFERENCE]


@pytest.mark.parametrize("code", [1, 2, 137])
def test_a_signature_that_fails_is_an_error(code: int, cosign: Path) -> None:
    (cosign / "code").write_text(str(code))
    with pytest.raises(TfbuildError, match=f"cosign did not sign {REFERENCE}") as error:
        signing.signer("", None)(REFERENCE)
    assert "the same push command continues from here" in error.value.hint


def test_a_signature_that_is_accepted_is_enough(cosign: Path, capfd: pytest.CaptureFixture[str]) -> None:
    demand = signing.demand_of("--key k.pub", Path("/x/ca.pem"))
    assert demand is not None
    demand(REFERENCE)
    assert words(cosign) == ["verify", "--registry-cacert", "/x/ca.pem", "--key", "k.pub", REFERENCE]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (
            "noise\nError: no signatures found\nmain.go:69: error during command execution\n",
            "Error: no signatures found",
        ),
        ("first\nlast\n\n", "last"),
        ("", ""),
    ],
)
def test_a_signature_that_is_not_accepted_is_a_failure_with_cosigns_reason(
    stderr: str, reason: str, cosign: Path
) -> None:
    (cosign / "code").write_text("1")
    (cosign / "stderr").write_text(stderr)
    demand = signing.demand_of("--key 'a key'", None)
    assert demand is not None
    with pytest.raises(VerificationFailed) as error:
        demand(REFERENCE)
    first, *rest = str(error.value).partition("\nhint:")[0].splitlines()
    assert first.endswith(f"{REFERENCE} has no signature that cosign accepts")
    assert rest == ([reason] if reason else [])
    assert error.value.hint.endswith("cosign verify --key 'a key'")


@pytest.mark.parametrize(
    "stderr",
    [
        "Error: GET https://r/v2/us/x/manifests/sha256-0a.sig: unexpected status code 503 Service Unavailable",
        'Error: Get "https://r/v2/": dial tcp 127.0.0.1:1: connect: connection refused',
    ],
)
def test_a_registry_that_does_not_answer_cosign_is_no_missing_signature(stderr: str, cosign: Path) -> None:
    (cosign / "code").write_text("1")
    (cosign / "stderr").write_text(stderr)
    demand = signing.demand_of("--key k", None)
    assert demand is not None
    with pytest.raises(RegistryRefused, match=f"cosign could not judge {REFERENCE}"):
        demand(REFERENCE)


def test_a_cosign_that_never_ends_is_ended(cosign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cosign / "cosign").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(signing, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(signing, "SIGN_SECONDS", 0.2)
    demand = signing.demand_of("--key k", None)
    assert demand is not None
    with pytest.raises(RegistryRefused, match="did not judge"):
        demand(REFERENCE)
    with pytest.raises(TfbuildError, match="did not sign"):
        signing.signer("", None)(REFERENCE)


def test_without_cosign_nothing_counts_as_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for make in (partial(signing.signer, "--key k"), partial(signing.demand_of, "--key k")):
        with pytest.raises(TfbuildError, match="signatures need cosign, which is not on PATH") as error:
            make(None)
        assert "install cosign" in error.value.hint


def test_options_are_split_as_a_shell_does() -> None:
    assert signing.options("--key 'a key' -a x=y") == ("--key", "a key", "-a", "x=y")
    assert signing.options(shlex.join(("--a b", "c"))) == ("--a b", "c")
    assert signing.options("") == ()
    with pytest.raises(UsageError, match="cannot be split into options for cosign"):
        signing.options("--key 'open")
