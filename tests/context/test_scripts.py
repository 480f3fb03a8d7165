"""The scripts that fetch what a build is made of, run by dash below a folder, with their programs replaced where those
would change the system: what is not what was planned stops them.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.checkout import git
from tests.commandline import executable
from tfbuild.context import dockerfile

DASH = shutil.which("dash") or "sh"
PATCH = """--- a/configure.py
+++ b/configure.py
@@ -1 +1 @@
-old
+new
"""
# What network.sh defines, with no mirror and no certificate.
DEFINED = re.findall(r"(?ms)^(?:die|download)\(\).*?^}\n", (dockerfile.TEMPLATES / "network.sh").read_text())
NETWORK = f'from() {{\n    echo "URL"\n}}\n{"".join(DEFINED)}'
KEY, OTHER = "AAAA", "BBBB"
MIRROR = "http://127.0.0.1:9"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def below(root: Path, script: str) -> str:
    """Return a script whose folders are below `root`, where they are made."""
    text = (dockerfile.TEMPLATES / script).read_text().replace("$top", "")
    for name in ("mnt", "src", "opt", "usr/local/bin", "var", "etc"):
        text = re.sub(rf"(?<![\w./$}}])/{name}\b", f"{root}/{name}", text)
        if name != "src":  # source.sh makes it
            (root / name).mkdir(parents=True, exist_ok=True)
    return text


def run(root: Path, script: str, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run a script with its folders below `root`, and the programs in bin/ there before the system's."""
    text = below(root, script)
    (root / "opt/tfbuild").mkdir(exist_ok=True)
    path = f"{root}/bin:{root}/usr/local/bin:{os.environ['PATH']}"
    return subprocess.run(
        [DASH, "-c", text, script, *arguments],
        cwd=root, env={"PATH": path, "HOME": str(root), **env}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def program(root: Path, name: str, text: str) -> None:
    executable(root / "bin" / name, text.replace("ROOT", str(root)))


def files(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


# --- source.sh --------------------------------------------------------------------------------------------------------

TREE = {"configure.py": "old\n", ".bazelrc": "", "tensorflow/tools/pip_package/BUILD": ""}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a repository of TensorFlow's that has the tag v1, as source.sh reaches it."""
    repository = tmp_path / "repository"
    files(repository, TREE)
    git(repository, "init", "--quiet")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "x")
    git(repository, "tag", "v1")
    files(tmp_path, {"mnt/network.sh": NETWORK.replace("URL", f"file://{repository}")})
    return tmp_path


def commit(root: Path) -> str:
    done = subprocess.run(
        ["git", "-C", root / "repository", "rev-parse", "v1"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def sourced(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run(root, "source.sh", *arguments)


def record(root: Path) -> list[str]:
    return (root / "opt/tfbuild/source").read_text().splitlines()


@pytest.mark.parametrize("letters", [40, 11, 0])
def test_the_commit_of_the_tag_is_checked_and_recorded(letters: int, source: Path) -> None:
    done = sourced(source, "git", "v1", commit(source)[:letters])
    assert done.returncode == 0, done.stderr
    assert record(source) == [f"source_commit={commit(source)}"]
    assert (source / "src/configure.py").read_text() == "old\n"


WRONG: dict[str, tuple[dict[str, str], tuple[str, ...], str]] = {
    "another commit": ({}, ("git", "v1", "0" * 11), f"and not {'0' * 11}"),
    "no such tag": ({}, ("git", "v2", ""), "has no tag v2, or does not answer"),
    "another archive": (
        {"mnt/source/source.tar": "x", "mnt/source/SHA256SUMS": f"{'0' * 64}  ROOT/mnt/source/source.tar\n"},
        ("archive",), "the source is not the one that was planned",
    ),
    "a patch of another tree": (
        {"mnt/patches/eigen.patch": PATCH.replace("-old", "-other")}, ("git", "v1", ""),
        "eigen.patch does not apply to this tree",
    ),
    "no edits": ({"mnt/edit.py": "exit(1)", "mnt/fixes/edits.json": ""}, ("git", "v1", ""), ""),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_was_not_planned_stops_the_build(wrong: str, source: Path) -> None:
    texts, words, told = WRONG[wrong]
    files(source, {name: text.replace("ROOT", str(source)) for name, text in texts.items()})
    done = sourced(source, *words)
    assert done.returncode != 0
    assert done.stderr.endswith(f"{told}\n" if told else "")
    recorded = source / "opt/tfbuild/source"
    assert not recorded.exists() or record(source) == [f"source_commit={commit(source)}"], "nothing more is done"


@pytest.mark.parametrize("missing", ["configure.py", ".bazelrc", "tensorflow/tools/pip_package/BUILD"])
def test_a_tree_of_something_else_is_refused(missing: str, source: Path) -> None:
    (source / "repository" / missing).unlink()
    git(source / "repository", "commit", "--quiet", "--all", "--message", "x")
    git(source / "repository", "tag", "--force", "v1")
    done = sourced(source, "git", "v1", "")
    assert done.returncode == 1
    assert f"this is not TensorFlow's source: it has no {missing.removesuffix('/BUILD')}" in done.stderr


def archived(root: Path, name: str, folder: Path) -> bytes:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        archive.add(folder, "top")
    return path.read_bytes()


def test_an_archive_of_the_planned_digest_is_unpacked_and_patched(source: Path) -> None:
    """What is unpacked is no repository, and lies in none."""
    tar = source / "mnt/source/source.tar"
    files(source, {"repository/.gitx": "", "mnt/patches/1-mine.patch": PATCH})
    content = archived(source, "mnt/source/source.tar", source / "repository")
    (source / "mnt/source/SHA256SUMS").write_text(f"{sha256(content)}  {tar}\n")
    done = sourced(source, "archive")
    assert done.returncode == 0, done.stderr
    assert record(source) == ["source_commit=", f"patch/1-mine.patch={sha256(PATCH.encode())}"]
    assert (source / "src/configure.py").read_text() == "new\n"
    assert {path.name for path in (source / "src").iterdir()} == {"configure.py", ".bazelrc", "tensorflow", ".gitx"}


def test_patches_are_applied_in_order_and_recorded(source: Path) -> None:
    second = PATCH.replace("+new", "+newer").replace("-old", "-new")
    files(source, {"mnt/patches/1-b.patch": PATCH, "mnt/patches/2-a.patch": second})
    done = sourced(source, "git", "v1", "")
    assert done.returncode == 0, done.stderr
    assert (source / "src/configure.py").read_text() == "newer\n"
    named = (("1-b", PATCH), ("2-a", second))
    assert record(source)[1:] == [f"patch/{name}.patch={sha256(text.encode())}" for name, text in named]


def test_an_override_is_unpacked_under_its_name(source: Path) -> None:
    content = archived(source, "mnt/overrides/eigen_archive.tar", source / "repository")
    done = sourced(source, "git", "v1", "")
    assert done.returncode == 0, done.stderr
    assert (source / "opt/overrides/eigen_archive/configure.py").read_text() == "old\n"
    assert record(source)[1:] == [f"override/eigen_archive={sha256(content)}"]


# --- toolchain.sh -----------------------------------------------------------------------------------------------------

# What curl fetches: a Bazelisk that notes how it was called, and unpacks a Bazel.
BAZELISK = """#!/bin/sh
echo "$USE_BAZEL_VERSION $*" > ROOT/called
mkdir -p ROOT/opt/bazelisk/downloads/bin
echo "bazel $USE_BAZEL_VERSION" > ROOT/opt/bazelisk/downloads/bin/bazel
chmod 755 ROOT/opt/bazelisk/downloads/bin/bazel
"""


@pytest.fixture
def toolchain(tmp_path: Path) -> Path:
    files(tmp_path, {"mnt/network.sh": NETWORK.replace("URL", "mirrored/$1"), "mnt/requirements.txt": "numpy\n"})
    files(tmp_path, {"bazelisk": BAZELISK.replace("ROOT", str(tmp_path)), "packages": "installed gcc-12 12.2\n"})
    program(
        tmp_path, "curl", 'echo "$@" > ROOT/curl; while [ "$1" != --output ]; do shift; done; cp ROOT/bazelisk "$2"'
    )
    pip = 'case $1 in freeze) echo numpy==1 ;; install) echo "$@" > ROOT/pip ;; esac'
    program(
        tmp_path, "python9",
        f"mkdir -p \"$4/bin\"; printf '%s\\n' '#!/bin/sh' '{pip}' > \"$4/bin/pip\"; chmod 755 \"$4/bin/pip\"",
    )  # fmt: skip
    program(tmp_path, "dpkg-query", "cat ROOT/packages")
    return tmp_path


def installed(root: Path, bazelisk: str = "") -> "subprocess.CompletedProcess[str]":
    """Run toolchain.sh anew. `bazelisk`: the planned digest (default: the right one)."""
    shutil.rmtree(root / "usr", ignore_errors=True)
    right = sha256((root / "bazelisk").read_bytes())
    words = ("bazel", "python9", "6.5.0", "1.20.0", bazelisk or right, "amd64")
    return run(root, "toolchain.sh", *words)


def builder(root: Path) -> str:
    return (root / "opt/tfbuild/builder").read_text()


def test_bazelisk_and_through_it_bazel_are_what_was_planned(toolchain: Path) -> None:
    files(toolchain, {"var/tmp/bazel/x": ""})  # an earlier run's
    done = installed(toolchain)
    assert done.returncode == 0, done.stderr
    url = "mirrored/https://github.com/bazelbuild/bazelisk/releases/download/v1.20.0/bazelisk-linux-amd64"
    assert (toolchain / "curl").read_text().split()[-1] == url
    assert "--fail" in (toolchain / "curl").read_text().split()
    version, *words = (toolchain / "called").read_text().split()
    assert (version, words[-1]) == ("6.5.0", "version")
    assert (toolchain / "usr/local/bin/bazel").read_text() == "bazel 6.5.0\n"
    assert (toolchain / "var/tmp/bazel/x").exists()
    assert (toolchain / "pip").read_text().split()[-2:] == ["--requirement", f"{toolchain}/mnt/requirements.txt"]


@pytest.mark.parametrize("lost", [False, True])
def test_another_bazelisk_is_never_run(lost: bool, toolchain: Path) -> None:
    if lost:
        program(toolchain, "curl", "exit 22")
    done = installed(toolchain, bazelisk="" if lost else "0" * 64)
    assert done.returncode == 1
    assert done.stderr.endswith("cannot be had, or is not the Bazelisk that was planned\n")
    assert not (toolchain / "called").exists()
    assert not (toolchain / "opt/tfbuild/builder").exists()


@pytest.mark.parametrize("changed", ["packages", "python9", "bazel"])
def test_caches_are_kept_apart_by_all_that_is_installed(changed: str, toolchain: Path) -> None:
    installed(toolchain)
    first = builder(toolchain)
    assert re.fullmatch(r"[0-9a-f]{64}\n", first)
    # BOLT's and what was removed shape no compile.
    with (toolchain / "packages").open("a") as packages:
        packages.write("installed libbolt-19-dev 1\ndeinstalled g++-11 11.1\n")
    installed(toolchain)
    assert builder(toolchain) == first
    path = {"packages": "packages", "python9": "bin/python9", "bazel": "bazelisk"}[changed]
    text = (toolchain / path).read_text()
    text = text.replace('"bazel $USE', '"other $USE').replace("12.2", "12.3")
    (toolchain / path).write_text(f"{text}#\n" if changed == "python9" else text)
    installed(toolchain)
    assert builder(toolchain) != first


@pytest.mark.parametrize(("headers", "ensurepip", "packages"), [(1, 1, []), (0, 0, ["python9-dev", "python9-venv"])])
def test_only_what_python_lacks_is_installed(headers: int, ensurepip: int, packages: list[str], tmp_path: Path) -> None:
    files(tmp_path, {"mnt/network.sh": "", "apt": "", **({"include/Python.h": ""} if headers else {})})
    program(tmp_path, "apt-get", 'for word; do :; done; echo "$word" >> ROOT/apt')
    program(tmp_path, "python9", f'case "$2" in *ensurepip*) exit {1 - ensurepip} ;; *) echo ROOT/include ;; esac')
    done = run(tmp_path, "toolchain.sh", "python", "python9")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "apt").read_text().split() == packages


# --- llvm.sh ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def llvm(tmp_path: Path) -> Path:
    network = below(tmp_path, "network.sh")
    files(tmp_path, {"mnt/network.sh": network, "mnt/mirror": f"{MIRROR}\nbundle\n", "keys": "", "apt": ""})
    program(tmp_path, "apt-get", 'echo "$@" >> ROOT/apt')
    program(tmp_path, "curl", 'while [ "$1" != --output ]; do shift; done; echo key > "$2"; echo "$3" > ROOT/asked')
    program(tmp_path, "gpg", "cat ROOT/keys")
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    return tmp_path


def keys(*fingerprints: str) -> str:
    """What gpg prints of primary keys, each with a subkey."""
    return "".join(f"pub:-:\nfpr:::::::::{name}:\nsub:-:\nfpr:::::::::{name}SUB:\n" for name in fingerprints)


def test_llvms_repository_is_known_by_its_one_key_and_goes_through_the_mirror(llvm: Path) -> None:
    (llvm / "keys").write_text(keys(KEY))
    done = run(llvm, "llvm.sh", "https://apt.llvm.org", "llvm-toolchain-bookworm-18", "https://k", KEY)
    assert done.returncode == 0, done.stderr
    assert (llvm / "asked").read_text() == f"{MIRROR}/k\n"
    signed, suite = f"deb [signed-by={llvm}/etc/apt/keyrings/llvm.asc]", "bookworm/ llvm-toolchain-bookworm-18 main\n"
    assert (llvm / "etc/apt/sources.list.d/llvm.list").read_text() == f"{signed} https://apt.llvm.org/{suite}"
    assert (llvm / "mnt/sources/llvm.list").read_text() == f"{signed} {MIRROR}/apt.llvm.org/{suite}"
    assert (llvm / "etc/apt/keyrings/llvm.asc").read_text() == "key\n"
    assert (llvm / "apt").read_text().splitlines()[-1] == "update"


def test_a_companys_certificates_replace_none_where_the_systems_come_with_curl(llvm: Path) -> None:
    files(llvm, {"keys": keys(KEY), "mnt/ca": "company\n"})
    certificates = "mkdir -p ROOT/etc/ssl/certs; echo system > ROOT/etc/ssl/certs/ca-certificates.crt"
    program(llvm, "apt-get", f'[ "$1" = update ] || {{ {certificates}; }}')
    program(llvm, "curl", 'cp "$CURL_CA_BUNDLE" ROOT/trusted; while [ "$1" != --output ]; do shift; done; echo > "$2"')
    done = run(llvm, "llvm.sh", "https://apt.llvm.org", "llvm-toolchain-bookworm-18", "https://k", KEY)
    assert done.returncode == 0, done.stderr
    assert (llvm / "trusted").read_text() == "system\ncompany\n"


# The last one has LLVM's key as a part of another.
HELD = ("", keys(OTHER), keys(KEY, OTHER), keys(f"{KEY}0"), keys(OTHER).replace(f"{OTHER}SUB", KEY))


@pytest.mark.parametrize("held", HELD)
def test_any_other_key_is_refused(held: str, llvm: Path) -> None:
    (llvm / "keys").write_text(held)
    done = run(llvm, "llvm.sh", "https://apt.llvm.org", "llvm-toolchain-bookworm-18", "https://k", KEY)
    assert done.returncode == 1
    assert done.stderr.endswith(f"{MIRROR}/k holds not the key {KEY} alone, by which LLVM signs its packages\n")
    assert not (llvm / "etc/apt/keyrings").exists()
    assert not (llvm / "etc/apt/sources.list.d/llvm.list").exists()


# --- network.sh -------------------------------------------------------------------------------------------------------

WATCHED = (
    "SSL_CERT_FILE", "GIT_SSL_CAINFO", "PIP_CERT", "APT_CONFIG", "PIP_INDEX_URL", "PIP_TRUSTED_HOST",
    # One that is set and empty would keep git from ALL_PROXY, and apt's https from http_proxy.
    "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip


def networked(root: Path, **env: str) -> dict[str, str]:
    """Source network.sh, and return the URL that `from` makes of one, and the variables that are set."""
    command = [DASH, "-euc", f"{below(root, 'network.sh')}\necho from=$(from https://example.org/x/y)\nenv"]
    output = subprocess.check_output(command, env={"PATH": os.environ["PATH"], **env}, text=True)
    values = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    return {name: value.replace(str(root), "") for name, value in values.items() if name in ("from", *WATCHED)}


def test_without_secrets_all_is_asked_for_where_it_is(tmp_path: Path) -> None:
    assert networked(tmp_path) == {"from": "https://example.org/x/y", "APT_CONFIG": "/mnt/apt.conf"}
    (made,) = (tmp_path / "mnt").iterdir()
    assert (made.name, made.read_text()) == ("apt.conf", 'APT::Update::Error-Mode "any";\n')


@pytest.mark.parametrize("system", [None, "", "system\n"])
def test_a_companys_certificates_come_beside_the_systems(system: str | None, tmp_path: Path) -> None:
    files(tmp_path, {"mnt/ca": "company\n"})
    if system is not None:
        files(tmp_path, {"etc/ssl/certs/ca-certificates.crt": system})
    values = networked(tmp_path)
    assert (tmp_path / "mnt/bundle.pem").read_text() == f"{system or ''}company\n"
    assert {values[name] for name in ("SSL_CERT_FILE", "GIT_SSL_CAINFO", "PIP_CERT")} == {"/mnt/bundle.pem"}
    assert values["APT_CONFIG"] == "/mnt/apt.conf"
    assert f'CAInfo "{tmp_path}/mnt/bundle.pem";' in (tmp_path / "mnt/apt.conf").read_text()
    assert (tmp_path / "mnt/bundle.pem").stat().st_mode & 0o777 == 0o644


def test_a_companys_certificates_come_beside_those_of_fedora_and_rhel(tmp_path: Path) -> None:
    """Where --no-container compiles, too."""
    files(tmp_path, {"mnt/ca": "company\n", "etc/pki/tls/certs/ca-bundle.crt": "system\n"})
    networked(tmp_path)
    assert (tmp_path / "mnt/bundle.pem").read_text() == "system\ncompany\n"


@pytest.mark.parametrize(
    ("secret", "more"),
    [("https://m.example.org\n", {}), ("http://m.example.org:8\n", {"PIP_TRUSTED_HOST": "m.example.org:8"})],
)
def test_all_is_asked_for_at_the_mirror(secret: str, more: dict[str, str], tmp_path: Path) -> None:
    lists = {
        "etc/apt/sources.list": "deb https://deb.debian.org/x y\n",
        "etc/apt/sources.list.d/a.list": "deb http://z\n",
    }
    files(tmp_path, {"mnt/mirror": secret, **lists})
    mirror = secret.split()[0]
    assert networked(tmp_path, NO_PROXY="old") == {
        "from": f"{mirror}/example.org/x/y",
        "PIP_INDEX_URL": f"{mirror}/pypi.org/simple",
        "APT_CONFIG": "/mnt/apt.conf",
        "no_proxy": "old",
        **more,
    }
    assert (tmp_path / "mnt/sources/sources.list").read_text() == f"deb {mirror}/deb.debian.org/x y\n"
    assert (tmp_path / "mnt/sources/a.list").read_text() == f"deb {mirror}/z\n"
    assert (tmp_path / "mnt/mirror.downloads").read_text() == f"rewrite (.*) {mirror}/$1\n"
    # As rules_python runs it for the packages of a tree from 2.14 on: such a pip reads no variable but this one.
    command = [sys.executable, "-m", "pip", "--isolated", "config", "list"]
    env = {"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": str(tmp_path / "mnt/pip.conf")}
    lines = subprocess.check_output(command, env=env, text=True).splitlines()
    assert f"global.index-url='{mirror}/pypi.org/simple'" in lines
    assert ("global.trusted-host='m.example.org:8'" in lines) == bool(more)
