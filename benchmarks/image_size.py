"""What an image weighs and how long its `import tensorflow` takes, against its wheel and against a naive image.

    .venv/bin/python -m benchmarks.image_size [--base bootstrap] [--rounds 15]

The lower bound of the size is what TensorFlow itself needs: the files of its wheel without headers, the libraries
stripped. The naive image is what most Dockerfiles do: apt's python3 and pip (lists and caches removed), `pip install
tensorflow-cpu`. Both images stand on the same base and are built here. Import times are taken inside the containers, in
interleaved rounds in shuffled order, and compared round by round.

Needs binutils and Internet access.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness import record, rounds
from tfbuild import plan
from tfbuild.cli.options import certificates
from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.measure.evaluate import interval
from tfbuild.pipeline import base_image, build_context
from tfbuild.pipeline.build_context import Base
from tfbuild.plan import Build, Request
from tfbuild.util.progress import Progress

TAG = "tfbuild-benchmark"
# Wall and CPU seconds of the import alone; on a busy machine the latter is the steadier one.
IMPORT = """
import os, time
wall, cpu = time.perf_counter(), time.process_time()
import tensorflow
print(time.perf_counter() - wall, time.process_time() - cpu)
"""
NAIVE = """
FROM {base}
RUN apt-get update \\
    && apt-get install --yes --no-install-recommends python3 python3-pip ca-certificates \\
    && apt-get clean && rm -rf /var/lib/apt/lists/*
RUN --mount=type=secret,id=ca {ca}pip install --break-system-packages --no-cache-dir {requirement}
"""


@dataclass(frozen=True, kw_only=True)
class Site:
    """The folder and the network of the builds, and the site's CA certificates, if it has its own."""

    folder: Path
    network: str
    ca: Path | None


@dataclass(frozen=True, kw_only=True)
class Seconds:
    wall: float
    cpu: float


def unpack_wheel(build: Build, folder: Path) -> Path:
    """Download the wheel of the build from PyPI and return the folder with its files."""
    words = ["--only-binary", ":all:", "--no-deps", "--python-version", build.python, "--dest", str(folder)]
    words += ["--platform", f"manylinux_2_27_{plan.PLATFORMS[build.platform]}", build.wheel.requirement]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *words], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "wheel")
    return folder / "wheel"


def keep_what_runs(wheel: Path) -> None:
    """Delete the headers and strip the libraries."""
    shutil.rmtree(wheel / "tensorflow" / "include")
    subprocess.run(["strip", "--strip-unneeded", *filter(Path.is_file, wheel.rglob("*.so*"))], check=True)


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def make_naive(engine: Engine, build: Build, ground: Base, site: Site) -> str:
    context = site.folder / "naive"
    context.mkdir()
    certificate = "PIP_CERT=/run/secrets/ca " if site.ca else ""
    text = NAIVE.format(base=ground.reference, ca=certificate, requirement=build.wheel.requirement)
    (context / "Dockerfile").write_text(text)
    return make(engine, context, "naive", site, {})


def make_tfbuild(engine: Engine, build: Build, ground: Base, site: Site) -> str:
    context = build_context.write_context(build, site.folder / "tfbuild")
    return make(engine, context.folder, "tfbuild", site, dict(build_context.build_args(ground, context)))


def make(engine: Engine, context: Path, name: str, site: Site, arguments: dict[str, str]) -> str:
    secrets = {"ca": site.ca} if site.ca else {}
    settings = BuildSettings(
        log=site.folder / f"{name}.log",
        progress=Progress(),
        tag=f"{TAG}:{name}",
        build_args=arguments,
        secrets=secrets,
        network=site.network,
    )
    engine.build(context, settings)
    return settings.tag


def import_seconds(engine: Engine, image: str, python: str) -> Seconds:
    done = engine.run(image, [python, "-c", IMPORT])
    if done.exit_code:
        raise SystemExit(f"import tensorflow failed in {image}:\n{done.stderr[-2000:]}")
    wall, cpu = done.stdout.split()[-2:]
    return Seconds(wall=float(wall), cpu=float(cpu))


def sizes(of: dict[str, int]) -> str:
    return ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in of.items())


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="auto", help="as in `invoke build`; it must be a Debian without Python")
    parser.add_argument("--network", default="", help="of the builds, as in `invoke build`")
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def main() -> None:
    chosen = options()
    engine = Engine.connect()
    build = plan.select(Request(wheel="official", target="cpu", platform=engine.platform), None)
    ca = certificates("")
    with tempfile.TemporaryDirectory(prefix="tfbuild-benchmark-") as scratch:
        folder = Path(scratch)
        site = Site(folder=folder, network=chosen.network, ca=ca)
        image, distribution, log = build.base_image, build.base_distribution, folder / "base.log"
        ground = base_image.resolve(engine, image, distribution, chosen.base, progress=Progress(), log=log, ca_cert=ca)
        naive = make_naive(engine, build, ground, site)
        slim = make_tfbuild(engine, build, ground, site)
        wheel = unpack_wheel(build, folder)
        size = {"wheel": bytes_of(wheel)}
        keep_what_runs(wheel)
        size["wheel_stripped"] = bytes_of(wheel)
    images = {"base": ground.reference, "naive": naive, "tfbuild": slim}
    size |= {name: engine.image(ref).size for name, ref in images.items()}
    print(f"{build.wheel.requirement} on {ground.name}: " + sizes(size))

    measurements = {
        image: partial(import_seconds, engine, image, python)
        for image, python in ((naive, "python3"), (slim, "python"))
    }
    pairs = rounds(measurements, chosen.rounds)
    wall = interval([pair[slim].wall / pair[naive].wall for pair in pairs])
    cpu = interval([pair[slim].cpu / pair[naive].cpu for pair in pairs])
    assert wall
    assert cpu
    for name, found in (("wall", wall), ("CPU", cpu)):
        print(
            f"import, {name} time: {found.median:.3f} [{found.low:.3f}, {found.high:.3f}] of naive, {len(pairs)} rounds"
        )
    results = {
        "requirement": build.wheel.requirement,
        "bytes": size,
        "wheel_ratio": size["tfbuild"] / size["wheel_stripped"],
        "size_ratio": size["tfbuild"] / size["naive"],
        "import_wall_ratio": asdict(wall),
        "import_cpu_ratio": asdict(cpu),
        "import_seconds": [{"naive": asdict(pair[naive]), "tfbuild": asdict(pair[slim])} for pair in pairs],
    }
    print(record("image_size", results))


if __name__ == "__main__":
    main()
