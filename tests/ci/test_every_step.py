"""Every `run:` step of the workflows runs in some test; here those that need no engine."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import checkout
from tests.ci.steps import GITHUB, ROOT, Github, gitlab, read
from tests.publish import wheels
from tests.servers import Handler, serving
from tfbuild import __version__

pytestmark = pytest.mark.slow

TAG = f"v{__version__}"
# Whole test runs and the soak, which ci/debian.sh starts, and one command of tfbuild: `push --indexes` for each index.
WHOLE = {("test.yml", "Test"), ("nightly.yml", "Test"), ("nightly.yml", "Soak"), ("images.yml", "Indexes")}


def test_every_step_of_every_workflow_runs_in_a_test() -> None:
    """By the calls in the tests; `site.run(NAME)` is a step of image.yml, and steps of one text are one."""
    tests = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py")))
    called = set(re.findall(r'run\(\s*"([\w-]+\.yml)", "([^"]+)"(?:, job="(\w+)")?', tests))
    called |= {("image.yml", name, "") for name in re.findall(r'site\.run\("([^"]+)"', tests)}
    every = [
        (path.name, step["name"], job, step["run"])
        for path in sorted(GITHUB.glob("*.yml"))
        for job, content in read(path)["jobs"].items()
        for step in content.get("steps", ())
        if "run" in step
    ]
    ran = {text for file, name, job, text in every if {(file, name, ""), (file, name, job)} & called}
    assert {(file, name) for file, name, _, text in every if text not in ran} == WHOLE


def program(folder: Path, name: str) -> None:
    """A program that notes its words, and the credentials that it was given."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\necho "$(basename "$0") $* ${GH_TOKEN:-}" >> words\n')
    path.chmod(0o755)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return checkout.runnable(
        tmp_path / "checkout", "tfbuild/", "ci/", "docs/", "pyproject.toml", "CHANGELOG.md", "pull.sh"
    )


def runner(copy: Path, **env: str) -> Github:
    values = {"github.token": "secret", "github.server_url": "https://github.com", "github.repository": "us/tfbuild"}
    return Github(checkout=copy, temp=copy.parent / "temp", values=values, env=env)


@pytest.mark.parametrize(("tag", "code"), [(TAG, 0), ("v99.0", 1)])
def test_a_release_has_the_version_as_its_tag(tag: str, code: int, copy: Path) -> None:
    done = runner(copy, GITHUB_REF_NAME=tag).run("release.yml", "Compare the tag with the version")
    assert done.code == code, done.stderr
    assert ("::error::" in done.stdout) == bool(code)


def test_a_compile_gets_the_room_of_software_that_nothing_here_uses(copy: Path) -> None:
    program(copy.parent / "bin", "sudo")
    path = f"{copy.parent / 'bin'}:{os.environ['PATH']}"
    assert runner(copy, PATH=path).run("image.yml", "Make room for a compile").code == 0
    words = (copy / "words").read_text().split()
    assert words[:3] == ["sudo", "rm", "-rf"]
    needed = (".venv", "/usr/bin", "/usr/lib/docker", "/usr/local/bin", str(copy))
    assert not [one for one in needed for gone in words[3:] if Path(one).is_relative_to(gone)]


