"""This repository's CI: its files are valid and free of findings, and its steps run unchanged."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests import checkout, schemas
from tests.ci.steps import ACTION, EXPRESSION, GITHUB, PULL, ROOT, Done, Github, locks, read, scripts
from tests.commandline import executable, invoke, tool
from tests.facts import newest
from tests.rows import each
from tfbuild.cli import VERBS, command_line
from tfbuild.plan import options_file

WORKFLOWS = sorted(GITHUB.glob("*.yml"))


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION, PULL], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_workflows_and_actions_match_githubs_schema(path: Path) -> None:
    kind = "github-workflows" if path in WORKFLOWS else "github-actions"
    schemas.vendored(kind).validate(read(path))


def test_the_pipeline_matches_gitlabs_schema(tmp_path: Path) -> None:
    rows = tmp_path / "rows.yml"
    rows.write_text(invoke("matrix", "--format", "gitlab").stdout)
    for path in (ROOT / ".gitlab-ci.yml", rows):
        schemas.vendored("gitlab-ci").validate(read(path))
    assert read(rows)[newest.official()]["extends"] in read(ROOT / ".gitlab-ci.yml")


def test_renovate_can_read_how_every_lock_file_was_made() -> None:
    """It takes long options alone, with "=" before their values (its lib/modules/manager/pip-compile/common.ts)."""
    settings = json.loads((ROOT / ".github" / "renovate.json").read_text(encoding="utf-8"))
    schemas.vendored("renovate").validate(settings)
    patterns = [pattern.strip("/") for pattern in settings["pip-compile"]["managerFilePatterns"]]
    for name in locks():
        words = (ROOT / name).read_text(encoding="utf-8").splitlines()[1].split()
        assert any(re.search(pattern, name) for pattern in patterns), name
        assert f"--output-file={name}" in words
        assert len([word for word in words if not word.startswith("--")]) == 5, "# uv pip compile SOURCE"


def test_the_images_follow_the_list_of_builds() -> None:
    paths = read(GITHUB / "images.yml")["on"]["push"]["paths"]
    assert {options_file.FILE_NAME, options_file.PYPROJECT} <= {*paths}


def test_workflows_have_no_security_findings() -> None:
    done = tool("zizmor", "--offline", "--no-progress", ROOT / ".github" / "workflows", ACTION, PULL)
    assert done.returncode == 0, done.stdout


def test_only_the_repository_that_its_variable_names_publishes() -> None:
    """Every job that may write to a registry or a release, or that those need."""
    guard, publishing = "vars.TFBUILD_PUBLISH == github.repository", set[str]()
    for path in WORKFLOWS:
        jobs = read(path)["jobs"]
        called = "workflow_call" in read(path)["on"]
        for name in [
            name for name, job in jobs.items() if "write" in job.get("permissions", {}).values() and not called
        ]:
            publishing.add(path.stem)
            chain = [name]
            while needed := jobs[chain[-1]].get("needs"):
                chain.append(needed if isinstance(needed, str) else needed[0])
            conditions = [jobs[one].get("if", "") for one in chain]
            assert any(guard in one.split(" && ") for one in conditions), (path.name, name)
    assert publishing == {"images", "release", "wheels"}
    rules = [job["rules"][0]["if"] for job in (read(ROOT / ".gitlab-ci.yml")[name] for name in ("rows", "images"))]
    assert [rule for rule in rules if not rule.startswith("$TFBUILD_PUBLISH == $CI_PROJECT_PATH && (")] == []


LONG = 30  # minutes
GUARDS = (
    "vars.TFBUILD_LONG_TESTS == 'true' || github.event_name == 'workflow_dispatch'",
    "vars.TFBUILD_PUBLISH == github.repository",
)


def test_nothing_long_runs_unless_a_variable_says_so_and_the_manual_gives_its_limit() -> None:
    costs = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8").partition("## Costs")[2].partition("GitLab:")[0]
    for path in WORKFLOWS:
        # image.yml is called by images.yml.
        called = "images" if path.stem == "image" else path.stem
        row = next(line for line in costs.splitlines() if f"`{called}`" in line.removeprefix("| ").partition("|")[0])
        for name, job in read(path)["jobs"].items():
            minutes = job.get("timeout-minutes", 0)
            assert minutes <= LONG or str(minutes) in re.findall(r"\d+", row), (path.stem, name)
            # What test.yml runs depends on the variable.
            guarded = job.get("if") in GUARDS or path.stem in ("image", "test")
            assert minutes <= LONG or guarded, (path.stem, name)
    step = next(step for step in read(GITHUB / "test.yml")["jobs"]["test"]["steps"] if step.get("name") == "Test")
    assert step["env"] == {"LONG": "${{ vars.TFBUILD_LONG_TESTS }}"}
    assert step["run"].startswith('if [ "$LONG" = true ]; then\n  ci/debian.sh .ci/run\nelse\n')
    for name in ("audit", "soak"):
        (rule,) = read(ROOT / ".gitlab-ci.yml")[name]["rules"]
        assert rule["if"].startswith('$TFBUILD_LONG_TESTS == "true" && ')


def test_every_step_and_script_is_clean_shell(tmp_path: Path) -> None:
    paths = []
    for name, text in scripts():
        assert "${{" not in text, name  # values come from the environment, where they cannot become commands
        paths.append(tmp_path / f"{name}.sh")
        paths[-1].write_text(f"#!/bin/bash -e\n{text}\n")
    assert len(paths) > 20
    tracked = subprocess.check_output(["git", "ls-files", "*.sh", ".ci/run"], cwd=ROOT, text=True).splitlines()
    done = tool("shellcheck", *paths, *(path for path in map(ROOT.joinpath, tracked) if path.is_file()))
    assert done.returncode == 0, done.stdout


NAME = re.compile(r"\b(needs|steps|inputs|secrets|vars|matrix)\.([\w-]+)")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_name_in_a_workflow_has_a_value_and_every_setting_is_documented(path: Path) -> None:
    workflow = read(path)
    (row,) = json.loads(invoke("matrix", "--format", "github", "--only", newest.official()).stdout)["include"]
    documented = re.findall(r"TFBUILD_\w+", (ROOT / "docs" / "ci.md").read_text())
    triggers = [trigger for trigger in workflow["on"].values() if isinstance(trigger, dict)]
    known = {("matrix", name) for name in row} | {(kind, name) for kind in ("vars", "secrets") for name in documented}
    known |= {(kind, name) for trigger in triggers for kind in ("inputs", "secrets") for name in trigger.get(kind, ())}
    for job in workflow["jobs"].values():
        needed = job.get("needs", [])
        own = {("needs", name) for name in ([needed] if isinstance(needed, str) else needed)}
        own |= {("steps", step["id"]) for step in job.get("steps", ()) if "id" in step}
        texts = EXPRESSION.findall(json.dumps(job)) + re.findall(r'"if": "([^"]+)"', json.dumps(job))
        assert {name for text in texts for name in NAME.findall(text)} <= known | own


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
    assert not [row for row in rows if row["instruction_set"] == "x86-64-v4"]
    assert "::warning::12 rows left out: no linux/arm64 runner hosted by github" in done.stdout
    assert done.summary.startswith("## Rows\n\n- ")
    done = runner(copy, {"inputs.only || '*'": "no-such-row", "vars.TFBUILD_RUNNERS": ""}).run("images.yml", "Rows")
    assert (done.code, done.outputs, "matches none of" in done.stdout) == (2, {}, True)


STATE = """#!/bin/sh
echo "$TFBUILD_REGISTRY $TFBUILD_BUILD_OPTIONS$2" >> asked
case $1 in a) s="published r@sha256:1" ;; b) s=yanked ;; c) s=replace ;; V) s="replace --reuse r" ;; d) exit 26 ;; esac
echo "${s:-build}"
"""


def states(copy: Path) -> Path:
    """Puts STATE in the place of ci/state.sh; returns the file of what it is asked, in this test."""
    (copy / "ci" / "state.sh").write_text(STATE)
    (copy / "asked").unlink(missing_ok=True)
    return copy / "asked"


def todo(runner: Callable[..., Github], copy: Path, names: str, **env: str) -> Done:
    values = {"vars.TFBUILD_BUILD_OPTIONS": "--base our:1", "vars.TFBUILD_SIGNED": ""}
    values["vars.TFBUILD_MOST_COMPILES || (vars.TFBUILD_REMOTE_CACHE == '' && '1' || '0')"] = "2"
    machine = runner(copy, values, GITHUB_REPOSITORY="Us/TfBuild", **env)
    machine.temp.mkdir(exist_ok=True)
    kinds = ("official", "source")
    rows = {"include": [{"id": name, "options": "$$", "wheel": kinds[name.isupper()], "runner": "x"} for name in names]}
    (machine.temp / "rows").write_text(json.dumps(rows))
    done = machine.run("images.yml", "Rows with something to do")
    assert done.code == 0, done.stderr
    return done


def test_rows_that_need_nothing_start_no_machine(runner: Callable[..., Github], copy: Path) -> None:
    asked = states(copy)
    done = todo(runner, copy, "abcde")
    # One whose state is not known stays: its own job shows the error.
    assert [row["id"] for row in json.loads(done.outputs["rows"])["include"]] == ["c", "d", "e"]
    assert "d: exit code 26" in done.stderr
    assert set(asked.read_text().splitlines()) == {"ghcr.io/us/tfbuild --base our:1$$"}
    assert todo(runner, copy, "ab").outputs == {"rows": ""}
    # The store keeps the caches of two compiles; the other ones come in the next run.
    done = todo(runner, copy, "eWXYZ")
    assert [row["id"] for row in json.loads(done.outputs["rows"])["include"]] == ["e", "W", "X"]
    # Another run begins with others, and what is taken from a published image compiles nothing.
    done = todo(runner, copy, "VeWXYZ", GITHUB_RUN_NUMBER="7")
    assert [row["id"] for row in json.loads(done.outputs["rows"])["include"]] == ["V", "e", "W", "Z"]
    assert read(GITHUB / "images.yml")["jobs"]["first"]["if"] == "needs.matrix.outputs.rows != ''"


def test_gitlabs_pipeline_has_the_rows_that_need_something(copy: Path) -> None:
    asked = states(copy)
    answers = []
    env = {**os.environ, "TFBUILD_REGISTRY": "r", "TFBUILD_BUILD_OPTIONS": ""}
    for names in ("ae", "ab"):
        rows = {name: {"variables": {"TFBUILD_ID": name, "TFBUILD_OPTIONS": "--x=$$Y"}} for name in names}
        pipeline = json.dumps({"include": [], **rows})
        command = [sys.executable, str(copy / "ci" / "todo.py")]
        done = subprocess.run(command, input=pipeline, cwd=copy, env=env, stdout=subprocess.PIPE, text=True, check=True)
        answers.append(json.loads(done.stdout))
    assert "r --x=$Y" in asked.read_text().splitlines()
    assert [*answers[0]] == ["include", "e"]
    assert [job["script"] for job in answers[1].values()] == [["echo nothing to build"]]


@pytest.mark.parametrize(("link", "before"), [("first", "matrix"), ("second", "after-first")])
@pytest.mark.parametrize("unfinished", [("c", "b-1.0"), (), None])
def test_the_next_link_has_the_unfinished_rows(
    link: str, before: str, unfinished: tuple[str, ...] | None, runner: Callable[..., Github], copy: Path
) -> None:
    """Without a folder, too: download-artifact creates none if no artifact matches."""
    rows = {"include": [{"id": name, "runner": "x"} for name in ("a", "b-1.0", "c")]}
    machine = runner(copy, {f"needs.{before}.outputs.rows": json.dumps(rows)})
    for name in () if unfinished is None else (".keep", *unfinished):
        executable(machine.temp / "unfinished" / name, "")
    done = machine.run("images.yml", "Rest", job=f"after-{link}")
    assert done.code == 0, done.stderr
    left = json.loads(done.outputs["rows"])["include"] if done.outputs["rows"] else []
    assert [row["id"] for row in left] == sorted(unfinished or ())


ROW = {
    "matrix.id": "x", "matrix.options": "--wheel official", "inputs.link": "first",
    "secrets.remote-headers": "", "vars.TFBUILD_REMOTE_CACHE": "", "vars.TFBUILD_BUILD_OPTIONS": "",
    "vars.TFBUILD_PUSH_OPTIONS": "", "vars.TFBUILD_SIGNED": "", "vars.TFBUILD_SNAPSHOT": "",
}  # fmt: skip
DIGEST = f"sha256:{64 * 'a'}"
# Of a repository with capitals, too, images have a name in lower case. The credentials are in a file of the job alone.
IMAGE_SH = f"""[ "$*" = "x --wheel official" ] || exit 9
stat -c %a "$TFBUILD_REMOTE_HEADER_FILE" >&2; cat "$TFBUILD_REMOTE_HEADER_FILE" >&2
[ "$CODE" != 0 ] || echo "$TFBUILD_REGISTRY:$1@{DIGEST}"
exit $CODE"""


@pytest.mark.parametrize(
    ("link", "script_code", "code", "outputs"),
    [
        ("first", 0, 0, {"name": "ghcr.io/us/tfbuild", "digest": DIGEST}),
        ("first", 75, 0, {"unfinished": "true"}),
        ("second", 75, 0, {"unfinished": "true"}),
        ("last", 75, 75, {}),
        ("first", 23, 23, {}),
    ],
)
def test_a_row_s_digest_is_attested_and_an_unfinished_compile_continues_in_the_next_link(
    link: str, script_code: int, code: int, outputs: dict[str, str], runner: Callable[..., Github], tmp_path: Path
) -> None:
    executable(tmp_path / "row" / "ci" / "image.sh", IMAGE_SH)
    values = {**ROW, "inputs.link": link, "secrets.remote-headers": "a=b\nc=d"}
    machine = runner(tmp_path / "row", values, GITHUB_REPOSITORY="Us/TfBuild", CODE=str(script_code))
    done = machine.run("image.yml", "Build, verify and publish")
    assert (done.code, done.outputs) == (code, outputs)
    assert done.stderr == "600\na=b\nc=d\n"
    unfinished = "unfinished" in outputs
    assert ("::notice::x is not done yet" in done.stdout) == (machine.temp / "unfinished/x").is_file() == unfinished
    (attested,) = [
        step for step in read(GITHUB / "image.yml")["jobs"]["image"]["steps"] if "subject-digest" in str(step)
    ]
    assert attested["with"]["subject-digest"] == "${{ steps.image.outputs.digest }}"
    assert attested["if"].startswith("steps.image.outputs.digest != ''")


INVOKE = """verb=$1
case "$*" in
    build*--dry-run*) verb=plan ;;
    *--access*) verb=ask ;;
    *--indexes*) verb=indexes ;;
    *--force*) verb=force ;;
    build*--no-cache*) verb=rebuild ;;
