"""This repository's CI: its files are valid and free of findings, and its steps run unchanged."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import checkout, schemas
from tests.ci.steps import ACTION, EXPRESSION, GITHUB, PULL, ROOT, Done, Github, read, scripts
from tests.commandline import invoke
from tests.facts import newest

WORKFLOWS = sorted(GITHUB.glob("*.yml"))


def run(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **env}, timeout=120
    )


def tool(name: str) -> Path:
    return Path(sys.executable).with_name(name)


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION, PULL], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_workflows_and_actions_match_githubs_schema(path: Path) -> None:
    kind = "github-workflows" if path in WORKFLOWS else "github-actions"
    schemas.library().validate(read(path), schemas.vendored(kind))


def test_the_pipeline_matches_gitlabs_schema(tmp_path: Path) -> None:
    rows = tmp_path / "rows.yml"
    rows.write_text(invoke("matrix", "--format", "gitlab").stdout)
    for path in (ROOT / ".gitlab-ci.yml", rows):
        schemas.library().validate(read(path), schemas.vendored("gitlab-ci"))
    assert read(rows)["build"]["extends"] in read(ROOT / ".gitlab-ci.yml")


def test_workflows_have_no_security_findings() -> None:
    done = run(tool("zizmor"), "--offline", "--no-progress", ROOT / ".github" / "workflows", ACTION, PULL)
    assert done.returncode == 0, done.stdout


def test_only_the_repository_that_its_variable_names_publishes() -> None:
    """Every job that may write to a registry or a release, or that those need."""
    guard = "vars.TFBUILD_PUBLISH == github.repository"
    for path in WORKFLOWS:
        jobs = read(path)["jobs"]
        writing = {
            name
            for name, job in jobs.items()
            if any(value == "write" for value in job.get("permissions", {}).values())
            and "workflow_call" not in read(path)["on"]
        }
        for name in writing:
            chain = [name]
            while needed := jobs[chain[-1]].get("needs"):
                chain.append(needed if isinstance(needed, str) else needed[0])
            assert any(jobs[one].get("if") == guard for one in chain), (path.name, name)
    rules = [job["rules"][0]["if"] for job in (read(ROOT / ".gitlab-ci.yml")[name] for name in ("rows", "images"))]
    assert all(rule.startswith("$TFBUILD_PUBLISH == $CI_PROJECT_PATH && (") for rule in rules)


def test_every_step_and_script_is_clean_shell(tmp_path: Path) -> None:
    paths = []
    for name, text in scripts():
        assert "${{" not in text, name  # values come from the environment, where they cannot become commands
        paths.append(tmp_path / f"{name}.sh")
        paths[-1].write_text(f"#!/bin/bash -e\n{text}\n")
    assert len(paths) > 20
    installer = ROOT / "templates" / "index" / "install.sh"
    paths += [*(ROOT / "ci").glob("*.sh"), ROOT / "install.sh", ROOT / "pull.sh", installer, ROOT / ".ci" / "run"]
    done = run(tool("shellcheck"), *paths)
    assert done.returncode == 0, done.stdout


# --- expressions ------------------------------------------------------------------------------------------------------

# What GitHub itself gives a value to (github, runner) is left out.
NAME = re.compile(r"\b(?:needs|steps|inputs|secrets|vars|matrix)\.[\w.-]+")


def expressions(part: object) -> Iterator[str]:
    """Every expression in a part of a workflow; an `if` is one without braces."""
    if isinstance(part, dict):
        for key, value in part.items():
            yield from [str(value)] if key == "if" else expressions(value)
    elif isinstance(part, list):
        for value in part:
            yield from expressions(value)
    elif isinstance(part, str):
        yield from (match[1] for match in EXPRESSION.finditer(part))


OWN = {"./": ACTION, "./pull": PULL}


def known(workflow: dict[str, Any], job: dict[str, Any]) -> set[str]:
    """The names that expressions in this job can use."""
    triggers = workflow["on"]
    given = [trigger or {} for trigger in triggers.values() if not isinstance(trigger, list)]
    names = {f"inputs.{name}" for trigger in given for name in trigger.get("inputs", ())}
    names |= {f"secrets.{name}" for trigger in given for name in trigger.get("secrets", ())}
    for step in job.get("steps", ()):
        written = [line for line in step.get("run", "").splitlines() if "GITHUB_OUTPUT" in line]
        outputs = [name for line in written for name in re.findall(r"\b(\w+)=", line)]
        outputs += read(OWN[step["uses"]])["outputs"] if step.get("uses") in OWN else []
        outputs += ["cache-matched-key"] if step.get("uses", "").startswith("actions/cache/restore@") else []
        names |= {f"steps.{step['id']}.outputs.{output}" for output in outputs if "id" in step}
        names |= {f"steps.{step['id']}.outcome"} if "id" in step else set()
    needed = job.get("needs", [])
    for name in [needed] if isinstance(needed, str) else needed:
        outputs = workflow["jobs"][name].get("outputs", ())
        names |= {f"needs.{name}.result", *(f"needs.{name}.outputs.{output}" for output in outputs)}
    return names


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_expression_has_a_value_and_every_setting_is_documented(path: Path) -> None:
    workflow = read(path)
    row = json.loads(invoke("matrix", "--format", "github", "--only", newest.official()).stdout)["include"][0]
    documented = set(re.findall(r"TFBUILD_\w+", (ROOT / "docs" / "ci.md").read_text()))
    given = {f"matrix.{name}" for name in row} | {
        f"{kind}.{name}" for kind in ("vars", "secrets") for name in documented
    }
    for job in workflow["jobs"].values():
        used = {name for text in expressions(job) for name in NAME.findall(text)}
        assert used <= given | known(workflow, job)


def test_each_link_calls_with_what_the_workflow_takes() -> None:
    taken = read(GITHUB / "image.yml")
    call = taken["on"]["workflow_call"]
    links = [job for job in read(GITHUB / "images.yml")["jobs"].values() if "uses" in job]
    assert [job["with"]["link"] for job in links] == ["first", "second", "last"]
    for job in links:
        assert set(job["with"]) == set(call["inputs"])
        assert set(job["secrets"]) <= set(call["secrets"])


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def runner(tmp_path: Path) -> Callable[..., Github]:
    def make(checkout: Path, values: Mapping[str, str], **env: str) -> Github:
        return Github(checkout=checkout, temp=tmp_path / "temp", values=values, env=env)

    return make


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout.runnable(
        tmp_path_factory.mktemp("formats") / "checkout", "tfbuild/", "templates/", "tasks.py", "tools/", "ci/"
    )


@pytest.mark.slow
def test_the_step_that_makes_the_rows_shows_those_without_a_runner(runner: Callable[..., Github], copy: Path) -> None:
    machine = runner(copy, {"inputs.only || '*'": "*", "vars.TFBUILD_RUNNERS": "official:linux/arm64=arm"})
    done = machine.run("images.yml", "Rows")
    assert done.code == 0, done.stderr
    rows = json.loads((machine.temp / "rows").read_text())["include"]
    assert {(row["wheel"], row["platform"], row["runner"]) for row in rows} == {
        ("official", "linux/amd64", "ubuntu-24.04"),
        ("source", "linux/amd64", "ubuntu-24.04"),
        ("official", "linux/arm64", "arm"),
    }
    assert "::warning::12 rows left out: no linux/arm64 runner hosted by github" in done.stdout
    assert done.summary.startswith("## Rows\n\n- ")


@pytest.mark.slow
def test_the_step_that_makes_the_rows_fails_if_the_verb_does(runner: Callable[..., Github], copy: Path) -> None:
    done = runner(copy, {"inputs.only || '*'": "no-such-row", "vars.TFBUILD_RUNNERS": ""}).run("images.yml", "Rows")
    assert (done.code, done.outputs) == (2, {})
    assert "matches none of" in done.stdout


STATE = """#!/bin/sh
echo "$TFBUILD_REGISTRY $TFBUILD_BUILD_OPTIONS" >> asked
case $1 in a) echo published ;; b) echo yanked ;; c) echo "replace --no-cache" ;; d) exit 26 ;; *) echo build ;; esac
"""


def todo(runner: Callable[..., Github], copy: Path, names: str) -> Done:
    (copy / "ci" / "state.sh").write_text(STATE)
    values = {"vars.TFBUILD_BUILD_OPTIONS": "--base our:1", "vars.TFBUILD_SIGNED": ""}
    machine = runner(copy, values, GITHUB_REPOSITORY="Us/TfBuild")
    machine.temp.mkdir(exist_ok=True)
    rows = {"include": [{"id": name, "options": "--target cpu", "runner": "x"} for name in names]}
    (machine.temp / "rows").write_text(json.dumps(rows))
    done = machine.run("images.yml", "Rows with something to do")
    assert done.code == 0, done.stderr
    return done


def test_rows_that_need_nothing_start_no_machine(runner: Callable[..., Github], copy: Path) -> None:
    done = todo(runner, copy, "abcde")
    # One whose state is not known stays: its own job shows the error.
    assert [row["id"] for row in json.loads(done.outputs["rows"])["include"]] == ["c", "d", "e"]
    assert "d: exit code 26" in done.stderr
    assert set((copy / "asked").read_text().splitlines()) == {"ghcr.io/us/tfbuild --base our:1"}
    assert todo(runner, copy, "ab").outputs == {"rows": ""}
    assert read(GITHUB / "images.yml")["jobs"]["first"]["if"] == "needs.matrix.outputs.rows != ''"


@pytest.mark.parametrize(("names", "left"), [("ae", ["e"]), ("ab", None)])
def test_gitlabs_pipeline_has_the_rows_that_need_something(names: str, left: list[str] | None, copy: Path) -> None:
    (copy / "ci" / "state.sh").write_text(STATE)
    rows = [{"TFBUILD_ID": name, "TFBUILD_OPTIONS": "", "TFBUILD_RUNNER": "x"} for name in names]
    pipeline = {"include": [], "build": {"extends": ".tfbuild", "parallel": {"matrix": rows}}}
    done = subprocess.run(
        [sys.executable, copy / "ci" / "todo.py"], input=json.dumps(pipeline), cwd=copy, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    if left is None:
        assert [job["script"] for job in answer.values()] == [["echo nothing to build"]]
    else:
        assert [row["TFBUILD_ID"] for row in answer["build"]["parallel"]["matrix"]] == left


@pytest.mark.parametrize(("link", "before"), [("first", "matrix"), ("second", "after-first")])
@pytest.mark.parametrize("unfinished", [("c", "b-1.0"), (), None])
def test_the_next_link_has_the_unfinished_rows(
    link: str, before: str, unfinished: tuple[str, ...] | None, runner: Callable[..., Github], copy: Path
) -> None:
    """Without a folder, too: download-artifact creates none if no artifact matches."""
    rows = {"include": [{"id": name, "runner": "x"} for name in ("a", "b-1.0", "c")]}
    machine = runner(copy, {f"needs.{before}.outputs.rows": json.dumps(rows)})
    for name in unfinished or ():
        (machine.temp / "unfinished").mkdir(parents=True, exist_ok=True)
        (machine.temp / "unfinished" / name).touch()
    if unfinished == ():
        (machine.temp / "unfinished").mkdir(parents=True)
    done = machine.run("images.yml", "Rest", job=f"after-{link}")
    assert done.code == 0, done.stderr
    left = json.loads(done.outputs["rows"])["include"] if done.outputs["rows"] else []
    assert [row["id"] for row in left] == sorted(unfinished or ())


ROW = {
    "matrix.id": "x", "matrix.options": "--wheel official", "inputs.link": "first",
    "secrets.remote-headers": "", "vars.TFBUILD_REMOTE_CACHE": "", "vars.TFBUILD_BUILD_OPTIONS": "",
    "vars.TFBUILD_PUSH_OPTIONS": "", "vars.TFBUILD_SIGNED": "",
}  # fmt: skip


def scripted(folder: Path, text: str) -> Path:
    """A checkout whose ci/image.sh has this text."""
    script = folder / "row" / "ci" / "image.sh"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return script.parent.parent


def test_the_digest_of_what_was_pushed_is_attested(runner: Callable[..., Github], tmp_path: Path) -> None:
    """In a repository with capitals, too, whose images have a name in lower case."""
    digest = f"sha256:{64 * 'a'}"
    folder = scripted(tmp_path, f'[ "$*" = "x --wheel official" ] && echo "$TFBUILD_REGISTRY:$1@{digest}"')
    done = runner(folder, ROW, GITHUB_REPOSITORY="Us/TfBuild").run("image.yml", "Build, verify and publish")
    assert (done.code, done.outputs) == (0, {"name": "ghcr.io/us/tfbuild", "digest": digest})
    (attested,) = [
        step
        for step in read(GITHUB / "image.yml")["jobs"]["image"]["steps"]
        if "attest-build-provenance" in step.get("uses", "")
    ]
    assert attested["with"] == {
        "subject-name": "${{ steps.image.outputs.name }}",
        "subject-digest": "${{ steps.image.outputs.digest }}",
        "push-to-registry": True,
    }
    assert attested["if"].startswith("steps.image.outputs.digest != ''")


def test_an_image_without_a_layer_is_built_again_for_the_reason_that_the_push_gives(tmp_path: Path) -> None:
    """`verify` and `push --indexes` exit with 30 for it, as they do for one without attestations."""
    program = tmp_path / "invoke"
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        """*--dry-run*) echo '"context_digest": "sha256:x"' ;;\n"""
        "verify*) exit 30 ;;\n"
        "*--indexes*) echo 'its layer is missing in the registry' >&2; exit 30 ;;\n"
        '*) echo "$*" >&2 ;;\n'
        "esac\n"
    )
    program.chmod(0o755)
    done = run(ROOT / "ci/image.sh", "x", "--target mkl", INVOKE=str(program), TFBUILD_REGISTRY="localhost/us/x")
    assert done.returncode == 0, done.stderr
    missing, why, access, build, push = done.stderr.splitlines()
    assert missing == "its layer is missing in the registry"
    assert why == "localhost/us/x:x is not whole, as said above, and is built again"
    assert (access.split()[-1], build.split()[0], push) == ("--access", "build", "push tfbuild:x --force")


def test_credentials_of_the_cache_are_in_a_file_that_only_the_job_can_read(
    runner: Callable[..., Github], tmp_path: Path
) -> None:
    folder = scripted(tmp_path, 'stat -c %a "$TFBUILD_REMOTE_HEADER_FILE"; cat "$TFBUILD_REMOTE_HEADER_FILE"')
    values = {**ROW, "secrets.remote-headers": "a=b\nc=d"}
    done = runner(folder, values, GITHUB_REPOSITORY="us/x").run("image.yml", "Build, verify and publish")
    assert (done.code, done.stdout) == (0, "600\na=b\nc=d\n")


@pytest.mark.parametrize(
    ("link", "script_code", "code", "unfinished"),
    [("first", 75, 0, True), ("second", 75, 0, True), ("last", 75, 75, False), ("first", 23, 23, False)],
)
def test_an_unfinished_compile_continues_in_the_next_link(
    link: str, script_code: int, code: int, unfinished: bool, runner: Callable[..., Github], tmp_path: Path
) -> None:
    machine = runner(scripted(tmp_path, f"exit {script_code}"), {**ROW, "inputs.link": link}, GITHUB_REPOSITORY="us/x")
    done = machine.run("image.yml", "Build, verify and publish")
    assert (done.code, done.outputs) == (code, {"unfinished": "true"} if unfinished else {})
    assert ("::notice::x is not done yet" in done.stdout) == unfinished
    assert (machine.temp / "unfinished" / "x").is_file() == unfinished


INVOKE = """#!/bin/sh
verb=$1
case "$*" in
    build*--dry-run*) verb=plan ;;
    *--access*) verb=ask ;;
    *--indexes*) verb=indexes ;;
    *--force*) verb=force ;;
    build*--no-cache*) verb=rebuild ;;
