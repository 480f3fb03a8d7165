"""The images that a build starts from: a base from a registry or made from Debian's packages, or an earlier image."""

import os
import re
import shlex
import shutil
import subprocess
import tarfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

from tfbuild.context import labels
from tfbuild.engine import Engine, transfer
from tfbuild.engine.build import NO_SPACE, PROXIES
from tfbuild.engine.faults import SDK_ERRORS, translated
from tfbuild.errors import DiskFull, RegistryRefused, Stale, Unsupported, UsageError, has_login
from tfbuild.oci import credentials
from tfbuild.oci.references import familiar, split_tag
from tfbuild.pipeline import wheel as wheels
from tfbuild.pipeline.build_context import Base, Context, image_digest
from tfbuild.plan import BASES, Build
from tfbuild.plan.rules import debian_pythons
from tfbuild.util import files
from tfbuild.util.process import discard, logged
from tfbuild.util.progress import Progress
from tfbuild.util.terminal import cause

REPOSITORY = "tfbuild-base"
REGISTRY_SECONDS = 20.0
FRESH_FOR = timedelta(days=7)
# The time of all files, so that the same packages make the same layer; zip archives cannot store one before 1980.
EPOCH = int(datetime(1980, 1, 1, tzinfo=UTC).timestamp())
OMITTED_DOCS = ("man", "info", "locale", "doc", "doc-base", "groff", "lintian", "linda", "bug")
# Licences require whoever distributes an image to keep the copyright files.
KEPT_DOCS = ("doc/*/copyright", "locale/locale.alias")
# In bookworm apt prefers the package usrmerge, which needs all of Perl (46 MB). These hooks make usrmerge's layout and
# install usr-is-merged, as Docker's official images have it (mmdebstrap(1)); old versions of mmdebstrap lack them.
MERGED_USR = Path("/usr/share/mmdebstrap/hooks/maybe-merged-usr")
# A site may serve packages over https with its own CA. apt's sources stay in the image; that CA must not.
CA_OPTION, CA_BUNDLE = "/etc/apt/apt.conf.d/99tfbuild-ca", "/etc/apt/tfbuild-ca.pem"
# The CAs of this machine, as in templates/network.sh: on Debian, and on Fedora and RHEL.
OWN_CAS = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))
APT = Path("/etc/apt")
SERVED = re.compile(r"(?:mirror\+)?https?://")
SOURCE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)")


def resolve(
    engine: Engine,
    image_name: str,
    distribution: str,
    mode: str,
    *,
    progress: Progress,
    log: Path,
    ca_cert: Path | None = None,
    follow: bool = False,
) -> Base:
    """Make sure that the engine has the base image. `mode`: one of BASES, or an image's name.

    `image_name` comes from a registry, `distribution` ("bookworm") is bootstrapped; mmdebstrap's output goes to `log`.
    `follow`: take the user's image as its registry has it now, not the engine's copy.
    Raises RegistryRefused if it can neither be pulled nor be made of packages, Unsupported if no Debian has its Python.
    """
    if mode not in BASES:
        return by_name(engine, mode, progress, follow=follow)
    why = ""
    if mode != "bootstrap":
        try:
            return from_registry(engine, image_name, progress)
        except RegistryRefused as error:
            if mode == "registry":
                raise
            why = error.reason
    if not distribution:
        start = f"{why}, and it" if why else image_name
        raise Unsupported(
            f"{start} cannot be made from packages: no Debian release has its Python",
            hint=f"choose another --python (Debian has {debian_pythons()}), or --base NAME with an image that has it",
        )
    if why:
        progress(f"base: {why}; using Debian {distribution} made from its packages instead")
    return bootstrap(engine, distribution, progress=progress, log=log, ca_cert=ca_cert)


# --- what an earlier run made -----------------------------------------------------------------------------------------


@contextmanager
def reused(engine: Engine, build: Build, context: Context, name: str, progress: Progress) -> Iterator[dict[str, str]]:
    """Yield the Dockerfile's arguments that take TensorFlow from `name`: an image, or the file of a compiled wheel.

    `name` "" yields none. Raises Stale if another plan or context made it, BadInput for another file, and what a pull
    raises.
    """
    if name.endswith(".whl"):
        with _compiled(engine, build, Path(name)) as arguments:
            yield arguments
    else:
        yield _earlier(engine, build, context, name, progress) if name else {}


