"""A build: one image with everything that is decided about it."""

from dataclasses import dataclass, field, fields
from pathlib import Path

from tfbuild import facts
from tfbuild.cpu import isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.facts import releases, targets
from tfbuild.facts.release_table import CompileCost, spelled
from tfbuild.plan.cuda import Capability, parse_capabilities
from tfbuild.plan.failures import Failure
from tfbuild.plan.request import Request
from tfbuild.plan.source import Override, OwnFile, Source, SystemLibrary
from tfbuild.util import options

MACHINES = isa.MACHINES
PLATFORMS = {platform: arch for arch, platform in MACHINES.items()}
# A virtual environment in the builder, with what TensorFlow's own build imports.
BUILD_PYTHON = "/opt/build/bin/python3"
# The builder's folder for what replaces external repositories.
OVERRIDES = "/opt/overrides"


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """`kind`: "official" | "file" | "source". `requirement`: pip's requirement, or the file's name."""

    kind: str
    requirement: str
    constraints: tuple[str, ...]
    path: Path | None = None
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """What compiles the wheel.

    `packages`: Debian's, for the compiler and TensorFlow's own build; `system_packages`: those of system-lib;
    `requirements`: pip's. `llvm`: URL, suite, key and fingerprint of the apt repository with the compiler, () if the
    base's distribution has it. `bazelisk`: version, sha256 and architecture. `host_flags`: Bazel's, for tools that run
    on the builder; `machine_flags`: for a machine that can run what it compiles. `cuda_base`: what the base image must
    have if the compile takes CUDA from it, else "". `bolt`: the package of --bolt, else "". `cost`: what a compile of
    this or of a like release took.
    """

    packages: tuple[str, ...]
    system_packages: tuple[str, ...]
    requirements: tuple[str, ...]
    llvm: tuple[str, ...]
    bazelisk: tuple[str, str, str]
    host_flags: tuple[str, ...]
    machine_flags: tuple[str, ...]
    cuda_base: str
    bolt: str
    known_failures: tuple[Failure, ...]
    cost: CompileCost


