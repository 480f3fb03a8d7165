"""What an image weighs and how long its `import tensorflow` takes, against the naive image of the same wheel.

    .venv/bin/python -m benchmarks.image_size [--base bootstrap] [--rounds 15]

Naive is what most Dockerfiles do: apt's python3 and pip (lists and caches removed), `pip install tensorflow-cpu`. Both
stand on the same base and are built here. Targets: at most 0.60 of the size; the import no slower. Import times are
taken inside the containers, in interleaved rounds in shuffled order, and compared round by round.
"""

import argparse
import os
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness import record, rounds
from tfbuild import plan
from tfbuild.context import dockerfile
from tfbuild.engine import Engine, Progress
from tfbuild.engine.build import BuildSettings
from tfbuild.measure.intervals import interval
from tfbuild.pipeline import base_image
from tfbuild.pipeline.base_image import ResolvedBase
from tfbuild.plan import Build, Request

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
class Seconds:
    wall: float
    cpu: float


def make_naive(engine: Engine, build: Build, ground: ResolvedBase, folder: Path, ca: Path | None) -> str:
    context = folder / "naive"
    context.mkdir()
    certificate = "PIP_CERT=/run/secrets/ca " if ca else ""
    text = NAIVE.format(base=ground.reference, ca=certificate, requirement=build.wheel.requirement)
    (context / "Dockerfile").write_text(text)
    return make(engine, context, "naive", folder, ca, {})


def make_tfbuild(engine: Engine, build: Build, ground: ResolvedBase, folder: Path, ca: Path | None) -> str:
    context = dockerfile.write(build, folder / "tfbuild")
    return make(engine, context.folder, "tfbuild", folder, ca, dict(dockerfile.build_args(ground, context)))


def make(engine: Engine, context: Path, name: str, folder: Path, ca: Path | None, arguments: dict[str, str]) -> str:
    secrets = {"ca": ca} if ca else {}
    log = folder / f"{name}.log"
    settings = BuildSettings(log=log, progress=Progress(), build_args=arguments, secrets=secrets)
    engine.build(context, settings, tag=f"{TAG}:{name}")
    return f"{TAG}:{name}"


def import_seconds(engine: Engine, image: str, python: str) -> Seconds:
    done = engine.run(image, [python, "-c", IMPORT])
    if done.exit_code:
        raise SystemExit(f"import tensorflow failed in {image}:\n{done.stderr[-2000:]}")
    wall, cpu = done.stdout.split()[-2:]
    return Seconds(wall=float(wall), cpu=float(cpu))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="auto", help="as in `invoke build`; it must be a Debian without Python")
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def main() -> None:
    chosen = options()
    engine = Engine.connect()
    build = plan.select(Request(wheel="official", target="cpu", platform=engine.platform), None)
    site = os.environ.get("SSL_CERT_FILE", "")
    ca = Path(site) if site else None
    with tempfile.TemporaryDirectory(prefix="tfbuild-benchmark-") as scratch:
        folder = Path(scratch)
        image, distribution, log = build.base_image, build.base_distribution, folder / "base.log"
        ground = base_image.resolve(engine, image, distribution, chosen.base, progress=Progress(), log=log, ca_cert=ca)
        naive = make_naive(engine, build, ground, folder, ca)
        slim = make_tfbuild(engine, build, ground, folder, ca)
    size = {
        name: engine.image(ref).size for name, ref in (("base", ground.reference), ("naive", naive), ("tfbuild", slim))
    }
    ratio = size["tfbuild"] / size["naive"]
    print(f"{build.wheel.requirement} on {ground.name} ({size['base'] / 1e6:.0f} MB)")
    print(f"naive {size['naive'] / 1e6:.0f} MB, tfbuild {size['tfbuild'] / 1e6:.0f} MB: {ratio:.3f} (at most 0.60)")

    measurements = {
        image: partial(import_seconds, engine, image, python)
        for image, python in ((naive, "python3"), (slim, "python"))
    }
    pairs = rounds(measurements, chosen.rounds)
    wall = interval([pair[slim].wall / pair[naive].wall for pair in pairs])
    cpu = interval([pair[slim].cpu / pair[naive].cpu for pair in pairs])
    for name, found in (("wall", wall), ("CPU", cpu)):
        print(
            f"import, {name} time: {found.median:.3f} [{found.low:.3f}, {found.high:.3f}] of naive, {len(pairs)} rounds"
        )
    results: dict[str, object] = {
        "requirement": build.wheel.requirement,
        "bytes": size,
        "size_ratio": ratio,
        "import_wall_ratio": asdict(wall),
        "import_cpu_ratio": asdict(cpu),
        "import_seconds": [{"naive": asdict(pair[naive]), "tfbuild": asdict(pair[slim])} for pair in pairs],
    }
    print(record("image_size", results))


if __name__ == "__main__":
    main()
