"""Write a build context, all or nothing, and compute the digests by which contexts and images are compared.

`tfbuild.context` renders the texts in it. The wheel, the source and the user's own files are linked, copied or packed.
"""

import os
import re
import shutil
import tarfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfbuild.context import dockerfile
from tfbuild.errors import BadInput, UsageError
from tfbuild.oci.manifests import digest_of
from tfbuild.plan import Build, source
from tfbuild.util.files import flush, temporary_folder, writing

# Characters that no file name in a context has: a script reads the names.
NO_NAME = re.compile(r"[^\w.+-]", re.ASCII)
# What stands at the top of contexts; the last one is of macOS' Finder.
OWN = {
    "Dockerfile", "bazel", "bazelrc", "constraints.txt", "entrypoint.sh", "fixes", "overrides", "patches", "plan.json",
    "requirements.txt", "scripts", "source", "wheel", ".DS_Store",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Base:
    """An image that a build starts from.

    `reference`: for FROM; `name`: for people; `digest`: "sha256:...", for an imported image that of its layer, or "".
    """

    reference: str
    name: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Context:
    """A build context; `digest` ("sha256:<hex>") covers every file's name, mode and contents."""

    folder: Path
    digest: str


def write_context(build: Build, folder: Path, *, base_digest: str = "") -> Context:
    """Write the context of `build` to `folder`, all or nothing; it replaces what tfbuild wrote there before.

    `base_digest`: see `own_files`. Raises UsageError if `folder` has anything else in it or cannot be written, DiskFull
    if no space is left.
    """
    with writing(folder):
        _refuse_foreign(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(f".{folder.name}-", folder.parent) as place:
            fresh = place / "new"
            _fill(fresh, build, dockerfile.files(build, base_digest=base_digest))
            # Whatever the umask: the same context has the same digest. No script is started by its own name.
            for path in fresh.rglob("*"):
                if path.is_file() and path.stat().st_nlink == 1:  # a linked wheel or source is the user's own file
                    path.chmod(0o644)
            # The wheel and the source have hundreds of megabytes; their digests are in files beside them.
            digest = context_digest(fresh, (f"wheel/{build.wheel.requirement}", f"source/{source.FILE}"))
            flush(fresh)
            if folder.exists():
                folder.rename(place / "old")
            fresh.rename(folder)
    return Context(folder=folder, digest=digest)


def _refuse_foreign(folder: Path) -> None:
    if folder.resolve() == Path.cwd():
        raise UsageError(f"{folder} is the current folder, which cannot be replaced", hint="--output context")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    written = folder / "Dockerfile"
    if not written.is_file() or not written.read_text(encoding="utf-8", errors="replace").startswith(dockerfile.MARKER):
        raise UsageError(f"{folder} exists and was not written by tfbuild", hint="remove it, or give a new folder")
    if others := sorted({path.name for path in folder.iterdir()} - OWN):
        raise UsageError(f"{folder / others[0]} was not written by tfbuild", hint="move it away, or give a new folder")


def _fill(folder: Path, build: Build, texts: Mapping[str, str]) -> None:
    folder.mkdir()
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if build.wheel.path is not None:
        _place(build.wheel.path, folder / "wheel" / build.wheel.requirement, build.wheel.sha256)
    if build.source is not None and build.source.path is not None:
        if build.source.kind == "archive" and not tarfile.is_tarfile(build.source.path):
            hint = "--source names a tree of TensorFlow, or an archive of one by tar, with gzip, bzip2, xz or nothing"
            raise BadInput(f"{build.source.path} is not a tar archive", hint=hint)
        _place(build.source.path, folder / "source" / source.FILE, build.source.sha256)
    # In the order in which they are applied, which is that of their names.
    digits = max(2, len(str(len(build.patches))))
    for number, patch in enumerate(build.patches, 1):
        (folder / "patches").mkdir(exist_ok=True)
        # Of a name that is as long as a file's can be, the end.
        name = f"{number:0{digits}}-{NO_NAME.sub('-', patch.path.name)[-200:]}"
        shutil.copyfile(patch.path, folder / "patches" / name)
    packed = [(override.path, f"overrides/{override.name}.tar", "") for override in build.overrides]
    if build.own_bazel:
        packed.append((build.own_bazel, "bazel/bazel.tar", "bin/bazel"))
    if build.hermetic_python:
        python = build.hermetic_python.path
        packed.append((python, "overrides/hermetic-python.tar", python.name))
    for path, name, as_file in packed:
        (folder / name).parent.mkdir(exist_ok=True)
        source.pack(path, folder / name, as_file=as_file)


def _place(file: Path, target: Path, sha256: str) -> None:
    """Put a wheel or a source at `target`, with its digest beside it: a tree is packed, a file linked if possible."""
    target.parent.mkdir()
    if file.is_dir():
        source.pack(file, target)
    else:
        try:
            os.link(file.resolve(), target)  # it has hundreds of megabytes
        except OSError:
            shutil.copyfile(file, target)
    actual = source.digest(target) if file.is_dir() or not sha256 else sha256
    if sha256 and actual != sha256:
        raise BadInput(f"{file} was changed after it was planned", hint="run the same command again")
    line = f"{actual}  /mnt/{target.parent.name}/{target.name}\n"
    (target.parent / "SHA256SUMS").write_text(line, encoding="utf-8")


# --- the digests ("sha256:<hex>") by which contexts and images are compared: published, so they must not change -------


def context_digest(folder: Path, leave_out: Collection[str]) -> str:
    """Return the digest of all files in `folder` but `leave_out`: `digest` of `invoke dockerfile --json`."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    kept = {name: path for name, path in files.items() if name not in leave_out}
    lines = (f"{name} {path.stat().st_mode & 0o777:o} {source.digest(path)}\n" for name, path in kept.items())
    return digest_of("".join(lines).encode())


def image_digest(context: str, base: str) -> str:
    """Return the digest of all that shapes an image, by those of its context and its base: `io.tfbuild.context`."""
    return digest_of(f"{context} {base}".encode())


def build_args(base: Base, context: Context) -> dict[str, str]:
    """Return the Dockerfile's arguments for a base."""
    return {
        "BASE": base.reference,
        "BASE_NAME": base.name,
        "BASE_DIGEST": base.digest,
        "CONTEXT_DIGEST": image_digest(context.digest, base.digest),
    }
