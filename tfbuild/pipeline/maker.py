"""The way from a `Build` to a name that is earned: base, context, image, proof, tag, report.

An image has the name ID-unverified until its verification passed, then ID; one that failed keeps ID-failed. What was
verified before, from the same context on the same base, is not built or verified again.
"""

import errno
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tfbuild import cpu, plan
from tfbuild.context import dockerfile, remote_cache
from tfbuild.context.digests import image_digest
from tfbuild.context.dockerfile import Context
from tfbuild.context.labels import ID, image_name, read_labels
from tfbuild.context.planned import Planned
from tfbuild.cpu import Cpu, cpuid
from tfbuild.engine import Engine, daemon
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import BaseUnavailable, DiskFull, EngineMissing, TfbuildError, UnknownCpu, UnknownImage, UsageError
from tfbuild.facts import base_images, releases, toolchains
from tfbuild.pipeline import base_image as bases
from tfbuild.pipeline import baselines, compiling, wheel_export
from tfbuild.pipeline import bundle as bundles
from tfbuild.pipeline.baselines import Comparison
from tfbuild.pipeline.bundle import Bundle
from tfbuild.pipeline.compiling import BuilderWork, Compile
from tfbuild.pipeline.run import Run
from tfbuild.pipeline.wheel_export import Exported
from tfbuild.plan import Build
from tfbuild.plan import source as sources
from tfbuild.plan.source import Source
from tfbuild.util import files
from tfbuild.util.progress import Progress
from tfbuild.verify import report as reporting
from tfbuild.verify import session as verifying
from tfbuild.verify.records import Report
from tfbuild.verify.verification import Baseline

# What a recording of a machine is made of (docs/cpu-and-flags.md); without glibc's loader the kernel's list alone.
RECORD = f"cat {cpu.CPUINFO}; echo; {cpuid.LOADER} --list-diagnostics 2>/dev/null || true"
# Free bytes asked for before the start. An image from 2.21.0's wheel filled an empty engine with 3.3 GB, base and pip's
# cache included (2026-11), and a rebuild needs as much again; what a compile needs is an estimate (--need-disk).
DISK = {"official": 8 << 30, "file": 8 << 30, "source": 80 << 30}


