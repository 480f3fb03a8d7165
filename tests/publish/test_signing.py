"""What cosign is told, by a program in its place that notes its words; what it refuses is never taken for signed."""

from functools import partial
from pathlib import Path

import pytest

from tests.commandline import executable
from tests.servers import Handler, serving
from tfbuild.errors import RegistryRefused, TfbuildError, UsageError, VerificationFailed
from tfbuild.oci import transport
from tfbuild.publish import installing, signing

REFERENCE = "ghcr.io/us/x@sha256:0a"


@pytest.fixture
def cosign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where `code` and `stderr` say how cosign ends, and `words` is what it was called with last.

    `all` has the words of all calls.
    """
    script = f"""printf '%s\\n' "$@" | tee -a {tmp_path}/all > {tmp_path}/words
echo "on stdout"
cat {tmp_path}/stderr >&2
exit $(cat {tmp_path}/code)"""
    executable(tmp_path / "cosign", script)
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


REFUSED = f"{REFERENCE} has no signature that cosign accepts"


@pytest.mark.parametrize(
    ("stderr", "error", "reason"),
    [
        ("noise\nError: no signatures found\nmain.go:69: error\n", VerificationFailed,
         f"{REFUSED}\nError: no signatures found"),
        ("first\nlast\n\n", VerificationFailed, f"{REFUSED}\nlast"),
        ("", VerificationFailed, REFUSED),
        ("Error: GET https://r/v2/: unexpected status code 503 Service Unavailable", RegistryRefused,
         "cosign could not"),
        ("Error: GET https://r/v2/: unexpected status code 401 Unauthorized", RegistryRefused, "cosign could not"),
        ("Error: GET https://r/v2/: unexpected status code 404 Not Found", VerificationFailed, REFUSED),
        ('Error: Get "https://r/v2/": dial tcp 127.0.0.1:1: connect: refused', RegistryRefused, "cosign could not"),
        ('Error: Get "https://r/v2/": tls: failed to verify certificate: x509: certificate is not yet valid',
         RegistryRefused, "cosign could not"),
    ],
)  # fmt: skip
def test_what_cosign_does_not_accept_is_a_failure_with_its_reason(
    stderr: str, error: type[TfbuildError], reason: str, cosign: Path
) -> None:
    demand = signing.demand_of("--key 'a key' --registry-password 'so secret'", Path("/x/ca.pem"))
    assert demand is not None
    demand("ghcr.io/us/x@sha256:0b")
    assert words(cosign)[2:-1] == ["/x/ca.pem", "--key", "a key", "--registry-password", "so secret"]
    (cosign / "code").write_text("1")
    (cosign / "stderr").write_text(stderr)
    with pytest.raises(error) as refusal:
        demand(REFERENCE)
    assert refusal.value.reason.startswith(reason)
    assert "secret" not in refusal.value.hint
    with pytest.raises(TfbuildError, match=f"cosign did not sign {REFERENCE}"):
        signing.signer("", None)(REFERENCE)


def test_a_list_of_wheels_is_judged_only_once_its_signature_is_accepted(cosign: Path, tmp_path: Path) -> None:
    index, ours = installing.WheelSource(str(tmp_path)), "--key 'a key'"
    (tmp_path / "choose.json").write_bytes(b"{}")
    with pytest.raises(VerificationFailed, match="the index has no signature"):
        index.wheels(ours)
    (tmp_path / "choose.json.sigstore.json").touch()
    for code, error in (("1", VerificationFailed), ("0", RegistryRefused)):
        (cosign / "code").write_text(code)
        with pytest.raises(error):
            index.wheels(ours)
        assert words(cosign)[:4] == ["verify-blob", "--key", "a key", "--bundle"]


@pytest.mark.parametrize(("status", "error"), [(404, VerificationFailed), (503, RegistryRefused)])
def test_only_a_signature_that_is_not_there_is_none(
    status: int, error: type[TfbuildError], cosign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Index(Handler):
        def do_GET(self) -> None:
            self.say(200 if self.path.endswith("/choose.json") else status, b"{}")

    monkeypatch.setattr(transport, "TRIES", 0)
    with serving(Index) as host, pytest.raises(error):
        installing.WheelSource(f"http://{host}/x").wheels("--key k")


def test_a_cosign_that_never_ends_is_ended(cosign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(cosign / "cosign", "exec sleep 60")
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
        with pytest.raises(TfbuildError, match="signatures need cosign, which is not on PATH"):
            make(None)
    with pytest.raises(UsageError, match="cannot be split into options for cosign"):
        signing.signer("--key 'open", None)
