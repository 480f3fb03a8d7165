"""The configuration check: an image's labels agree with each other, and the rest is what their plan renders."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from tfbuild import __version__
from tfbuild.context import dockerfile
from tfbuild.context.labels import (
    BASE,
    BASE_DIGEST,
    BASE_NAME,
    ID,
    OCI,
    OWN,
    PREFIX,
    SCHEMA,
    Planned,
    descriptions,
    labels_of,
    onednn,
    prefixed,
    read_labels,
)
from tfbuild.cpu import compilers, isa
from tfbuild.engine import Engine, Image
from tfbuild.errors import TfbuildError, UnknownImage
from tfbuild.facts import releases, toolchains
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.plan import Request, select
from tfbuild.plan.request import IMAGE_NAME
from tfbuild.verify.verification import Verification, VerificationCheck

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What builders note in a configuration, and no container gets.
NOTED = {"ArgsEscaped", "Image", "Env", "Labels"}
# Of these a base image cannot have its own: Python and the dynamic linker take code from them.
DIVERTING = re.compile(
    r"PYTHON.*|LD_(?!LIBRARY_PATH$).*|GLIBC_TUNABLES|GCONV_PATH|OPENSSL_(CONF|ENGINES|MODULES)|BASH_ENV"
)
SHOWN = 100
# Labels that do not follow from a plan: they say how and on what its builder made the image.
GIVEN = {ID, f"{OCI}version", f"{PREFIX}context", f"{PREFIX}reused", BASE, BASE_NAME, BASE_DIGEST}
# In an identifier, the value of prefer-vector-width.
WIDTH = re.compile(r"-prefer(\d+)")


def compare(image: Image, planned: Planned, base: Image | None) -> Judgement:
    """Judge the labels and the configuration of an image; `base`: the image that it is based on, if it is here."""
    own = base.config if base else {}
    faults = [
        *contradictions(image.labels, planned),
        *_base_layers(image, base),
        *_settings(image.config, own),
        *_environment(image, planned, base),
    ]
    if faults:
        return Judgement(judge.FAIL, "; ".join(faults))
    return Judgement(judge.PASS, "it is what the labels ask for, and they agree with each other")


def contradictions(labels: Mapping[str, str], planned: Planned) -> Iterator[str]:
    """Yield the labels that contradict others."""
    rendered: dict[str, str | None] = {f"{PREFIX}features": " ".join(sorted(planned.features))}
    rendered |= descriptions(planned.id, planned.release, planned.target, planned.python, planned.instruction_set)
    start = "-".join((planned.release, planned.target, f"py{planned.python}", planned.instruction_set))
    if planned.id != start and not planned.id.startswith(f"{start}-"):
        yield f"{PREFIX}id is {planned.id[:SHOWN]}, but its other labels say {start[:SHOWN]}"
    if (named := _release_of(planned)) not in ("", planned.release):
        yield f"{PREFIX}requirement is for {named[:SHOWN]}, but {PREFIX}release is {planned.release}"
    # Other versions may have other names, labels and plans.
    if planned.version == __version__:
        name = _name(planned)
        if name != planned.instruction_set:
            yield f"{PREFIX}instruction-set is {planned.instruction_set[:SHOWN]}, but its features are {name}"
        try:
            rendered |= _following(planned)
        except TfbuildError as error:
            yield f"no build has such labels: {error.reason}"
        rendered |= dict.fromkeys(name for name in labels if name.startswith(PREFIX) and name not in OWN)
    yield from _differences({name: labels.get(name) for name in rendered}, rendered)


def _following(planned: Planned) -> dict[str, str | None]:
    """Return the labels that follow from others, None for one that must be absent. Raises TfbuildError if none can.

    With the official wheel, the release's facts give all of them. Only its builder knows a compile's Bazel, CUDA and
    source.
    """
    if planned.wheel == "official":
        image = {name: getattr(planned, name) for name in ("release", "target", "python", "platform", "wheel")}
        # The labels do not depend on the base, which may be one that nobody else has.
        labels = labels_of(select(Request(**image, base="any"), None))
        return dict.fromkeys(OWN - GIVEN) | {name: value for name, value in labels.items() if name not in GIVEN}
    gpus = () if planned.runtime.cuda else ("compute-capabilities", "cuda", "cudnn")
    own = {"schema": SCHEMA, "onednn": onednn(planned.runtime)}
    if planned.wheel == "file":
        own |= {"copts": "", "compiler": "", "bazel": ""}
    else:
        own |= {"wheel": "source", "copts": " ".join(_copts(planned))}
    return dict.fromkeys(f"{PREFIX}{name}" for name in gpus) | prefixed(own)


def _copts(planned: Planned) -> tuple[str, ...]:
    """Return Bazel's options for the features of a compile."""
    features, match = isa.instruction_set(planned.features, planned.arch), WIDTH.search(planned.id)
    width = match[1] if match else ""
    return compilers.flags(features, planned.compiler, release=planned.release, prefer_vector_width=width).copts


