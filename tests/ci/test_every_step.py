"""Steps of the workflows that publish, audit and fuzz, which need no engine."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import checkout
from tests.ci.steps import ROOT, Github, gitlab, locks
from tests.commandline import executable
from tests.publish import wheels
from tfbuild import __version__

pytestmark = pytest.mark.slow

TAG = f"v{__version__}"


def program(path: Path, script: str = "") -> None:
    """A program that notes its words, and the credentials that it was given."""
    executable(path, f'echo "$(basename "$0") $* ${{GH_TOKEN:-}}" >> words\n{script}')


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return checkout.runnable(
        tmp_path / "checkout", "tfbuild/", "ci/", "docs/", "pyproject.toml", "CHANGELOG.md", "pull.sh"
    )


def runner(copy: Path, **env: str) -> Github:
    values = {"github.token": "secret", "github.server_url": "https://github.com", "github.repository": "us/tfbuild"}
    return Github(checkout=copy, temp=copy.parent / "temp", values=values, env=env)


def test_a_compile_gets_the_room_of_software_that_nothing_here_uses(copy: Path) -> None:
    program(copy.parent / "bin/sudo")
    path = f"{copy.parent / 'bin'}:{os.environ['PATH']}"
    assert runner(copy, PATH=path).run("image.yml", "Make room for a compile").code == 0
    sudo, rm, options, *removed = (copy / "words").read_text().split()
    assert (sudo, rm, options) == ("sudo", "rm", "-rf")
    assert removed
    needed = (".venv", "/usr/bin", "/usr/lib/docker", "/usr/local/bin", str(copy))
    assert not [one for one in needed for gone in removed if Path(one).is_relative_to(gone)]


def test_a_release_has_its_version_its_notes_and_what_is_attested(copy: Path) -> None:
    """And the script that pulls, which the manual fetches by this version."""
    for name in ("bin/gh", "temp/publish/bin/pypi-attestations", "temp/publish/bin/uv"):
        program(copy.parent / name, "touch dist/x.whl.publish.attestation" if "attest" in name else "")
    for name in ("x.whl", "x.tar.gz"):
        (copy / "dist").mkdir(exist_ok=True)
        (copy / "dist" / name).touch()
    changes = copy / "CHANGELOG.md"
    text = changes.read_text(encoding="utf-8")
    changes.write_text(f"{text}\n## [0.0.9] - 2026-01-01\n\nOlder.\n")
    machine = runner(copy, GITHUB_REF_NAME=TAG, PATH=f"{copy.parent / 'bin'}:{os.environ['PATH']}")
    steps = ("Compare the tag with the version", "Notes", "Release", "Attest for PyPI, and publish")
    done = {name: machine.run("release.yml", name) for name in steps}
    assert {one.code for one in done.values()} == {0}, done
    notes = copy.parent / "temp" / "notes.md"
    assert notes.read_text().strip() == text.partition(f"## [{__version__}]")[2].partition("\n")[2].strip()
    assert [line.split() for line in (copy / "words").read_text().splitlines()] == [
        ["gh", "release", "create", TAG, "--verify-tag", "--title", TAG, "--notes-file", str(notes), "pull.sh",
         "dist/x.tar.gz", "dist/x.whl", "secret"],
        ["pypi-attestations", "sign", "dist/x.tar.gz", "dist/x.whl"],
        ["uv", "publish", "--trusted-publishing", "always", "dist/x.tar.gz", "dist/x.whl",
         "dist/x.whl.publish.attestation"],
    ]  # fmt: skip
    changes.write_text(text.replace(f"## [{__version__}]", "## [0.0.9]"))
    assert f"CHANGELOG.md has no section [{__version__}]" in machine.run("release.yml", "Notes").stderr
    done_ = runner(copy, GITHUB_REF_NAME="v99.0").run("release.yml", steps[0])
    assert (done_.code, "::error::" in done_.stdout) == (1, True)
    named = r"raw\.githubusercontent\.com/us/tfbuild/([^/]+)/pull\.sh|(?:uses: |github\.com/)us/tfbuild(?:/pull)?@(\S+)"
    for path in ("pull.sh", "docs/publishing.md", "docs/ci.md"):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert {"".join(groups) for groups in re.findall(named, text)} == {TAG}, path


def test_a_repository_has_no_capital_letters_where_images_are_named(copy: Path) -> None:
    done = runner(copy, GITHUB_REPOSITORY="Us/TFBuild").run("action.yml", "Repository")
    assert (done.code, done.outputs) == (0, {"name": "us/tfbuild"})


@pytest.mark.parametrize(
    ("repository", "site", "url"),
    [
        ("Us/TF", "", "https://us.github.io/TF"),
        ("Us/Us.github.io", "", "https://us.github.io"),
        ("Us/TF", "https://x.example/", "https://x.example"),
    ],
)
def test_the_wheels_of_another_run_become_an_index(repository: str, site: str, url: str, tmp_path: Path) -> None:
    for level in ("avx", "x86-64-v4"):
        wheels.wheel(tmp_path / "temp" / "wheels" / f"wheel-{level}", level)
    values = {"inputs.options": "--name tensorflow --local-version", "vars.TFBUILD_WHEELS_URL": site}
    env = {"GITHUB_REPOSITORY": repository}
    done = Github(checkout=ROOT, temp=tmp_path / "temp", values=values, env=env).run("wheels.yml", "Index")
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [f"{url}/avx/simple/", f"{url}/x86-64-v4/simple/"]
    assert "Settings > Pages" in done.summary
    assert list((tmp_path / "temp" / "public").glob("pool/*/tensorflow-2.14.0+tfbuild.x86.64.v4-*.whl"))


@pytest.mark.parametrize("ci", ["GitHub", "GitLab"])
@pytest.mark.parametrize("vulnerable", ["", "requirements.lock", "ci/audit.txt"])
def test_every_lock_file_is_audited_and_a_vulnerability_fails_the_job(ci: str, vulnerable: str, copy: Path) -> None:
    """By a pip-audit that notes its words; Python is needed only to install one."""
    program(copy / "pip-audit", f'case "$*" in *" {vulnerable}") exit 1 ;; esac' if vulnerable else "")
    env = {"PIP_AUDIT": str(copy / "pip-audit"), "PYTHON": "/bin/false"}
    if ci == "GitHub":
        code = runner(copy, **env).run("nightly.yml", "Audit").code
    else:
        code = gitlab("audit", copy, env).returncode
    assert code == bool(vulnerable)
    runs = [line.split() for line in (copy / "words").read_text().splitlines()]
    assert sorted(words[-1] for words in runs) == locks(), "all of them, whichever fails"
    # Without --strict, what cannot be looked up passes.
    assert [words for words in runs if not {"--strict", "--require-hashes", "--disable-pip"} < {*words}] == []


# --- what installs from PyPI ------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_manual_and_the_package_are_built_and_the_programs_that_publish_take_these_options(copy: Path) -> None:
    whole = checkout.copy(copy.parent / "whole")
    machine = runner(whole)

    def run(workflow: str, *names: str) -> None:
        for name in names:
            done = machine.run(workflow, name)
            assert done.code == 0, (workflow, name, done.stderr)

    run("docs.yml", "Install", "Build")
    assert (whole / "site" / "publishing" / "index.html").is_file()
    run("release.yml", "Install", "Build")
    shutil.copytree(whole / "dist", machine.temp / "package")
    run("release.yml", "Try")
    for options in ("pypi-attestations sign --help", "uv publish --trusted-publishing always --help"):
        command, *words = options.split()
        subprocess.run([machine.temp / "publish" / "bin" / command, *words], check=True, capture_output=True)
