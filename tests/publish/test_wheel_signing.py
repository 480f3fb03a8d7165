"""The lists of an index of wheels, signed by the real cosign: it accepts them, and so does openssl."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import broken, debian
from tests.commandline import answer
from tests.publish.wheels import cpuinfo, files, wheel
from tests.rows import each
from tfbuild.errors import TfbuildError, UsageError, VerificationFailed
from tfbuild.publish import signing, wheel_index

pytestmark = pytest.mark.slow

# The public log is not for tests.
UNLOGGED = {debian.NEWER: "--tlog-upload=false", debian.NEWEST: "--tlog-upload=false --use-signing-config=false"}
EXTRACT = """sed -E 's/.*"(signature|base64Signature)":"([^"]*)".*/\\2/' {0}.sigstore.json | base64 -d > {0}.sig"""


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
def test_cosign_and_openssl_accept_a_signed_index_and_refuse_what_was_changed(
    suite: str, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = debian.unpack(tmp_path / suite, "cosign", suite=suite) / "usr" / "bin"
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    public = tmp_path / f"public {suite}"
    index(public, f"--key {shlex.quote(str(keys / 'ours.key'))} {UNLOGGED[suite]}", wheel(tmp_path / "built"))
    for name in ("choose.json", "choose.tsv"):
        signing.demand_of_file(checks(keys, "ours"), public / name, name)
        with pytest.raises(VerificationFailed, match=rf"(?s){name} has no signature that cosign accepts.*Error: "):
            signing.demand_of_file(checks(keys, "theirs"), public / name, name)
        subprocess.run(EXTRACT.format(name), shell=True, cwd=public, check=True)
        verify = ["openssl", "dgst", "-sha256", "-verify", str(keys / "ours.pub"), "-signature", f"{name}.sig", name]
        subprocess.run(verify, cwd=public, check=True)
        with (public / name).open("a") as file:
            file.write(" ")
        with pytest.raises(VerificationFailed):
            signing.demand_of_file(checks(keys, "ours"), public / name, name)
        assert subprocess.run(verify, cwd=public, check=False).returncode != 0


def test_a_signed_index_stays_signed(keys: Path, tmp_path: Path) -> None:
    public, key = tmp_path / "public", f"--key {shlex.quote(str(keys / 'ours.key'))} {UNLOGGED[debian.NEWER]}"
    first, second = wheel(tmp_path / "built"), wheel(tmp_path / "more", python="3.10")
    index(public, key, first)
    before = {path: path.read_bytes() for path in public.rglob("*") if path.is_file()}
    index(public, "", first)
    with pytest.raises(UsageError, match="is signed, but this change is not"):
        index(public, "", second)
    with pytest.raises(TfbuildError, match=r"cosign did not sign choose\.json"):
        index(public, f"{key}.none", second)
    assert {path: path.read_bytes() for path in public.rglob("*") if path.is_file()} == before
    index(public, key, second)
    assert len(json.loads((public / "choose.json").read_text())["wheels"]) == 2
    signing.demand_of_file(checks(keys, "ours"), public / "choose.json", "choose.json")


def test_nothing_of_an_index_is_believed_without_an_accepted_signature(keys: Path, tmp_path: Path) -> None:
    """Neither by `install` nor by install.sh, which reads choose.tsv."""
    public = tmp_path / "public"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    index(
        public, f"--key {shlex.quote(str(keys / 'ours.key'))} {UNLOGGED[debian.NEWER]}", wheel(tmp_path, python=python)
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    before = set((tmp_path / "venv").rglob("*"))
    words: list[str | Path] = [
        "--python",
        tmp_path / "venv" / "bin" / "python",
        "--cpuinfo",
        cpuinfo(tmp_path / "cpuinfo", "avx"),
    ]
    with broken.serve(files(public)) as server:
        words += ["--index", server.url, "--signed"]
        genuine = dict(server.content)
        refused, unchanged = "has no signature that cosign accepts", bytes
        unsigned = (
            r"the index has no signature: \S+ cannot be read: the server answers 404|"
            r"choose\.tsv\.sigstore\.json is not there: the server answers 404\ninstall\.sh: the index has no signature"
        )
        for change, bundle, signer, code, told in (
            (unchanged, b"", "ours", 0, "the newest release"),
            (unchanged, b"", "theirs", 24, refused),
            (lambda lines: lines + b" ", b"", "ours", 24, refused),
            (lambda lines: b"{}", b"", "ours", 24, refused),
            (unchanged, b"{}", "ours", 24, refused),
            (unchanged, None, "ours", 24, unsigned),
        ):
            for name in ("/choose.json", "/choose.tsv"):
                server.content |= {name: change(genuine[name])}
                server.content |= {f"{name}.sigstore.json": bundle or genuine[f"{name}.sigstore.json"]}
                if bundle is None:
                    del server.content[f"{name}.sigstore.json"]
            env = {**os.environ, "TFBUILD_CPUINFO": str(words[3]), "SIGNED": checks(keys, signer), "no_proxy": "*"}
            env |= {"DRY_RUN": "1"} if code == 0 else {}
            script = ["dash", str(public / "install.sh"), server.url]
            for done in (
                answer("install", *words, checks(keys, signer), *(["--dry-run"] if code == 0 else [])),
                subprocess.run(script, capture_output=True, text=True, check=False, env=env),
            ):
                assert (done.returncode, re.search(told, done.stderr) is not None) == (code, True), done.stderr
        assert [path for path in server.requested if path.startswith("/pool/")] == []
    assert set((tmp_path / "venv").rglob("*")) == before


class Replaced(dict[str, bytes]):
    """The files of an index in which the lists are new, and their signatures are replaced after they were read once."""

    def get(self, path: str, default: Any = None) -> Any:
        body = super().get(path, default)
        if path.endswith(signing.BUNDLE):
            self[path] = self[path.removesuffix(signing.BUNDLE)]
        return body


def test_a_list_whose_signature_is_just_being_replaced_is_read_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cosign for which a file is its own signature."""
    cosign = tmp_path / "bin" / "cosign"
    cosign.parent.mkdir()
    cosign.write_text('#!/bin/sh\nfor file; do :; done\nexec cmp -s "$file" "$file.sigstore.json"\n')
    cosign.chmod(0o755)
    monkeypatch.setenv("PATH", f"{cosign.parent}:{os.environ['PATH']}")
    public, recorded = tmp_path / "public", cpuinfo(tmp_path / "cpuinfo", "avx")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    wheel_index.index(public, [wheel(tmp_path / "built", python=python)], print)
    old = {f"/choose.{kind}{signing.BUNDLE}": b"of the list before" for kind in ("json", "tsv")}
    env = {**os.environ, "TFBUILD_CPUINFO": str(recorded), "SIGNED": "--key x", "DRY_RUN": "1", "no_proxy": "*"}
    with broken.serve(Replaced(files(public) | old)) as server:
        words = ("install", "--index", server.url, "--dry-run", "--signed", "--key x", "--cpuinfo", recorded)
        script = ["dash", str(public / "install.sh"), server.url]
        for done in (
            answer(*words),
            subprocess.run(script, capture_output=True, text=True, check=False, env=env),
        ):
            assert done.returncode == 0, done.stderr
