"""Fetch allocators that an image lacks from its distribution's packages, as files for the benchmark's containers."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfbuild.context.dockerfile import TEMPLATES
from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import TfbuildError, UnknownImage
from tfbuild.measure.experiments import Experiment
from tfbuild.measure.records import Finding
from tfbuild.util.files import temporary_folder
from tfbuild.util.progress import Progress

# Where experiments.toml's LD_PRELOAD looks first.
FOLDER = "/tfbuild-bench/lib"
SECONDS = 120.0
# Nothing is installed: the library is extracted from each package under the name by which programs load it. Package
# names differ between releases (libmimalloc2.0 and 3, libtcmalloc-minimal4t64). Do not wait for a mirror that does not
# answer. TCMalloc is fetched only if the image's loader finds none, since tfbuild's images have it.
FETCH = r"""
set -eu
. /mnt/network.sh
apt="apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15"
$apt -o APT::Update::Error-Mode=any update
mkdir -p /out /tmp/packages && cd /tmp/packages
known() { apt-cache pkgnames "$1" | grep "^$1$2\$" | sort -V | head -n 1; }
tcmalloc=
case $(LD_PRELOAD=libtcmalloc_minimal.so.4 env true 2>&1) in
    *"cannot be preloaded"*) tcmalloc=$(known libtcmalloc-minimal '[0-9]*\(t64\)\?') ;;
esac
for one in libjemalloc2 "$(known libmimalloc '[0-9.]*')" "$tcmalloc"; do
    [ -z "$one" ] || $apt -o APT::Sandbox::User=root download "$one" || echo "no $one" >&2
done
for deb in *.deb; do dpkg-deb --extract "$deb" unpacked; done
for name in jemalloc.so.2 mimalloc.so.2 tcmalloc_minimal.so.4; do
    file=$(find unpacked -name "lib${name%.*}.[0-9]*" -type f | head -n 1)
    [ -z "$file" ] || cp "$file" "/out/lib$name"
done
ls *.deb | sed 's/_[^_]*$//; s/%3a/:/' > /out/packages
"""
DOCKERFILE = """\
FROM {image} AS fetched
USER 0
RUN --mount=type=tmpfs,target=/mnt --mount=type=secret,id=ca,target=/mnt/ca \\
    --mount=type=bind,source=network.sh,target=/mnt/network.sh \\
    --mount=type=bind,source=fetch.sh,target=/mnt/fetch.sh \\
    LD_PRELOAD= sh /mnt/fetch.sh

FROM scratch AS libraries
COPY --from=fetched /out/ /
"""


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """`files` by their paths in a container, and the `packages` ("libjemalloc2_5.3.0-1") that they come from."""

    files: Mapping[str, bytes]
    packages: tuple[str, ...]


def wanted(row: Experiment) -> bool:
    """Whether an arm of the row preloads a fetched allocator."""
    return any(FOLDER in arm.env.get("LD_PRELOAD", "") for case in row.case for arm in row.arms(case))


def fetch(engine: Engine, image: str, ca: Path | None, seconds: float = SECONDS) -> Libraries:
    """Fetch the allocators for an image; the engine's build cache keeps them.

    Raises TfbuildError, TimeoutError or OSError if the image has no apt, or if no package can be downloaded.
    """
    details = engine.image(image)
    names = (*details.tags, *details.repo_digests)
    if not names:
        raise UnknownImage(f"{image} has no name, which FROM requires", hint="docker tag IMAGE NAME")
    with temporary_folder() as temporary:
        folder, output = temporary / "context", temporary / "out"
        folder.mkdir()
        (folder / "network.sh").write_bytes((TEMPLATES / "network.sh").read_bytes())
        (folder / "fetch.sh").write_text(FETCH, encoding="utf-8")
        (folder / "Dockerfile").write_text(DOCKERFILE.format(image=names[0]), encoding="utf-8")
        settings = BuildSettings(
            secrets={"ca": ca} if ca else {},
            log=temporary / "log",
            # Hide the progress: this build only copies a few files.
            progress=Progress(io.StringIO()),
            seconds=seconds,
        )
        engine.export(folder, settings, stage="libraries", output=output)
        files = {f"{FOLDER}/{file.name}": file.read_bytes() for file in sorted(output.glob("*.so.*"))}
        return Libraries(files=files, packages=tuple((output / "packages").read_text().split()))


def bring(engine: Engine, image: str, ca: Path | None, seconds: float = SECONDS) -> tuple[Mapping[str, bytes], Finding]:
    """Return files for the containers, and a finding that says where they come from or why there are none."""
    try:
        libraries = fetch(engine, image, ca, seconds)
    except (TfbuildError, TimeoutError, OSError) as error:
        why = error.reason if isinstance(error, TfbuildError) else str(error)
        return {}, Finding(text=f"no other allocator could be fetched: {' '.join(why.split())[-300:]}", values={})
    text = f"allocators added from the packages of the image's distribution: {', '.join(libraries.packages)}"
    return libraries.files, Finding(text=text, values={})
