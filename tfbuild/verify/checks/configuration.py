"""The configuration check: an image's labels agree with each other, and the rest is what their plan renders."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from tfbuild import __version__
from tfbuild.context import dockerfile
from tfbuild.context.labels import PREFIX, descriptions, read_labels
from tfbuild.cpu import isa
from tfbuild.engine import Engine, Image
from tfbuild.errors import TfbuildError, UnknownImage
from tfbuild.facts import toolchains
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.oci.references import split_tag
from tfbuild.plan import Build
from tfbuild.plan.request import IMAGE_NAME
from tfbuild.verify import Verification, VerificationCheck

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What builders note in a configuration, and no container gets.
NOTED = {"ArgsEscaped", "Image", "Env", "Labels"}
# Of these a base image cannot have its own: Python and the dynamic linker take code from them. Those in brackets, which
# bases often set, load nothing and change no result.
DIVERTING = re.compile(
    r"PYTHON(?!(UNBUFFERED|DONTWRITEBYTECODE|IOENCODING|UTF8|HASHSEED|FAULTHANDLER|NOUSERSITE|_VERSION)$).*"
    r"|LD_(?!(LIBRARY_PATH|BIND_NOW)$).*|GLIBC_TUNABLES|GCONV_PATH|OPENSSL_(CONF|ENGINES|MODULES)|BASH_ENV"
)
MOST_SHOWN = 100


def compare(image: Image, planned: Build, base: Image | None) -> Judgement:
    """Judge an image's labels and configuration; `base`: what it is based on, if it is here."""
    own = base.config if base else {}
    faults = [
        *contradictions(image.labels, planned),
        *_settings(image.config, own),
        *_environment(image, planned, base),
    ]
    if base and image.layers[: len(base.layers)] != base.layers:
        name = read_labels(image.labels).base_name
        faults.append(f"its layers are not those of {name[:MOST_SHOWN]}, which its labels name as its base")
    if faults:
        return Judgement(judge.FAIL, "; ".join(faults))
    return Judgement(judge.PASS, "it matches the labels, and they agree with each other")


def contradictions(labels: Mapping[str, str], planned: Build) -> Iterator[str]:
    """Yield the labels that contradict others."""
    image, held = read_labels(labels), planned.instruction_set
    if image.id != planned.id:
        yield f"{PREFIX}id is {image.id[:MOST_SHOWN]}, but its other labels say {planned.usual_id[:MOST_SHOWN]}"
    try:
        name = isa.instruction_set(held.features, held.arch).name
    except TfbuildError:
        name = "not all known"
    # Another version may have other names.
    if name != held.name and image.get("version") == __version__:
        yield f"its instruction set is {held.name[:MOST_SHOWN]}, but its features are {name}"
    rendered = descriptions(image.id, planned.release, planned.target, planned.python, held.name)
    yield from _differences({name: labels.get(name) for name in rendered}, rendered)


def _settings(config: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings that are neither rendered nor those of the base image."""
    rendered = dockerfile.CONFIGURATION
    names = sorted({*config, *rendered} - NOTED)
    return _differences(
        {name: config.get(name) or None for name in names},
        {name: rendered.get(name) or base.get(name) or None for name in names},
    )


def _differences(found: Mapping[str, Any], rendered: Mapping[str, Any]) -> Iterator[str]:
    for name, value in found.items():
        wanted = rendered.get(name)
        if value != wanted and wanted is None:
            yield f"{name} is set ({_shown(value)})"
        elif value != wanted:
            yield f"{name} is {'missing' if value is None else _shown(value)}, not {_shown(wanted)}"


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        value = " ".join(map(str, value))
    text = value if isinstance(value, str) else repr(value)
    return text[:MOST_SHOWN] or "empty"


def _environment(image: Image, planned: Build, base: Image | None) -> Iterator[str]:
    """Yield the variables that are neither rendered, nor the base image's, nor known as harmless."""
    pairs = [line.partition("=")[::2] for line in image.env]
    env, own = dict(pairs), dict(line.partition("=")[::2] for line in base.env) if base else {}
    if len(env) != len(pairs):
        yield "a variable is set twice"
    folder, _, path = env.pop("PATH", "").partition(":")
    if folder != f"{dockerfile.VENV}/bin":
        yield f"PATH begins with {folder[:MOST_SHOWN] or 'nothing'}, not with {dockerfile.VENV}/bin"
    elif path != own.get("PATH") and not {*path.split(":")} <= {*SYSTEM_PATH.split(":")}:
        yield f"PATH continues with {path[:MOST_SHOWN]}"
    known = {name: value for name, value in own.items() if not DIVERTING.fullmatch(name)}
    harmless = {name: value for name, value in env.items() if toolchains.is_harmless(name, value)}
    yield from _differences(env, known | harmless | dockerfile.environment(planned))
    yield from (f"{name} is missing" for name in dockerfile.environment(planned) if name not in env)


def _base(engine: Engine, image: Image) -> Image | None:
    """Return the image whose digest this one's labels have as its base's, if the engine has it.

    A name alone may have moved to any image. The digest of an imported base is that of its layer.
    """
    labels = read_labels(image.labels)
    name, digest = labels.base_name, labels.base_digest
    for ref in filter(IMAGE_NAME.fullmatch, (f"{split_tag(name)[0]}@{digest}", name, digest)):
        with suppress(UnknownImage):
            found = engine.image(ref)
            if digest in found.digests or found.layers == (digest,):
                return found
    return None


def _run(verification: Verification) -> Judgement:
    image = verification.engine.image(verification.ref)
    return compare(image, verification.planned, _base(verification.engine, image))


CHECK = VerificationCheck(
    name="configuration",
    proves="The image's labels agree with each other. It is built on the base that they name. Its environment, user, "
    "working folder, entry point and command are those that tfbuild renders for the labels, and nothing else is "
    "configured.",
    how="The image's configuration was compared with the one that this tfbuild renders for its labels, field by "
    "field. A base image on this engine may set variables and other fields of its own, but none that make Python or "
    "the dynamic linker load code.",
    fix="build the image again; if the base image sets what is named, remove it there, or pull the base image so that "
    "it can be compared",
    run=_run,
)
