"""The options of a run: each one arrives, and none goes through the environment."""

import dataclasses
import tarfile
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from tests.plan.test_selection import chosen
from tfbuild.cli import VERBS
from tfbuild.errors import UsageError
from tfbuild.pipeline import bundle
from tfbuild.pipeline.maker import downloads
from tfbuild.pipeline.run import Run, run_of
from tfbuild.plan import Request, RunRequest


# Of `build`: test_options.py.
@pytest.mark.parametrize("name", ["wheel", "bundle"])
def test_every_option_of_the_verbs_that_make_images_is_read(name: str) -> None:
    """An option that no field takes would be dropped silently; a field without an option could not be given."""
    offered = {option.replace("-", "_") for option in {**VERBS[name].settings, **VERBS[name].options}}
    request, run = ({field.name for field in fields(kind)} for kind in (Request, RunRequest))
    assert offered >= request
    own = {"wheel": {"output", "libtensorflow", "no_container"}, "bundle": {"output", "wheel_only", "dry_run"}}
    assert offered - request - run == {"options", "json", *own[name]}
    assert run - offered >= {"no_verify", "no_throughput", "reverify", "reuse"}


def test_the_options_become_a_run(tmp_path: Path) -> None:
    request = RunRequest(
        engine="tcp://b:1", mirror="https://mirror.site/x/", network="host", jobs="4",
        time_limit="1h", need_disk="5", remote_cache="grpc://cache:1", remote_readonly=True, no_cache=True,
        no_verify=True, no_throughput=True,
    )  # fmt: skip
    run = run_of(request, tmp_path / "ca.pem", "bootstrap")
    assert run.engine == "tcp://b:1"
    assert (run.base, run.mirror, run.bundle, run.network) == (
        "bootstrap", "https://mirror.site/x", None, "host"
    )  # fmt: skip
    assert (run.jobs, run.seconds, run.disk, run.ca) == (4, 3600.0, 5 * 10**9, tmp_path / "ca.pem")
    assert run.remote is not None
    assert run.remote.name == "cache grpc://cache:1, read only"
    assert (run.no_cache, run.verify, run.throughput, run.reverify) == (True, False, False, False)
    assert run_of(RunRequest(reverify=True), None).reverify


def test_a_bundle_is_built_from_without_a_network(tmp_path: Path) -> None:
    path, listing = tmp_path / "x.tar", tmp_path / bundle.LIST
    listing.write_bytes(msgspec.json.encode(bundle.Listing(builds=[], layers={})))
    with tarfile.open(path, "w") as archive:
        archive.add(listing, bundle.LIST)
        listing.write_text("[]")
        archive.add(listing, bundle.MANIFEST)
    run = run_of(RunRequest(mirror=str(path)), None)
    assert (run.network, run.bundle) == ("none", bundle.read_bundle(path))
    with pytest.raises(UsageError, match="without a network"):
        run_of(RunRequest(mirror=str(path), network="host"), None)


def test_a_build_from_source_downloads_what_the_official_image_does_too() -> None:
    official = chosen(wheel="official", release="2.14.1", python="3.11")
    compiled = chosen(release="2.14.1", python="3.11", compiler="clang-16")
    assert downloads(official, wheel_only=False) == (official,)
    assert downloads(compiled, wheel_only=True) == (compiled,)
    builds = downloads(compiled, wheel_only=False)
    assert [build.wheel.kind for build in builds] == ["source", "official"]
    assert {(build.release, build.python, build.target) for build in builds} == {("2.14.1", "3.11", compiled.target)}
    with pytest.raises(UsageError, match="--bolt"):
        downloads(chosen(release="2.20.0", cpu="x86-64-v3", bolt=True), wheel_only=True)
    without = dataclasses.replace(compiled, python="3.13")
    with pytest.raises(UsageError, match="there is none") as caught:
        downloads(without, wheel_only=False)
    assert "--wheel-only" in caught.value.hint


def test_without_options_it_is_the_default_run() -> None:
    run = run_of(RunRequest(), None)
    assert run == Run(started=run.started)
    for network in ("default", "host", "none"):
        assert run_of(RunRequest(network=network), None).network == network