@pytest.mark.parametrize("path", ["pull.sh", "docs/publishing.md"])
def test_the_script_that_pulls_is_fetched_by_this_version(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert set(re.findall(r"raw\.githubusercontent\.com/us/tfbuild/([^/]+)/pull\.sh", text)) == {TAG}


def test_a_release_has_its_section_of_the_changelog(copy: Path) -> None:
    changes = copy / "CHANGELOG.md"
    text = changes.read_text(encoding="utf-8")
    machine = runner(copy, GITHUB_REF_NAME=TAG)
    changes.write_text(text.replace(f"## [{__version__}]", "## [0.0.9]"))
    done = machine.run("release.yml", "Notes")
    assert (done.code, done.stdout) == (1, "")
    assert f"CHANGELOG.md has no section [{__version__}]" in done.stderr
    changes.write_text(f"{text}\n## [0.0.9] - 2026-01-01\n\nOlder.\n")
    done = machine.run("release.yml", "Notes")
    assert done.code == 0
    assert done.stdout.strip() == text.partition(f"## [{__version__}]")[2].partition("\n")[2].strip()


def test_a_release_on_github_has_the_script_that_pulls(copy: Path) -> None:
    program(copy.parent / "bin", "gh")
    (copy / "dist").mkdir()
    (copy / "dist" / "x.whl").touch()
    path = f"{copy.parent / 'bin'}:{os.environ['PATH']}"
    done = runner(copy, GITHUB_REF_NAME=TAG, PATH=path).run("release.yml", "Release")
    assert done.code == 0, done.stderr
    notes = copy.parent / "temp" / "notes.md"
    words = f"release create {TAG} --verify-tag --title {TAG} --notes-file {notes} pull.sh dist/x.whl secret"
    assert (copy / "words").read_text() == f"gh {words}\n"
    assert notes.read_text().strip() in (copy / "CHANGELOG.md").read_text(encoding="utf-8")


def test_what_is_attested_for_pypi_is_what_is_published(copy: Path) -> None:
    for name in ("pypi-attestations", "uv"):
        program(copy.parent / "temp" / "publish" / "bin", name)
    (copy / "dist").mkdir()
    for name in ("x.whl", "x.tar.gz"):
        (copy / "dist" / name).touch()
    done = runner(copy).run("release.yml", "Attest for PyPI, and publish")
    assert done.code == 0, done.stderr
    signed, published = (copy / "words").read_text().splitlines()
    assert signed.split() == ["pypi-attestations", "sign", "dist/x.tar.gz", "dist/x.whl"]
    assert published.split() == ["uv", "publish", "--trusted-publishing", "always", "dist/x.tar.gz", "dist/x.whl"]


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
    assert list((tmp_path / "temp" / "public").glob("pool/*/tensorflow-2.14.0+tfbuild.x86.64.v4-*.whl"))


def test_the_only_artifact_of_a_run_is_not_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """As download-artifact has it from version 5 on."""
    wheels.wheel(tmp_path / "temp" / "wheels")
    values = {"inputs.options": "", "vars.TFBUILD_WHEELS_URL": ""}
    env = {"GITHUB_REPOSITORY": "Us/TF"}
    done = Github(checkout=ROOT, temp=tmp_path / "temp", values=values, env=env).run("wheels.yml", "Index")
    assert (done.code, done.stdout) == (0, "https://us.github.io/TF/avx/simple/\n"), done.stderr


def locks() -> list[str]:
    """The files of this repository that pin packages by hash."""
    outside = (":!tests", ":!*.py")
    command = ["git", "grep", "--untracked", "--name-only", "--fixed-strings", "    --hash=sha256:", "--", *outside]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("ci", ["GitHub", "GitLab"])
@pytest.mark.parametrize("vulnerable", ["", "requirements.lock", "ci/audit.txt"])
def test_every_lock_file_is_audited_and_a_vulnerability_fails_the_job(ci: str, vulnerable: str, copy: Path) -> None:
    """By a pip-audit that notes its words; Python is needed only to install one."""
    program(copy, "pip-audit")
    with (copy / "pip-audit").open("a") as script:
        script.write(f'case "$*" in *" {vulnerable}") exit 1 ;; esac\n' if vulnerable else "")
    env = {"PIP_AUDIT": str(copy / "pip-audit"), "PYTHON": "/bin/false"}
    if ci == "GitHub":
        code = runner(copy, **env).run("nightly.yml", "Audit").code
    else:
        code = gitlab("audit", copy, env).returncode
    assert code == bool(vulnerable)
    runs = [line.split() for line in (copy / "words").read_text().splitlines()]
    assert sorted(words[-1] for words in runs) == locks(), "all of them, whichever fails"
    # Without --strict, what cannot be looked up passes.
    assert all({"--strict", "--require-hashes", "--disable-pip"} < {*words} for words in runs)


@pytest.mark.parametrize("code", [0, 1])
def test_an_input_that_a_parser_cannot_take_fails_the_job(code: int, copy: Path) -> None:
    program(copy, "python")
    with (copy / "python").open("a") as script:
        script.write(f"exit {code}\n")
    env = {"FUZZ": str(copy / "python"), "PYTHON": "/bin/false"}
    assert runner(copy, **env).run("nightly.yml", "Fuzz").code == code
    assert (copy / "words").read_text().strip() == "python -m benchmarks.fuzz --seconds 60"


def test_a_repository_has_no_capital_letters_where_images_are_named(copy: Path) -> None:
    done = runner(copy, GITHUB_REPOSITORY="Us/TFBuild").run("action.yml", "Repository")
    assert (done.code, done.outputs) == (0, {"name": "us/tfbuild"})


# --- what installs from PyPI ------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_manual_builds(copy: Path) -> None:
    whole = checkout.copy(copy.parent / "whole")
    machine = runner(whole)
    for done in (machine.run("docs.yml", "Install"), machine.run("docs.yml", "Build")):
        assert done.code == 0, done.stderr
    assert (machine.temp / "site" / "publishing" / "index.html").is_file()


@pytest.mark.nightly
def test_the_programs_that_publish_are_installed_and_take_these_options(copy: Path) -> None:
    machine = runner(copy)
    done = machine.run("release.yml", "Install")
    assert done.code == 0, done.stderr
    programs = machine.temp / "publish" / "bin"
    for command in (
        ["pypi-attestations", "sign", "--help"],
        ["uv", "publish", "--trusted-publishing", "always", "--help"],
    ):
        subprocess.run([programs / command[0], *command[1:]], check=True, capture_output=True)


@pytest.mark.nightly
def test_the_package_is_built_and_tried(copy: Path) -> None:
    whole = checkout.copy(copy.parent / "whole")
    machine = runner(whole)
    done = machine.run("package.yml", "Build")
    assert done.code == 0, done.stderr
    assert machine.run("release.yml", "Build").code == 0
    assert machine.run("release.yml", "Try").code == 0
    (machine.temp / "package").mkdir()
    for wheel in (whole / "dist").glob("*.whl"):
        shutil.copy(wheel, machine.temp / "package")
    done = machine.run("package.yml", "Try")
    assert done.code == 0, done.stderr


ADVISORY = {
    "id": "PYSEC-2026-1",
    "summary": "made up",
    "published": "2026-01-01T00:00:00Z",
    "affected": [
        {
            "package": {"name": "jinja2", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.0"}]}],
        }
    ],
}


class Advisories(Handler):
    """OSV's answers: nothing is known of any package but one."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = {"vulns": [ADVISORY]} if asked["package"]["name"] == "jinja2" else {}
        self.say(200, json.dumps(found).encode())


@pytest.mark.nightly
def test_pip_audit_is_installed_and_finds_a_vulnerability_of_a_locked_package(tmp_path: Path) -> None:
    """Of another database than PyPI's, in which the next vulnerability may stand at any time."""
    whole = checkout.copy(tmp_path / "whole")
    with serving(Advisories) as host:
        env = {**os.environ, "PIP_AUDIT_VULNERABILITY_SERVICE": "osv", "PIP_AUDIT_OSV_URL": f"http://{host}/"}
        for ignored, code in ([], 1), (["--ignore-vuln", "PYSEC-2026-1"], 0):
            done = subprocess.run(
                [whole / "ci" / "audit.sh", *ignored], env=env, capture_output=True, text=True, check=False
            )
            assert done.returncode == code, done.stderr
            assert ("PYSEC-2026-1 99.0" in done.stdout) == (code == 1)


@pytest.mark.nightly
def test_the_fuzzer_is_installed_and_feeds_a_parser(tmp_path: Path) -> None:
    whole = checkout.copy(tmp_path / "whole")
    done = subprocess.run(
        [whole / "ci" / "fuzz.sh", "names", "--seconds", "2"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    inputs = re.fullmatch(r"names: ([\d,]+) inputs in \d s, 0 that it cannot take\n", done.stdout)
    assert inputs, done.stdout
    assert int(inputs[1].replace(",", "")) > 100