@dataclass(frozen=True, kw_only=True)
class Result:
    """`image`: the name it has now; `report`: None where no verification was asked for."""

    image: str
    report: Report | None


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Makes images on one engine, as its `run` asks."""

    run: Run
    progress: Progress = field(default_factory=Progress)

    @cached_property
    def engine(self) -> Engine:
        return Engine.connect(chosen=self.run.engine)

    def cpu(self) -> Cpu:
        """The CPU of the engine's machine, as a container there sees it. Raises what the base image's making does."""
        row = base_images.default()
        image = bases.made_before(self.engine) or self._resolve(row.image, row.bootstrap).reference
        with self.progress.step("detect: the engine's CPU"):
            done = self.engine.run(image, ["sh", "-c", RECORD], entrypoint=())
        return cpu.parse(done.stdout, origin="the engine's /proc/cpuinfo")

    def render(self, build: Build) -> Context:
        """The build context; nothing is started. Refuses a remote cache that the build's Bazel cannot use as asked."""
        if self.run.remote and build.wheel.kind == "source":
            remote_cache.bazelrc(self.run.remote, build.bazel)
        context = dockerfile.write(build, self.run.work / build.id / "context")
        plan_file = self.run.work / build.id / "plan.json"
        plan_file.write_text(json.dumps(build.to_json(), indent=2) + "\n", encoding="utf-8")
        return context

    def build(self, build: Build) -> Result:
        """Builds, verifies and tags; the report says pass or fail. Raises BuildFailed and all that comes before it."""
        comparison = baselines.for_build(build, self.run.base)
        with self._alone(build):
            return self._build(build, comparison)

    def _build(self, build: Build, comparison: Comparison) -> Result:
        context = self._context(build)
        if not self.engine.exists(image_name(build)):
            self._need_disk(build)
        base = self._base(build)
        key = image_digest(context.digest, base.digest)
        if not self.run.no_cache and (known := self._known(build, key, comparison)) is not None:
            return known
        self._need_disk(build)
        unverified = image_name(build, "-unverified")
        self._start(build, base, context, BuilderWork(context=context.folder, tag=unverified))
        if not self.run.verify:
            return Result(image=unverified, report=None)
        return self._earn(build, unverified, comparison)

    def wheel(self, build: Build, output: Path) -> Exported:
        """Compiles the wheel and writes it, with its sidecar, to the folder `output`; makes no image."""
        if build.wheel.kind != "source":
            raise UsageError("only a wheel that is compiled can be exported", hint="leave out --wheel")
        with self._alone(build):
            return self._wheel(build, output)

    def _wheel(self, build: Build, output: Path) -> Exported:
        context = self._context(build)
        self._need_disk(build)
        base = self._base(build)
        scratch = self.run.work / build.id / "wheel"
        shutil.rmtree(scratch, ignore_errors=True)
        self._start(build, base, context, BuilderWork(context=context.folder, stage="export", output=scratch))
        with disk_full(output):
            made = wheel_export.collect(build, scratch, output, context=context.digest, base=base.digest)
        for line in made.audit.lines():
            self.progress(line)
        return made

    def bundle(self, builds: Sequence[Build], output: Path) -> Bundle:
        """Downloads into the folder `output` what these builds do, by their own steps, but makes none of them.

        What is there already is not downloaded again. Raises BadMirror where something cannot be had.
        """
        with disk_full(output):
            filled = bundles.fill(output)
            try:
                for build in builds:
                    with self._alone(build):
                        self._download(build, filled)
            finally:
                filled.write()
            filled.write(*(build.id for build in builds))
        return filled

    def _download(self, build: Build, filled: Bundle) -> None:
        maker = replace(self, run=replace(self.run, bundle=filled, recording=True, no_cache=True))
        context = maker._context(build)
        self._need_disk(build)
        # One that is there already stays: the package lists are those of its day.
        base, asked = maker._base(build), bases.asked(build.base_image, self.run.base)
        if filled.base(asked, self.engine.platform) is None:
            with self.progress.step(f"bundle: keep {base.name}"):
                bases.keep(self.engine, base, asked, filled)
        if build.source is not None and build.source.kind == "git":
            with self.progress.step(f"bundle: keep the source, {build.source.tag}"):
                self._keep_source(build.source, filled)
        scratch = self.run.work / build.id / "downloads"
        maker._start(build, base, context, BuilderWork(context=context.folder, stage="downloads", output=scratch))

    def _keep_source(self, source: Source, filled: Bundle) -> None:
        path = sources.REPOSITORY.partition("://")[2]
        url = f"{self.run.mirror}/{path}" if self.run.mirror else sources.REPOSITORY
        bundles.keep_tag(filled, url, path, source.tag, source.commit, self.run.ca)

    @contextmanager
    def _alone(self, build: Build) -> Iterator[None]:
        """The build's own folder for this process: context, logs and what is exported there go by fixed names.

        Whoever comes second waits, and as a rule finds the image built and verified then. A build waits for at most one
        more, the official wheel's, which waits for none: two never wait for each other.
        """
        refuse_base_without_cuda(build, self.run.base)  # leaves no folder behind
        folder = self.run.work / build.id

        def waiting() -> None:
            self.progress(f"another run builds {build.id} here; waiting for it (Ctrl-C leaves it alone)")

        with ExitStack() as held:
            try:
                held.enter_context(files.alone(folder, waiting))
            except OSError as error:
                raise UsageError(f"cannot lock {folder}: {error.strerror}", hint="run where you may write") from error
            yield

    def _context(self, build: Build) -> Context:
        """The context of a build that this engine can make."""
        if self.run.bundle and not self.engine.local:
            raise UsageError(
                "the engine is on another machine, which cannot reach a folder served on this one",
                hint="let a web server that it reaches serve the folder: --mirror URL",
            )
        builder = self.engine.builder  # one that does not answer is told before the base is made
        if self.run.bundle and builder:
            raise UsageError(
                f"{builder} has a network of its own, which cannot reach a folder served on this machine's loopback",
                hint="let a web server that it reaches serve the folder: --mirror URL; or leave out --builder",
            )
        if build.platform != self.engine.platform:
            raise EngineMissing(
                f"this engine builds for {self.engine.platform}, and the plan is for {build.platform}",
                hint=f"let DOCKER_HOST name a {build.platform} engine, or: --platform {self.engine.platform}",
            )
        return self.render(build)

    def _start(self, build: Build, base: bases.ResolvedBase, context: Context, work: BuilderWork) -> None:
        with self._handed(build, base) as contexts:
            settings = BuildSettings(
                log=self.run.work / build.id / "build.log",
                progress=self.progress,
                build_args=dockerfile.build_args(base, context),
                contexts=contexts,
                no_cache=self.run.no_cache,
            )
            compiling.run(
                Compile(
                    build=build,
                    asked=self.run,
                    engine=self.engine,
                    settings=settings,
                    work=work,
                    machine_flags=self._machine_flags(build),
                )
            )

    def _machine_flags(self, build: Build) -> tuple[str, ...]:
        """Bazel's flags for a machine that runs the instruction set; none where actions may run on other machines."""
        flags = toolchains.compile_once_flags(build.bazel) if build.wheel.kind == "source" else ()
        if not flags or self.engine.builder or (self.run.remote and self.run.remote.executor):
            return ()
        try:
            here = cpu.detect() if self.engine.local else self.cpu()
        except UnknownCpu:
            return ()
        return flags if set(build.instruction_set.features) <= set(here.features) else ()

    @contextmanager
    def _handed(self, build: Build, base: bases.ResolvedBase) -> Iterator[Mapping[str, str]]:
        """The base for a builder elsewhere, in a folder that goes with the run; none where the engine itself builds."""
        folder = self.run.work / build.id / "base"
        try:
            with disk_full(folder):
                contexts = bases.handed(self.engine, base, folder, self.progress) if self.engine.builder else {}
            yield contexts
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _need_disk(self, build: Build) -> None:
        daemon.need_disk(self.engine, DISK[build.wheel.kind] if self.run.disk is None else self.run.disk)

    def verify(self, ref: str) -> Report:
        """Verifies an image that is here, whoever made it, by what its labels claim; writes its report.

        Nothing is built for it: where what it is compared with is not here, its throughput is skipped.
        """
        return self._report(self._prove(ref, self._present(ref)), ref)

    def _base(self, build: Build) -> bases.ResolvedBase:
        bundle, asked = self.run.bundle, bases.asked(build.base_image, self.run.base)
        if bundle and (kept := bundle.base(asked, self.engine.platform)):
            return bases.from_bundle(self.engine, kept, bundle.folder, self.progress)
        return self._resolve(build.base_image, build.base_distribution)

    def _resolve(self, image: str, distribution: str) -> bases.ResolvedBase:
        return bases.resolve(
            self.engine,
            image,
            distribution,
            self.run.base,
            progress=self.progress,
            log=self.run.work / "base.log",
            ca_cert=self.run.ca,
        )

    def _known(self, build: Build, key: str, comparison: Comparison) -> Result | None:
        """The image and the report of an earlier run, where nothing changed since; verified again if asked for."""
        final = image_name(build)
        with suppress(UnknownImage):
            image = self.engine.image(final)
            if read_labels(image.labels).context != key:
                return None
            stored = reporting.stored(self.run.reports, build.id)
            if stored is not None and stored.passed and stored.image.id == image.id and not self.run.reverify:
                self.progress(f"{final} is built and verified; nothing changed since (--reverify proves it again)")
                return Result(image=final, report=stored)
            if self.run.verify:
                return self._earn(build, final, comparison)
            return Result(image=final, report=None)
        return None

    def _earn(self, build: Build, ref: str, comparison: Comparison) -> Result:
        """The final name after a verification that passed, the name of a failed image otherwise."""
        report = self._prove(ref, self._made(ref, comparison))
        earned = image_name(build, "" if report.passed else "-failed")
        self.engine.tag(ref, earned)
        if ref != earned:
            self.engine.untag(ref)
        return Result(image=earned, report=self._report(report, earned))

    def _report(self, report: Report, ref: str) -> Report:
        named = replace(report, image=replace(report.image, ref=ref))
        reporting.write(named, self.run.reports)
        return named

    def _prove(self, ref: str, baseline: Baseline | str) -> Report:
        """`baseline`: what to compare with, or why there is nothing."""
        if isinstance(baseline, str):
            return verifying.verify(self.engine, ref, baseline=None, progress=self.progress, untimed=baseline)
        return verifying.verify(self.engine, ref, baseline=baseline, progress=self.progress)

    def _made(self, ref: str, comparison: Comparison) -> Baseline | str:
        """The baseline of the image `ref` that was built here; what it needs is built too."""
        if not self.run.throughput:
            return baselines.NOT_ASKED_FOR
        if comparison.wheel is None:
            return self._without_wheel(ref, comparison)
        other = baselines.image_of(self.engine, comparison.wheel) or self._make_official(comparison.wheel)
        return baselines.image(self.engine, other, comparison.release)

    def _present(self, ref: str) -> Baseline | str:
        """The baseline of an image by its labels, as far as it is here."""
        image = self.engine.image(ref)
        if ID not in image.labels:
            raise UnknownImage(f"{ref} was not made by tfbuild: it has no io.tfbuild labels", hint="invoke build")
        planned = Planned.of(ref, image.labels, image.architecture)
        if not self.run.throughput:
            return baselines.NOT_ASKED_FOR
        comparison = baselines.for_image(planned, self.run.base)
        if comparison.wheel is None:
            return self._without_wheel(ref, comparison)
        if not (other := baselines.image_of(self.engine, comparison.wheel)):
            return baselines.missing(comparison.wheel)
        return baselines.image(self.engine, other, comparison.release)

    def _without_wheel(self, ref: str, comparison: Comparison) -> Baseline | str:
        if not comparison.lacks:
            return baselines.itself(ref, comparison.release)
        self.progress(f"no official wheel to compare with: {comparison.lacks}")
        return verifying.NO_BASELINE

    def _make_official(self, wheel: Build) -> str:
        """The official wheel's image, which the comparison needs; it need not be verified for that."""
        self.progress(f"{image_name(wheel)} is needed to compare with")
        plain = replace(self.run, disk=None, verify=False, reverify=False, no_cache=False)
        return replace(self, run=plain).build(wheel).image


