"""A build from source: the tree, its Python, base, compiler and Bazel, its flags and configs, and what they note."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from packaging.version import Version

from tfbuild import facts
from tfbuild.cpu import Cpu, isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import BadInput, Unsupported, UsageError
from tfbuild.facts import release_table, releases, targets, toolchains
from tfbuild.facts.toolchains import Distribution
from tfbuild.plan import amendments, base_choice, configuration, failures
from tfbuild.plan import source as sources
from tfbuild.plan import tree as source_tree
from tfbuild.plan import wheel as wheels
from tfbuild.plan.amendments import Override, OwnBazel, Patch, SystemLibrary
from tfbuild.plan.base_choice import BaseChoice, CompileTarget
from tfbuild.plan.build import MACHINES, PLATFORMS, Decision
from tfbuild.plan.cuda import Capability, CudaChoice, capabilities, cuda_of, gpu_fields, likely_cuda, own_cuda
from tfbuild.plan.failures import Failure
from tfbuild.plan.request import BASES, Request, fingerprint
from tfbuild.plan.rules import asked_set, choose_python, find_release, headers_word, image_fields, newest_release
from tfbuild.plan.source import Source
from tfbuild.plan.tree import Difference, TreeFacts

FLAG = re.compile(r"--?[\w@/][\w@/:.,+~-]*", re.ASCII)
# Flags that choose the CPU of the compiled code; -mtune only orders it.
CHOOSES_CPU = re.compile(r"(?:--(?:copt|cxxopt|conlyopt)=)?['\"]?-m(arch|cpu)=([\w.+-]+)['\"]?", re.ASCII)


def from_source(request: Request, target: str, platform: str, host: Cpu | None) -> Decision:
    """Plan a compile by Bazel for the requested CPU (default: this machine's)."""
    arch = PLATFORMS[platform]
    wanted = asked_set(request, arch, host) or asked_set(replace(request, cpu="host"), arch, host)
    assert wanted is not None  # "host" stands for no request

    _check_flags(request.bazel_flag)
    own = sources.read(Path(request.source), request.source_sha256) if request.source else None
    if own:
        tree = source_tree.read_folder(own.path) if own.kind == "tree" and own.path else None
        release = _release_of(own, tree.version if tree else "", request.release)
        said = source_tree.differences(tree, release) if tree else ()
        with release_table.using(source_tree.extended(() if releases.known(release) else said, release)):
            return _build(_decide(request, target, arch, release, wanted, own, tree, said))

    def plan(release: str) -> Decision:
        return _build(_decide(request, target, arch, release, wanted, sources.tag(release), None, ()))

    if request.release:
        return plan(find_release(request.release))
    decision, refusal = newest_release(plan)
    if not refusal:
        return decision
    return replace(decision, notes=(f"{decision.release} is taken: {refusal}", *decision.notes))


def _release_of(source: Source, version: str, requested: str) -> str:
    """Return the requested release, or `version`, which the source says; they must agree."""
    newer = source.kind == "tree"
    if version and requested and find_release(requested, newer=newer) != version:
        raise BadInput(
            f"{source.path} is TensorFlow {version}, and --release says {requested}",
            hint=f"leave out --release {requested}",
        )
    if not version and not requested:
        raise UsageError(f"{source.path} does not say which release it is", hint="name it: --release 2.20.0")
    return find_release(version or requested, newer=newer)


@dataclass(frozen=True, kw_only=True)
class _Decisions:
    """All that is decided about one compile before it becomes a `Decision`; `failures`: those that concern it."""

    request: Request
    target: str
    release: str
    arch: str
    source: Source
    threading: str
    configs: tuple[str, ...]
    bazel: str
    own_bazel: OwnBazel | None
    choice: BaseChoice
    gpus: tuple[Capability, ...]
    cuda: CudaChoice
    flags: isa.Flags
    configure_env: tuple[tuple[str, str], ...]
    libraries: tuple[SystemLibrary, ...]
    overrides: tuple[Override, ...]
    patches: tuple[Patch, ...]
    failures: tuple[Failure, ...]
    tree: TreeFacts | None
    said: tuple[Difference, ...]

    @property
    def fixes(self) -> tuple[Failure, ...]:
        return tuple(row for row in self.failures if row.fixed)


def _decide(
    request: Request,
    target: str,
    arch: str,
    release: str,
    wanted: InstructionSet,
    source: Source,
    tree: TreeFacts | None,
    said: tuple[Difference, ...],
) -> _Decisions:
    """Decide in the order in which refusals are reported."""
    threading = _threading(request, target, release, arch)
    configs = configuration.configs(release, target, arch, threading)
    own_bazel = amendments.own_bazel(request.bazel)
    bazel = own_bazel.version if own_bazel else request.bazel or toolchains.bazel(release, arch)
    if tree:
        _refuse_bazel(tree, bazel, request.configure)
    gpus = capabilities(request, target, release)
    likely = likely_cuda(request, target, release, gpus)
    purpose = CompileTarget(release=release, target=target, arch=arch, gpus=gpus, bazel=bazel, cuda=likely)
    choice = base_choice.choose(request, purpose)
    cuda = cuda_of(request, target, release, gpus, choice.compiler)
    flags = isa.flags(
        wanted, choice.compiler, release=release, prefer_vector_width=request.prefer_vector_width, named=request.cpu
    )
    configure_env = configuration.configure_env(
        release,
        target,
        compiler=flags.compiler,
        capabilities=",".join(gpu.code for gpu in gpus),
        cuda=cuda.cuda,
        cudnn=cuda.cudnn,
    )
    libraries, overrides, patches = _amendments(request, release)
    return _Decisions(
        request=request,
        target=target,
        release=release,
        arch=arch,
        source=source,
        threading=threading,
        configs=configs,
        bazel=bazel,
        own_bazel=own_bazel,
        choice=choice,
        gpus=gpus,
        cuda=cuda,
        flags=flags,
        configure_env=configure_env,
        libraries=libraries,
        overrides=overrides,
        patches=patches,
        failures=_failures(request, purpose, choice, flags),
        tree=tree,
        said=said,
    )


def _refuse_bazel(tree: TreeFacts, bazel: str, answers: tuple[str, ...]) -> None:
    """Raise Unsupported for a Bazel that the tree's configure.py does not take; `answers`: NAME=VALUE for it."""
    oldest, newest = tree.oldest_bazel, tree.newest_bazel
    ignored = any(answer.startswith("TF_IGNORE_MAX_BAZEL_VERSION=") for answer in answers)
    if oldest and (Version(bazel) < Version(oldest) or (Version(bazel) > Version(newest) and not ignored)):
        raise Unsupported(
            f"the tree's configure.py takes Bazel {oldest} to {newest}, not {bazel}",
            hint=f"--bazel {tree.bazelversion or oldest}; --configure TF_IGNORE_MAX_BAZEL_VERSION=1 tries a newer one",
        )


def _build(decided: _Decisions) -> Decision:
    request, release = decided.request, decided.release
    answers = tuple(amendments.configure_value(text) for text in request.configure)
    return Decision(
        release=release,
        python=decided.choice.python,
        target=decided.target,
        platform=MACHINES[decided.arch],
        instruction_set=decided.flags.instruction_set,
        compiler=decided.flags.compiler,
        copts=decided.flags.copts,
        configs=tuple(dict.fromkeys((*decided.configs, *decided.cuda.configs, *request.config))),
        bazel=decided.bazel,
        own_bazel=decided.own_bazel,
        bazel_target=releases.wheel_target(release),
        bazel_flags=_bazel_flags(decided),
        configure_env=amendments.configured(
            decided.configure_env, decided.libraries, (*decided.cuda.answers, *answers)
        ),
        threading=decided.threading,
        **gpu_fields(decided.gpus, decided.cuda),
        source=decided.source,
        patches=decided.patches,
        overrides=decided.overrides,
        system_libs=decided.libraries,
        fixes=decided.fixes,
        wheel=wheels.source_wheel(releases.constraints(release)),
        variant=_variant(decided),
        notes=_notes(decided),
        **image_fields(request, decided.choice.base),
    )


# --- the parts of a build ---------------------------------------------------------------------------------------------


def _threading(request: Request, target: str, release: str, arch: str) -> str:
    """Return the runtime of oneDNN."""
    onednn = targets.get(target).onednn
    if request.threading and not onednn:
        raise UsageError(
            f"threading is for oneDNN, which --target {target} does not promise", hint=targets.options("onednn")
        )
    return configuration.threading(release, arch, request.threading) if onednn else "threadpool"


def _amendments(
    request: Request, release: str
) -> tuple[tuple[SystemLibrary, ...], tuple[Override, ...], tuple[Patch, ...]]:
    """Read what the user changes about the tree; each library and repository may be named once."""
    libraries = tuple(amendments.system_library(text, release) for text in request.system_lib)
    amendments.refuse_repeated("system-lib", [row.name for row in libraries])
    overrides = tuple(amendments.override(text) for text in request.override_repository)
    amendments.refuse_repeated("override-repository", [row.name for row in overrides])
    return libraries, overrides, tuple(amendments.patch(text) for text in request.patch)


def _known_base(request: Request, choice: BaseChoice) -> Distribution | None:
    """Return the Debian release of the base; None for a base of the user's that is not known."""
    base = choice.base or toolchains.find_base(request.base)
    return base.debian if base else None


def _failures(request: Request, purpose: CompileTarget, choice: BaseChoice, flags: isa.Flags) -> tuple[Failure, ...]:
    """Return the known failures that concern the build, without the fixes that the user refuses."""
    base = _known_base(request, choice)
    circumstances = purpose.circumstances(flags.compiler, base, flags.instruction_set.features)
    return failures.concerning(circumstances, request.without_fix)


def _check_flags(flags: tuple[str, ...]) -> None:
    """Raise UsageError for a word that Bazel would take for a target, and for one that chooses another CPU.

    A word may be the value of the flag before it.
    """
    for before, flag in pairwise(("", *flags)):
        words = [f"{before}={flag}", *flag.split()]
        if match := next(filter(None, map(CHOOSES_CPU.fullmatch, words)), None):
            cpu = "host" if match[2] in ("native", "host") else match[2]
            raise UsageError(
                f"{flag!r} compiles for another CPU than the plan, the labels and the verification say",
                hint=f"--cpu {cpu}",
            )
        if not flag.startswith("-") and ("=" in before or not before.startswith("-")):
            raise UsageError(f"{flag!r} is not a Bazel flag", hint="--bazel-flag=--NAME or --bazel-flag=--NAME=VALUE")
        name = flag.partition("=")[0]
        if flag.startswith("-") and not FLAG.fullmatch(name):
            raise UsageError(f"{name!r} is not the name of a Bazel flag", hint="--bazel-flag=--NAME=VALUE")


def _bazel_flags(decided: _Decisions) -> tuple[str, ...]:
    """Return Bazel's flags; the user's are last."""
    return (
        *configuration.wheel_flags(decided.release, decided.target, decided.arch, decided.choice.python),
        *configuration.repo_env(decided.release, decided.configure_env),
        *(flag for row in decided.fixes for flag in row.flags),
        *decided.request.bazel_flag,
    )


# --- notes ------------------------------------------------------------------------------------------------------------


def _notes(decided: _Decisions) -> tuple[str, ...]:
    return (
        *(f"{row.feature} is left out: {row.reason}" for row in decided.flags.dropped),
        *decided.flags.notes,
        *decided.cuda.notes,
        *failures.notes(decided.failures, _known_base(decided.request, decided.choice)),
        *_unguarded(decided.flags.instruction_set),
        *decided.choice.notes,
        *_about_python(decided),
        *_without_cuda(decided),
        *amendments.other_llvm(decided.overrides, decided.release),
        *_unchecked(decided.source),
        *_about_tree(decided),
    )


def _about_tree(decided: _Decisions) -> tuple[str, ...]:
    """Return notes on what the tree says that the facts do not, and on what it leaves open."""
    tree, release = decided.tree, decided.release
    if tree is None:
        return ()
    compiler, cuda = decided.flags.compiler, targets.get(decided.target).cuda
    questions = source_tree.unanswered(tree, dict(decided.configure_env), cuda=cuda, compiler=compiler)
    asks = tuple(
        f"{base_choice.NOT_CERTAIN}configure.py also asks for {name}: --configure {name}=VALUE answers it"
        for name in questions
    )
    if releases.known(release):
        other = [row for row in decided.said if row.table in ("bazel", "python")]
        return (*(f"the tree says {row.what} ({row.file}), unlike TensorFlow {release}" for row in other), *asks)
    return (
        *(f"read from the tree: {row.what} ({row.file})" for row in decided.said),
        f"{base_choice.NOT_CERTAIN}TensorFlow {release} is newer than this tfbuild; what its tree does not say is "
        f"taken from {releases.nearest(release)}",
        *asks,
    )


def _about_python(decided: _Decisions) -> tuple[str, ...]:
    """Return a note if the Python is a default that official wheels do not share."""
    python = decided.choice.python
    try:
        pythons = releases.official_wheel(decided.release, decided.arch).pythons
    except Unsupported:
        return ()
    official = choose_python(Request(), decided.release, pythons)
    if decided.request.python or python == official:
        return ()
    return (f"Python {python} is the newest of this release with a base; official wheels default to {official}",)


def _unchecked(source: Source) -> tuple[str, ...]:
    if source.kind != "git" or source.commit:
        return ()
    return (f"which commit {source.tag} must be is not known: the tag is taken as it is",)


def _without_cuda(decided: _Decisions) -> tuple[str, ...]:
    if decided.request.base not in BASES or not releases.cuda_from_base(decided.release, decided.target):
        return ()
    cuda = decided.cuda
    return (f"no known base image has CUDA: name one with CUDA {cuda.cuda} and cuDNN {cuda.cudnn} by --base",)


def _unguarded(planned: InstructionSet) -> tuple[str, ...]:
    unprinted = [name for name in planned.features if not facts.feature(name).cpuinfo]
    if not unprinted:
        return ()
    return (
        f"the image cannot look for {' '.join(unprinted)} before it starts: no kernel prints that in /proc/cpuinfo",
    )


# --- words of the identifier ------------------------------------------------------------------------------------------


def _variant(decided: _Decisions) -> tuple[str, ...]:
    return (
        *_as_official(decided.flags.instruction_set, decided.release),
        *_choices(decided),
        *_other_cuda(decided.release, decided.cuda),
        *headers_word(decided.request),
    )


def _other_cuda(release: str, cuda: CudaChoice) -> tuple[str, ...]:
    """Return words for a CUDA and a cuDNN that are not the release's own."""
    if not cuda.cuda:
        return ()
    own = own_cuda(release)
    versions = (("cuda", cuda.cuda, own.cuda), ("cudnn", cuda.cudnn, own.cudnn))
    return tuple(f"{name}{chosen}" for name, chosen, usual in versions if chosen != usual)


def _choices(decided: _Decisions) -> tuple[str, ...]:
    """Return words for what the user chose differently from the release; what has no word becomes a fingerprint."""
    request, release, target = decided.request, decided.release, decided.target
    bazel = _own(lambda: toolchains.bazel(release, decided.arch))
    threading = _own(lambda: configuration.threading(release, decided.arch) if targets.get(target).onednn else "")
    gpus = releases.cuda(release).capabilities if targets.get(target).cuda else ""
    choice = decided.choice
    cuda = decided.cuda.cuda
    purpose = CompileTarget(release=release, target=target, arch=decided.arch, gpus=decided.gpus, cuda=cuda)
    default = base_choice.choose(replace(request, python=choice.python, compiler=""), purpose)
    words = (
        request.threading if request.threading != threading else "",
        choice.compiler if choice.compiler != default.compiler else "",
        f"prefer{request.prefer_vector_width}" if request.prefer_vector_width else "",
        "tree" if decided.source.kind == "tree" else "",
        *fingerprint(
            request,
            bazel=f"{decided.bazel}=" if decided.own_bazel else request.bazel if request.bazel != bazel else "",
            compute_capabilities=request.compute_capabilities if request.compute_capabilities != gpus else "",
            source=decided.source.sha256,
            patch=tuple(patch.sha256 for patch in decided.patches),
            override_repository=tuple(f"{row.name}={row.sha256}" for row in decided.overrides),
        ),
    )
    return tuple(word for word in words if word)


def _own(look_up: Callable[[], str]) -> str:
    """Return what the release itself has, or "" if it is uncertain or does not exist: then every choice differs."""
    try:
        return look_up()
    except Unsupported:
        return ""


def _as_official(compiled: InstructionSet, release: str) -> tuple[str, ...]:
    """Return a word that distinguishes a compile from an official wheel with the same instruction set."""
    try:
        official = releases.official_wheel(release, compiled.arch)
    except Unsupported:
        return ()
    same = isa.closure(official.features) == frozenset(compiled.features)
    return ("source",) if same else ()
