"""Make a verified image from a `Build`: base, context, image, verification, tag, report.

An image is named ID-unverified until its verification passes, then ID; one that fails is named ID-failed. An image that
was verified before, from the same context on the same base, is not built or verified again.
"""

import json
import os
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
from tfbuild.context.labels import ID, UNVERIFIED, given_at_build, image_name, read_labels
from tfbuild.context.planned import Planned
from tfbuild.cpu import Cpu, cpuid
from tfbuild.engine import Engine, disk_space
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import BaseUnavailable, EngineMissing, TfbuildError, UnknownCpu, UnknownImage, UsageError
from tfbuild.facts import base_images, releases, toolchains
from tfbuild.pipeline import base_image as bases
from tfbuild.pipeline import baselines, compiling, reuse, tagging, wheel_export
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
from tfbuild.util.quantities import counted
from tfbuild.verify import report as reporting
from tfbuild.verify import session as verifying
from tfbuild.verify.records import Report
from tfbuild.verify.verification import Baseline

# The content of a recorded machine (docs/cpu-and-flags.md); without glibc's loader, only the kernel's list.
RECORD = f"cat {cpu.CPUINFO}; echo; {cpuid.LOADER} --list-diagnostics 2>/dev/null || true"
# Bytes that must be free before the start. An image from 2.21.0's wheel filled an empty engine with 3.3 GB, including
# base and pip's cache (2026-11), and a rebuild needs as much again; the value for a compile is an estimate
# (--need-disk).
DISK = {"official": 8 << 30, "file": 8 << 30, "source": 80 << 30}


