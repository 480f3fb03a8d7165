"""The lists of an index of wheels, signed by the real cosign, which accepts them."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests import broken, debian
from tests.commandline import answer
from tests.context.test_dockerfile import contents
from tests.publish.wheels import cpuinfo, files, wheel
from tests.rows import each
from tfbuild.errors import TfbuildError, UsageError
from tfbuild.publish import signing, wheel_index

pytestmark = pytest.mark.slow

# The public log is not for tests.
UNLOGGED = {debian.NEWER: "--tlog-upload=false", debian.NEWEST: "--tlog-upload=false --use-signing-config=false"}


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two pairs of keys, `ours` and `theirs`, with cosign 2 on PATH."""
    return debian.cosign_keys(tmp_path, monkeypatch)


def index(folder: Path, options: str, *wheels: Path) -> None:
    signer = signing.file_signer(options) if options else None
    wheel_index.index(folder, wheels, print, sign=signer)


def checks(keys: Path, name: str) -> str:
    return f"--key {shlex.quote(str(keys / f'{name}.pub'))} --insecure-ignore-tlog=true"


@each("suite", (debian.NEWER, debian.NEWEST))
def test_a_signed_index_stays_signed(suite: str, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = debian.unpack(tmp_path / suite, "cosign", suite=suite) / "usr" / "bin"
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    public, key = tmp_path / f"public {suite}", f"--key {shlex.quote(str(keys / 'ours.key'))} {UNLOGGED[suite]}"
    first, second = wheel(tmp_path / "built"), wheel(tmp_path / "more", python="3.10")
    index(public, key, first)
    before = contents(public)
    index(public, "", first)
    with pytest.raises(UsageError, match="is signed, but this change is not"):
        index(public, "", second)
    with pytest.raises(TfbuildError, match=r"cosign did not sign choose\.json"):
        index(public, f"{key}.none", second)
    assert contents(public) == before
    index(public, key, second)
    assert len(json.loads((public / "choose.json").read_text())["wheels"]) == 2
    signing.demand_of_file(checks(keys, "ours"), public / "choose.json", "choose.json")


def test_nothing_of_an_index_is_believed_without_an_accepted_signature(keys: Path, tmp_path: Path) -> None:
    public, key = tmp_path / "public", f"--key {shlex.quote(str(keys / 'ours.key'))} {UNLOGGED[debian.NEWER]}"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    index(public, key, wheel(tmp_path, python=python))
    recorded = cpuinfo(tmp_path / "cpuinfo", "avx")
    with broken.serve(files(public)) as server:
        genuine = dict(server.content)
        refused, unsigned = "has no signature that cosign accepts", "the index has no signature: .* answers 404"
        for content, bundle, signer, code, told in (
            (genuine["/choose.json"], genuine["/choose.json.sigstore.json"], "ours", 0, "the newest release"),
            (genuine["/choose.json"], genuine["/choose.json.sigstore.json"], "theirs", 24, refused),
            (b"{}", genuine["/choose.json.sigstore.json"], "ours", 24, refused),
            (genuine["/choose.json"], b"{}", "ours", 24, refused),
            (genuine["/choose.json"], None, "ours", 24, unsigned),
        ):
            server.content["/choose.json"] = content
            server.content.pop("/choose.json.sigstore.json", None)
            if bundle is not None:
                server.content["/choose.json.sigstore.json"] = bundle
            words = ("install", "--index", server.url, "--dry-run", "--cpuinfo", recorded)
            done = answer(*words, "--signed", checks(keys, signer))
            assert (done.returncode, re.search(told, done.stderr) is not None) == (code, True), done.stderr
        assert not [path for path in server.requested if path.startswith("/pool/")]