esac
[ "$verb" != verify ] || ! grep -qsx ask calls || verb=again # once a push has begun
echo "$verb" >> calls
{ printf '%s|' "$@"; echo; } >> words
if [ "$verb" = plan ]; then
    printf '[\n  {\n    "id": "%s",\n    "context_digest": "sha256:0a1"\n  }\n]\n' "${code_id:-x}"
fi
if [ "$verb" = verify ] || [ "$verb" = again ]; then
    # Of another context there is no JSON.
    [ "$code_outdated" = 1 ] || printf '{\n  "rebuild_options": "--no-cache --reuse r@sha256:1"\n}\n'
    echo "error: the reason" >&2
fi
[ "$verb${code_indexes:-0}" != indexes0 ] || echo ghcr.io/us/x:x@sha256:2
eval "exit \\${code_$verb:-0}"
"""


@pytest.mark.parametrize("form", ["github", "gitlab"])
def test_the_indexes_of_each_release_and_target_are_computed_once(form: str, tmp_path: Path) -> None:
    """Whatever became of the images; only a registry that fails ends it, after the others."""
    rows = invoke("matrix", "--format", form).stdout
    program = executable(
        tmp_path / "invoke", f'echo "$2" >> {tmp_path}/ids\ncase $2 in *-cpu-*) exit 26 ;; esac\nexit 30'
    )
    env = {"PATH": os.environ["PATH"], "INVOKE": str(program), "TFBUILD_REGISTRY": "ghcr.io/us/x"}
    done = subprocess.run([ROOT / "ci/indexes.sh"], input=rows, capture_output=True, text=True, check=False, env=env)
    ids = (tmp_path / "ids").read_text().split()
    kinds = [name.split("-py")[0] for name in ids]
    assert len(kinds) == len({*kinds}) > 1
    assert done.returncode == 26


@pytest.mark.parametrize(
    ("codes", "code", "calls"),
    [
        ({"verify": 0}, 0, ["verify"]),
        ({"verify": 25}, 0, ["verify", "ask", "build", "push"]),
        ({"verify": 24}, 24, ["verify"]),
        ({"verify": 26, "again": 25}, 0, ["verify", "ask", "again", "ask", "build", "push"]),
        ({"verify": 26, "ask": 26}, 26, ["verify", "ask"]),
        ({"verify": 33, "outdated": 1}, 0, ["verify", "ask", "build", "force"]),
        ({"verify": 33}, 0, ["verify", "ask", "rebuild", "force"]),
        ({"verify": 33, "rebuild": 23}, 23, ["verify", "ask", "rebuild"]),
        ({"verify": 30}, 0, ["verify", "indexes"]),
        # A job that failed had pushed it: its digest, for an attestation.
        ({"verify": 30, "attempt": 2}, 0, ["verify", "indexes"]),
        ({"verify": 32}, 0, ["verify"]),
        ({"verify": 30, "indexes": 30}, 0, ["verify", "indexes", "ask", "rebuild", "force"]),
        ({"verify": 30, "indexes": 26}, 26, ["verify", "indexes"]),
        ({"verify": 25, "build": 75}, 75, ["verify", "ask", "build"]),
        ({"verify": 25, "build": 24}, 24, ["verify", "ask", "build"]),
        ({"verify": 25, "push": 26}, 26, ["verify", "ask", "build", "push"]),
        ({"verify": 25, "ask": 26}, 26, ["verify", "ask"]),
        ({"plan": 12}, 12, []),
        ({"id": 7}, 2, []),  # another build by a file of options
    ],
)
def test_a_row_is_built_unless_it_is_published_completely(
    codes: dict[str, int], code: int, calls: list[str], tmp_path: Path
) -> None:
    invoke = executable(tmp_path / "invoke", INVOKE)
    # `invoke matrix` quotes options for a shell: many words, a dollar sign.
    options = ["--wheel", "official", "--bazel-flag", "--copt=-DA=many words $HOME"]
    done = subprocess.run(
        ["dash", ROOT / "ci" / "image.sh", "x", shlex.join(options)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "INVOKE": str(invoke), "TFBUILD_REGISTRY": "ghcr.io/us/x"}
        | {"TFBUILD_BUILD_OPTIONS": "--base our:1", "TFBUILD_SIGNED": "--key our.pub"}
        | {"TFBUILD_PUSH_OPTIONS": "--sign-options '--key env://K'"}
        | {"TFBUILD_CACHE": "cache", "GITHUB_RUN_ATTEMPT": str(codes.get("attempt", 1))}
        | {f"code_{name}": str(code) for name, code in codes.items()},
    )  # fmt: skip
    assert (done.returncode, (tmp_path / "calls").read_text().split()) == (code, ["plan", *calls])
    assert ("the reason" in done.stderr) == bool(calls)
    assert ("@sha256:2" in done.stdout) == ("attempt" in codes)
    words = (tmp_path / "words").read_text().splitlines()
    # The context is that of all options: --base NAME is part of it.
    build = "|".join(("build", *options, "--base", "our:1"))
    assert words[0] == f"{build}|--dry-run|--json|"
    if calls:
        assert words[1] == "verify|x|--registry|ghcr.io/us/x|--context|sha256:0a1|--signed=--key our.pub|--json|"
    if calls[-1:] in (["push"], ["force"]) and not code:
        assert words[-1].endswith("|--sign-options|--key env://K|")
    if "rebuild" in calls:
        assert words[1 + calls.index("rebuild")].startswith(f"{build}|--no-cache|--reuse|r@sha256:1|--time-limit")


# A plan, and a container that compiles one of three objects of its cache in each job, until all are there.
PLANNED = """echo "$*" >> calls
printf '    "id": "x",\n    "context_digest": "sha256:0",\n    "base_image": "python:3.13",\n    "release": "2.21.0",\n'
printf '    "python": "3.13",\n    "compiler": "clang-18",\n'
case $1 in verify) exit 25 ;; esac
"""
DOCKER = """[ "$1" != image ] || echo python@sha256:0
[ "$1" = run ] || exit 0
echo "docker $*" >> calls
for word in "$@"; do case $word in *:/tfbuild/build/host/2.21.0/cache) cache=${word%%:*} ;; esac; done
touch "$cache/object$(ls "$cache" | grep -c object)"
[ -e "$cache/object2" ] || exit 75
touch dist/x/tensorflow.whl
"""
GH = """case "$1 $2" in
    'cache list') ls ../store | grep -x "$4" || true ;;
    'cache delete') rm -r "../store/$3" ;;