def _earlier(engine: Engine, build: Build, context: Context, name: str, progress: Progress) -> dict[str, str]:
    """Return the arguments for the image `name`, pulled if the engine lacks it."""
    if "/" not in name:
        name = labels.find_image(engine, name)
    elif not engine.exists(name):
        engine.pull(name, progress)
    image = engine.image(name)
    own = labels.read_labels(image.labels)
    if (own.id, own.context) != (build.id, image_digest(context.digest, own.base_digest)):
        raise Stale(
            f"{name} was not made from the build context of {build.id}: facts, templates, options or tfbuild differ",
            hint="leave out --reuse to build it from scratch",
        )
    repository, digest = _repository(name), _digest_of(engine, name)
    # By a name of the engine's, since FROM takes no bare id. Containerd's store has a digest of local images, too, for
    # which BuildKit would ask a registry.
    reference = name if name in image.tags else next(iter(image.tags), f"{repository}@{digest}" if digest else name)
    return {"INSTALLED": reference, "REUSED": f"{repository}:{build.id}@{digest or image.id}"}


@contextmanager
def _compiled(engine: Engine, build: Build, wheel: Path) -> Iterator[dict[str, str]]:
    """Yield the arguments for an image of the wheel, which takes the place of the stage `build` meanwhile."""
    sidecar = wheels.compiled(build, wheel)
    tag = f"wheel-{sidecar.sha256[:12]}"
    with files.temporary_folder() as folder:
        with tarfile.open(folder / "wheel.tar", "w", dereference=True) as archive:  # the wheel may be a link
            archive.add(wheel, f"wheel/{wheel.name}", filter=_readable)
            for name, text in sidecar.records.items():
                (folder / name).write_text(text, encoding="utf-8")
                archive.add(folder / name, f"wheel/{name}", filter=_readable)
        with translated(wheel.name):
            engine.client.api.import_image_from_file(str(folder / "wheel.tar"), repository=REPOSITORY, tag=tag)
    try:
        yield {"COMPILED": f"{REPOSITORY}:{tag}", "REUSED": f"{wheel.name}@sha256:{sidecar.sha256}"}
    finally:
        if engine.exists(f"{REPOSITORY}:{tag}"):  # else somebody pruned it: no container uses it
            engine.untag(f"{REPOSITORY}:{tag}")


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode, member.mtime = 0o644, EPOCH
    return member


def from_registry(engine: Engine, name: str, progress: Progress) -> Base:
    """Pull `name` by its digest in the registry; where that fails, use the engine's copy, if it has a digest."""
    try:
        return _pulled_now(engine, name, progress)
    except RegistryRefused as error:
        digests = engine.image(name).repo_digests if engine.exists(name) else ()
        if not digests:
            raise
        progress(f"base: {error.reason}; using the engine's copy")
        # By its name: containerd's store has a digest of what was made here too; BuildKit would ask a registry for it.
        return Base(reference=name, name=name, digest=_digest_of(engine, name) or digests[0].partition("@")[2])


def _pulled_now(engine: Engine, name: str, progress: Progress) -> Base:
    # The engine itself waits much longer for a registry.
    before, engine.client.api.timeout = engine.client.api.timeout, REGISTRY_SECONDS
    try:
        with progress.step(f"base: look up {name} in the registry"), credentials.readable():
            digest = str(engine.client.images.get_registry_data(name).id)
    except (*SDK_ERRORS, RegistryRefused) as error:
        why = getattr(error, "explanation", "") or getattr(error, "reason", "") or cause(error)
        raise RegistryRefused(
            f"no registry provides {name} ({why})",
            hint="--base bootstrap makes the same Debian release from its packages; --base NAME takes any image",
        ) from error
    finally:
        engine.client.api.timeout = before
    reference = f"{split_tag(name)[0]}@{digest}"
    if not engine.exists(reference):
        _pull(engine, reference, progress)
    engine.tag(reference, name)  # a pull by digest gives no name, and no registry may answer the next time
    return Base(reference=reference, name=name, digest=digest)