@dataclass(frozen=True, kw_only=True)
class Result:
    """`image`: its name now; `report`: None where it was not to be verified."""

    image: str
    report: Report | None


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Makes images on one engine, as its `run` says."""

    run: Run
    progress: Progress = field(default_factory=Progress)

    @cached_property
    def engine(self) -> Engine:
        engine = Engine.connect(chosen=self.run.engine)
        if engine.swept:
            self.progress(f"removed {counted(len(engine.swept), 'container')} of runs that were killed")
        return engine

    def cpu(self) -> Cpu:
        """Return the CPU of the engine's machine, as a container sees it. Raises what making a base image raises."""
        row = base_images.default()
        image = bases.made_before(self.engine) or self._resolve(row.image, row.bootstrap).reference
        with self.progress.step("detect: the engine's CPU"):
            recording = self.engine.run(image, ["sh", "-c", RECORD], entrypoint=())
        return cpu.parse(recording.stdout, origin="the engine's /proc/cpuinfo")

    def render(self, build: Build) -> Context:
        """Write the build context; start nothing. Refuses a remote cache that the build's Bazel cannot use."""
        if self.run.remote and build.wheel.kind == "source":
            remote_cache.bazelrc(self.run.remote, build.bazel)
        context = dockerfile.write(build, self.run.work / build.id / "context")
        plan_file = self.run.work / build.id / "plan.json"
        with files.writing(plan_file.parent):
            files.replace_file(plan_file, json.dumps(build.to_json(), indent=2) + "\n")
        return context

    def build(self, build: Build) -> Result:
        """Build, verify and tag; the report says pass or fail. Raises BuildFailed, and what earlier steps raise."""
        comparison = baselines.for_build(build, self.run.base)
        with self._locked(build):
            if self.run.verify:
                files.check_writable(self.run.reports)
                if self.engine.local and (lacking := self._lacking(build)):
                    self.progress(
                        f"this machine lacks {' '.join(lacking)}: the image will not start here, and verification will "
                        "fail; --no-verify skips it"
                    )
            return self._build(build, comparison)

    def _build(self, build: Build, comparison: Comparison) -> Result:
        context = self._context(build)
        if not self.engine.exists(image_name(build)):
            self._need_disk(build)
        base = self._base(build)
        key = image_digest(context.digest, base.digest)
        if not self.run.no_cache and (earlier := self._earlier(build, key, comparison)) is not None:
            return earlier
        self._need_disk(build)
        unverified = image_name(build, UNVERIFIED)
        reused = reuse.resolve(self.engine, build, context, self.run.reuse, self.progress) if self.run.reuse else None
        self._start(build, base, context, BuilderWork(context=context.folder, tag=unverified), reused)
        if not self.run.verify:
            return Result(image=unverified, report=None)
        return self._verify_and_name(build, unverified, comparison)

    def wheel(self, build: Build, output: Path) -> Exported:
        """Compile the wheel and write it, with its sidecar, to the folder `output`, without making an image."""
        if build.wheel.kind != "source":
            raise UsageError("only a compiled wheel can be exported", hint="leave out --wheel")
        with self._locked(build):
            return self._wheel(build, output)

    def _wheel(self, build: Build, output: Path) -> Exported:
        context = self._context(build)
        self._need_disk(build)
        base = self._base(build)
        scratch = self.run.work / build.id / "wheel"
        with files.writing(scratch.parent):
            # A wheel of an earlier run would be taken for this one's.
            files.remove(scratch)
        self._start(build, base, context, BuilderWork(context=context.folder, stage="export", output=scratch))
        with files.writing(output):
            exported = wheel_export.collect(build, scratch, output, context=context.digest, base=base.digest)
        for line in exported.audit.lines():
            self.progress(line)
        return exported

    def bundle(self, builds: Sequence[Build], output: Path) -> Bundle:
        """Download what these builds need into the folder `output`, by their own steps, without building them.

        Files that are there already are not downloaded again. A second run into the same folder waits. Raises BadMirror
        where a download fails.
        """

        def waiting() -> None:
            self.progress(f"another run is filling {output}; waiting for it (Ctrl-C leaves it alone)")

        with files.writing(output), files.locked(output, waiting):
            filled = bundles.fill(output)
            try:
                for build in builds:
                    with self._locked(build):
                        self._download(build, filled)
            finally:
                filled.write()
            filled.write(*(build.id for build in builds))
        return filled

    def _download(self, build: Build, filled: Bundle) -> None:
        maker = replace(self, run=replace(self.run, bundle=filled, recording=True, no_cache=True))
        context = maker._context(build)
        self._need_disk(build)
        # A base that the bundle has stays: its package lists are of the same day.
        base, key = maker._base(build), bases.bundle_key(build.base_image, self.run.base)
        if filled.base(key, self.engine.platform) is None:
            with self.progress.step(f"bundle: keep {base.name}"):
                bases.keep(self.engine, base, key, filled)
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
    def _locked(self, build: Build) -> Iterator[None]:
        """Lock the build's folder for this process, because its context, logs and exports have fixed names.

        A second run waits, and usually finds the image built and verified. There is no deadlock: a build waits for at
        most one other, that of the official wheel, which waits for none.
        """
        refuse_base_without_cuda(build, self.run.base)  # leaves no folder behind
        folder = self.run.work / build.id

        def waiting() -> None:
            self.progress(f"another run is building {build.id} here; waiting for it (Ctrl-C leaves it alone)")

        with ExitStack() as locks:
            with files.writing(folder):
                locks.enter_context(files.locked(folder, waiting))
            yield

    def _context(self, build: Build) -> Context:
        """Return the context of a build, after checking that this engine can make it."""
        if self.run.bundle and not self.engine.local:
            raise UsageError(
                "the engine is on another machine, which cannot reach a folder served on this one",
                hint="serve the folder by a web server that it reaches: --mirror URL",
            )
        self.engine.require_buildkit()  # before the base is made, like the next line, which raises where none answers
        builder = self.engine.builder
        if self.run.bundle and builder:
            raise UsageError(
                f"{builder} has a network of its own, which cannot reach a folder served on this machine's loopback",
                hint="serve the folder by a web server that it reaches: --mirror URL; or leave out --builder",
            )
        if build.platform != self.engine.platform:
            raise EngineMissing(
                f"this engine builds for {self.engine.platform}, but the plan is for {build.platform}",
                hint=f"use a {build.platform} engine (--engine, DOCKER_HOST), or --platform {self.engine.platform}",
            )
        return self.render(build)

    def _start(
        self,
        build: Build,
        base: bases.ResolvedBase,
        context: Context,
        work: BuilderWork,
        reused: bases.ResolvedBase | None = None,
    ) -> None:
        with self._named_contexts(build, base, *([reused] if reused else [])) as contexts:
            settings = BuildSettings(
                log=self.run.work / build.id / "build.log",
                progress=self.progress,
                build_args=dockerfile.build_args(base, context, reused),
                contexts=contexts,
                labels=given_at_build(os.environ),
                no_cache=self.run.no_cache,
            )
            compiling.execute(
                Compile(
                    build=build,
                    run=self.run,
                    engine=self.engine,
                    settings=settings,
                    work=work,
                    machine_flags=self._machine_flags(build),
                )
            )

    def _machine_flags(self, build: Build) -> tuple[str, ...]:
        """Return Bazel's flags for a machine that runs the instruction set; none where others may run actions."""
        flags = toolchains.compile_once_flags(build.bazel) if build.wheel.kind == "source" else ()
        if not flags or self.run.reuse or self.engine.builder or (self.run.remote and self.run.remote.executor):
            return ()
        return flags if self._lacking(build) == () else ()

    def _lacking(self, build: Build) -> tuple[str, ...] | None:
        """Return the build's features that the engine's machine lacks; None where its CPU is not known."""
        try:
            machine = cpu.detect() if self.engine.local else self.cpu()
        except UnknownCpu:
            return None
        return tuple(sorted(set(build.instruction_set.features) - set(machine.features)))

    @contextmanager
    def _named_contexts(self, build: Build, *images: bases.ResolvedBase) -> Iterator[Mapping[str, str]]:
        """Yield the images for a builder outside the engine, in a folder removed afterwards; else nothing."""
        folder = self.run.work / build.id / "base"
        contexts: dict[str, str] = {}
        try:
            with files.writing(folder):
                for number, image in enumerate(images if self.engine.builder else ()):
                    contexts |= bases.named_contexts(self.engine, image, folder / str(number), self.progress)
            yield contexts
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _need_disk(self, build: Build) -> None:
        usual = DISK["file" if self.run.reuse else build.wheel.kind]
        disk_space.require(self.engine, usual if self.run.disk is None else self.run.disk)

    def verify(self, ref: str) -> Report:
        """Verify any image on the engine by what its labels claim, and write its report.

        Nothing is built: where the image to compare with is missing, the throughput check is skipped.
        """
        files.check_writable(self.run.reports)
        return self._report(self._verify(ref, self._existing_baseline(ref)), ref)

    def _base(self, build: Build) -> bases.ResolvedBase:
        bundle, key = self.run.bundle, bases.bundle_key(build.base_image, self.run.base)
        if bundle and (bundled := bundle.base(key, self.engine.platform)):
            return bases.from_bundle(self.engine, bundled, bundle.folder, self.progress)
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
            follow=self.run.no_cache,
        )

    def _earlier(self, build: Build, key: str, comparison: Comparison) -> Result | None:
        """Return the image and report of an earlier run, where nothing changed since; --reverify verifies it again."""
        final = image_name(build)
        with suppress(UnknownImage):
            image = self.engine.image(final)
            if read_labels(image.labels).context != key:
                return None
            stored = reporting.stored(self.run.reports, build.id)
            if stored is not None and stored.passed and stored.image.id == image.id and not self.run.reverify:
                self.progress(f"{final} is built and verified; nothing changed since (--reverify verifies it again)")
                return Result(image=final, report=stored)
            if self.run.verify:
                return self._verify_and_name(build, final, comparison)
            return Result(image=final, report=None)
        return None

    def _verify_and_name(self, build: Build, ref: str, comparison: Comparison) -> Result:
        """Give an image that passes its verification its final name, and one that fails the name of a failed image."""
        report = self._verify(ref, self._baseline(ref, comparison))
        name = tagging.tag(self.engine, build, ref, passed=report.passed)
        return Result(image=name, report=self._report(report, name))

    def _report(self, report: Report, ref: str) -> Report:
        named = replace(report, image=replace(report.image, ref=ref))
        reporting.write(named, self.run.reports)
        return named

    def _verify(self, ref: str, baseline: Baseline | str) -> Report:
        """`baseline`: what to compare with, or why there is none."""
        if isinstance(baseline, str):
            return verifying.verify(self.engine, ref, baseline=None, progress=self.progress, untimed=baseline)
        return verifying.verify(self.engine, ref, baseline=baseline, progress=self.progress)

    def _baseline(self, ref: str, comparison: Comparison) -> Baseline | str:
        """Return the baseline of the image `ref`; build the official wheel's image where it is missing."""
        if not self.run.throughput:
            return baselines.LEFT_OUT
        if comparison.wheel is None:
            return self._without_wheel(ref, comparison)
        other = baselines.image_of(self.engine, comparison.wheel) or self._make_official(comparison.wheel)
        return baselines.image(self.engine, other, comparison.release)

    def _existing_baseline(self, ref: str) -> Baseline | str:
        """Return the baseline of an image by its labels, or why there is none; build nothing."""
        image = self.engine.image(ref)
        if ID not in image.labels:
            raise UnknownImage(f"{ref} was not made by tfbuild: it has no io.tfbuild labels", hint="invoke build")
        planned = Planned.of(ref, image.labels, image.architecture)
        if not self.run.throughput:
            return baselines.LEFT_OUT
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
        """Build the official wheel's image for the comparison; it need not be verified for that."""
        self.progress(f"building {image_name(wheel)} to compare with")
        unverified = replace(self.run, disk=None, verify=False, reverify=False, no_cache=False, reuse="")
        return replace(self, run=unverified).build(wheel).image


def refuse_base_without_cuda(build: Build, base: str) -> None:
    """Raise BaseUnavailable where a compile takes CUDA from its base, and the user named no base that may have it."""
    if build.wheel.kind == "source" and base in plan.BASES and releases.cuda_from_base(build.release, build.target):
        raise BaseUnavailable(
            f"TensorFlow {build.release} is compiled with the CUDA of its base image, and {build.base_image} has none",
            hint=f"--base with an image that has CUDA {build.cuda}, cuDNN {build.cudnn} and "
            f"{build.asked.compiler or releases.compiler(build.release)}",
        )


def downloads(build: Build, *, wheel_only: bool) -> tuple[Build, ...]:
    """Return the builds whose downloads `invoke build` needs, or `invoke wheel` with `wheel_only`.

    A compiled wheel has the requirements of the official one, and its image is compared with the official image.
    """
    if build.wheel.kind != "source" or wheel_only:
        return (build,)
    try:
        return (build, baselines.official(build.release, build.target, build.python, build.platform, build.asked.base))
    except TfbuildError as error:
        raise UsageError(
            f"the image of {build.id} requires what the official wheel does, but there is none: {error.reason}",
            hint="--wheel-only bundles for `invoke wheel`",
        ) from error
