"""How a build differs from the default one of its release, target, Python and instruction set: its identifier's end."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tfbuild import facts
from tfbuild.errors import Unsupported
from tfbuild.facts import releases, targets
from tfbuild.plan import base_choice, configuration, failures
from tfbuild.plan.build import Build
from tfbuild.plan.cuda import Capability
from tfbuild.plan.request import BASES, Request
from tfbuild.util import options
from tfbuild.util.options import Identifier


def words(request: Request) -> tuple[str, ...]:
    """Return the words for what is requested of an image with an existing wheel."""
    return (*_fingerprint(request), *(["headers"] if request.with_headers else []))


def default(look_up: Callable[[], str]) -> str:
    """Return what the release itself has, or "" if it is uncertain or does not exist: then every choice differs."""
    try:
        return look_up()
    except Unsupported:
        return ""


def of_compile(build: Build, gpus: tuple[Capability, ...]) -> tuple[str, ...]:
    """Return words for what differs from the default build; options that have no word become a fingerprint."""
    request, release, target, arch = build.request, build.release, build.target, build.instruction_set.arch
    bazel = default(lambda: releases.bazel(release))
    threading = default(lambda: configuration.threading(release, arch) if targets.get(target).onednn else "")
    known = partial(failures.concerning, release, target=target, arch=arch, gpus=gpus, cuda=build.cuda)
    base = "auto" if request.base in BASES else request.base
    usual = replace(request, python=build.python, compiler="", base=base)
    _, compiler, *_ = base_choice.choose(usual, release, lambda name, debian: known(compiler=name, debian=debian))
    own = releases.cuda(release) if build.cuda else None
    capabilities = own.capabilities if own else ""
    differences = (
        "source" if _is_like_official(build) else "",
        request.threading if request.threading != threading else "",
        build.compiler if build.compiler != compiler else "",
        f"prefer{request.prefer_vector_width}" if request.prefer_vector_width else "",
        "tree" if build.source and build.source.kind == "tree" else "",
        *_fingerprint(
            request,
            bazel=f"{build.bazel}=" if build.own_bazel else request.bazel if request.bazel != bazel else "",
            compute_capabilities=request.compute_capabilities if request.compute_capabilities != capabilities else "",
            source=build.source.sha256 if build.source else "",
            patch=tuple(patch.sha256 for patch in build.patches),
            override_repository=tuple(f"{row.name}={row.sha256}" for row in build.overrides),
        ),
        f"cuda{build.cuda}" if own and build.cuda != own.version else "",
        f"cudnn{build.cudnn}" if own and build.cudnn != own.cudnn else "",
        "headers" if request.with_headers else "",
    )
    return tuple(word for word in differences if word)


def _is_like_official(build: Build) -> bool:
    """Whether the official wheel has the same instruction set, so that the identifier must tell the two apart."""
    compiled = build.instruction_set
    try:
        official = releases.official_wheel(build.release, compiled.arch)
    except Unsupported:
        return False
    return facts.closure(official.features) == frozenset(compiled.features)


def _fingerprint(request: Request, **replaced: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the word of the identifier for all options that have none of their own; () where none is given.

    `replaced`: by an option's field, what stands for its value: "" for what the release has anyway, a file's digest.
    """
    parts = []
    for name, row, value in options.given(request):
        if row.identifier is Identifier.FINGERPRINT:
            texts = options.texts(replaced.get(name.replace("-", "_"), value))
            parts += [name] if row.switch else [f"{name}={text}" for text in texts if text]
    if not parts:
        return ()
    import hashlib

    return (hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8],)
