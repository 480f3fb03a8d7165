"""What an image's speed is compared with: planned with the build, and made before its verification.

An official wheel is compared with itself without the tuning; any other wheel with the image of the official one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tfbuild import plan
from tfbuild.context import dockerfile
from tfbuild.context.labels import UNVERIFIED, image_name
from tfbuild.context.planned import Planned
from tfbuild.engine import Engine
from tfbuild.errors import TfbuildError, UnknownRelease
from tfbuild.facts import releases, targets
from tfbuild.plan import MACHINES, Build, Request
from tfbuild.verify.verification import Baseline

LEFT_OUT = "it was left out (--no-throughput)"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What to compare an image of `release` with, as a plan; no image is made yet.

    `wheel`: the official one; None with an empty `lacks` means the image itself. `lacks`: why there is no baseline.
    """

    release: str
    wheel: Build | None = None
    lacks: str = ""


def for_build(build: Build, base: str) -> Comparison:
    """Plan what the image of `build` is compared with, on the base that the user named."""
    return _comparison(build.wheel.kind, build.release, build.target, build.python, build.platform, base)


def for_image(planned: Planned, base: str) -> Comparison:
    """Plan what an existing image is compared with, by what its labels claim."""
    platform = MACHINES[planned.arch]
    return _comparison(planned.wheel, planned.release, planned.target, planned.python, platform, base)


def _comparison(kind: str, release: str, target: str, python: str, platform: str, base: str) -> Comparison:
    if kind == "official":
        return Comparison(release=release)
    try:
        return Comparison(release=release, wheel=official(release, target, python, platform, base))
    except TfbuildError as error:
        return Comparison(release=release, lacks=error.reason)


def official(release: str, target: str, python: str, platform: str, base: str) -> Build:
    """Plan the official wheel that a compiled one is compared with; without oneDNN, that of its target's baseline."""
    request = Request(target=target, release=release, python=python, platform=platform, base=base, wheel="official")
    arch = plan.PLATFORMS[plan.choose_platform(request, target)]
    baseline = targets.get(target).baseline
    if not releases.known(release):
        raise UnknownRelease(f"this tfbuild knows no official wheel of TensorFlow {release}", hint="name a release")
    if baseline and not releases.official_wheel(release, arch).onednn:
        request = replace(request, target=baseline)
    return plan.select(request, None)


def untuned(release: str) -> Mapping[str, str]:
    """Return the environment without an image's tuning: glibc's malloc, and TensorFlow's default for oneDNN."""
    return {"LD_PRELOAD": "", **{name: "" for name, _ in releases.onednn_env(release)}}


def image_of(engine: Engine, wheel: Build) -> str:
    """Return the name of the official wheel's image, verified or not; "" where the engine has none."""
    return next((ref for suffix in ("", UNVERIFIED) if engine.exists(ref := image_name(wheel, suffix))), "")


def itself(ref: str, release: str) -> Baseline:
    """Return the image `ref` without its tuning as its own baseline."""
    return Baseline(ref=ref, env=untuned(release))


def image(engine: Engine, ref: str, release: str) -> Baseline:
    """Return the official wheel's image `ref` as a baseline.

    It is run by its id, because another run may be verifying it, and then removes the name ID-unverified.
    """
    return Baseline(ref=ref, env=untuned(release), id=engine.image(ref).id)


def missing(wheel: Build) -> str:
    """Say why an image has no baseline, though one could be made."""
    options = dockerfile.command(wheel).removeprefix("invoke dockerfile ")
    again = f"invoke build {options}"
    return f"{image_name(wheel)}, which it is compared with, is not on this engine: {again}"