@dataclass(frozen=True, kw_only=True)
class Build:
    """One image. A CPU must have the instruction set's features to run it.

    If nothing is compiled, `toolchain` is None, and `bazel`, `bazel_target`, `configs` and `configure_env` are empty;
    `copts` and `compiler` are then those of the existing wheel, as far as they are known. Its properties are what the
    facts say of such an image.
    """

    release: str
    python: str
    target: str
    platform: str
    instruction_set: InstructionSet
    wheel: Wheel
    base_image: str = ""
    base_distribution: str = ""
    with_headers: bool = False
    compiler: str = ""
    copts: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    bazel: str = ""
    own_bazel: Path | None = None
    bazel_target: str = ""
    bazel_flags: tuple[str, ...] = ()
    configure_env: tuple[tuple[str, str], ...] = ()
    threading: str = ""
    # Those of the GPU kernels, as the release spells them; () without CUDA.
    compute_capabilities: tuple[str, ...] = ()
    # The versions that it is compiled with; "" without CUDA.
    cuda: str = ""
    cudnn: str = ""
    source: Source | None = None
    patches: tuple[OwnFile, ...] = ()
    overrides: tuple[Override, ...] = ()
    hermetic_python: OwnFile | None = None
    system_libs: tuple[SystemLibrary, ...] = ()
    # The known failures whose fixes change the tree or Bazel's flags.
    fixes: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    # How it differs from the default build of the same release, target, Python and instruction set.
    variant: tuple[str, ...] = ()
    request: Request = field(default_factory=Request)
    toolchain: Toolchain | None = None

    @property
    def id(self) -> str:
        """The image's tag, the report's key and the name under dockerfiles/: 2.21.0-mkl-py3.11-f16c."""
        return "-".join((self.usual_id, *self.variant))

    @property
    def usual_id(self) -> str:
        """The identifier of the same build without what is unusual: patches, flags, another compiler."""
        return f"{self.release}-{self.target}-py{self.python}-{self.instruction_set.name}"

    @property
    def version(self) -> str:
        """The release as TensorFlow itself spells it."""
        return spelled(self.release)

    @property
    def onednn(self) -> bool:
        """Whether the image switches oneDNN on; else TensorFlow decides."""
        return targets.get(self.target).onednn

    @property
    def cuda_by_pip(self) -> bool:
        """Whether pip installs CUDA with a wheel that is not the official one; up to 2.17 its base has it."""
        return targets.get(self.target).cuda and not releases.cuda_from_base(self.release, self.target)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that tune TensorFlow."""
        names = (self.threading, "") if self.onednn else ()
        return {name: value for threading in names for name, value in releases.onednn_env(self.release, threading)}

    @property
    def untuned(self) -> dict[str, str]:
        """The variables that undo all tuning."""
        return {"LD_PRELOAD": ""} | {name: "" for name, _ in releases.onednn_env(self.release)}

    @property
    def checks(self) -> tuple[str, ...]:
        """The target's own checks."""
        return targets.get(self.target).checks

    @property
    def known_defects(self) -> tuple[str, ...]:
        """The parts of the numerics check that the release gets wrong."""
        return releases.known_defects(self.release)

    @property
    def required(self) -> tuple[str, ...]:
        """The features that the entry point checks, by their names in /proc/cpuinfo."""
        return facts.cpuinfo_names(self.instruction_set.features)

    @property
    def gpus(self) -> tuple[Capability, ...]:
        """The compute capabilities that its kernels are compiled for."""
        return parse_capabilities(",".join(self.compute_capabilities)) if self.compute_capabilities else ()

    @property
    def as_released(self) -> tuple[str, str]:
        """The release's day and commit; "" for patched TensorFlow or another source."""
        from_git = self.source is not None and self.source.kind == "git" and not self.patches
        row = releases.get(self.release)
        return (row.date, row.commit) if self.wheel.kind == "official" or from_git else ("", "")

    def resolved(self) -> Request:
        """Return the request that makes this build on any day and machine, with only the names of files."""
        values = {}
        for name, row in options.declared(Request).items():
            field_name = name.replace("-", "_")
            values[field_name] = row.written(self) if row.written else getattr(self.request, field_name)
        return Request(**values)

    def to_json(self) -> dict[str, object]:
        """The plan's documented JSON: every field, with the instruction set as its name and features."""
        names = [row.name for row in fields(Build) if row.name not in ("request", "toolchain")]
        values = {name: getattr(self, name) for name in names}
        return (
            {"id": self.id}
            | values
            | {
                "instruction_set": self.instruction_set.name,
                "level": self.instruction_set.level,
                "features": list(self.instruction_set.features),
                "configure_env": dict(self.configure_env),
                "bazel": self.bazel or None,
                "own_bazel": {"version": self.bazel, "path": str(self.own_bazel)} if self.own_bazel else None,
                "bazel_target": self.bazel_target or None,
                "wheel": _row(self.wheel, but="path"),
                "source": _row(self.source) if self.source else None,
                "patches": [_row(row) for row in self.patches],
                "hermetic_python": _row(self.hermetic_python) if self.hermetic_python else None,
                "overrides": [_row(row) for row in self.overrides],
                "system_libs": [{"name": row.name, "packages": list(row.packages)} for row in self.system_libs],
                "fixes": [row.id for row in self.fixes],
            }
        )


def _row(value: "Wheel | Source | OwnFile | Override", but: str = "") -> dict[str, object]:
    """Return a part of the plan as JSON, with null where it is empty."""
    rows = {name: list(row) if isinstance(row, tuple) else row for name, row in vars(value).items() if name != but}
    return {name: str(row) if isinstance(row, Path) else None if row == "" else row for name, row in rows.items()}
