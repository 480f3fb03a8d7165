"""Make a verified image from a `Build`: base, context, image, verification, tag, report.

An image is named ID-unverified until its verification passes, then ID; one that fails is named ID-failed. An image that
was verified before, from the same context on the same base, is not built or verified again.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from glob import escape
from pathlib import Path

from tfbuild import cpu, plan
from tfbuild.context import dockerfile
from tfbuild.context.labels import UNVERIFIED, image_name, read_labels
from tfbuild.cpu import Cpu, recordings
from tfbuild.engine import Engine, faults
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import EngineMissing, TfbuildError, UnknownImage, Unsupported, UsageError
from tfbuild.pipeline import base_image as bases
from tfbuild.pipeline import bundle as bundles
from tfbuild.pipeline import wheel
from tfbuild.pipeline.build_context import Base, Context, build_args, image_digest, write_context
from tfbuild.pipeline.compiling import Builder, lacking_features, run_builder
from tfbuild.pipeline.run import Run
from tfbuild.pipeline.wheel import Exported
from tfbuild.plan import Build, Request
from tfbuild.util import files
from tfbuild.util.progress import Progress
from tfbuild.verify import Baseline, labelled_build
from tfbuild.verify import report as reporting
from tfbuild.verify import session as verifying
from tfbuild.verify.report import Report

# The content of a recorded machine (docs/cpu-and-flags.md); without glibc's loader, only the kernel's list.
RECORD_COMMAND = f"cat {cpu.CPUINFO}; echo; {recordings.LOADER} --list-diagnostics 2>/dev/null || true"
OUTPUT_HINT = "--output with another folder"
# Bytes for an image: that of 2.21.0's wheel filled an empty engine with 3.3 GB, including base and pip's cache
# (2026-11), and a rebuild needs as much again.
IMAGE_DISK = 8 << 30
# Of what a compile was recorded to take, for another compiler or instruction set.
DISK_FACTOR = 1.25
# What --bolt has beside the compile: the wheel installed and unpacked, both with relocations (2.22: 4 GB).
BOLT_DISK = 5 * 10**9
# The repository that publishes the image, by which GHCR links a package with it.
SOURCE = "org.opencontainers.image.source"
SOURCE_VARIABLE = "TFBUILD_IMAGE_SOURCE"
WEB_ADDRESS = re.compile(r"https?://[^\s\"'\\$@?]+")


def needed_disk(build: Build, *, image: bool = True) -> int:
    """Return the bytes that must be free before a build starts; `image`: whether an image is made too."""
    compiling = build.toolchain.cost.disk * DISK_FACTOR * 10**9 if build.toolchain else 0
    bolt = BOLT_DISK if build.request.bolt else 0
    return int(compiling) + bolt + (IMAGE_DISK if image else 0)


@dataclass(frozen=True, kw_only=True)
class Result:
    """`image`: its final name; `report`: None if it should not be verified."""

    image: str
    report: Report | None


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Makes images, wheels and bundles on one engine, as its `run` says."""

    run: Run
    progress: Progress = field(default_factory=Progress)

    @cached_property
    def engine(self) -> Engine:
        return Engine.connect(self.run.engine)

    def cpu(self, image: str = "") -> Cpu:
        """Return the CPU that a container of `image` sees, by default of any base. Raises what making a base raises."""
        default = plan.default_base()
        image = image or bases.made_before(self.engine) or self._resolve(default.image, default.bootstrap).reference
        with self.progress.step("detect: the engine's CPU"):
            recording = self.engine.run(image, ["sh", "-c", RECORD_COMMAND], entrypoint=())
        return cpu.parse(recording.stdout, origin="the engine's /proc/cpuinfo")

    # --- an image -----------------------------------------------------------------------------------------------------

    def build(self, build: Build) -> Result:
        """Build, verify and tag; the report says pass or fail. Raises BuildFailed, and what earlier steps raise."""
        with self.locked(build):
            if self.run.verify:
                files.check_writable(self.run.reports)
                if self.engine.local and (lacking := lacking_features(build, cpu.detect)):
                    missing = " ".join(lacking)
                    self.progress(f"this machine lacks {missing}: verification will fail; --no-verify skips it")
            image = self._image(build, reuse=self.run.reuse, no_cache=self.run.no_cache)
            return self._proven(build, image) or self._verified(build, image)

    def _image(self, build: Build, *, reuse: str = "", no_cache: bool = False) -> str:
        """Return the name of the build's image: that of an earlier run if nothing changed since, else a new one's."""
        context, final = self.context(build), image_name(build)
        if not self.engine.exists(final):
            self.need_disk(build)
        base = self.base(build, context, follow=no_cache)
        key = image_digest(context.digest, base.digest)
        with suppress(UnknownImage):
            if not no_cache and read_labels(self.engine.image(final).labels).context == key:
                return final
        self.need_disk(build)
        name = image_name(build, UNVERIFIED)
        with bases.reused(self.engine, build, context, reuse, self.progress) as arguments:
            self.run_builder(build, base, context, tag=name, arguments=arguments, no_cache=no_cache)
        return name

    def _proven(self, build: Build, image: str) -> Result | None:
        """Return the result of an earlier run that verified this very image; --reverify verifies it again."""
        report = reporting.proof(self.run.reports, build.id, self.engine.image(image).id)
        if image != image_name(build) or self.run.reverify or report is None:
            return None
        self.progress(f"{image} is built and verified; nothing changed since (--reverify verifies it again)")
        return Result(image=image, report=report)

    def _verified(self, build: Build, image: str) -> Result:
        """Verify the image unless --no-verify was given, and name it by the outcome."""
        if not self.run.verify:
            return Result(image=image, report=None)

        def make(wheel: Build) -> str:
            """Build the official wheel's image for the comparison, if it can be; it need not be verified for that."""
            if self.run.bundle and wheel.id not in {row.id for row in self.run.bundle.listing.builds}:
                return ""  # a bundle for a wheel's file
            self.progress(f"building {image_name(wheel)} to compare with")
            with self.locked(wheel):
                return self._image(wheel)

        baseline = self.baseline(image, build, make)
        report = verifying.verify(self.engine, image, baseline=baseline, progress=self.progress)
        name = tag(self.engine, build, image, report)
        return Result(image=name, report=self._write(report, name))

    # --- verification -------------------------------------------------------------------------------------------------

    def verify(self, ref: str) -> Report:
        """Verify any image on the engine by what its labels claim, and write its report; build nothing."""
        files.check_writable(self.run.reports)
        image = self.engine.image(ref)
        build = labelled_build(ref, image.labels, image.architecture)
        baseline = self.baseline(ref, replace(build, request=Request(base=self.run.base)), lambda _: "")
        return self._write(verifying.verify(self.engine, ref, baseline=baseline, progress=self.progress), ref)

    def baseline(self, ref: str, build: Build, make: Callable[[Build], str]) -> Baseline | str:
        """Return the baseline for the image `ref`, or the reason why there is none.

        `make`: makes the official wheel's image if it is missing, and returns its name, or "" for no image.
        """
        if not self.run.throughput:
            return "it was left out (--no-throughput)"
        try:
            wheel = plan.official_build(build, nearest=True)
        except TfbuildError as error:
            self.progress(f"no official wheel to compare with: {error.reason}")
            return verifying.NO_BASELINE
        # An official wheel's image is compared with itself without its tuning; another's is taken, verified or not.
        made = (name for name in (image_name(wheel, end) for end in ("", UNVERIFIED)) if self.engine.exists(name))
        other = ref if build.wheel.kind == "official" else next(made, "") or make(wheel)
        if not other:
            options = dockerfile.build_options(wheel)
            return f"{image_name(wheel)}, which it is compared with, is not on this engine: invoke build {options}"
        # It is run by its id, because another run may be verifying it, and then removes the name ID-unverified.
        return Baseline(ref=other, id=self.engine.image(other).id, env=build.untuned)

    def _write(self, report: Report, ref: str) -> Report:
        named = replace(report, image=replace(report.image, ref=ref))
        reporting.write_report(named, self.run.reports)
        return named

    # --- a wheel ------------------------------------------------------------------------------------------------------

    def wheel(self, build: Build, output: Path) -> Exported:
        """Compile the wheel and write it, with its sidecar, to the folder `output`, without making an image."""
        if build.toolchain is None:
            raise UsageError("only a compiled wheel can be exported", hint="--wheel source")
        wheel.check_output(output, build)
        with self.locked(build):
            context = self.context(build)
            self.need_disk(build)
            base = self.base(build, context, follow=self.run.no_cache)
            scratch = self.run.work / build.id / "wheel"
            with files.writing(scratch.parent):
                # A wheel of an earlier run would be taken for this one's.
                files.remove(scratch)
            self.run_builder(build, base, context, stage="export", output=scratch, no_cache=self.run.no_cache)
            with files.writing(output, OUTPUT_HINT):
                return wheel.collect(build, scratch, output, self.progress, context=context.digest, base=base.digest)

    # --- a bundle -----------------------------------------------------------------------------------------------------

    def bundle(self, builds: Sequence[Build], output: Path, *, wheel_only: bool = False) -> None:
        """Write what these builds download to the file `output`, by the stages that download.

        `wheel_only`: what a compile alone downloads. An interrupted run continues from the stages that it has.
        """
        files.check_writable(output.parent)
        made: list[bundles.BundledBuild] = []
        # Locked to the end: another bundle that has one of these builds removes the names of its images.
        with ExitStack() as locks:
            try:
                for build in builds:
                    arguments = [bundles.SYSTEM, *([bundles.FETCHED] if build.toolchain else [])]
                    arguments += [] if wheel_only else [bundles.VENV]
                    locks.enter_context(self.locked(build))
                    self._download(build, arguments, made)
                step = self.progress.step(f"write {output}")
                with step, files.writing(output, OUTPUT_HINT), files.whole(output) as part:
                    for left in output.parent.glob(f".{escape(output.name)}.{8 * '[0-9a-f]'}"):  # of a killed run
                        files.remove(left)
                    bundles.write_bundle(self.engine, part, made)
            finally:
                for name in {name for row in made for name in row.images.values()}:
                    with suppress(UnknownImage):
                        self.engine.untag(name)

    def _download(self, build: Build, arguments: Sequence[str], made: list[bundles.BundledBuild]) -> None:
        """Make the images of the stages that download; what is to be made is appended to `made` first."""
        context = self.context(build)
        faults.require_free(self.engine.data_root, IMAGE_DISK if self.run.disk is None else self.run.disk)
        base = self.base(build, context, follow=self.run.no_cache)
        images = {argument: bundles.image_name(context, base, argument) for argument in arguments}
        row = bundles.BundledBuild(id=build.id, context=context.digest, base=(base.name, base.digest), images=images)
        made.append(row)
        for argument, name in images.items():
            stage = bundles.STAGES[argument]
            self.run_builder(build, base, context, stage=stage, tag=name, no_cache=self.run.no_cache)

    # --- the steps that they share ------------------------------------------------------------------------------------

    @contextmanager
    def locked(self, build: Build, *more: Path) -> Iterator[None]:
        """Lock the build's folder, and `more`, for this process, because contexts, logs and exports have fixed names.

        A second run waits, and usually finds the image built and verified. There is no deadlock: a build waits for at
        most one other, that of the official wheel, which waits for none.
        """
        refuse_base_without_cuda(build)  # leaves no folder behind

        def waiting() -> None:
            self.progress(f"another run is building {folder.name} here; waiting for it (Ctrl-C leaves it alone)")

        own = self.run.work / build.id
        with ExitStack() as locks:
            for folder in (own, *more):
                with files.writing(folder):
                    locks.enter_context(files.locked(folder, waiting))
            with files.writing(own):
                for left in own.glob(".context-*"):  # by a run that was killed while it packed a tree
                    files.remove(left)
            yield

    def render(self, build: Build) -> Context:
        """Write the build context; start nothing."""
        folder = self.run.work / build.id
        with files.writing(folder):
            context = write_context(build, folder / "context")
            files.replace_file(folder / "plan.json", json.dumps(build.to_json(), indent=2) + "\n")
        return context

    def context(self, build: Build) -> Context:
        """Return the context of a build, after checking that this engine can make it."""
        self.engine.require_buildkit()  # before the base is made, like the next line, which raises if none answers
        if build.platform != self.engine.platform:
            raise EngineMissing(
                f"this engine builds for {self.engine.platform}, but the plan is for {build.platform}",
                hint=f"use a {build.platform} engine (--engine, DOCKER_HOST), or --platform {self.engine.platform}",
            )
        return self.render(build)

    def need_disk(self, build: Build) -> None:
        """Raise DiskFull if the engine has less space than such a build usually needs."""
        usual = IMAGE_DISK if self.run.reuse else needed_disk(build)
        hint = f"{faults.PRUNE_HINT}; --need-disk GB changes the limit, such as to continue a compile"
        faults.require_free(self.engine.data_root, usual if self.run.disk is None else self.run.disk, hint)

    def base(self, build: Build, context: Context, *, follow: bool = False) -> Base:
        """Return the image that the build starts from, which the engine then has; `follow`: see bases.resolve."""
        if self.run.bundle:
            return self.run.bundle.load(self.engine, build, context, self.progress)
        return self._resolve(build.base_image, build.base_distribution, follow=follow)

    def _resolve(self, image: str, distribution: str, *, follow: bool = False) -> Base:
        mode, ca, log = self.run.base, self.run.ca, self.run.work / "base.log"
        return bases.resolve(
            self.engine, image, distribution, mode, progress=self.progress, log=log, ca_cert=ca, follow=follow
        )

    def run_builder(
        self,
        build: Build,
        base: Base,
        context: Context,
        *,
        tag: str = "",
        stage: str = "",
        output: Path | None = None,
        arguments: Mapping[str, str] | None = None,
        no_cache: bool = False,
    ) -> None:
        """Run the builder (see compiling.run_builder); `arguments`: more of the Dockerfile's arguments."""
        bundled = self.run.bundle.find(build, context, image=not stage).images if self.run.bundle else {}
        settings = BuildSettings(
            log=self.run.work / build.id / "build.log",
            progress=self.progress,
            tag=tag,
            stage=stage,
            output=output,
            build_args={**build_args(base, context), **bundled, **(arguments or {})},
            labels=given_at_build(os.environ),
            no_cache=no_cache,
        )
        engine = self.engine
        builder = Builder(
            make=engine.build,
            cpus=engine.cpus,
            memory=engine.memory,
            data_root=engine.data_root,
            local=engine.local,
            cpu=cpu.detect if engine.local else lambda: self.cpu(base.reference),
        )
        run_builder(builder, build, self.run, context.folder, settings)


