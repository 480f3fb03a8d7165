"""Verify an image beside what its speed is compared with, and name it by the outcome."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tfbuild.context import dockerfile
from tfbuild.context.labels import UNVERIFIED, Planned, image_name
from tfbuild.engine import Engine
from tfbuild.errors import TfbuildError
from tfbuild.pipeline.run import Run
from tfbuild.plan import Build, Request, official_build
from tfbuild.util.progress import Progress
from tfbuild.verify import report as reporting
from tfbuild.verify import session as verifying
from tfbuild.verify.records import Report
from tfbuild.verify.verification import Baseline

LEFT_OUT = "it was left out (--no-throughput)"


@dataclass(frozen=True, kw_only=True)
class Result:
    """`image`: its name now; `report`: None where it was not to be verified."""

    image: str
    report: Report | None


@dataclass(frozen=True, kw_only=True)
class Verifier:
    """Verifies images on one engine, as its `run` says."""

    engine: Engine
    run: Run
    progress: Progress

    def verify_and_name(self, build: Build, ref: str, make: Callable[[Build], str]) -> Result:
        """Give an image that passes its verification its final name, and one that fails the name of a failed image.

        `make`: makes the official wheel's image if it is missing, and returns its name.
        """
        baseline = self.baseline(ref, build, make)
        report = verifying.verify(self.engine, ref, baseline=baseline, progress=self.progress)
        name = tag(self.engine, build, ref, passed=report.passed)
        return Result(image=name, report=self._write(report, name))

    def verify_existing(self, ref: str) -> Report:
        """Verify any image by what its labels claim, and write its report.

        Nothing is built: if the image to compare with is missing, the throughput check is skipped.
        """
        baseline = self.existing_baseline(ref)
        return self._write(verifying.verify(self.engine, ref, baseline=baseline, progress=self.progress), ref)

    def baseline(self, ref: str, build: Build, make: Callable[[Build], str]) -> Baseline | str:
        """Return what to compare the image `ref` with, or why there is nothing. `make` may return "" for no image."""
        if not self.run.throughput:
            return LEFT_OUT
        try:
            wheel = official_build(build)
        except TfbuildError as error:
            self.progress(f"no official wheel to compare with: {error.reason}")
            return verifying.NO_BASELINE
        # An official wheel's image is compared with itself without its tuning.
        other = ref if build.wheel.kind == "official" else self._image_of(wheel) or make(wheel)
        # It is run by its id, because another run may be verifying it, and then removes the name ID-unverified.
        return Baseline(ref=other, id=self.engine.image(other).id, env=build.untuned) if other else _missing(wheel)

    def existing_baseline(self, ref: str) -> Baseline | str:
        """Return what to compare an existing image with, by its labels, or why there is nothing; build nothing."""
        image = self.engine.image(ref)
        build = Planned.from_labels(ref, image.labels, image.architecture).build
        based = replace(build, request=Request(base=self.run.base))
        return self.baseline(ref, based, lambda _: "")

    def _image_of(self, wheel: Build) -> str:
        """Return the name of the official wheel's image, verified or not; "" if the engine has none."""
        names = (image_name(wheel, suffix) for suffix in ("", UNVERIFIED))
        return next((name for name in names if self.engine.exists(name)), "")

    def _write(self, report: Report, ref: str) -> Report:
        named = replace(report, image=replace(report.image, ref=ref))
        reporting.write(named, self.run.reports)
        return named


def _missing(wheel: Build) -> str:
    """Say why an image has no baseline, though one could be made."""
    return (
        f"{image_name(wheel)}, which it is compared with, is not on this engine: "
        f"invoke build {dockerfile.options(wheel)}"
    )


def tag(engine: Engine, build: Build, ref: str, *, passed: bool) -> str:
    """Give the image `ref` its final name, or that of a failed one, in place of `ref`; return the name."""
    name = image_name(build, "" if passed else "-failed")
    with engine.watched(f"the tagging of {name}"):
        engine.tag(ref, name)
        # A run whose engine ended at this point left the unverified name beside the final one.
        former = {ref, image_name(build, UNVERIFIED)} - {name}
        for other in former.intersection(engine.image(name).tags):
            engine.untag(other)
    return name