esac
echo "$verb" >> calls
echo "$*" >> words
if [ "$verb" = plan ]; then printf '[\n  {\n    "id": "x",\n    "context_digest": "sha256:%s"\n  }\n]\n' 0a1; fi
if [ "$verb" = verify ]; then
    # Of another context there is no JSON.
    [ "$code_outdated" = 1 ] || printf '{\n  "rebuild_options": "--no-cache --reuse r@sha256:1"\n}\n'
    echo "error: the reason" >&2
fi
eval "exit \\$code_$verb"
"""


@pytest.mark.parametrize("form", ["github", "gitlab"])
def test_the_indexes_of_each_release_and_target_are_computed_once(form: str, tmp_path: Path) -> None:
    """Whatever became of the images; only a registry that fails ends it, after the others."""
    rows = invoke("matrix", "--format", form).stdout
    program = tmp_path / "invoke"
    program.write_text(f'#!/bin/sh\necho "$2" >> {tmp_path}/ids\ncase $2 in *-cpu-*) exit 26 ;; esac\nexit 30\n')
    program.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "INVOKE": str(program), "TFBUILD_REGISTRY": "ghcr.io/us/x"}
    done = subprocess.run([ROOT / "ci/indexes.sh"], input=rows, capture_output=True, text=True, check=False, env=env)
    ids = (tmp_path / "ids").read_text().split()
    kinds = [name.split("-py")[0] for name in ids]
    assert len(kinds) == len({*kinds}) > 1
    assert done.returncode == (26 if any("-cpu" in kind for kind in kinds) else 0)


VERBS = ("plan", "verify", "build", "rebuild", "push", "indexes", "force", "ask", "outdated")


@pytest.mark.parametrize(
    ("codes", "code", "calls"),
    [
        ({"verify": 0}, 0, ["verify"]),
        ({"verify": 25}, 0, ["verify", "ask", "build", "push"]),
        ({"verify": 24}, 24, ["verify"]),
        ({"verify": 26}, 26, ["verify"]),
        ({"verify": 33, "outdated": 1}, 0, ["verify", "ask", "build", "force"]),
        ({"verify": 33}, 0, ["verify", "ask", "rebuild", "force"]),
        ({"verify": 33, "rebuild": 23}, 23, ["verify", "ask", "rebuild"]),
        ({"verify": 30}, 0, ["verify", "indexes"]),
        ({"verify": 32}, 0, ["verify"]),
        ({"verify": 30, "indexes": 30}, 0, ["verify", "indexes", "ask", "build", "force"]),
        ({"verify": 30, "indexes": 26}, 26, ["verify", "indexes"]),
        ({"verify": 25, "build": 75}, 75, ["verify", "ask", "build"]),
        ({"verify": 25, "build": 24}, 24, ["verify", "ask", "build"]),
        ({"verify": 25, "push": 26}, 26, ["verify", "ask", "build", "push"]),
        ({"verify": 25, "ask": 26}, 26, ["verify", "ask"]),
        ({"plan": 12}, 12, []),
    ],
)
def test_a_row_is_built_unless_it_is_published_completely(
    codes: dict[str, int], code: int, calls: list[str], tmp_path: Path
) -> None:
    invoke = tmp_path / "invoke"
    invoke.write_text(INVOKE)
    invoke.chmod(0o755)
    done = subprocess.run(
        ["dash", ROOT / "ci" / "image.sh", "x", "--wheel official"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "INVOKE": str(invoke), "TFBUILD_REGISTRY": "ghcr.io/us/x"}
        | {"TFBUILD_BUILD_OPTIONS": "--base our:1", "TFBUILD_SIGNED": "--key our.pub"}
        | {"TFBUILD_CACHE": "cache"}
        | {f"code_{name}": str(codes.get(name, 0)) for name in VERBS},
    )  # fmt: skip
    assert (done.returncode, (tmp_path / "calls").read_text().split()) == (code, ["plan", *calls])
    assert ("the reason" in done.stderr) == bool(calls)
    words = (tmp_path / "words").read_text().splitlines()
    # The context is that of all options: --base NAME is part of it.
    assert words[0] == "build --wheel official --base our:1 --dry-run --json"
    if calls:
        assert words[1] == "verify x --registry ghcr.io/us/x --context sha256:0a1 --signed --key our.pub --json"
    if "rebuild" in calls:
        assert words[3].startswith("build --wheel official --base our:1 --no-cache --reuse r@sha256:1 --time-limit")


def test_a_rows_options_reach_the_build_as_they_are(tmp_path: Path) -> None:
    """`invoke matrix` quotes them for a shell: many words, a dollar sign."""
    words = ["--target", "mkl", "--bazel-flag", "--copt=-DA=many words", "--bazel-flag", "--copt=-DB=$HOME"]
    invoke = tmp_path / "invoke"
    invoke.write_text('#!/bin/sh\nfor word; do echo "<$word>" >> words; done\n')
    invoke.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "INVOKE": str(invoke), "HOME": "/nowhere"}
    command = ["dash", str(ROOT / "ci" / "image.sh"), "x", shlex.join(words)]
    subprocess.run(command, cwd=tmp_path, check=True, env=environment)
    reached = (tmp_path / "words").read_text().splitlines()
    assert reached[: len(words) + 1] == [f"<{word}>" for word in ("build", *words)]


# A plan, and a container that compiles for as long as there is a file `late`.
PLANNED = """#!/bin/sh
echo "$*" >> calls
printf '    "context_digest": "sha256:0",\n    "base_image": "python:3.13",\n    "release": "2.21.0",\n'
printf '    "python": "3.13",\n    "compiler": "clang-18",\n'
case $1 in verify) exit 25 ;; esac
"""
DOCKER = """#!/bin/sh
[ "$1" != image ] || echo python@sha256:0
[ "$1" = run ] || exit 0
echo "docker $*" >> calls
[ ! -e late ] || exit 75
touch dist/x/tensorflow.whl
"""


def test_a_compile_goes_on_in_the_next_link_by_a_folder_on_the_same_base(tmp_path: Path) -> None:
    for name, text in (("invoke", PLANNED), ("bin/docker", DOCKER)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "INVOKE": "./invoke", "TFBUILD_CACHE": "cache"}
    calls, runs = tmp_path / "calls", []
    for late, code in ((True, 75), (False, 0)):
        (tmp_path / "late").touch() if late else (tmp_path / "late").unlink()
        done = subprocess.run(
            ["dash", ROOT / "ci/image.sh", "x", "--target mkl"], cwd=tmp_path, env=env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        runs += [line for line in calls.read_text().splitlines() if line.startswith("docker")]
        built = [line for line in calls.read_text().splitlines() if "--reuse" in line]
        assert built == ([] if late else ["build --target mkl --reuse dist/x/tensorflow.whl"])
        calls.unlink()
    first, second = runs
    # The date is that of the first link.
    assert first == second
    assert f"--volume {tmp_path}/cache/x:/tfbuild/build/host/2.21.0/cache python@sha256:0 " in first
    assert first.endswith("Z clang-18 3.13 --target mkl --time-limit 5h20m")


def test_a_compile_s_cache_is_kept_whatever_happens_and_the_one_before_deleted_once_it_is_not_needed(
    runner: Callable[..., Github], copy: Path, tmp_path: Path
) -> None:
    steps = {step.get("id"): step for step in read(GITHUB / "image.yml")["jobs"]["image"]["steps"]}
    before, after = steps["before"], steps["after"]
    assert after["if"].startswith("always() && matrix.wheel == 'source'")
    assert after["with"] == {name: value for name, value in before["with"].items() if name != "restore-keys"}
    assert before["with"]["key"].startswith(before["with"]["restore-keys"])
    gh = tmp_path / "bin/gh"
    gh.parent.mkdir()
    gh.write_text('#!/bin/sh\necho "$*"\n')
    gh.chmod(0o755)
    values = {"github.token": "secret", "steps.before.outputs.cache-matched-key": "x-1-first-1"}
    machine = runner(copy, values, GITHUB_REPOSITORY="us/x", PATH=f"{gh.parent}:{os.environ['PATH']}")
    done = machine.run("image.yml", "Delete the cache of the link before")
    assert (done.code, done.stdout) == (0, "cache delete x-1-first-1 --repo us/x\n")


@pytest.mark.slow
def test_an_environment_without_its_python_is_recreated(tmp_path: Path) -> None:
    lock = "no-such-package==1 --hash=sha256:" + 64 * "0" + "\n"
    (tmp_path / "install.sh").write_text((ROOT / "install.sh").read_text())
    (tmp_path / "requirements.lock").write_text(lock)
    stale = tmp_path / ".venv" / "bin"
    stale.mkdir(parents=True)
    (stale / "python").symlink_to(tmp_path / "gone")
    (tmp_path / ".venv" / "requirements.lock").write_text(lock)
    done = run("sh", tmp_path / "install.sh", PIP_NO_INDEX="1")
    # The old environment's record of installed packages must be ignored.
    assert "no-such-package" in done.stderr
    assert done.returncode != 0
