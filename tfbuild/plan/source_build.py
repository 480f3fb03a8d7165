"""A build from source: the tree, its Python, base, compiler and Bazel, its flags and configs, and what they note."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from tfbuild import facts
from tfbuild.cpu import Cpu, compilers
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import BadInput, Unsupported, UsageError
from tfbuild.facts import release_table, releases, targets, toolchains
from tfbuild.plan import base_choice, configuration, failures, words
from tfbuild.plan import source as sources
from tfbuild.plan import tree as source_tree
from tfbuild.plan.base_choice import NOT_CERTAIN, BaseChoice, HostSystem
from tfbuild.plan.build import MACHINES, PLATFORMS, Decision, Wheel
from tfbuild.plan.cuda import Capability, CudaChoice, capabilities, cuda_of, gpu_fields, likely_cuda
from tfbuild.plan.failures import Circumstances
from tfbuild.plan.request import BASES, Request, fingerprint
from tfbuild.plan.rules import choose_python, find_release, headers_word, image_fields, newest_release, requested_set
from tfbuild.plan.source import Source
from tfbuild.plan.tree import Difference, TreeFacts

SYSTEM_LIBS = "TF_SYSTEM_LIBS"


def from_source(
    request: Request, target: str, platform: str, host: Cpu | None, machine: HostSystem | None = None
) -> Decision:
    """Plan a compile by Bazel for the requested CPU (default: this machine's)."""
    arch = PLATFORMS[platform]
    wanted = requested_set(request, arch, host) or requested_set(replace(request, cpu="host"), arch, host)
    assert wanted is not None  # it names a CPU, at least the host

    def plan(release: str, source: Source | None = None, tree: TreeFacts | None = None) -> Decision:
        return _decide(request, target, arch, release, wanted, source or sources.tag(release), tree, machine)

    words.refuse_flags(request.bazel_flag)
    if request.source:
        source = sources.from_path(Path(request.source), request.source_sha256)
        tree = source_tree.read_folder(source.path) if source.kind == "tree" and source.path else None
        release = _release_of(source, tree.version if tree else "", request.release)
        differences = source_tree.differences(tree, release) if tree else ()
        with release_table.using(source_tree.extended(() if releases.known(release) else differences, release)):
            decision = plan(release, source, tree)
            notes = _about_tree(decision, tree, differences) if tree else ()
        return replace(decision, notes=(*decision.notes, *notes))
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


def _decide(
    request: Request,
    target: str,
    arch: str,
    release: str,
    wanted: InstructionSet,
    source: Source,
    tree: TreeFacts | None,
    machine: HostSystem | None,
) -> Decision:
    """Decide in the order in which refusals are reported."""
    threading = _threading(request, target, release, arch)
    configs = configuration.configs(release, target, arch, threading)
    own_bazel = sources.own_bazel(request.bazel)
    bazel = own_bazel.version if own_bazel else request.bazel or releases.bazel(release)
    own = (tree.bazelversion if tree else "") or _default(lambda: releases.bazel(release))
    if not request.source:
        _refuse_bazel(bazel, own)
    gpus = capabilities(request, target, release)
    likely = likely_cuda(request, target, release, gpus)
    circumstances = Circumstances(
        release=release,
        target=target,
        arch=arch,
        gpus=gpus,
        bazel=bazel,
        cuda=likely,
        machine_glibc=machine.glibc if machine else "",
    )
    choice = base_choice.choose(request, circumstances, machine)
    cuda = cuda_of(request, target, release, gpus, choice.compiler, own_place=not choice.base)
    words.refuse_other_gpus(request)
    flags = compilers.flags(
        wanted, choice.compiler, release=release, prefer_vector_width=request.prefer_vector_width, named=request.cpu
    )
    words.refuse_another_cpu(request, flags.instruction_set)
    changes = _changes(request, release)
    place = machine or choice.base
    circumstances = replace(
        circumstances,
        compiler=flags.compiler,
        base=place.debian if place else toolchains.debian_of(request.base),
        features=flags.instruction_set.features,
    )
    known_failures = failures.concerning(circumstances, request.without_fix)
    fixes = tuple(row for row in known_failures if row.fixed)
    answers = configuration.configure_env(release, target, flags.compiler, gpus, cuda)
    decision = Decision(
        release=release,
        python=choice.python,
        target=target,
        platform=MACHINES[arch],
        instruction_set=flags.instruction_set,
        compiler=flags.compiler,
        copts=flags.copts,
        configs=tuple(dict.fromkeys((*configs, *cuda.configs, *request.config))),
        bazel=bazel,
        own_bazel=own_bazel,
        bazel_target=releases.wheel(release).target,
        bazel_flags=(
            *configuration.wheel_flags(release, target, arch, choice.python),
            *configuration.repo_env(release, answers),
            *(flag for row in fixes for flag in row.flags),
            *request.bazel_flag,
        ),
        threading=threading,
        **gpu_fields(gpus, cuda),
        source=source,
        **changes,
        fixes=fixes,
        wheel=Wheel(kind="source", requirement="", constraints=releases.constraints(release)),
        **image_fields(request, choice.base),
    )
    return replace(
        decision,
        configure_env=_configure_env(decision, answers, cuda),
        variant=_variant(decision, gpus),
        notes=(
            *(f"{row.feature} is left out: {row.reason}" for row in flags.dropped),
            *flags.notes,
            *cuda.notes,
            *_about_bazel(decision, own),
            *failures.notes(known_failures, circumstances.glibc),
            *_own_notes(decision, choice),
        ),
    )


# --- the parts of a build ---------------------------------------------------------------------------------------------


def _threading(request: Request, target: str, release: str, arch: str) -> str:
    """Return the runtime of oneDNN. Raises UsageError for a --config or a --define of another one."""
    if not targets.get(target).onednn:
        if request.threading:
            raise UsageError(
                f"threading is for oneDNN, which --target {target} does not guarantee", hint=targets.options("onednn")
            )
        return "threadpool"
    chosen = configuration.threading(release, arch, request.threading)
    for word, runtime in words.runtimes_named(request):
        if configuration.threading(release, arch, runtime) != chosen:
            raise UsageError(
                f"{word} runs oneDNN on {runtime}, but the plan has {chosen}", hint=f"--threading {runtime}"
            )
    return chosen


def _refuse_bazel(bazel: str, own: str) -> None:
    """Raise Unsupported for a Bazel that builds no release. `own`: that of this release."""
    oldest = toolchains.table().oldest_bazel
    if Version(bazel) < Version(oldest):
        raise Unsupported(f"TensorFlow takes Bazel {oldest} or newer, not {bazel}", hint=f"--bazel {own or oldest}")


def _about_bazel(decision: Decision, own: str) -> Iterator[str]:
    """Yield a note on a requested Bazel that is not the release's own."""
    bazel, release = decision.bazel, decision.release
    if decision.request.bazel and own not in ("", bazel):
        which = f"Bazel {bazel}" if decision.own_bazel else f"there is a Bazel {bazel} that"
        yield f"{NOT_CERTAIN}whether {which} builds TensorFlow {release}, whose own is {own}"


def _changes(request: Request, release: str) -> dict[str, Any]:
    """Return what the user changes about the tree; each library and repository may be named once."""
    libraries = tuple(sources.system_library(text, release) for text in request.system_lib)
    overrides = tuple(sources.override(text) for text in request.override_repository)
    for option, rows in (("system-lib", libraries), ("override-repository", overrides)):
        names = [row.name for row in rows]
        if repeated := next((name for name in names if names.count(name) > 1), ""):
            raise UsageError(f"{option} names {repeated} twice", hint="once is enough")
    patches = tuple(sources.patch(text) for text in request.patch)
    return {"system_libs": libraries, "overrides": overrides, "patches": patches}


def _configure_env(
    decision: Decision, answers: tuple[tuple[str, str], ...], cuda: CudaChoice
) -> tuple[tuple[str, str], ...]:
    """Return the release's answers, replaced by the user's; system libraries go into TF_SYSTEM_LIBS."""
    names = ",".join(sorted(row.name for row in decision.system_libs))
    given = (text.partition("=") for text in decision.request.configure)
    users = dict(cuda.answers) | {name: value for name, _, value in given}
    return tuple((dict(answers) | ({SYSTEM_LIBS: names} if names else {}) | users).items())


# --- notes ------------------------------------------------------------------------------------------------------------


def _own_notes(decision: Decision, choice: BaseChoice) -> Iterator[str]:
    """Yield the notes that no part of the decision brings with it."""
    release, source = decision.release, decision.source
    if unprinted := [name for name in decision.instruction_set.features if not facts.feature(name).cpuinfo]:
        names = " ".join(unprinted)
        yield f"the entry point cannot check for {names}: no kernel lists it in /proc/cpuinfo"
    yield from choice.notes
    if not choice.machine and (official := _other_python(decision)):
        python = decision.python
        base = "a base that mmdebstrap makes" if decision.request.base == "bootstrap" else "a base"
        yield f"Python {python} is the newest of this release with {base}; official wheels default to {official}"
    if decision.request.base in BASES and releases.cuda_from_base(release, decision.target):
        yield (f"no known base image has CUDA: name one with CUDA {decision.cuda} and cuDNN {decision.cudnn} by --base")
    yield from sources.other_llvm(decision.overrides, release)
    if source and source.kind == "git" and not source.commit:
        yield f"the commit of {source.tag} is not known, so the tag is not checked"


def _other_python(decision: Decision) -> str:
    """Return the default Python of official wheels, if that of this build is another default; else ""."""
    pythons = releases.official_pythons(decision.release, decision.instruction_set.arch)
    if decision.request.python or not pythons:
        return ""
    official = choose_python(Request(), decision.release, pythons)
    return "" if decision.python == official else official


def _about_tree(decision: Decision, tree: TreeFacts, differences: tuple[Difference, ...]) -> Iterator[str]:
    """Yield notes on what the tree says that the facts do not, and on what it leaves open."""
    release = decision.release
    known = releases.known(release)
    for row in differences:
        if not known:
            yield f"read from the tree: {row.what} ({row.file})"
        elif row.table in ("bazel", "python"):
            yield f"the tree says {row.what} ({row.file}), unlike TensorFlow {release}"
    if not known:
        yield (
            f"{NOT_CERTAIN}TensorFlow {release} is newer than this tfbuild; what its tree does not say is taken from "
            f"{releases.nearest(release)}"
        )
    cuda, compiler = targets.get(decision.target).cuda, decision.compiler
    for name in source_tree.unanswered(tree, dict(decision.configure_env), cuda=cuda, compiler=compiler):
        yield f"{NOT_CERTAIN}configure.py also asks for {name}: --configure {name}=VALUE answers it"


# --- words of the identifier ------------------------------------------------------------------------------------------


def _variant(decision: Decision, gpus: tuple[Capability, ...]) -> tuple[str, ...]:
    """Return words for what differs from the default build; options that have no word become a fingerprint."""
    request, release, target, arch = decision.request, decision.release, decision.target, decision.instruction_set.arch
    bazel = _default(lambda: releases.bazel(release))
    threading = _default(lambda: configuration.threading(release, arch) if targets.get(target).onednn else "")
    circumstances = Circumstances(release=release, target=target, arch=arch, gpus=gpus, cuda=decision.cuda)
    base = "auto" if request.base in BASES else request.base
    usual = base_choice.choose(replace(request, python=decision.python, compiler="", base=base), circumstances)
    own = releases.cuda(release) if decision.cuda else None
    capabilities = own.capabilities if own else ""
    differences = (
        "source" if _is_like_official(decision) else "",
        request.threading if request.threading != threading else "",
        decision.compiler if decision.compiler != usual.compiler else "",
        f"prefer{request.prefer_vector_width}" if request.prefer_vector_width else "",
        "tree" if decision.source and decision.source.kind == "tree" else "",
        *fingerprint(
            request,
            bazel=f"{decision.bazel}=" if decision.own_bazel else request.bazel if request.bazel != bazel else "",
            compute_capabilities=request.compute_capabilities if request.compute_capabilities != capabilities else "",
            source=decision.source.sha256 if decision.source else "",
            patch=tuple(patch.sha256 for patch in decision.patches),
            override_repository=tuple(f"{row.name}={row.sha256}" for row in decision.overrides),
        ),
        f"cuda{decision.cuda}" if own and decision.cuda != own.version else "",
        f"cudnn{decision.cudnn}" if own and decision.cudnn != own.cudnn else "",
        *headers_word(request),
    )
    return tuple(word for word in differences if word)


def _default(look_up: Callable[[], str]) -> str:
    """Return what the release itself has, or "" if it is uncertain or does not exist: then every choice differs."""
    try:
        return look_up()
    except Unsupported:
        return ""


def _is_like_official(decision: Decision) -> bool:
    """Whether the official wheel has the same instruction set, so that the identifier must tell the two apart."""
    compiled = decision.instruction_set
    try:
        official = releases.official_wheel(decision.release, compiled.arch)
    except Unsupported:
        return False
    return facts.closure(official.features) == frozenset(compiled.features)
