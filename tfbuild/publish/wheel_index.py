"""A static index of wheels, for any web server: one PEP 503 index for each instruction set, over one pool of files.

    pool/SHA256/WHEEL[.metadata]
    SET/simple/{index.html, PROJECT/index.html}
    choose.json, choose.tsv, install.sh, index.html

pip and uv choose among wheels by their names, which cannot say what a CPU must have: in one index for all sets,
`2.14.1+tfbuild.x86.64.v4` is the newest version for every CPU. So each set has an index of its own.

choose.json has one row for each wheel, and everything else is made of its rows: the same wheels give the same bytes.
"""

import hashlib
import re
import shutil
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from packaging.metadata import parse_email
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from tfbuild.binary.inspector import open_archive
from tfbuild.cpu import isa
from tfbuild.cpu.isa import MACHINES
from tfbuild.errors import BadInput, UsageError
from tfbuild.oci.references import is_secure
from tfbuild.pipeline.wheel import SCHEMA as SIDECAR
from tfbuild.pipeline.wheel import Audit, Word, audit_wheel, glibc
from tfbuild.plan import source
from tfbuild.plan import wheel as wheel_files
from tfbuild.publish import wheel_pages, wheel_rows
from tfbuild.publish.signing import BUNDLE, SignFile
from tfbuild.publish.wheel_rows import (
    CHOICES_FILE,
    MOST_BYTES,
    IndexedWheel,
    Parts,
    VariantFile,
    is_sound,
    oldest_glibc,
    read_list,
)
from tfbuild.util.files import decode, locked, read_regular, remove, replace_file, temporary_folder, whole, writing
from tfbuild.util.terminal import printable

# It becomes part of the commands on the page at the top.
ADDRESS = re.compile(r"https?://[\w.:/%~+\[\]-]+")


# --- the index --------------------------------------------------------------------------------------------------------


class SidecarPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a plan in a sidecar that an index needs."""

    target: Word
    features: tuple[str, ...]


class Sidecar(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    sha256: str
    plan: SidecarPlan
    audit: Audit


# A wheel that can be placed: its row, its file, in a scratch folder or where the user has it, and its metadata.
Ready = tuple[IndexedWheel, Path, bytes]


def index(
    folder: Path,
    wheels: Sequence[Path],
    note: Callable[[str], None],
    *,
    project: str = "",
    local: bool = False,
    url: str = "",
    sign: SignFile | None = None,
    yanks: Mapping[str, str] = {},
    variants: bool = False,
) -> tuple[IndexedWheel, ...]:
    """Add wheels to the index in `folder`, new or not, and return all of its rows.

    `project`: the name of all wheels, or "" for each one's own. `local`: whether versions end with the set. `url`: the
    address of the folder, for the page at the top (default: the one before). `sign`: signs choose.json.
    `yanks`: reasons by patterns of SET/WHEEL, "" to offer those again. `variants`: whether there is an index of
    variants too, which stays if it is there already. Nothing is changed if a wheel cannot be used or the list cannot be
    signed. Rows whose file somebody removed from the pool go, with a `note`.
    """
    known = wheel_files.projects()
    if project and project not in known:
        raise UsageError(f"--name {project} is not a name of TensorFlow's", hint=f"one of: {', '.join(known)}")
    if url and not (ADDRESS.fullmatch(url) and is_secure(url)):
        raise UsageError(f"--url {url} is not an https address", hint="--url https://HOST/PATH, or leave it out")
    # An index gets both after its choose.json: without that, they are the user's, such as a clone's install.sh.
    foreign = next((path for path in map(folder.joinpath, wheel_pages.LAST_FILES) if path.exists()), None)
    if foreign and not (folder / CHOICES_FILE).exists():
        raise UsageError(f"{foreign} is not an index's, but would be replaced", hint="name another FOLDER")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, lambda: note(f"waiting for another process that writes {folder}")):
            for left in (*folder.glob(".tfbuild-*"), *folder.glob("pool/*/.*.whl.*")):  # by one that was killed
                remove(left)
            with temporary_folder(".tfbuild-", folder) as scratch:
                ready = [_prepare(wheel, scratch, project, local=local) for wheel in wheels]
                kept, gone, before = _known(folder, {row.sha256 for row, *_ in ready})
                rows = _yanked(_merged(kept, [row for row, *_ in ready]), yanks)
                variants = variants or (folder / wheel_pages.AUTO).is_dir()
                wanted = wheel_pages.variant_rows(rows) if variants else []
                rows, made = _with_variants(rows, wanted, folder, ready, scratch)
                pages = wheel_pages.pages(rows, gone, url or before, variants=variants)
                signature = _signature(pages[CHOICES_FILE], folder, scratch, sign)
                for item in (*ready, *made):
                    _place(folder, *item)
            for row in gone:
                copy = f"; remove its variant too: {row.variant.file}" if row.variant else ""
                note(f"{row.name} for {row.instruction_set} leaves the index: {row.file} is missing or truncated{copy}")
            for path, text in pages.items():
                _replace(folder / path, text.encode())
                # At once: until then, the list has a signature that is not its own.
                if path == CHOICES_FILE and signature:
                    _replace(folder / (CHOICES_FILE + BUNDLE), signature)
    return rows


def of_folder(folder: Path) -> list[Path]:
    """Return the wheels in a folder; raises UsageError if there are none."""
    found = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if not found:
        raise UsageError(f"no wheels in {folder}", hint="--wheels DIR: one to which `invoke wheel` wrote")
    return found


# --- wheels -----------------------------------------------------------------------------------------------------------


def _prepare(path: Path, scratch: Path, project: str, *, local: bool) -> Ready:
    """Check a wheel and describe it: by its sidecar, which its own CPU guard must confirm, or by what is in it."""
    if not path.is_file():
        raise BadInput(f"{path} is not a file", hint="remove it, or copy the wheel itself there")
    file = wheel_files.from_path(path)
    try:
        sha256 = source.digest(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", hint="correct its mode, or remove it") from error
    sidecar = _sidecar(path, sha256)
    claimed = (isa.instruction_set(sidecar.plan.features, file.arch),) if sidecar else ()
    compiled = wheel_files.instruction_set(file, file.version, claimed=claimed)
    own = parse_wheel_filename(path.name)[1]
    with_set = f"{own.public}+tfbuild.{compiled.name.replace('-', '.').replace('_', '.')}"
    old = Parts.parse(path.name)
    audit = msgspec.structs.replace(sidecar.audit, own=old.platforms) if sidecar else audit_wheel(path)
    # The platforms in its name if they promise a glibc and keep it, else what the audit proved.
    kept = None not in map(glibc, audit.own) and not audit.broken_promises
    parts = replace(
        old,
        project=(project or file.project).replace("-", "_"),
        version=str(Version(with_set)) if local else old.version,
        platforms=audit.own if kept else (audit.tag,),
    )
    final = path
    if parts != old:
        # By its digest too: with another name, wheels of two sets can be called the same.
        final = scratch / sha256 / parts.file
        final.parent.mkdir(exist_ok=True)
        wheel_rows.rewrite(path, final, parts)
        sha256 = source.digest(final)
    with open_archive(final) as archive:
        metadata = wheel_rows.metadata(archive, final.name)
        newest = max(info.date_time for info in archive.infolist())
    row = IndexedWheel(
        file=f"pool/{sha256}/{final.name}",
        size=final.stat().st_size,
        sha256=sha256,
        metadata=hashlib.sha256(metadata).hexdigest(),
        project=canonicalize_name(parts.project),
        version=parts.version,
        release=file.version,
        python=file.python,
        requires_python=parse_email(metadata)[0].get("requires_python", ""),
        platform=MACHINES[file.arch],
        glibc=oldest_glibc(parts.platforms) or audit.needs.get("GLIBC", ""),
        target=sidecar.plan.target if sidecar else "",
        instruction_set=compiled.name,
        features=compiled.features,
        created="{}-{:02}-{:02}T{:02}:{:02}:{:02}Z".format(*newest),
    )
    if not is_sound(row):
        raise BadInput(
            f"{path.name} would become {row.name} in the index, but was not compiled for that platform",
            hint=f"compile or copy it and {path.name}.json again",
        )
    return row, final, metadata


def _sidecar(path: Path, sha256: str) -> Sidecar | None:
    """Return what `invoke wheel` wrote beside the wheel; None if there is nothing. Raises BadInput."""
    beside = path.with_name(f"{path.name}.json")
    if not beside.exists():
        return None
    try:
        sidecar = decode(read_regular(beside, MOST_BYTES), Sidecar)
        if sidecar.schema != SIDECAR:
            raise ValueError(f"its schema is {sidecar.schema!r}, not {SIDECAR}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{beside} cannot be read: {reason}", hint="remove it, or compile the wheel again") from error
    if sidecar.sha256 != sha256:
        raise BadInput(f"{beside.name} describes another file than {path.name}", hint="compile or copy both again")
    return sidecar


# --- the folder -------------------------------------------------------------------------------------------------------


def _known(folder: Path, again: Container[str]) -> tuple[list[IndexedWheel], list[IndexedWheel], str]:
    """Return the index's rows, those whose file is gone or cut off, and its address.

    `again`: digests of files that are to be placed, so that none of these is gone. Raises BadInput.
    """
    path = folder / CHOICES_FILE
    if not path.exists():
        return [], [], ""
    known = read_list(read_regular(path, MOST_BYTES), str(path))
    if wrong := next((row for row in known.wheels if not is_sound(row)), None):
        raise BadInput(f"{path} does not agree with the name of {printable(wrong.file)}", hint=wheel_rows.FOREIGN_HINT)
    gone = [row for row in known.wheels if row.sha256 not in again and not _has_size(folder / row.file, row.size)]
    return [row for row in known.wheels if row not in gone], gone, known.url


def _merged(old: Iterable[IndexedWheel], new: Iterable[IndexedWheel]) -> tuple[IndexedWheel, ...]:
    """Return all rows in their order; raises BadInput where two different files of a set have one name."""
    rows: dict[tuple[str, str], IndexedWheel] = {}
    for row in (*old, *new):
        other = rows.setdefault((row.instruction_set, row.name), row)
        if other.sha256 != row.sha256:
            raise BadInput(
                f"two files are called {row.name} for {row.instruction_set}: {other.sha256[:12]} and {row.sha256[:12]}",
                hint=f"an index for each target, another name (--name), or remove {Path(other.file).parent}",
            )
        rows[row.instruction_set, row.name] = msgspec.structs.replace(row, yanked=other.yanked, variant=other.variant)
    order = sorted(rows.values(), key=lambda row: (Version(row.release), row.instruction_set, row.name))
    return tuple(order)


def _yanked(rows: tuple[IndexedWheel, ...], yanks: Mapping[str, str]) -> tuple[IndexedWheel, ...]:
    """Return the rows with these reasons; raises UsageError for a pattern that matches none."""
    for pattern, reason in yanks.items():
        matching = [row for row in rows if fnmatchcase(row.published.id, pattern)]
        if not matching:
            raise UsageError(f"no wheel of the index matches {printable(pattern)}", hint="SET/WHEEL, such as 'avx/*'")
        rows = tuple(msgspec.structs.replace(row, yanked=reason) if row in matching else row for row in rows)
    return rows


def _place(folder: Path, row: IndexedWheel, path: Path, metadata: bytes) -> None:
    target = folder / row.file
    target.parent.mkdir(parents=True, exist_ok=True)
    _replace(target.with_name(f"{target.name}.metadata"), metadata)
    if not _has_size(target, row.size):
        with whole(target) as part:
            shutil.copyfile(path, part)


def _with_variants(
    rows: Iterable[IndexedWheel], wanted: Iterable[IndexedWheel], folder: Path, ready: Iterable[Ready], scratch: Path
) -> tuple[tuple[IndexedWheel, ...], list[Ready]]:
    """Return all rows, the `wanted` ones with a variant and the others without, and the variants that are new."""
    wheels = {row.file: path for row, path, _ in ready}
    variants: dict[str, VariantFile] = {}
    made: list[Ready] = []
    for row in wanted:
        known = row.variant
        if known is None or not _has_size(folder / known.file, known.size):
            path, content = wheel_pages.write_variant(row, wheels.get(row.file, folder / row.file), scratch)
            digest = source.digest(path)
            known = VariantFile(file=f"pool/{digest}/{path.name}", size=path.stat().st_size, sha256=digest)
            made.append((known.row(row), path, content))
        variants[row.file] = known
    return tuple(msgspec.structs.replace(row, variant=variants.get(row.file)) for row in rows), made


def _signature(text: str, folder: Path, scratch: Path, sign: SignFile | None) -> bytes:
    """Return the new list's signature, b"" without `sign`; raises UsageError where it would lose the one it has."""
    if sign is not None:
        copy = replace_file(scratch / CHOICES_FILE, text)
        sign(copy)
        return Path(f"{copy}{BUNDLE}").read_bytes()
    if (folder / (CHOICES_FILE + BUNDLE)).exists() and not _has(folder / CHOICES_FILE, text.encode()):
        raise UsageError(
            f"the index in {folder} is signed, but this change is not",
            hint=f"sign it again (--sign or --sign-options), or remove {CHOICES_FILE}{BUNDLE} first",
        )
    return b""


def _replace(path: Path, content: bytes) -> None:
    """Write a file if it changes: tools that upload a folder look at times."""
    if not _has(path, content):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _has(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content