def _pull(engine: Engine, reference: str, progress: Progress) -> None:
    try:
        engine.pull(reference, progress)
    except transfer.TransferFailed as error:
        others = "--base auto, --base bootstrap, or an image that `docker image ls` lists"
        raise RegistryRefused(
            f"image {reference} cannot be pulled ({error.reason})",
            hint=others if error.hint == transfer.NOT_BEGUN[1] else error.hint,
        ) from error


def by_name(engine: Engine, name: str, progress: Progress, *, follow: bool = False) -> Base:
    """Return any image: one that the engine has (with `follow`, unless it came from a registry), or that is pulled."""
    if not engine.exists(name):
        # Without a tag the SDK would pull all of them.
        _pull(engine, name if "@" in name else ":".join(split_tag(name)), progress)
    elif follow and "@" not in name and _digest_of(engine, name):
        return from_registry(engine, name, progress)
    return Base(reference=name, name=name, digest=_digest_of(engine, name) or engine.image(name).id)


def _digest_of(engine: Engine, name: str) -> str:
    """Return the digest of the engine's image in the repository that its name names, or ""."""
    pairs = (known.partition("@") for known in engine.image(name).repo_digests)
    own = familiar(_repository(name))
    return next((digest for known, _, digest in pairs if known == own), "")


def _repository(name: str) -> str:
    return split_tag(name.partition("@")[0])[0]


def bootstrap(engine: Engine, distribution: str, *, progress: Progress, log: Path, ca_cert: Path | None = None) -> Base:
    """Make Debian `distribution` as the image tfbuild-base:<distribution> with mmdebstrap; reuse it for seven days."""
    name = f"{REPOSITORY}:{distribution}"
    place = log.with_name("base")
    with files.locked(place, lambda: progress(f"another run is making a base in {place}; waiting for it")):
        if not _fresh(engine, name, distribution):
            _make(engine, name, distribution, progress=progress, place=place, log=log, ca_cert=ca_cert)
    return Base(reference=name, name=name, digest=engine.image(name).layers[0])


def _make(
    engine: Engine, name: str, distribution: str, *, progress: Progress, place: Path, log: Path, ca_cert: Path | None
) -> None:
    if shutil.which("mmdebstrap") is None:
        raise UsageError(
            "mmdebstrap, which makes a base image from packages, is not installed",
            hint="apt-get install mmdebstrap debian-archive-keyring (Debian, Ubuntu); or --base NAME with an image",
        )
    for left in place.glob("tfbuild-*"):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    with files.temporary_folder(parent=place) as folder:
        archive = folder / "base.tar"
        with progress.step(f"base: make Debian {distribution} from its packages"):
            _mmdebstrap(archive, distribution, engine.platform, log, ca_cert)
        with progress.step(f"base: import {name}"), translated(name):
            changes = [f"LABEL {labels.BASE}={distribution}", 'CMD ["bash"]']
            engine.client.api.import_image_from_file(
                str(archive), repository=REPOSITORY, tag=distribution, changes=changes
            )


def made_before(engine: Engine) -> str:
    """Return any bootstrapped base that the engine has, however old; "" if it has none."""
    names = [tag for image in engine.labelled(labels.BASE) for tag in image.tags if split_tag(tag)[0] == REPOSITORY]
    architecture = engine.platform.partition("/")[2]
    return next((name for name in sorted(names) if engine.image(name).architecture == architecture), "")


def _fresh(engine: Engine, name: str, distribution: str) -> bool:
    if not engine.exists(name):
        return False
    image = engine.image(name)
    fits = image.labels.get(labels.BASE) == distribution and image.architecture == engine.platform.partition("/")[2]
    # One that a wrong clock dated far ahead would never get old.
    return fits and abs(datetime.now(UTC) - datetime.fromisoformat(image.created)) < FRESH_FOR


