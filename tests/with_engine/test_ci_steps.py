"""The steps of the CI that this repository carries, run out of its files: a real engine, a real registry with a login.

A checkout of its own is installed, asks for its rows, logs in, and builds, verifies and publishes one of them. The one
thing that is not as on GitHub or GitLab is the registry's name. The row's image is there already, a small one with its
labels and its report, as if an earlier job had built and verified it.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import requests

from tests import checkout
from tests.ci import steps
from tests.ci.steps import Done, Github
from tests.facts import newest
from tests.with_engine import registry as registries
from tests.with_engine.registry import Server
from tests.with_engine.test_registry import label
from tfbuild import plan
from tfbuild.cli.options import certificates
from tfbuild.engine import Engine
from tfbuild.oci.client import Registry
from tfbuild.oci.references import Repository
from tfbuild.pipeline import base_image as bases
from tfbuild.pipeline import build_context
from tfbuild.pipeline.build_context import image_digest
from tfbuild.plan import Request
from tfbuild.util.progress import Progress

pytestmark = pytest.mark.engine
ID = newest.official("cpu")
USER, PASSWORD = "somebody", "for a test only"
HTPASSWD = "somebody:$2b$05$abcdefghijklmnopqrstuudyVs3WFCvXIRVRd3ovSnWEpDyfKw6.a\n"
AUTH = "auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("registry")
    (folder / "htpasswd").write_text(HTPASSWD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registries, "CONFIG", registries.CONFIG + AUTH)
        with registries.serve(folder) as found:
            yield found


@dataclass(frozen=True, kw_only=True)
class Site:
    """An installed checkout and its registry; `github`: a machine of GitHub's there, whose values stand for a row."""

    github: Github
    server: Server
    docker: Path

    @property
    def checkout(self) -> Path:
        return self.github.checkout

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def run(self, name: str, values: Mapping[str, str] | None = None) -> Done:
        """Runs a step of image.yml, with other `values` for some of its expressions."""
        return replace(self.github, values={**self.github.values, **(values or {})}).run("image.yml", name)

    def rows(self) -> str:
        """What the workflow gives to the jobs that build; "" if there is nothing to do."""
        done = self.github.run("images.yml", "Rows with something to do")
        assert done.code == 0, done.stderr
        return done.outputs["rows"]


def of_row(row: Mapping[str, str]) -> dict[str, str]:
    return {
        **{f"matrix.{name}": value for name, value in row.items()},
        "github.token": PASSWORD,
        "github.actor": USER,
        "inputs.link": "first",
        "secrets.remote-headers": "",
        "vars.TFBUILD_REMOTE_CACHE": "",
        "vars.TFBUILD_BUILD_OPTIONS": "--no-throughput",
        "vars.TFBUILD_PUSH_OPTIONS": "",
        "vars.TFBUILD_SNAPSHOT": "",
        "vars.TFBUILD_SIGNED": "",
        "vars.TFBUILD_MOST_COMPILES || (vars.TFBUILD_REMOTE_CACHE == '' && '1' || '0')": "2",
    }


def put_there(engine: Engine, folder: Path, reports: Path) -> None:
    """Makes a small image that is the row's by its name, its labels and a report."""
    request = Request(target="cpu", wheel="official", release=newest.RELEASE, platform="linux/amd64")
    build, ca = plan.select(request, None), certificates("")
    base = bases.resolve(
        engine, build.base_image, build.base_distribution, "auto", progress=Progress(), log=folder / "log", ca_cert=ca
    )
    context = build_context.write_context(build, folder / "context")
    known = {
        "io.tfbuild.context": image_digest(context.digest, base.digest),
        "org.opencontainers.image.base.name": base.name,
        "org.opencontainers.image.base.digest": base.digest,
    }
    label(engine, folder, build, more=known, name=f"tfbuild:{ID}")
    shutil.copytree(folder / "reports", reports)


