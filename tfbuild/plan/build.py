"""What is decided: a frozen value, and the request that makes it again."""

from dataclasses import dataclass, field, fields

from tfbuild.cpu import isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.plan.amendments import Override, Patch, SystemLibrary
from tfbuild.plan.failures import Failure
from tfbuild.plan.request import Request
from tfbuild.plan.source import Source
from tfbuild.plan.wheel import Wheel
from tfbuild.util import options

MACHINES = isa.MACHINES
PLATFORMS = {platform: arch for arch, platform in MACHINES.items()}
# A virtual environment in the builder, with what TensorFlow's own build imports.
BUILD_PYTHON = "/opt/build/bin/python3"


@dataclass(frozen=True, kw_only=True)
class Build:
    """One image, with everything resolved. A CPU must have the instruction set's features to run it.

    If nothing is compiled, `bazel`, `bazel_target`, `configs` and `configure_env` are empty; `copts` and `compiler` are
    then those of the existing wheel, as far as they are known.
    """

    release: str
    python: str
    target: str
    platform: str
    instruction_set: InstructionSet
    wheel: Wheel
    base_image: str
    base_distribution: str
    with_headers: bool
    compiler: str = ""
    copts: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    bazel: str = ""
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
    patches: tuple[Patch, ...] = ()
    overrides: tuple[Override, ...] = ()
    system_libs: tuple[SystemLibrary, ...] = ()
    # The known failures whose fixes change the tree or Bazel's flags.
    fixes: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    # How it differs from the default build of the same release, target, Python and instruction set.
    variant: tuple[str, ...] = ()
    asked: Request = field(default_factory=Request)

    @property
    def id(self) -> str:
        """The image's tag, the report's key and the name under dockerfiles/: 2.21.0-mkl-py3.11-f16c."""
        parts = (self.release, self.target, f"py{self.python}", self.instruction_set.name, *self.variant)
        return "-".join(parts)

    def to_json(self) -> dict[str, object]:
        """The plan's documented JSON: every field, with the instruction set as its name and features."""
        values = {row.name: getattr(self, row.name) for row in fields(self) if row.name != "asked"}
        return (
            {"id": self.id}
            | values
            | {
                "instruction_set": self.instruction_set.name,
                "level": self.instruction_set.level,
                "features": list(self.instruction_set.features),
                "configure_env": dict(self.configure_env),
                "bazel": self.bazel or None,
                "bazel_target": self.bazel_target or None,
                "wheel": self.wheel.to_json(),
                "source": self.source.to_json() if self.source else None,
                "patches": [row.to_json() for row in self.patches],
                "overrides": [row.to_json() for row in self.overrides],
                "system_libs": [row.to_json() for row in self.system_libs],
                "fixes": [row.id for row in self.fixes],
            }
        )


def resolved(build: Build) -> Request:
    """Return the request that makes this build on any day and machine, with only the names of files."""
    values = {}
    for name, row in options.declared(Request).items():
        field_name = name.replace("-", "_")
        values[field_name] = row.written(build) if row.written else getattr(build.asked, field_name)
    return Request(**values)