def _mmdebstrap(archive: Path, distribution: str, platform: str, log: Path, ca_cert: Path | None) -> None:
    # Root's mmdebstrap would mount the machine's /proc, /sys and /dev in its folder, where they stay if it is killed.
    apart = ["unshare", "--mount", "env", f"TMPDIR={archive.parent.resolve()}"]
    root = os.geteuid() == 0 and subprocess.run([*apart, "true"], check=False, capture_output=True).returncode == 0
    command = [
        *(apart if root else []),
        "mmdebstrap",
        "--variant=minbase",
        f"--architectures={platform.partition('/')[2]}",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in OMITTED_DOCS),
        *(f"--dpkgopt=path-include=/usr/share/{name}" for name in KEPT_DOCS),
        *_ca_hooks(ca_cert, archive.parent),
        # After the CA's hooks: these ask the site for its packages.
        *([f"--hook-dir={MERGED_USR}"] if MERGED_USR.is_dir() else []),
        distribution,
        str(archive),
        *sources(distribution),
    ]
    env = os.environ | {"SOURCE_DATE_EPOCH": str(EPOCH), "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    env |= {name.lower(): os.environ[name] for name in PROXIES if name in os.environ}  # apt reads none in capitals
    discard(log)
    last: deque[str] = deque(maxlen=10)
    if logged(command, env, log, last.append) != 0:
        text = "".join(f"\n  {line.rstrip()}" for line in last)
        failed = DiskFull if NO_SPACE.search(text) else RegistryRefused
        raise failed(f"mmdebstrap failed{text}", hint=f"the full log: {log}")


def _ca_hooks(ca_cert: Path | None, folder: Path) -> list[str]:
    """Return hooks that make mmdebstrap's apt, which runs outside the new system, trust the CA, then remove it.

    It goes beside this machine's own CAs, in a file in `folder`: apt would trust no other.
    """
    if ca_cert is None:
        return []
    bundle = folder / "ca.pem"
    bundle.write_bytes(b"\n".join(path.read_bytes() for path in (*OWN_CAS, ca_cert) if path.is_file()))
    place = 'mkdir -p "$1/etc/apt/apt.conf.d"; printf \'Acquire::https::CAInfo "%s";\\n\''
    return [
        f'--setup-hook={place} "$1{CA_BUNDLE}" > "$1{CA_OPTION}"',
        # mmdebstrap itself reads what it uploads; without root, its apt is another user, whom a home is closed to.
        f"--setup-hook=upload {shlex.quote(str(bundle.resolve()))} {CA_BUNDLE}",
        f'--customize-hook=rm "$1{CA_OPTION}" "$1{CA_BUNDLE}"',
    ]


def sources(distribution: str, folder: Path = APT) -> list[str]:
    """Return this machine's sources of a Debian release as one-line entries; they may name a local mirror.

    Third parties' are left out: they have other suites, or no "main". So are those that must not stay in an image: with
    a login, or in this machine's files (mirror+file: on Debian's cloud machines). If none of the rest has the release
    itself, there are none, and mmdebstrap takes Debian's own.
    """
    suites = {distribution, f"{distribution}-updates", f"{distribution}-security"}
    entries: list[str] = []
    for file in [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]:
        if file.suffix in (".list", ".sources") and file.is_file():
            parser = _deb822 if file.suffix == ".sources" else _one_line
            for signed_by, uri, suite, components in parser(file.read_text(errors="replace")):
                if suite in suites and "main" in components.split() and SERVED.match(uri) and not has_login(uri):
                    options = f"[signed-by={signed_by}] " if signed_by else ""
                    entries.append(f"deb {options}{uri} {suite} {components}")
    return list(dict.fromkeys(entries)) if any(f" {distribution} " in entry for entry in entries) else []


def _one_line(text: str) -> Iterator[tuple[str, str, str, str]]:
    for line in text.splitlines():
        if match := SOURCE_LINE.fullmatch(line.partition("#")[0].strip()):
            options = dict(option.partition("=")[::2] for option in (match["options"] or "").split())
            yield options.get("signed-by", ""), match["uri"], match["suite"], match["components"]


def _deb822(text: str) -> Iterator[tuple[str, str, str, str]]:
    for stanza in re.split(r"\n\s*\n", text):
        lines = (line.partition(":") for line in stanza.splitlines() if not line.startswith("#"))
        # Continuation lines (of a key inside Signed-By) have no name and are dropped.
        fields = {name.strip().lower(): value.strip() for name, _, value in lines if not name.startswith((" ", "\t"))}
        if fields.get("enabled", "yes") != "no" and "deb" in fields.get("types", "").split():
            for uri, suite in product(fields.get("uris", "").split(), fields.get("suites", "").split()):
                yield fields.get("signed-by", ""), uri, suite, fields.get("components", "")