@contextmanager
def disk_full(folder: Path) -> Iterator[None]:
    """A full disk at `folder` as the error that says so."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(
            f"no space is left for {folder}", hint="free some; then the same command goes on from there"
        ) from error


def refuse_base_without_cuda(build: Build, base: str) -> None:
    """BaseUnavailable where a compile takes CUDA from its base, and none was named that may have it."""
    if build.wheel.kind == "source" and base in plan.BASES and releases.cuda_from_base(build.release, build.target):
        raise BaseUnavailable(
            f"TensorFlow {build.release} is compiled with the CUDA of its base image, and {build.base_image} has none",
            hint=f"--base with an image that has CUDA {build.cuda}, cuDNN {build.cudnn} and "
            f"{build.asked.compiler or releases.compiler(build.release)}",
        )


def downloads(build: Build, *, wheel_only: bool) -> tuple[Build, ...]:
    """The builds whose downloads are those of `invoke build`, or of `invoke wheel`.

    A compiled wheel requires what the official one does, and its image is compared with that one's.
    """
    if build.wheel.kind != "source" or wheel_only:
        return (build,)
    try:
        return (build, baselines.official(build.release, build.target, build.python, build.platform, build.asked.base))
    except TfbuildError as error:
        raise UsageError(
            f"what the image of {build.id} requires is known by the official wheel, and there is none: {error.reason}",
            hint="--wheel-only, for `invoke wheel`",
        ) from error
