"""Export a compiled wheel: its file, and beside it a JSON file that says how it was built."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from tfbuild import __version__
from tfbuild.errors import BuildFailed
from tfbuild.pipeline import wheel_audit
from tfbuild.pipeline.wheel_audit import Audit
from tfbuild.plan import Build, source
from tfbuild.util.files import replace_file, whole

SCHEMA = "tfbuild.wheel/1"


@dataclass(frozen=True, kw_only=True)
class Built:
    """What the builder recorded: its own digest, and the versions that the compiler and Bazel print."""

    builder: str
    compiler: str
    bazel: str
    source_commit: str


@dataclass(frozen=True, kw_only=True)
class Exported:
    wheel: Path
    sidecar: Path
    sha256: str
    audit: Audit


def collect(build: Build, scratch: Path, output: Path, *, context: str, base: str) -> Exported:
    """Move the wheel from the builder's `scratch` folder to `output`, and write its sidecar there.

    `context` and `base`: digests. Raises BuildFailed where the builder made no wheel, more than one, or one without
    machine code.
    """
    wheels = sorted(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildFailed(f"the compile made {len(wheels)} wheels, not one", hint=f"they are in {scratch}")
    output.mkdir(parents=True, exist_ok=True)
    wheel = output / wheels[0].name
    sidecar = output / f"{wheel.name}.json"
    with whole(wheel) as part:
        shutil.move(wheels[0], part)
        # The sidecar of an earlier wheel must not stay beside this one, should this one be refused below.
        sidecar.unlink(missing_ok=True)
    sha256 = source.digest(wheel)
    built = _read(scratch / "build.txt")
    audit = wheel_audit.check(wheel)
    content = _facts(build, wheel, sha256, built, context=context, base=base) | {"audit": audit.to_json()}
    replace_file(sidecar, json.dumps(content, indent=2) + "\n")
    return Exported(wheel=wheel, sidecar=sidecar, sha256=sha256, audit=audit)


def _facts(build: Build, wheel: Path, sha256: str, built: Built, *, context: str, base: str) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "tfbuild": __version__,
        "wheel": wheel.name,
        "sha256": sha256,
        "builder": built.builder,
        "compiler": built.compiler,
        "bazel": built.bazel or None,
        "source_commit": built.source_commit or None,
        "base": base or None,
        "context": context,
        "plan": build.to_json(),
    }


def _read(path: Path) -> Built:
    lines = (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines())
    recorded = {name: value for name, _, value in lines}
    return Built(**{name: recorded.get(name, "") for name in Built.__dataclass_fields__})