def refuse_base_without_cuda(build: Build) -> None:
    """Raise Unsupported if a compile takes CUDA from its base, and the user named no base that may have it."""
    if build.toolchain and build.toolchain.cuda_base and build.request.base in plan.BASES:
        raise Unsupported(
            f"TensorFlow {build.release} is compiled with the CUDA of its base image, and {build.base_image} has none",
            hint=f"--base with an image that has {build.toolchain.cuda_base}",
        )


def downloads(build: Build, *, wheel_only: bool) -> tuple[Build, ...]:
    """Return the builds whose downloads `invoke build` needs, or `invoke wheel` with `wheel_only`.

    A compiled wheel has the requirements of the official one, and its image is compared with the official image.
    """
    if build.request.bolt:
        hint = "leave it out, or give the build --mirror URL"
        raise UsageError("a bundle lacks what --bolt installs for its sample program", hint=hint)
    if build.toolchain is None or wheel_only:
        return (build,)
    try:
        return (build, plan.official_build(build))
    except TfbuildError as error:
        raise UsageError(
            f"the image of {build.id} needs the official wheel too, and there is none: {error.reason}",
            hint="--wheel-only bundles for `invoke wheel`",
        ) from error


def tag(engine: Engine, build: Build, ref: str, report: Report) -> str:
    """Give the verified image its final name, or that of a failed one, in place of `ref`; return the name."""
    name = image_name(build, "" if report.passed else "-failed")
    with engine.watched(f"the tagging of {name}"):
        engine.tag(report.image.id, name)  # by its id: a run in another folder may have moved `ref` meanwhile
        # A run whose engine ended at this point left the unverified name beside the final one.
        former = {ref, image_name(build, UNVERIFIED)} - {name}
        for other in former.intersection(engine.image(name).tags):
            engine.untag(other)
    return name


def given_at_build(env: Mapping[str, str]) -> dict[str, str]:
    """Return the label that depends on who builds: the address of TFBUILD_IMAGE_SOURCE, else of GitHub's repository.

    It is not in the Dockerfile, so that forks build the same contexts. Raises UsageError for what is not a plain URL.
    """
    repository = f"{env.get('GITHUB_SERVER_URL')}/{env.get('GITHUB_REPOSITORY')}"
    source = env.get(SOURCE_VARIABLE) or (repository if env.get("GITHUB_ACTIONS") == "true" else "")
    if source and not (WEB_ADDRESS.fullmatch(source) and source.isprintable()):
        raise UsageError(f"{SOURCE_VARIABLE} is not a plain URL: {source!r}", hint="https://HOST/PATH, without a login")
    return {SOURCE: source} if source else {}