esac
"""


@each("refused, words, end", [
    (0, ["wheel", "build"], 0), (12, ["wheel", "build"], 0), (12, ["wheel", "build"], 75), (23, ["wheel"], 23),
    ("clang-18 comes from https://apt.llvm.org", ["build"], 0),
])  # fmt: skip
def test_what_only_the_dockerfile_can_compile_is_compiled_there(
    refused: int | str, words: list[str], end: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("x")
    # A compile in the Dockerfile that the time limit stops begins anew: no job goes on with it.
    executable(
        folder / "invoke", f'{PLANNED}\necho "{refused}"\ncase "$*" in *--dry-run*) ;; build*) exit {end} ;; esac'
    )
    executable(
        folder / "bin/docker", f"[ $1 != run ] || {{ echo wheel >> calls; exit {refused}; }}; echo python@sha256:0"
    )
    env = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "INVOKE": "./invoke", "TFBUILD_CACHE": "cache"}
    for name, code in (("x", 23 if end == 75 else end), ("other", 2)):
        command = ["dash", str(ROOT / "ci/image.sh"), name, CHAINED]
        assert subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False).returncode == code
    calls = [line.split()[0] for line in (folder / "calls").read_text().splitlines() if "--dry-run" not in line]
    assert calls == words, "an identifier that is not the row's is refused before"


# A row of a list with a base of its own.
CHAINED = "--target mkl --release 2.21.0 --python 3.13 --compiler clang-18 --base python:3.13 --cpu x86-64-v3"


def test_a_compile_goes_on_in_the_next_link_by_the_providers_cache_alone(tmp_path: Path) -> None:
    """Three links, each with a disk of its own; the cache's keys and the step that deletes are the workflow's."""
    steps = {step.get("id"): step for step in read(GITHUB / "image.yml")["jobs"]["image"]["steps"]}
    store, runs = tmp_path / "store", []
    store.mkdir()
    for link, code in (("first", 75), ("second", 75), ("last", 0)):
        disk = tmp_path / link
        for name, text in (("invoke", PLANNED), ("bin/docker", DOCKER), ("bin/gh", GH)):
            executable(disk / name, text)
        values = {
            "matrix.id": "x", "github.run_id": "7", "github.run_attempt": "1", "inputs.link": link, "github.token": ""
        }  # fmt: skip
        env = {"PATH": f"{disk}/bin:{os.environ['PATH']}", "INVOKE": "./invoke", "TFBUILD_CACHE": "cache"}
        machine = Github(checkout=disk, temp=disk / "temp", values=values, env=env)
        found = sorted(store.glob(f"{machine.fill(steps['before']['with']['restore-keys'])}*"))
        if found:
            shutil.copytree(found[-1], disk / steps["before"]["with"]["path"])
        done = subprocess.run(
            ["dash", ROOT / "ci/image.sh", "x", CHAINED], cwd=disk, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        calls = (disk / "calls").read_text().splitlines()
        runs += [line.replace(str(disk), "DISK") for line in calls if line.startswith("docker")]
        built = [line for line in calls if "--reuse" in line]
        assert built == ([] if code else [f"build {CHAINED} --reuse dist/x/tensorflow.whl"])
        values["steps.image.outputs.digest"] = "" if code else "sha256:1"
        if found:
            values["steps.before.outputs.cache-matched-key"] = found[-1].name
        delete = partial(machine.run, "image.yml", "Delete the cache of the link before")
        if found and code:
            assert delete().code == 0
            assert found[-1].exists(), "the next one could not be saved"
        if code:
            shutil.copytree(disk / steps["after"]["with"]["path"], store / machine.fill(steps["after"]["with"]["key"]))
        if found:
            assert delete().code == 0
        assert len(list(store.iterdir())) == bool(code), "one cache at a time"
    # The base and the date are those of the first link.
    assert len({*runs}) == 1
    assert "--volume DISK/cache/x:/tfbuild/build/host/2.21.0/cache python@sha256:0 " in runs[0]
    assert "--volume DISK/build/x:/tfbuild/build/x " in runs[0], "the log outlives the container"
    assert {f"--env {name}_proxy" for name in ("http", "https", "no")} <= {*re.findall(r"--env \w+", runs[0].lower())}
    words = runs[0].partition(" inside ")[2].split()[1:]
    ((_, compile_),) = command_line.calls(["wheel", "--no-container", *words], VERBS)
    assert compile_.items() >= {"compiler": "clang-18", "python": "3.13", "time_limit": "5h20m"}.items()
    assert compile_["base"] == "", "the container is of it"
    # Whatever happens, a link saves its cache, and deletes the one before once it is not needed.
    assert steps["after"]["if"].startswith("always() && matrix.wheel == 'source'")
    kept = {name: value for name, value in steps["before"]["with"].items() if name != "restore-keys"}
    assert steps["after"]["with"] == kept
    assert steps["before"]["with"]["key"].startswith(steps["before"]["with"]["restore-keys"])


@pytest.mark.slow
def test_an_environment_without_its_python_is_recreated(tmp_path: Path) -> None:
    lock = "no-such-package==1 --hash=sha256:" + 64 * "0" + "\n"
    (tmp_path / "install.sh").write_text((ROOT / "install.sh").read_text())
    (tmp_path / "requirements.lock").write_text(lock)
    stale = tmp_path / ".venv" / "bin"
    stale.mkdir(parents=True)
    (stale / "python").symlink_to(tmp_path / "gone")
    (tmp_path / ".venv" / "requirements.lock").write_text(lock)
    env = {**os.environ, "PIP_NO_INDEX": "1"}
    done = subprocess.run(["sh", tmp_path / "install.sh"], capture_output=True, text=True, check=False, env=env)
    # The old environment's record of installed packages must be ignored.
    assert "no-such-package" in done.stderr
    assert done.returncode != 0
    # So must that of a folder that was moved: its programs name the old one.
    (stale.parent / "requirements.lock").write_text(lock)
    executable(stale / "invoke", "exit 1")
    done = subprocess.run(["sh", tmp_path / "install.sh"], capture_output=True, text=True, check=False, env=env)
    assert "making .venv" in done.stderr