@pytest.fixture(scope="module")
def site(server: Server, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Installed by the step of that name, with the row that the step `Rows` gives, logged in."""
    folder = tmp_path_factory.mktemp("site")
    # Where `docker login` keeps what it is told.
    env = {
        "REGISTRY": f"127.0.0.1:{server.port}",
        "GITHUB_REPOSITORY": "Us/TensorFlow",
        "DOCKER_CONFIG": str(folder / "docker"),
    }
    asking = {"inputs.only || '*'": ID, "vars.TFBUILD_RUNNERS": ""}
    tree = checkout.copy(folder / "checkout")
    machine = Github(checkout=tree, temp=folder / "temp", values=asking, env=env)
    installed = machine.run("images.yml", "Install", job="matrix")
    assert installed.code == 0, installed.stderr
    step = machine.run("images.yml", "Rows")
    assert step.code == 0, step.stderr
    (row,) = json.loads((machine.temp / "rows").read_text())["include"]
    names = [f"tfbuild:{ID}{suffix}" for suffix in ("", "-failed", "-unverified")]
    before = {name: engine.image(name).id for name in names if engine.exists(name)}
    put_there(engine, folder, tree / "reports")
    found = Site(github=replace(machine, values=of_row(row)), server=server, docker=folder / "docker")
    login = found.github.run("images.yml", "Log in", job="matrix")
    assert login.code == 0, login.stderr
    # It is not published yet.
    assert json.loads(found.rows())["include"] == [row]
    yield found
    for name in names:
        if name in before:
            engine.tag(before[name], name)
        elif engine.exists(name):
            engine.untag(name)


@pytest.fixture(scope="module")
def first(site: Site) -> Done:
    """What the first job of the row said."""
    done = site.run("Build, verify and publish")
    # Once for all: no other test builds and verifies again what failed here.
    assert done.code == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done


def test_the_login_is_the_registrys(site: Site) -> None:
    """It lets nobody in without: what is read and pushed below goes by what this step stored."""
    assert requests.get(f"http://{site.host}/v2/", timeout=10).status_code == 401
    refused = site.run("Log in", {"github.token": "another"})
    assert refused.code != 0
    assert "unauthorized" in refused.stderr.lower()


def test_no_step_prints_or_keeps_the_password(first: Done, site: Site) -> None:
    assert PASSWORD not in first.stdout + first.stderr + first.summary
    written = [path for path in site.checkout.rglob("*") if path.is_file() and path.suffix in (".log", ".json", ".md")]
    assert [path for path in written if PASSWORD in path.read_text(errors="replace")] == []


def test_a_row_is_built_verified_and_published(first: Done, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(site.docker))
    digest = Registry(Repository.parse(f"{site.host}/us/tensorflow")).digest(ID)
    assert first.outputs == {"name": f"{site.host}/us/tensorflow", "digest": digest}
    assert f"{site.host}/us/tensorflow:{ID}@{digest}" in first.stdout
    assert (site.checkout / "reports" / f"{ID}.json").is_file()
    assert "is built and verified; nothing changed since" in first.stderr
    assert first.summary.startswith(f"# {ID}: pass\n")


def test_the_next_job_of_a_published_row_does_nothing(first: Done, site: Site) -> None:
    again = site.run("Build, verify and publish", {"inputs.link": "second"})
    assert (again.code, again.outputs, again.summary) == (0, first.outputs, ""), "its digest, for an attestation"
    assert site.rows() == ""
    assert again.stdout.startswith(f"{site.host}/us/tensorflow:{ID} is published: {site.host}/us/tensorflow@sha256:")
    assert "error: " not in again.stderr


@pytest.fixture(scope="module")
def pulled(first: Done, site: Site, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """What the action said whose example logs in."""
    folder = tmp_path_factory.mktemp("pulled")
    example = replace(site.github, temp=folder / "temp")
    assert example.run("action.yml", "Log in").code == 0
    inputs = dict.fromkeys(steps.read(steps.PULL)["inputs"], "") | {
        "registry": first.outputs["name"], "target": "cpu"
    }  # fmt: skip
    runner = replace(example, values={"toJSON(inputs)": json.dumps(inputs)}, folder=folder)
    for name in ("Install", "Pull"):
        done = runner.run_action(name, steps.PULL)
        assert done.code == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    yield done
    name = f"{first.outputs['name']}:{ID}"
    if engine.exists(name):
        engine.untag(name)


def test_the_action_that_pulls_gets_the_image_and_its_digest(pulled: Done, first: Done) -> None:
    assert pulled.outputs == {"image": f"{first.outputs['name']}:{ID}", "digest": first.outputs["digest"]}


def test_the_action_builds_in_another_repository(first: Done, site: Site, tmp_path: Path) -> None:
    """From its inputs to its outputs; the image is there, with its report, as for the row."""
    workspace = tmp_path / "theirs"
    shutil.copytree(site.checkout / "reports", workspace / "reports")
    inputs = dict.fromkeys(steps.read(steps.ACTION)["inputs"], "") | {"target": "cpu", "wheel": "official"}
    values = {"toJSON(inputs)": json.dumps(inputs), "steps.plan.outputs.id": ID, "steps.build.outputs.code": "0"}
    runner = replace(site.github, temp=tmp_path / "temp", folder=workspace, values=values)
    done = [runner.run_action(name) for name in ("Plan", "Build and verify", "Report")]
    assert [one.code for one in done] == [0, 0, 0], done[1].stderr[-6000:]
    assert [one.outputs for one in done] == [
        {"id": ID}, {"code": "0", "image": f"tfbuild:{ID}", "report": f"reports/{ID}.json"}, {}
    ]  # fmt: skip
    assert done[2].summary.startswith(f"# {ID}: pass")


# --- GitLab -----------------------------------------------------------------------------------------------------------


def test_gitlabs_jobs_make_the_rows_and_publish_one(first: Done, site: Site) -> None:
    env = {"DOCKER_CONFIG": str(site.docker)}
    given = {
        "CI_REGISTRY": site.host,
        "CI_REGISTRY_IMAGE": f"{site.host}/us/gitlab",
        "CI_REGISTRY_USER": USER,
        "CI_REGISTRY_PASSWORD": PASSWORD,
    }
    asked = {**env, **given, "TFBUILD_ONLY": ID, "TFBUILD_RUNNERS": "official=mine"}
    rows = steps.gitlab("rows", site.checkout, asked)
    assert rows.returncode == 0, rows.stderr
    row = json.loads((site.checkout / "rows.yml").read_text())[ID]
    assert row["tags"] == ["mine"]
    # The engine beside the job is GitLab's to start; this machine's is the default one.
    services = tuple(name for name in steps.gitlab_job(".tfbuild")["variables"] if name.startswith("DOCKER_"))
    published = steps.gitlab(".tfbuild", site.checkout, {**env, **given, **row["variables"]}, without=services)
    assert published.returncode == 0, published.stderr
    assert f"{site.host}/us/gitlab:{ID}@sha256:" in published.stdout
    assert steps.gitlab("rows", site.checkout, asked).returncode == 0
    assert list(json.loads((site.checkout / "rows.yml").read_text())) == ["unchanged"]
