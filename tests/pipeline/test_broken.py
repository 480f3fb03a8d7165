"""Networks that break during a download: what the tools of a build then print, and what tfbuild makes of it.

The tools are the real ones, as network.sh sets them up, with shorter times; the server is one that breaks.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import broken
from tests.publish.wheels import zipped
from tfbuild.context.dockerfile import TEMPLATES
from tfbuild.errors import BadInput, BuildFailed
from tfbuild.pipeline import diagnosis

BODY = b"0123456789abcdef" * 40000


def failed(output: str) -> BuildFailed:
    """The error of a build whose last step printed this."""
    lines = "".join(f"\n  {line}" for line in output.splitlines()[-20:])
    return BuildFailed(f"the image could not be built{lines}", hint="the full log: x.log")


# --- the steps of a build ---------------------------------------------------------------------------------------------


def networked(root: Path, script: str, **env: str) -> tuple[int, str]:
    """Run `script` after network.sh, below `root`, and return the exit code and what both streams got."""
    text = (TEMPLATES / "network.sh").read_text()
    (root / "mnt").mkdir(exist_ok=True)
    text = re.sub(r"(?<![\w./$}])/mnt\b", f"{root}/mnt", text)
    # As long as a test may take.
    text = re.sub(r"(--speed-time|--retry-max-time) 60", r"\1 2", text).replace("SPEED_TIME=300", "SPEED_TIME=2")
    done = subprocess.run(
        ["sh", "-euc", f"{text}\n{script}"],
        env={"PATH": os.environ["PATH"], "HOME": str(root), "LC_ALL": "C", "NO_PROXY": "*", **env},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout


def refused(output: str) -> str:
    """The one line of the error that a failed download becomes."""
    error = diagnosis.explain(failed(output))
    assert type(error) is BuildFailed, (error, output)
    assert error.reason.startswith("a download failed: "), output
    assert "\n" not in error.reason
    assert error.hint.startswith("check the network")
    assert error.hint.endswith("; the full log: x.log")
    return error.reason


@pytest.mark.parametrize("fault", ["short", pytest.param("stall", marks=pytest.mark.nightly)])
def test_a_download_by_curl_ends_in_time_and_names_its_cause(fault: str, tmp_path: Path) -> None:
    with broken.serve({"/file": BODY}) as server:
        server.fault = fault
        code, output = networked(tmp_path, f"download {server.url}/file {tmp_path}/got")
        assert code != 0
        assert "curl: (" in refused(output)
        server.fault = ""
        assert networked(tmp_path, f"download {server.url}/file {tmp_path}/got") == (0, "")
    assert (tmp_path / "got").read_bytes() == BODY


def test_a_clone_ends_in_time_and_its_cause_is_in_the_error(tmp_path: Path) -> None:
    script = (TEMPLATES / "source.sh").read_text().replace('. "$top/mnt/network.sh"', f"top={tmp_path}")
    with broken.serve({}) as server:
        server.fault = "500"
        script = script.replace("https://github.com", server.url)
        code, output = networked(tmp_path, f"set -- git v1 ''\n{script}")
    assert code == 1
    error = diagnosis.explain(failed(output))
    assert type(error) is BadInput
    assert f"{server.url}/tensorflow/tensorflow has no tag v1, or does not answer: fatal: " in error.reason
    assert not (tmp_path / "src").exists()


# pip itself waits 15 s, and tries six times; where a server asks for an hour of patience, it waits that long.
PIP = {"PIP_RETRIES": "1", "PIP_DEFAULT_TIMEOUT": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": ""}


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "sound"), [("short", 1), pytest.param("500", 0, marks=pytest.mark.nightly)])
def test_a_download_by_pip_names_its_cause_and_no_half_wheel_is_kept(fault: str, sound: int, tmp_path: Path) -> None:
    wheel = "x-1.0-py3-none-any.whl"
    content = {"/simple/x/": f'<a href="/{wheel}">{wheel}</a>'.encode(), f"/{wheel}": BODY}
    script = f"cd {tmp_path} && {sys.executable} -m pip download --no-deps --disable-pip-version-check --dest got x"
    env = {**PIP, "PIP_CACHE_DIR": str(tmp_path / "cache")}
    with broken.serve(content) as server:
        server.fault, server.sound = fault, sound
        code, output = networked(tmp_path, script, PIP_INDEX_URL=f"{server.url}/simple", **env)
        assert code != 0
        assert not [*tmp_path.glob("got/*")]
        error = diagnosis.explain(failed(output))
        assert error.reason.startswith(
            "a download failed: " if sound else "pip found no x for this Python and platform"
        )
        server.fault = ""
        # Not a wheel, but all of the file.
        networked(tmp_path, script, PIP_INDEX_URL=f"{server.url}/simple", **env)
    assert not sound or server.requested[-1] == f"/{wheel}"


@pytest.mark.slow
def test_a_damaged_cache_of_pip_s_is_not_installed_from_and_fails_no_build(tmp_path: Path) -> None:
    """The index names digests, as PyPI's does. What no run can use any more is downloaded again, and pip goes on."""
    members = {
        "x.py": b"word = 'right'\n",
        "x-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: x\nVersion: 1.0\n",
        "x-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    content = zipped(tmp_path / "x.whl", members).read_bytes()
    link = f"x-1.0-py3-none-any.whl#sha256={hashlib.sha256(content).hexdigest()}"
    pages = {"/simple/x/": f'<a href="/{link}">x</a>'.encode(), "/x-1.0-py3-none-any.whl": content}
    script = (TEMPLATES / "pip.sh").read_text().replace("/mnt/", f"{tmp_path}/mnt/")
    (tmp_path / "pip.sh").write_text(script.replace("/opt/tensorflow/bin/pip", f"{sys.executable} -m pip"))
    cache, target = tmp_path / "mnt/pip", tmp_path / "target"
    cache.mkdir(parents=True)

    def install() -> str:
        shutil.rmtree(target, ignore_errors=True)
        words = f"PIP_TRUSTED_HOST=127.0.0.1 sh {tmp_path}/pip.sh --target {target} x"
        code, output = networked(tmp_path, words, PIP_INDEX_URL=f"{server.url}/simple", **PIP)
        assert code == 0, output
        assert (target / "x.py").read_text() == "word = 'right'\n"
        return output

    with broken.serve(pages) as server:
        install()
        server.requested.clear()
        install()
        assert server.requested == ["/simple/x/"], "the wheel is in the cache"
        for path in (path for path in cache.rglob("*") if path.is_file()):
            # The length is the same, as of a file that was overwritten.
            path.write_bytes(path.read_bytes().replace(b"right", b"wrong"))
        output = install()
        assert "/x-1.0-py3-none-any.whl" in server.requested
        assert "tfbuild: note: pip's cache was damaged and has been emptied" in output


def test_a_wheel_that_is_not_pypi_s_is_refused_with_both_digests(tmp_path: Path) -> None:
    wheel, digest = "x-1.0-py3-none-any.whl", 64 * "0"
    content = {"/simple/x/": f'<a href="/{wheel}">{wheel}</a>'.encode(), f"/{wheel}": BODY}
    found = re.search(r"pip\.sh (--no-deps [^\\]+)", (TEMPLATES / "Dockerfile.j2").read_text())
    assert found
    (tmp_path / "wheel.txt").write_text(f"x==1.0 --hash=sha256:{digest}\n")
    options = found[1].replace("/mnt", str(tmp_path))
    script = f"{sys.executable} -m pip download --dest {tmp_path} {options}"
    with broken.serve(content) as server:
        code, output = networked(tmp_path, script, PIP_INDEX_URL=f"{server.url}/simple", PIP_NO_CACHE_DIR="1", **PIP)
    assert code != 0
    error = diagnosis.explain(failed(output))
    got = hashlib.sha256(BODY).hexdigest()
    assert error.reason == f"{server.url}/{wheel} is not the x==1.0 that PyPI has: its sha256 is {got}, not {digest}"
    assert "--wheel FILE" in error.hint
    assert not [*tmp_path.glob("*.whl")]


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt")
def test_a_download_by_apt_names_its_cause_and_no_compiler_is_called_unknown(tmp_path: Path) -> None:
    package = b"!<arch>\n" + BODY
    packages = (
        "Package: gcc-12\nVersion: 1\nArchitecture: all\nMaintainer: x\nFilename: pool/x.deb\nDescription: x\n"
        f"Size: {len(package)}\nSHA256: {hashlib.sha256(package).hexdigest()}\n\n"
    ).encode()
    release = (
        "Origin: x\nSuite: s\nCodename: s\nDate: Mon, 01 Jan 2024 00:00:00 UTC\nArchitectures: all\nComponents: main\n"
        f"SHA256:\n {hashlib.sha256(packages).hexdigest()} {len(packages)} main/binary-all/Packages\n"
    ).encode()
    content = {"/dists/s/Release": release, "/dists/s/main/binary-all/Packages": packages, "/pool/x.deb": package}
    for name in ("lists/partial", "cache/archives/partial"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "status").write_text("")
    places = (
        f"-o Dir::State::Lists={tmp_path}/lists -o Dir::Cache={tmp_path}/cache -o Dir::State::status={tmp_path}/status"
    )
    sources = f"-o Dir::Etc::SourceList={tmp_path}/sources.list -o Dir::Etc::SourceParts=/dev/null"
    times = "-o Acquire::http::Timeout=1 -o Acquire::Retries=0 -o Acquire::http::Proxy=DIRECT -o APT::Architecture=all"
    apt = f"apt-get -q {places} {sources} {times} -o APT::Sandbox::User=root -o APT::Architectures=all"
    script = f"{apt} update && {apt} install --yes --download-only gcc-12"
    with broken.serve(content) as server:
        (tmp_path / "sources.list").write_text(f"deb [trusted=yes] {server.url} s main\n")
        server.fault, server.sound = "short", 2
        code, output = networked(tmp_path, script)
        assert code != 0
        assert server.url in refused(output)
        server.fault = ""
        code, output = networked(tmp_path, script)
    assert code == 0, output
    assert (tmp_path / "cache/archives/gcc-12_1_all.deb").read_bytes() == package