def _base_layers(image: Image, base: Image | None) -> Iterator[str]:
    """Yield a fault if the image is not built on the base whose digest its labels have."""
    labels = read_labels(image.labels)
    if base and labels.base_digest in base.digests and image.layers[: len(base.layers)] != base.layers:
        yield f"its layers are not those of {labels.base_name[:SHOWN]}, which its labels name as its base"


def _name(planned: Planned) -> str:
    try:
        return isa.instruction_set(planned.features, planned.arch).name
    except TfbuildError:
        return "not all known"


def _release_of(planned: Planned) -> str:
    """Return the release that the requirement names, "" if it names none."""
    with suppress(InvalidWheelFilename):
        if planned.wheel == "file":
            return releases.release_of_wheel(parse_wheel_filename(planned.requirement)[1])
    return planned.requirement.partition("==")[2] or planned.requirement


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
    return text[:SHOWN] or "empty"


def _environment(image: Image, planned: Planned, base: Image | None) -> Iterator[str]:
    """Yield the variables that are neither rendered, nor the base image's, nor known as harmless."""
    pairs = [line.partition("=")[::2] for line in image.env]
    env, own = dict(pairs), dict(line.partition("=")[::2] for line in base.env) if base else {}
    if len(env) != len(pairs):
        yield "a variable is set twice"
    folder, _, path = env.pop("PATH", "").partition(":")
    if folder != f"{dockerfile.VENV}/bin":
        yield f"PATH begins with {folder[:SHOWN] or 'nothing'}, not with {dockerfile.VENV}/bin"
    elif path != own.get("PATH") and not {*path.split(":")} <= {*SYSTEM_PATH.split(":")}:
        yield f"PATH goes on with {path[:SHOWN]}"
    known = {name: value for name, value in own.items() if not DIVERTING.fullmatch(name)}
    harmless = {name: value for name, value in env.items() if toolchains.is_harmless(name, value)}
    yield from _differences(env, known | harmless | dockerfile.environment(planned))
    yield from (f"{name} is missing" for name in dockerfile.environment(planned) if name not in env)


def _base(engine: Engine, image: Image) -> Image | None:
    """Return the image that this one's labels name as its base, if the engine has it."""
    labels = read_labels(image.labels)
    name, digest = labels.base_name, labels.base_digest
    for ref in (f"{name.rpartition(':')[0]}@{digest}", name):
        with suppress(UnknownImage):
            if IMAGE_NAME.fullmatch(ref):
                return engine.image(ref)
    return None


def _run(verification: Verification) -> Judgement:
    image = verification.engine.image(verification.ref)
    return compare(image, verification.planned, _base(verification.engine, image))


CHECK = VerificationCheck(
    name="configuration",
    proves="The image's labels agree with each other and with the facts of the release. It is built on the base that "
    "they name. Its environment, user, working folder, entry point and command are those that tfbuild renders for "
    "the labels, and nothing else is configured.",
    how="The image's configuration was compared with the one that this tfbuild renders for its labels, field by "
    "field. A base image on this engine may set variables and other fields of its own, but none that make Python or "
    "the dynamic linker load code.",
    fix="build the image again; if the base image sets what is named, remove it there, or pull the base image so that "
    "it can be compared",
    run=_run,
)
