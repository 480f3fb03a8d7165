"""Choose the published image that fits a host, check it, and pull it.

It is checked before the download, by a few small requests, without its layers. An image that the registry lacks is
passed over, and so is one that was yanked, or lacks a signature that the user requires. An image that is not the one
that its index and its provenance describe was changed by somebody: it is refused, and the next one that fits is named
as the second choice, for the user to decide.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfbuild.context import labels
from tfbuild.context.labels import configured_labels
from tfbuild.cpu import Cpu, isa
from tfbuild.engine import Engine, transfer
from tfbuild.errors import NothingFits, RegistryRefused, TfbuildError, VerificationFailed
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Damaged, Manifest
from tfbuild.oci.transport import parallel
from tfbuild.plan import MACHINES
from tfbuild.publish import attachments, check, choose, indexes, provenance
from tfbuild.publish.choose import Choice, PassedOver, Published
from tfbuild.util.files import decode, read_regular, replace_file, writing
from tfbuild.util.progress import Progress

# Images that are read in vain, or asked for a signature to find the newest release that is signed; images whose
# manifests are read at once; letters of an identifier that nobody can read; bytes of the file with the numbers seen.
MOST_ASKED = 100
MOST_READ_AHEAD = 8
MOST_ID = 128
MOST_SEEN = 1 << 20
MISSING = "it is missing in the registry: push it again, or yank it"
DAMAGED = "its configuration is missing, or the registry sends something else: invoke verify --registry says what"


# --- choosing ---------------------------------------------------------------------------------------------------------


def select(
    registry: Registry,
    host: Cpu,
    *,
    release: str,
    target: str,
    python: str,
    any_release: bool = False,
    skip: Collection[str] = (),
    without: Collection[str] = (),
    demand: referrers.Demand | None = None,
    note: indexes.Note = indexes.quietly,
) -> Choice:
    """Return the image that this host should run, by the registry's index, without a download. Raises NothingFits.

    It is of the newest release (that begins with `release` and is published with `python`), whatever the host. With
    `any_release`, it is the best image of all of them. Identifiers in `skip` are passed over, and so are the releases
    in `without`. With `demand`, the index may not be older than one that this host has seen.
    """
    tag = f"{release or indexes.ANY}-{target}"
    index = registry.manifest(tag)
    if index is None:
        offered = [name for name in registry.tags() if name.count("-") == 1]
        raise NothingFits(
            f"{registry.repository} has no {tag}",
            hint=f"it has: {', '.join(offered[:12]) or 'no images of tfbuild yet'}",
        )
    if demand is not None and not without:
        _refuse_older(registry, tag, index, demand, note)
    all_pythons = choose.matching(indexes.read_index(index), release=release, target=target, python="")
    published = choose.matching(all_pythons, release=release, target=target, python=python)
    published = [image for image in published if image.release not in without]
    if all_pythons and not published and not without:
        others = sorted({image.python for image in all_pythons}, key=lambda text: (len(text), text))
        raise NothingFits(
            f"{registry.repository}:{tag} has no image with Python {python}", hint=f"it has: {', '.join(others)}"
        )
    features = frozenset(isa.all_of_cpu(host).features)
    choice = choose.choose(published, platform=MACHINES[host.arch], features=features, any_release=any_release)
    given = {"--release": release, "--python": python}
    narrowed_by = tuple(name for name, value in given.items() if value)
    choice = replace(choice, narrowed_by=narrowed_by, index=f"{tag}@{index.digest}")
    names = {labels.parse_name(name).reference for name in skip}
    left = [image for image in choice.fitting if image.id not in names]
    first = choice.fitting.index(left[0]) if left else len(choice.fitting)
    rows = [
        PassedOver(id=image.id, reason="--skip", notable=position < first)
        for position, image in enumerate(choice.fitting)
        if image.id in names
    ]
    # A lock is written from these, too.
    choice = replace(choice, newest=tuple(image for image in choice.newest if image.id not in names))
    return choice.among(left).passing([*rows, *_unreadable(index)])


def select_signed(registry: Registry, selection: Callable[..., Choice], demand: referrers.Demand) -> Choice:
    """Return the choice of the newest release of which any image is signed: anybody who may push can add newer ones.

    `selection` is `select` with all arguments but `without`. The choice names the releases that were passed over. If
    none is signed, it is that of the newest release. Raises VerificationFailed if so many are unsigned that somebody
    must have filled the index.
    """
    first = choice = selection()
    without: list[str] = []
    left = MOST_ASKED
    while choice.newest and not any(referrers.accepted(registry, row.digest, demand) for row in choice.newest[:left]):
        left -= len(choice.newest)
        if left < 0:
            raise VerificationFailed(
                f"none of the first {MOST_ASKED} images that {choice.index} names has a signature that cosign accepts",
                hint="tell whoever publishes it that somebody filled the index; --release takes that of one release",
            )
        without.append(choice.newest[0].release)
        choice = selection(without=without)
    if not without:
        return choice
    reason = "no image of this release has a signature that cosign accepts"
    rows = [PassedOver(id=f"TensorFlow {release}", reason=reason, notable=True) for release in without]
    return choice.passing(rows) if choice.newest else first


def _unreadable(index: Manifest) -> list[PassedOver]:
    """Return the images whose row in an index this tfbuild cannot read."""
    names = [row.id or row.digest for row in indexes.index_rows(index) if row.image is None]
    reason = "its row in the index cannot be read: a newer tfbuild wrote it, or somebody changed it"
    return [PassedOver(id=ascii(name)[1:-1][:MOST_ID], reason=reason, notable=True) for name in names]


# --- checking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """An image that is the one described. `passed_over`: the better ones that are missing, yanked or not signed."""

    image: Published
    manifest: Manifest
    passed_over: tuple[PassedOver, ...]


class Altered(VerificationFailed):
    """`image` is not the one that its index and its provenance describe; `second` is the next that fits and is."""

    def __init__(self, error: TfbuildError, image: Published, second: Published | None) -> None:
        offer = (
            f"second choice: {second.id}, by the same command with --skip {image.id}"
            if second
            else "no second choice was found"
        )
        super().__init__(
            f"{image.id} is refused: {error.reason}", hint=f"tell whoever publishes it that it was changed; {offer}"
        )
        self.image, self.second = image, second


def nothing_fits(registry: Registry, choice: Choice) -> NothingFits:
    """Return the error for a choice without a best image: it names the nearest one, and what else to try."""
    nearest = choice.nearest
    lacking = f"; the nearest is {nearest.id}, for which this CPU lacks {' '.join(choice.missing)}" if nearest else ""
    if choice.older:
        return NothingFits(
            f"no image of the newest release in {registry.repository} runs on this host{lacking}",
            hint=f"--any-release chooses {choice.older.id}, of an older release",
        )
    narrowed = f"; or leave out {' and '.join(choice.narrowed_by)}, which excluded images" if choice.narrowed_by else ""
    return NothingFits(
        f"no matching image in {registry.repository} runs on this host{lacking}",
        hint=f"build one here: invoke build --cpu host{narrowed}",
    )


def accept(
    registry: Registry, choice: Choice, note: indexes.Note = indexes.quietly, demand: referrers.Demand | None = None
) -> Accepted:
    """Return the best image that fits and is there, offered, signed (with `demand`) and the one described.

    Raises NothingFits if nothing was chosen, Altered if the best one was changed, VerificationFailed if none is signed,
    RegistryRefused if all are missing, damaged or yanked. Whoever may push can add any number of rows to an index, so
    that all means the first hundred.
    """
    if choice.best is None:
        raise nothing_fits(registry, choice)
    fitting = choice.fitting[:MOST_ASKED]
    passed_over: list[PassedOver] = []
    unsigned: list[VerificationFailed] = []
    try:
        for position, (image, manifest) in enumerate(_read_ahead(registry, fitting)):
            try:
                if isinstance(manifest, Exception):
                    raise manifest
                reason = _against(registry, image, manifest, demand, unsigned)
            except VerificationFailed as error:
                rest = choice.among(fitting[position + 1 :])
                raise Altered(error, image, _second(registry, rest, demand)) from error
            except Damaged:
                reason = DAMAGED
            if isinstance(manifest, Manifest) and not reason:
                return Accepted(image=image, manifest=manifest, passed_over=tuple(passed_over))
            passed_over.append(PassedOver(id=image.id, reason=reason, notable=True))
        if unsigned:
            raise unsigned[0]
    except VerificationFailed:
        # The error does not say what was passed over; every other result does.
        for line in choose.passed_over_lines(passed_over):
            note(line)
        raise
    raise _none_left(registry, passed_over)


def _none_left(registry: Registry, passed_over: Sequence[PassedOver]) -> RegistryRefused:
    what = f"{registry.repository} has no image that can be pulled"
    if len(passed_over) == MOST_ASKED:
        what = f"none of the first {MOST_ASKED} images of {registry.repository} that fit can be pulled"
    return RegistryRefused(
        f"{what}: {'; '.join(choose.passed_over_lines(passed_over))}",
        hint="push one of them again; or try again later, or from another network",
    )


def _read_ahead(
    registry: Registry, images: Sequence[Published]
) -> Iterator[tuple[Published, Manifest | Damaged | None]]:
    """Yield each image with its manifest, or why that cannot be used; of many that are missing, several at once."""

    def read(digest: str) -> Manifest | Damaged | None:
        try:
            return registry.manifest(digest)
        except Damaged as error:
            return error

    begin, count = 0, 1
    while begin < len(images):
        some = images[begin : begin + count]
        yield from zip(some, parallel(read, [image.digest for image in some]), strict=True)
        begin, count = begin + count, min(2 * count, MOST_READ_AHEAD)


def _against(
    registry: Registry,
    image: Published,
    manifest: Manifest | None,
    demand: referrers.Demand | None,
    unsigned: list[VerificationFailed],
) -> str:
    """Return why an image is passed over, or "". Raises VerificationFailed if it was changed, Damaged if it is.

    The refusal by `demand` is added to `unsigned`.
    """
    if manifest is None:
        return MISSING
    if demand is not None:
        try:
            demand(f"{registry.repository}@{image.digest}")
        except VerificationFailed as error:
            unsigned.append(error)
            return "no signature that cosign accepts"
    rows = _refuse_other(registry, image, manifest, demand)
    yanked = attachments.yank_reason(registry, manifest, rows)
    return f"it was yanked: {yanked}" if yanked else registry.damage(manifest)


def _second(registry: Registry, choice: Choice, demand: referrers.Demand | None) -> Published | None:
    try:
        return accept(registry, choice, demand=demand).image
    except Altered as error:
        return error.second
    except (NothingFits, VerificationFailed, RegistryRefused):
        return None


def _refuse_other(
    registry: Registry, indexed: Published, manifest: Manifest, demand: referrers.Demand | None
) -> referrers.Rows:
    """Return what is attached to an image that has the labels that its index names, and attestations that are about it.

    Its provenance names its manifest, its configuration, its labels and its report, and the SBOM that is attached.
    Raises VerificationFailed if something differs, Damaged if something is missing or not what the registry stores.
    """
    if manifest.media_type not in manifests.IMAGES:
        raise VerificationFailed(f"it is not an image but {manifest.media_type or 'of an unknown type'}")
    config = registry.config(manifest)
    if indexes.of_config(config, manifest.digest) != indexed:
        raise VerificationFailed(f"it has other labels than its index says ({manifest.digest})")
    rows = referrers.listed(registry, manifest.digest)
    statement = check.statements(registry, manifest, configured_labels(config), rows, demand)[-1]
    if not statement.resource(provenance.report_name(indexed.id)).sha256:
        raise VerificationFailed("its provenance names no report")
    bill = statement.resource(provenance.sbom_name(indexed.id)).sha256
    if not bill or bill not in referrers.contents(registry, manifest, referrers.SBOM, rows):
        raise VerificationFailed(f"the SBOM that its provenance names is not attached to it ({bill or 'none'})")
    return rows


# --- older indexes ----------------------------------------------------------------------------------------------------
#
# Whoever may push can put an older index back, with its genuine signature. Each index has a number that only grows, and
# `push --sign` signs the index. `pull --signed` remembers the largest number that it saw with an accepted signature. A
# host that has seen none cannot know.


def seen_file(env: Mapping[str, str]) -> Path:
    """Return the file with the largest numbers that this user has seen."""
    # A user without a name and HOME is at home in /, as in Docker's containers; Path.home() would raise.
    home = os.path.join("/", os.path.expanduser("~").removeprefix("~"))
    return Path(env.get("XDG_STATE_HOME") or Path(home) / ".local" / "state") / "tfbuild" / "indexes.json"


def _refuse_older(registry: Registry, tag: str, index: Manifest, demand: referrers.Demand, note: indexes.Note) -> None:
    """Raise VerificationFailed if an index is older than a signed one that was seen, or is not signed any more."""
    name, path = f"{registry.repository}:{tag}", seen_file(os.environ)
    seen = _seen(path)
    last, number = seen.get(name, 0), indexes.number_of(index)
    hint = f"do not use it, and tell whoever publishes it; to accept it, remove {path}"
    try:
        demand(f"{registry.repository}@{index.digest}")
    except VerificationFailed as error:
        if last:
            raise VerificationFailed(
                f"the index {name} has no accepted signature, but this host has seen one: {error.reason}", hint=hint
            ) from error
        note(f"the index {name} has no accepted signature, so an older one would not be noticed")
        return
    if number < last:
        raise VerificationFailed(
            f"the index {name} has the number {number}, and this host has seen {last}: somebody put an older one back",
            hint=hint,
        )
    if number > last:
        _remember(path, {**seen, name: number}, note)


def _seen(path: Path) -> dict[str, int]:
    try:
        rows = decode(read_regular(path, MOST_SEEN), dict[str, object])
    except (OSError, ValueError):
        return {}
    return {name: number for name, number in rows.items() if isinstance(number, int)}


def _remember(path: Path, seen: Mapping[str, int], note: indexes.Note) -> None:
    try:
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(seen, indent=2, sort_keys=True))
    except TfbuildError as error:
        note(f"an older index will not be noticed: {error.reason}")


# --- pulling ----------------------------------------------------------------------------------------------------------


def pull(engine: Engine, registry: Registry, accepted: Accepted, progress: Progress) -> str:
    """Download an image, and return its name on this engine. Raises RegistryRefused if another one arrives."""
    reference = f"{registry.repository}@{accepted.image.digest}"
    transfer.again(lambda: engine.pull(reference, progress), progress)
    arrived = engine.image(reference)
    own = indexes.of_labels(arrived.labels, accepted.image.created, accepted.image.digest)
    if arrived.id not in accepted.manifest.ids or own != accepted.image:
        raise RegistryRefused(f"{reference} is another image on this engine", hint=f"docker image rm {reference}")
    name = f"{registry.repository}:{accepted.image.id}"
    engine.tag(reference, name)
    return name
